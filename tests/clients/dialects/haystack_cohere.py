"""Haystack's integration of Cohere: embedders and ranker."""

import cohere
from checks import QUERY, TEXTS, TOO_LARGE, VECTORS, expect_close, expect_equal, expect_raised, expect_status, run
from cohere.core.api_error import ApiError
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.embedders.cohere import CohereDocumentEmbedder, CohereTextEmbedder
from haystack_integrations.components.rankers.cohere import CohereRanker


def component(kind, url, key, model, **options):
    return kind(api_key=Secret.from_token(key), model=model, api_base_url=url, **options)


def embed(url, key, text="a", model="embedding", **options):
    return component(CohereTextEmbedder, url, key, model, **options).run(text=text)


def rank(url, key, query="q", texts=("d",), model="reranker"):
    documents = [Document(content=text) for text in texts]
    return component(CohereRanker, url, key, model, top_k=3).run(query=query, documents=documents)["documents"]


def embeddings_are_the_models(url, key):
    expect_close("a vector", embed(url, key, TEXTS[0])["embedding"], VECTORS[0])
    embedder = component(CohereDocumentEmbedder, url, key, "embedding")
    found = embedder.run(documents=[Document(content=text) for text in TEXTS])["documents"]
    expect_close("vectors", [document.embedding for document in found], VECTORS)


def documents_are_ranked(url, key):
    scores = [document.score for document in rank(url, key, QUERY, TEXTS)]
    expect_equal("how many", len(scores), 3)
    expect_equal("their order", scores, sorted(scores, reverse=True))


def errors_are_the_librarys(url, key):
    unable = lambda: embed(url, key, model="reranker")  # noqa: E731
    expect_raised("a model that does not embed", cohere.BadRequestError, unable)
    expect_raised("an unknown model", cohere.NotFoundError, lambda: embed(url, key, model="nobody"))
    expect_raised("an unknown model to rank", cohere.NotFoundError, lambda: rank(url, key, model="nobody"))
    truncate = lambda: embed(url, key, truncate="MIDDLE")  # noqa: E731
    expect_raised("a field of another value", cohere.UnprocessableEntityError, truncate)
    expect_status("too large to embed", 413, ApiError, lambda: embed(url, key, TOO_LARGE))
    expect_status("too large to rank", 413, ApiError, lambda: rank(url, key, TOO_LARGE))


def refused(url, key, status, error):
    expect_status("embed", status, error, lambda: embed(url, key))
    expect_status("rerank", status, error, lambda: rank(url, key))


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
