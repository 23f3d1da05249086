"""Together's Python library: ranks of documents with fields, and embeddings."""

import together
from checks import QUERY, TEXTS, VECTORS, expect, expect_close, expect_equal, expect_status, run


def client(url, key):
    return together.Together(api_key=key, base_url=f"{url}/together", max_retries=0)


def rerank(url, key, documents=TEXTS, **more):
    return client(url, key).rerank.create(model="reranker", query=QUERY, documents=documents, **more)


def order(answer):
    return [(result.index, result.relevance_score) for result in answer.results]


def documents_are_ranked(url, key):
    answer = rerank(url, key)
    expect_equal("results", sorted(result.index for result in answer.results), list(range(len(TEXTS))))
    expect(all(result.document.text == TEXTS[result.index] for result in answer.results), f"documents: {answer.results}")
    expect_equal("members", (answer.object, answer.model), ("rerank", "reranker"))
    expect(answer.usage.prompt_tokens > 0 and answer.usage.total_tokens == answer.usage.prompt_tokens, f"usage: {answer.usage}")
    expect_equal("the best", order(rerank(url, key, top_n=1, return_documents=False)), order(answer)[:1])


def documents_are_ranked_by_their_fields(url, key):
    objects = [{"title": text, "body": "the oar", "year": 3} for text in TEXTS]
    by_title = rerank(url, key, objects, rank_fields=["title"])
    expect_equal("by title", order(by_title), order(rerank(url, key)))
    by_all = rerank(url, key, objects)
    expect_equal("by all", order(by_all), order(rerank(url, key, [f"the oar\n{text}" for text in TEXTS])))


def embeddings_are_the_models(url, key):
    answer = client(url, key).embeddings.create(model="embedding", input=TEXTS)
    expect_close("vectors", [row.embedding for row in answer.data], VECTORS)


def faults_are_the_librarys(url, key):
    expect_status("a wrong key", 401, together.AuthenticationError, lambda: rerank(url, "wrong"))
    expect_status("no texts", 400, together.BadRequestError, lambda: rerank(url, key, []))
    expect_status("no such field", 400, together.BadRequestError, lambda: rerank(url, key, [{"a": "b"}], rank_fields=["c"]))


def a_full_queue_is_429(url, key):
    expect_status("ranks", 429, together.RateLimitError, lambda: rerank(url, key))


def a_model_that_is_not_ready_is_503(url, key):
    expect_status("ranks", 503, together.InternalServerError, lambda: rerank(url, key))


run(
    serving=[documents_are_ranked, documents_are_ranked_by_their_fields, embeddings_are_the_models, faults_are_the_librarys],
    full=[a_full_queue_is_429],
    unready=[a_model_that_is_not_ready_is_503],
)
