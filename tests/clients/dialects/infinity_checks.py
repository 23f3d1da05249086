"""Infinity's own client. It raises nothing for a status: what it returns says it."""

from checks import (
    QUERY,
    TEXTS,
    TOO_LARGE,
    VECTORS,
    expect,
    expect_close,
    expect_equal,
    expect_retry_after,
    expect_status,
    run,
)
from infinity_client import AuthenticatedClient
from infinity_client.api.default import classify, embeddings, models, rerank
from infinity_client.errors import UnexpectedStatus
from infinity_client.models import (
    ClassifyInput,
    EmbeddingEncodingFormat,
    OpenAIEmbeddingInputText,
    OpenAIEmbeddingInputTextModality,
    RerankInput,
)


def client(url, key):
    return AuthenticatedClient(base_url=url, token=key)


def texts(texts, model="embedding"):
    return OpenAIEmbeddingInputText(
        input_=texts,
        model=model,
        encoding_format=EmbeddingEncodingFormat.FLOAT,
        modality=OpenAIEmbeddingInputTextModality.TEXT,
    )


def embeddings_are_the_models(url, key):
    found = embeddings.sync(client=client(url, key), body=texts(TEXTS))
    expect_close("vectors", [item.embedding for item in found.data], VECTORS)


def documents_are_ranked(url, key):
    body = RerankInput(query=QUERY, documents=TEXTS, top_n=3, return_documents=True)
    found = rerank.sync(client=client(url, key), body=body)
    scores = [result.relevance_score for result in found.results]
    expect_equal("how many", len(scores), 3)
    expect_equal("their order", scores, sorted(scores, reverse=True))
    expect_equal("their texts", [r.document for r in found.results], [TEXTS[r.index] for r in found.results])


def texts_are_classified(url, key):
    found = classify.sync(client=client(url, key), body=ClassifyInput(input_=TEXTS[:2]))
    expect_equal("how many", len(found.data), 2)
    expect({scored.label for scored in found.data[0]} == {"calm", "breeze", "storm"}, f"labels: {found.data[0]}")


def models_are_listed(url, key):
    found = models.sync(client=client(url, key))
    expect("embedding" in [model.id for model in found.data], f"models: {found}")


def errors_are_statuses(url, key):
    def status(key, body):
        return int(embeddings.sync_detailed(client=client(url, key), body=body).status_code)

    expect_equal("no texts", status(key, texts([])), 422)
    expect_equal("a wrong key", status("wrong", texts(["a"])), 401)
    expect_equal("an unknown model", status(key, texts(["a"], "nobody")), 400)
    expect_equal("a model that does not embed", status(key, texts(["a"], "reranker")), 400)
    expect_equal("a body that is too large", status(key, texts([TOO_LARGE])), 413)


def refused(url, key, status):
    """Each operation is answered with the status, and raises an error where the client is made to."""
    calls = {
        embeddings: texts(["a"]),
        rerank: RerankInput(query="q", documents=["d"]),
        classify: ClassifyInput(input_=["a"]),
    }
    strict = AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True)
    for operation, body in calls.items():
        found = operation.sync_detailed(client=client(url, key), body=body)
        expect_equal(operation.__name__, int(found.status_code), status)
        expect_retry_after(operation.__name__, found.headers)
        call = lambda: operation.sync(client=strict, body=body)  # noqa: E731, B023
        expect_status(operation.__name__, status, UnexpectedStatus, call)


def a_full_queue_is_429(url, key):
    refused(url, key, 429)


def a_model_that_is_not_ready_is_503(url, key):
    refused(url, key, 503)


run(
    serving=[
        embeddings_are_the_models,
        documents_are_ranked,
        texts_are_classified,
        models_are_listed,
        errors_are_statuses,
    ],
    full=[a_full_queue_is_429],
    unready=[a_model_that_is_not_ready_is_503],
)
