"""Haystack: embedders in OpenAI's words, and TEI's embedders and ranker."""

import openai
from checks import QUERY, TEXTS, TOO_LARGE, VECTORS, expect_close, expect_equal, expect_raised, expect_status, run
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import HuggingFaceAPITextEmbedder
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from huggingface_hub.errors import HfHubHTTPError


def openai_embedder(kind, url, key, model="embedding"):
    return kind(api_key=Secret.from_token(key), model=model, api_base_url=f"{url}/v1", max_retries=0)


def tei_embedder(url, key, model="embedding"):
    return HuggingFaceAPITextEmbedder(
        api_type="text_embeddings_inference",
        api_params={"url": f"{url}/tei/{model}"},
        token=Secret.from_token(key),
        normalize=True,
    )


def ranker(url, key):
    return HuggingFaceTEIRanker(url=url, top_k=3, max_retries=1, token=Secret.from_token(key))


def refused(url, key, status, error):
    """Each component raises its own error."""
    embedder = openai_embedder(OpenAITextEmbedder, url, key)
    expect_status("OpenAI's embedder", status, error, lambda: embedder.run(text="a"))
    expect_status("TEI's embedder", status, HfHubHTTPError, lambda: tei_embedder(url, key).run(text="a"))
    rank = lambda: ranker(url, key).run(query="q", documents=[Document(content="a")])  # noqa: E731
    expect_raised("TEI's ranker", RuntimeError, rank, str(status))


def embeddings_are_the_models(url, key):
    documents = [Document(content=text) for text in TEXTS]
    found = openai_embedder(OpenAIDocumentEmbedder, url, key).run(documents=documents)["documents"]
    expect_close("vectors", [document.embedding for document in found], VECTORS)
    found = openai_embedder(OpenAITextEmbedder, url, key).run(text=TEXTS[0])
    expect_close("a vector", found["embedding"], VECTORS[0])
    expect_close("a vector of TEI", tei_embedder(url, key).run(text=TEXTS[0])["embedding"], VECTORS[0])


def documents_are_ranked(url, key):
    found = ranker(url, key).run(query=QUERY, documents=[Document(content=text) for text in TEXTS])["documents"]
    scores = [document.score for document in found]
    expect_equal("how many", len(scores), 3)
    expect_equal("their order", scores, sorted(scores, reverse=True))


def errors_are_the_librarys(url, key):
    embed = lambda text="a", **options: openai_embedder(OpenAITextEmbedder, url, **options).run(text=text)  # noqa: E731
    expect_raised("an unknown model", openai.NotFoundError, lambda: embed(key=key, model="nobody"))
    expect_status("a body that is too large", 413, openai.APIStatusError, lambda: embed(TOO_LARGE, key=key))
    tei = lambda text, model="embedding": tei_embedder(url, key, model).run(text=text)  # noqa: E731
    expect_status("an unknown model of TEI", 404, HfHubHTTPError, lambda: tei("a", "nobody"))
    expect_status("an operation that TEI's model has not", 424, HfHubHTTPError, lambda: tei("a", "reranker/embed"))
    expect_status("a body that is too large for TEI", 413, HfHubHTTPError, lambda: tei(TOO_LARGE))
    rank = lambda text: ranker(url, key).run(query=text, documents=[Document(content="a")])  # noqa: E731
    expect_raised("a body that is too large for TEI's ranker", RuntimeError, lambda: rank(TOO_LARGE), "413")


def a_wrong_key_is_401(url, _):
    refused(url, "wrong", 401, openai.AuthenticationError)


def a_full_queue_is_a_rate_limit(url, key):
    refused(url, key, 429, openai.RateLimitError)


def a_model_that_is_not_ready_is_503(url, key):
    refused(url, key, 503, openai.InternalServerError)


run(
    serving=[embeddings_are_the_models, documents_are_ranked, errors_are_the_librarys, a_wrong_key_is_401],
    full=[a_full_queue_is_a_rate_limit],
    unready=[a_model_that_is_not_ready_is_503],
)
