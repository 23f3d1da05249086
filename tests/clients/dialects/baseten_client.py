"""Baseten's performance client, which asks as OpenAI's clients and TEI's do, many requests at a time."""

import requests
from baseten_performance_client import PerformanceClient, RequestProcessingPreference
from checks import QUERY, TEXTS, VECTORS, expect_close, expect_equal, expect_raised, run

#: Requests of two texts each; the client tries none of them again.
MANY = RequestProcessingPreference(batch_size=2, max_retries=0)


def client(url, key, base=""):
    return PerformanceClient(base_url=f"{url}{base}", api_key=key)


def embeddings_are_the_models(url, key):
    many = TEXTS * 20
    found = client(url, key).embed(input=many, model="embedding", preference=MANY)
    expect_close("vectors", found.numpy(), list(VECTORS) * 20)


def documents_are_ranked(url, key):
    found = client(url, key, "/tei/reranker").rerank(query=QUERY, texts=TEXTS, return_text=True, truncate=True, preference=MANY).data
    expect_equal("texts", sorted(result.text for result in found), sorted(TEXTS))
    expect_equal("indices", sorted(result.index for result in found), list(range(len(TEXTS))))


def texts_are_classified(url, key):
    found = client(url, key, "/tei/classifier").classify(inputs=TEXTS, truncate=True, preference=MANY).data
    expect_equal("texts", len(found), len(TEXTS))
    expect_equal("labels", {label.label for label in found[0]}, {"calm", "breeze", "storm"})


def refused(url, key, text):
    calls = {
        "embed": lambda: client(url, key).embed(input=["a"], model="embedding", preference=MANY),
        "rerank": lambda: client(url, key, "/tei/reranker").rerank(query="a", texts=["b"], preference=MANY),
    }
    for what, call in calls.items():
        expect_raised(what, requests.exceptions.HTTPError, call, text)


def a_wrong_key_is_401(url, _):
    refused(url, "wrong", "401")


def a_full_queue_is_429(url, key):
    refused(url, key, "429")


def a_model_that_is_not_ready_is_503(url, key):
    refused(url, key, "503")


run(
    serving=[embeddings_are_the_models, documents_are_ranked, texts_are_classified, a_wrong_key_is_401],
    full=[a_full_queue_is_429],
    unready=[a_model_that_is_not_ready_is_503],
)
