"""Voyage's Python library: embeddings in every form that it asks for, and reranking."""

import voyageai
from checks import QUERY, TEXTS, VECTORS, expect, expect_close, expect_equal, expect_raised, run
from voyageai import error


def client(url, key):
    return voyageai.Client(api_key=key, base_url=f"{url}/voyage/v1")


def embeddings_are_the_models(url, key):
    answer = client(url, key).embed(TEXTS, model="embedding")
    expect_close("vectors", answer.embeddings, VECTORS)
    expect(answer.total_tokens > len(TEXTS), f"tokens: {answer.total_tokens}")
    answer = client(url, key).embed(TEXTS, model="embedding", input_type="query", truncation=True)
    expect_close("queries", answer.embeddings, VECTORS)


def vectors_have_the_form_that_is_asked_for(url, key):
    rows = client(url, key).embed(TEXTS, model="embedding", output_dimension=4, output_dtype="int8").embeddings
    expect_equal("numbers", {len(row) for row in rows}, {4})
    expect(all(isinstance(number, int) and -128 <= number <= 127 for row in rows for number in row), f"int8: {rows[0]}")


def texts_are_ranked(url, key):
    answer = client(url, key).rerank(QUERY, TEXTS, model="reranker", top_k=2)
    expect_equal("results", len(answer.results), 2)
    scores = [result.relevance_score for result in answer.results]
    expect(scores == sorted(scores, reverse=True), f"scores: {scores}")
    expect_equal("the document", answer.results[0].document, TEXTS[answer.results[0].index])


def a_wrong_key_is_the_librarys_error(url, _):
    embed = client(url, "wrong").embed
    expect_raised("embed", error.AuthenticationError, lambda: embed(TEXTS, model="embedding"), "key")


def a_full_queue_is_a_rate_limit(url, key):
    embed = client(url, key).embed
    expect_raised("embed", error.RateLimitError, lambda: embed(TEXTS, model="embedding"))


def a_model_that_is_not_ready_is_503(url, key):
    embed = client(url, key).embed
    expect_raised("embed", error.ServiceUnavailableError, lambda: embed(TEXTS, model="embedding"))


run(
    serving=[
        embeddings_are_the_models,
        vectors_have_the_form_that_is_asked_for,
        texts_are_ranked,
        a_wrong_key_is_the_librarys_error,
    ],
    full=[a_full_queue_is_a_rate_limit],
    unready=[a_model_that_is_not_ready_is_503],
)
