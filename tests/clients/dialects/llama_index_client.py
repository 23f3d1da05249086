"""LlamaIndex: embeddings in OpenAI's words and in TEI's, and TEI's reranker."""

import openai
from checks import QUERY, TEXTS, TOO_LARGE, VECTORS, expect_close, expect_equal, expect_raised, expect_status, run
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference as Reranker


def openai_like(url, key, model="embedding"):
    return OpenAILikeEmbedding(model_name=model, api_base=f"{url}/v1", api_key=key, max_retries=0)


def tei(url, key):
    return TextEmbeddingsInference(
        model_name="embedding", base_url=f"{url}/tei/embedding", auth_token=key, text_instruction="", query_instruction=""
    )


def ranked(url, key, query=QUERY, texts=TEXTS):
    # Its token is the whole header.
    client = Reranker(base_url=f"{url}/tei/reranker", top_n=3, auth_token=f"Bearer {key}")
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in texts]
    return client.postprocess_nodes(nodes, query_bundle=QueryBundle(query))


def embeddings_are_the_models(url, key):
    expect_close("vectors", openai_like(url, key).get_text_embedding_batch(TEXTS), VECTORS)
    expect_close("vectors of TEI", tei(url, key).get_text_embedding_batch(TEXTS), VECTORS)


def documents_are_ranked(url, key):
    found = ranked(url, key)
    scores = [node.score for node in found]
    expect_equal("how many", len(scores), 3)
    expect_equal("their order", scores, sorted(scores, reverse=True))


def errors_are_the_librarys(url, key):
    embed = lambda text="a", **options: openai_like(url, **options).get_text_embedding(text)  # noqa: E731
    unable = lambda: embed(key=key, model="reranker")  # noqa: E731
    expect_raised("a model that does not embed", openai.BadRequestError, unable)
    expect_raised("an unknown model", openai.NotFoundError, lambda: embed(key=key, model="nobody"))
    expect_status("a body that is too large", 413, openai.APIStatusError, lambda: embed(TOO_LARGE, key=key))
    not_taken_for_answers(url, key, TOO_LARGE)


def not_taken_for_answers(url, key, text="a"):
    """The clients of TEI look at no status: an error is an answer that they cannot read."""
    errors = (KeyError, TypeError, ValueError, AssertionError)
    expect_raised("TEI's embedder", errors, lambda: tei(url, key).get_text_embedding(text))
    expect_raised("TEI's ranker", errors, lambda: ranked(url, key, text, ["b"]))


def refused(url, key, status, error):
    embed = lambda: openai_like(url, key).get_text_embedding("a")  # noqa: E731
    expect_status("OpenAI's embedder", status, error, embed)
    not_taken_for_answers(url, key)


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
