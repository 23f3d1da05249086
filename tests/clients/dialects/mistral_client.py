"""Mistral's Python library: embeddings at OpenAI's path, in shorter forms too, classes of texts, and the list of models."""

from checks import TEXTS, VECTORS, expect, expect_close, expect_equal, expect_raised, expect_status, run
from mistralai.client import Mistral
from mistralai.client.errors import HTTPValidationError, SDKError


def client(url, key):
    return Mistral(api_key=key, server_url=url)


def embed(url, key, **more):
    return client(url, key).embeddings.create(model="embedding", inputs=TEXTS, **more)


def embeddings_are_the_models(url, key):
    answer = embed(url, key)
    expect_close("vectors", [row.embedding for row in answer.data], VECTORS)
    expect(answer.usage.total_tokens > len(TEXTS), f"usage: {answer.usage}")


def vectors_may_be_shorter(url, key):
    rows = [row.embedding for row in embed(url, key, output_dimension=4).data]
    expect_equal("numbers", {len(row) for row in rows}, {4})
    rows = [row.embedding for row in embed(url, key, output_dtype="int8").data]
    expect(all(float(number).is_integer() for row in rows for number in row), f"int8: {rows[0]}")


def models_are_listed(url, key):
    names = [model.id for model in client(url, key).models.list().data]
    expect("embedding" in names, f"models: {names}")


def classify(url, key, **more):
    return client(url, key).classifiers.classify(**{"model": "classifier", "inputs": TEXTS} | more)


def texts_are_classified(url, key):
    answer = classify(url, key)
    expect_equal("results", len(answer.results), len(TEXTS))
    for result in answer.results:
        scores = result["classification"].scores
        expect_equal("classes", set(scores), {"calm", "breeze", "storm"})
        expect_close("their sum", [sum(scores.values())], [1])
    # metadata is the client's own.
    one = classify(url, key, inputs=TEXTS[0], metadata={"of": "a test"}).results
    expect_close("one text", list(one[0]["classification"].scores.values()), list(answer.results[0]["classification"].scores.values()))


def faults_are_the_librarys(url, key):
    expect_raised("no texts", HTTPValidationError, lambda: classify(url, key, inputs=[]), "'input' is empty")
    expect_status("no such model", 400, SDKError, lambda: classify(url, key, model="nobody"))
    chat = {"messages": [{"role": "user", "content": "a"}]}
    ask = client(url, key).classifiers.classify_chat
    expect_raised("a model without a template", SDKError, lambda: ask(model="classifier", input=chat), "no chat template")


def a_wrong_key_is_401(url, _):
    expect_status("embeddings", 401, SDKError, lambda: embed(url, "wrong"))


def a_full_queue_is_429(url, key):
    expect_status("embeddings", 429, SDKError, lambda: embed(url, key))


def a_model_that_is_not_ready_is_503(url, key):
    expect_status("embeddings", 503, SDKError, lambda: embed(url, key))


run(
    serving=[
        embeddings_are_the_models,
        vectors_may_be_shorter,
        models_are_listed,
        texts_are_classified,
        faults_are_the_librarys,
        a_wrong_key_is_401,
    ],
    full=[a_full_queue_is_429],
    unready=[a_model_that_is_not_ready_is_503],
)
