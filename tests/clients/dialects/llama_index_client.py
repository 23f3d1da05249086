"""LlamaIndex: embeddings in OpenAI's words and in TEI's, and TEI's reranker."""

import openai
from checks import QUERY, TEXTS, VECTORS, expect_close, expect_equal, expect_raised, run
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference as Reranker


def openai_like(url, key, model="embedding"):
    return OpenAILikeEmbedding(model_name=model, api_base=f"{url}/v1", api_key=key, max_retries=0)


def embeddings_are_the_models(url, key):
    expect_close("vectors", openai_like(url, key).get_text_embedding_batch(TEXTS), VECTORS)
    client = TextEmbeddingsInference(
        model_name="embedding", base_url=f"{url}/tei/embedding", auth_token=key, text_instruction="", query_instruction=""
    )
    expect_close("vectors of TEI", client.get_text_embedding_batch(TEXTS), VECTORS)


def documents_are_ranked(url, key):
    # Its token is the whole header.
    client = Reranker(base_url=f"{url}/tei/reranker", top_n=3, auth_token=f"Bearer {key}")
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
    found = client.postprocess_nodes(nodes, query_bundle=QueryBundle(QUERY))
    scores = [node.score for node in found]
    expect_equal("how many", len(scores), 3)
    expect_equal("their order", scores, sorted(scores, reverse=True))


def errors_are_the_librarys(url, key):
    embed = lambda **options: openai_like(url, **options).get_text_embedding("a")  # noqa: E731
    expect_raised("a wrong key", openai.AuthenticationError, lambda: embed(key="wrong"))
    expect_raised("an unknown model", openai.NotFoundError, lambda: embed(key=key, model="nobody"))


def a_full_server_is_a_rate_limit(url, key):
    embed = openai_like(url, key).get_text_embedding
    expect_raised("a full server", openai.RateLimitError, lambda: embed("a"))


run(
    {
        "serving": [embeddings_are_the_models, documents_are_ranked, errors_are_the_librarys],
        "full": [a_full_server_is_a_rate_limit],
    }
)
