"""Cohere's Python library, both versions of its API."""

import cohere
from checks import QUERY, TEXTS, VECTORS, expect, expect_close, expect_equal, expect_raised, run


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
    options = {"request_options": {"max_retries": 0}}
    embed = {"texts": ["a"], "input_type": "search_query", "embedding_types": ["float"], **options}
    expect_raised("an unknown model", cohere.NotFoundError, lambda: ask.embed(model="nobody", **embed))
    expect_raised("a wrong key", cohere.UnauthorizedError, lambda: wrong.embed(model="embedding", **embed))
    empty = {**embed, "texts": []}
    expect_raised("no texts", cohere.BadRequestError, lambda: ask.embed(model="embedding", **empty), "'texts' is empty")
    unknown = {**embed, "request_options": {"max_retries": 0, "additional_body_parameters": {"text": "a"}}}
    expect_raised(
        "an unknown field",
        cohere.UnprocessableEntityError,
        lambda: ask.embed(model="embedding", **unknown),
        "unknown field",
    )


def a_full_server_is_too_many_requests(url, key):
    rerank = client(url, key).rerank
    expect_raised(
        "a full server",
        cohere.TooManyRequestsError,
        lambda: rerank(model="reranker", query="q", documents=["d"], request_options={"max_retries": 0}),
    )


run(
    {
        "serving": [embeddings_are_the_models, documents_are_ranked, errors_are_the_librarys],
        "full": [a_full_server_is_too_many_requests],
    }
)
