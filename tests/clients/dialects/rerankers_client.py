"""rerankers, in Cohere's, Jina's and TEI's words. It looks at no status: an error is an answer that it cannot read."""

from checks import QUERY, TEXTS, TOO_LARGE, expect_equal, expect_raised, run
from rerankers.models.api_rankers import APIRanker

PATHS = {"cohere": "/v1/rerank", "jina": "/jina/v1/rerank", "text-embeddings-inference": "/tei/reranker/rerank"}


def ranker(url, key, provider):
    return APIRanker("reranker", key, provider, verbose=0, url=url + PATHS[provider])


def documents_are_ranked(url, key):
    orders = []
    for provider in PATHS:
        found = ranker(url, key, provider).rank(QUERY, TEXTS)
        scores = [result.score for result in found.results]
        expect_equal(f"{provider}: how many", len(scores), len(TEXTS))
        expect_equal(f"{provider}: their order", scores, sorted(scores, reverse=True))
        orders.append([result.document.text for result in found.results])
    expect_equal("their order in every dialect", orders, [orders[0]] * len(orders))


def refused(url, key, query="q", documents=("d",)):
    for provider in PATHS:
        rank = lambda: ranker(url, key, provider).rank(query, list(documents))  # noqa: E731, B023
        expect_raised(provider, (KeyError, TypeError), rank)


def errors_are_not_taken_for_answers(url, key):
    refused(url, "wrong")
    refused(url, key, documents=[TOO_LARGE])


run(
    serving=[documents_are_ranked, errors_are_not_taken_for_answers],
    full=[refused],
    unready=[refused],
)
