"""LangChain's integrations of Cohere and of Hugging Face."""

import cohere
from checks import (
    QUERY,
    TEXTS,
    TOO_LARGE,
    VECTORS,
    expect_close,
    expect_equal,
    expect_raised,
    expect_status,
    run,
)
from cohere.core.api_error import ApiError
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from langchain_cohere import CohereEmbeddings, CohereRerank
from langchain_core.documents import Document
from langchain_huggingface import HuggingFaceEndpointEmbeddings


def embeddings(url, key, model="embedding"):
    return CohereEmbeddings(model=model, cohere_api_key=key, base_url=url, max_retries=1)


def ranker(url, key, model="reranker"):
    return CohereRerank(model=model, cohere_api_key=key, base_url=url, top_n=3)


def hugging_face(url, key, model="embedding"):
    found = HuggingFaceEndpointEmbeddings(model=model, huggingfacehub_api_token=key)
    # The name of a model may not be a URL; the client that sends the requests has the server's.
    found.client = InferenceClient(model=f"{url}/tei/{model}", token=key)
    return found


def embeddings_are_the_models(url, key):
    expect_close("Cohere's documents", embeddings(url, key).embed_documents(TEXTS), VECTORS)
    expect_close("Cohere's query", embeddings(url, key).embed_query(TEXTS[0]), VECTORS[0])
    expect_close("Hugging Face's documents", hugging_face(url, key).embed_documents(TEXTS), VECTORS)
    expect_close("Hugging Face's query", hugging_face(url, key).embed_query(TEXTS[0]), VECTORS[0])


def documents_are_ranked(url, key):
    found = ranker(url, key).compress_documents([Document(text) for text in TEXTS], QUERY)
    scores = [document.metadata["relevance_score"] for document in found]
    expect_equal("how many", len(scores), 3)
    expect_equal("their order", scores, sorted(scores, reverse=True))
    # LangChain makes a text of a document that is an object.
    by_fields = ranker(url, key).rerank([{"text": text, "n": 1} for text in TEXTS], QUERY, rank_fields=["text"])
    expect_equal("how many objects", len(by_fields), 3)


def errors_are_the_librarys(url, key):
    unable = lambda: embeddings(url, key, "reranker").embed_query("a")  # noqa: E731
    expect_raised("a model that does not embed", cohere.BadRequestError, unable)
    unable = lambda: ranker(url, key, "embedding").rerank(["d"], "q")  # noqa: E731
    expect_raised("a model that does not rerank", cohere.BadRequestError, unable)
    expect_raised("an unknown model", cohere.NotFoundError, lambda: embeddings(url, key, "nobody").embed_query("a"))
    rank = lambda: ranker(url, key, "nobody").rerank(["d"], "q")  # noqa: E731
    expect_raised("an unknown model", cohere.NotFoundError, rank)
    truncate = lambda: CohereEmbeddings(  # noqa: E731
        model="embedding", cohere_api_key=key, base_url=url, max_retries=1, truncate="MIDDLE"
    ).embed_query("a")
    expect_raised("a field of another value", cohere.UnprocessableEntityError, truncate)
    expect_status("too large to embed", 413, ApiError, lambda: embeddings(url, key).embed_query(TOO_LARGE))
    expect_status("too large to rank", 413, ApiError, lambda: ranker(url, key).rerank([TOO_LARGE], "q"))
    embed = lambda model, text="a": hugging_face(url, key, model).embed_query(text)  # noqa: E731
    empty = lambda: hugging_face(url, key).embed_documents([])  # noqa: E731
    expect_status("no texts for Hugging Face", 400, HfHubHTTPError, empty)
    expect_status("an unknown model of Hugging Face", 404, HfHubHTTPError, lambda: embed("nobody"))
    expect_status("too large for Hugging Face", 413, HfHubHTTPError, lambda: embed("embedding", TOO_LARGE))
    expect_status("a model that does not embed", 424, HfHubHTTPError, lambda: embed("reranker/embed"))


def refused(url, key, status, error):
    calls = {
        "embed": lambda: embeddings(url, key).embed_query("a"),
        "rerank": lambda: ranker(url, key).rerank(["d"], "q"),
    }
    for what, call in calls.items():
        expect_status(what, status, error, call)
    embed = lambda: hugging_face(url, key).embed_query("a")  # noqa: E731
    expect_status("Hugging Face", status, HfHubHTTPError, embed)


def a_wrong_key_is_401(url, _):
    refused(url, "wrong", 401, cohere.UnauthorizedError)


def a_full_queue_is_429(url, key):
    refused(url, key, 429, cohere.TooManyRequestsError)


def a_model_that_is_not_ready_is_503(url, key):
    refused(url, key, 503, cohere.ServiceUnavailableError)


run(
    serving=[embeddings_are_the_models, documents_are_ranked, errors_are_the_librarys, a_wrong_key_is_401],
    full=[a_full_queue_is_429],
    unready=[a_model_that_is_not_ready_is_503],
)
