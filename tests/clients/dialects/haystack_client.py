"""Haystack: embedders in OpenAI's words, and TEI's embedders and ranker."""

import openai
from checks import QUERY, TEXTS, VECTORS, expect_close, expect_equal, expect_raised, run
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import HuggingFaceAPITextEmbedder
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker


def openai_embedder(kind, url, key, model="embedding"):
    return kind(api_key=Secret.from_token(key), model=model, api_base_url=f"{url}/v1", max_retries=0)


def ranker(url, key):
    return HuggingFaceTEIRanker(url=url, top_k=3, max_retries=1, token=Secret.from_token(key))


def embeddings_are_the_models(url, key):
    documents = [Document(content=text) for text in TEXTS]
    found = openai_embedder(OpenAIDocumentEmbedder, url, key).run(documents=documents)["documents"]
    expect_close("vectors", [document.embedding for document in found], VECTORS)
    found = openai_embedder(OpenAITextEmbedder, url, key).run(text=TEXTS[0])
    expect_close("a vector", found["embedding"], VECTORS[0])
    tei = HuggingFaceAPITextEmbedder(
        api_type="text_embeddings_inference",
        api_params={"url": f"{url}/tei/embedding"},
        token=Secret.from_token(key),
        normalize=True,
    )
    expect_close("a vector of TEI", tei.run(text=TEXTS[0])["embedding"], VECTORS[0])


def documents_are_ranked(url, key):
    found = ranker(url, key).run(query=QUERY, documents=[Document(content=text) for text in TEXTS])["documents"]
    scores = [document.score for document in found]
    expect_equal("how many", len(scores), 3)
    expect_equal("their order", scores, sorted(scores, reverse=True))


def errors_are_the_librarys(url, key):
    embed = lambda **options: openai_embedder(OpenAITextEmbedder, url, **options).run(text="a")  # noqa: E731
    expect_raised("a wrong key", openai.AuthenticationError, lambda: embed(key="wrong"))
    expect_raised("an unknown model", openai.NotFoundError, lambda: embed(key=key, model="nobody"))
    documents = [Document(content="a")]
    expect_raised(
        "a wrong key for TEI",
        RuntimeError,
        lambda: ranker(url, "wrong").run(query="q", documents=documents),
        "401",
    )


def a_full_server_is_a_rate_limit(url, key):
    embed = openai_embedder(OpenAITextEmbedder, url, key).run
    expect_raised("a full server", openai.RateLimitError, lambda: embed(text="a"))


run(
    {
        "serving": [embeddings_are_the_models, documents_are_ranked, errors_are_the_librarys],
        "full": [a_full_server_is_a_rate_limit],
    }
)
