"""LiteLLM: embeddings and ranks of its providers, each at the place that docs/dialects.md names."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm  # noqa: E402
from checks import QUERY, TEXTS, VECTORS, expect, expect_close, expect_equal, expect_raised, run  # noqa: E402

#: By provider, the end of its `api_base`, and what else it needs. Those of Triton and Ollama send no key, which the server of the tests wants.
EMBED = {
    "openai": ("/v1", {}),
    "hosted_vllm": ("/v1", {}),
    "infinity": ("", {}),
    "jina_ai": ("/v1", {}),
    "cohere": ("/v2/embed", {"input_type": "search_document"}),
    "mistral": ("/v1", {}),
    "voyage": ("/voyage/v1", {}),
    "together_ai": ("/v1", {}),
    "nvidia_nim": ("/nim/v1", {"truncate": "END"}),
    "azure": ("", {"api_version": "2024-10-21"}),
}
RERANK = {
    "cohere": "",
    "jina_ai": "",
    "infinity": "",
    "hosted_vllm": "/vllm",
    "huggingface": "/tei/reranker",
    "voyage": "/voyage/v1",
    "together_ai": "/together/v1",
    "nvidia_nim": "/nim",
}


def embed(url, key, provider, **more):
    path, needed = EMBED[provider]
    asked = {"model": f"{provider}/embedding", "input": TEXTS, "api_base": f"{url}{path}", "api_key": key, "max_retries": 0}
    return litellm.embedding(**asked | needed | more)


def rerank(url, key, provider, documents=TEXTS, **more):
    asked = {"model": f"{provider}/reranker", "query": QUERY, "documents": documents, "api_key": key}
    return litellm.rerank(**asked | {"api_base": f"{url}{RERANK[provider]}"} | more).results


def embeddings_are_the_models(url, key):
    for provider in EMBED:
        answer = embed(url, key, provider)
        rows = [row["embedding"] for row in sorted(answer.data, key=lambda row: row["index"])]
        expect_close(provider, rows, VECTORS)


def ollamas_embeddings_are_the_models(url, key):
    del key
    # The provider sends no key, so the server of the tests refuses it in words.
    ask = lambda: litellm.embedding(model="ollama/embedding", input=TEXTS, api_base=f"{url}/ollama")  # noqa: E731
    expect_raised("ollama", litellm.AuthenticationError, ask, "key")


def documents_are_ranked(url, key):
    orders = set()
    for provider in RERANK:
        # Hugging Face's provider does not let texts be cut.
        short = [text for text in TEXTS if len(text) < 30]
        results = rerank(url, key, provider, short)
        expect_equal(provider, sorted(result["index"] for result in results), list(range(len(short))))
        orders.add(tuple(result["index"] for result in results))
        best = rerank(url, key, provider, short, top_n=1)
        expect_equal(f"{provider}: the best", [result["index"] for result in best], [results[0]["index"]])
    expect_equal("orders", len(orders), 1)


def documents_of_together_have_fields(url, key):
    objects = [{"title": text, "body": "the oar"} for text in TEXTS]
    order = lambda results: [(result["index"], result["relevance_score"]) for result in results]  # noqa: E731
    by_title = order(rerank(url, key, "together_ai", objects, rank_fields=["title"]))
    expect_equal("by title", by_title, order(rerank(url, key, "together_ai")))
    expect(order(rerank(url, key, "together_ai", objects)) != by_title, "by all fields")


def a_wrong_key_is_401(url, _):
    for provider in ("openai", "mistral"):
        expect_raised(provider, litellm.AuthenticationError, lambda: embed(url, "wrong", provider), "key")  # noqa: B023


def a_full_queue_is_429(url, key):
    expect_raised("openai", litellm.RateLimitError, lambda: embed(url, key, "openai"))
    expect_raised("cohere", litellm.RateLimitError, lambda: rerank(url, key, "cohere"))


def a_model_that_is_not_ready_is_503(url, key):
    expect_raised("openai", litellm.ServiceUnavailableError, lambda: embed(url, key, "openai"))
    expect_raised("together_ai", litellm.ServiceUnavailableError, lambda: rerank(url, key, "together_ai"))


run(
    serving=[
        embeddings_are_the_models,
        ollamas_embeddings_are_the_models,
        documents_are_ranked,
        documents_of_together_have_fields,
        a_wrong_key_is_401,
    ],
    full=[a_full_queue_is_429],
    unready=[a_model_that_is_not_ready_is_503],
)
