"""Cohere's Python library, both versions of its API."""

import cohere
from checks import (
    QUERY,
    TEXTS,
    TOO_LARGE,
    VECTORS,
    expect,
    expect_close,
    expect_equal,
    expect_raised,
    expect_retry_after,
    expect_status,
    run,
)
from cohere.core.api_error import ApiError

ONCE = {"request_options": {"max_retries": 0}}


def client(url, key):
    return cohere.ClientV2(api_key=key, base_url=url)


def embeddings_are_the_models(url, key):
    types = ["float", "int8", "ubinary"]
    answer = client(url, key).embed(
        model="embedding", texts=TEXTS, input_type="search_document", embedding_types=types
    )
    expect_close("vectors", answer.embeddings.float_, VECTORS)
    expect_close("bytes", answer.embeddings.int8, (VECTORS * 127).round())
    expect_equal("bits", [len(row) for row in answer.embeddings.ubinary], [1] * len(TEXTS))
    expect_equal("texts", answer.texts, TEXTS)
    expect(answer.meta.tokens.input_tokens > len(TEXTS), f"meta: {answer.meta}")
    first = cohere.Client(api_key=key, base_url=url).embed(model="embedding", texts=TEXTS, input_type="search_query")
    expect_close("vectors of the first version", first.embeddings, VECTORS)


def documents_are_ranked(url, key):
    answer = client(url, key).rerank(model="reranker", query=QUERY, documents=TEXTS, top_n=3)
    scores = [result.relevance_score for result in answer.results]
    expect_equal("how many", len(scores), 3)
    expect_equal("their order", scores, sorted(scores, reverse=True))
    first = cohere.Client(api_key=key, base_url=url)
    first = first.rerank(model="reranker", query=QUERY, documents=TEXTS, top_n=3, return_documents=True)
    expect_equal("the first version", [r.index for r in first.results], [r.index for r in answer.results])
    expect_equal("its documents", [r.document.text for r in first.results], [TEXTS[r.index] for r in first.results])


def errors_are_the_librarys(url, key):
    ask = client(url, key)
    wrong = client(url, "wrong")
    embed = {"texts": ["a"], "input_type": "search_query", "embedding_types": ["float"], **ONCE}
    expect_raised("an unknown model", cohere.NotFoundError, lambda: ask.embed(model="nobody", **embed))
    expect_raised("a wrong key", cohere.UnauthorizedError, lambda: wrong.embed(model="embedding", **embed))
    empty = {**embed, "texts": []}
    expect_raised("no texts", cohere.BadRequestError, lambda: ask.embed(model="embedding", **empty), "'texts' is empty")
    unknown = {**embed, "request_options": {"max_retries": 0, "additional_body_parameters": {"text": "a"}}}
    expect_raised(
        "an unknown field",
        cohere.UnprocessableEntityError,
        lambda: ask.embed(model="embedding", **unknown),
        "'text' is unknown",
    )
    # The library has no class of its own for 413.
    large = {**embed, "texts": [TOO_LARGE]}
    expect_status("a body that is too large", 413, ApiError, lambda: ask.embed(model="embedding", **large))


def refused(url, key, status, error):
    """Both operations of both versions raise `error`."""
    for ask in (client(url, key), cohere.Client(api_key=key, base_url=url)):
        embed = lambda: ask.embed(model="embedding", texts=["a"], input_type="search_query", **ONCE)  # noqa: E731, B023
        rerank = lambda: ask.rerank(model="reranker", query="q", documents=["d"], **ONCE)  # noqa: E731, B023
        for call in (embed, rerank):
            raised = expect_status(type(ask).__name__, status, error, call)
            expect_retry_after(type(ask).__name__, raised.headers)


def a_full_queue_is_too_many_requests(url, key):
    refused(url, key, 429, cohere.TooManyRequestsError)


def a_model_that_is_not_ready_is_unavailable(url, key):
    refused(url, key, 503, cohere.ServiceUnavailableError)


run(
    serving=[embeddings_are_the_models, documents_are_ranked, errors_are_the_librarys],
    full=[a_full_queue_is_too_many_requests],
    unready=[a_model_that_is_not_ready_is_unavailable],
)
