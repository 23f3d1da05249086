"""Requests of products that are no Python packages, or large ones, in the shapes of their sources; and the members of answers that they read.

Each check names the file of the product's repository that sends its request.
"""

import base64

import httpx
import numpy as np
from checks import QUERY, TEXTS, VECTORS, expect, expect_close, expect_equal, run


def post(url, key, path, body, status=200):
    answer = httpx.post(f"{url}{path}", json=body, headers={"authorization": f"Bearer {key}"}, timeout=60)
    expect_equal(f"{path} {body}: {answer.text[:300]}", answer.status_code, status)
    return answer.json()


def get(url, key, path):
    answer = httpx.get(f"{url}{path}", headers={"authorization": f"Bearer {key}"}, timeout=60)
    expect_equal(f"{path}: {answer.text[:300]}", answer.status_code, 200)
    return answer.json()


def listed(answer):
    expect(answer["usage"]["total_tokens"] > 0, f"tokens: {answer['usage']}")
    return [row["embedding"] for row in sorted(answer["data"], key=lambda row: row["index"])]


def ragflow_embeds(url, key):
    """infiniflow/ragflow: rag/llm/embedding_model.py."""
    openai = {"model": "embedding", "input": TEXTS, "encoding_format": "float", "drop_params": True}
    expect_close("OpenAIEmbed", listed(post(url, key, "/v1/embeddings", openai)), VECTORS)
    jina = {"model": "embedding", "input": [{"text": text} for text in TEXTS], "task": "retrieval.passage", "truncate": True}
    expect_close("JinaMultiVecEmbed", listed(post(url, key, "/v1/embeddings", jina)), VECTORS)
    many = post(url, key, "/v1/embeddings", jina | {"model": "token_vectors", "return_multivector": True})
    expect_equal("JinaMultiVecEmbed of v4", np.asarray(many["data"][0]["embeddings"], np.float32).ndim, 2)
    hub = {"inputs": TEXTS[0], "truncate": True}
    expect_close("HuggingFaceEmbed", post(url, key, "/tei/embedding/embed", hub), VECTORS[:1])
    ollama = {"model": "embedding", "input": TEXTS, "options": {"use_mmap": True}, "keep_alive": -1}
    expect_close("OllamaEmbed", post(url, key, "/api/embed", ollama)["embeddings"], VECTORS)


def ragflow_reranks(url, key):
    """infiniflow/ragflow: rag/llm/rerank_model.py."""
    asked = {"model": "reranker", "query": QUERY, "documents": TEXTS}
    for path in ("/v1/rerank", "/rerank"):
        for more in ({"return_documents": "true", "return_len": "true"}, {"top_n": len(TEXTS)}):
            results = post(url, key, path, asked | more)["results"]
            expect_equal(f"{path} {more}", sorted(result["index"] for result in results), list(range(len(TEXTS))))
            expect(all(isinstance(result["relevance_score"], float) for result in results), f"{path}: {results}")


def dify_asks_jina(url, key):
    """langgenius/dify-official-plugins: models/jina/models."""
    texts = [{"text": text} for text in TEXTS]
    asked = {"model": "embedding", "input": texts, "task": "retrieval.query"}
    expect_close("vectors", listed(post(url, key, "/jina/v1/embeddings", asked)), VECTORS)
    asked = {"model": "reranker", "query": QUERY, "documents": texts, "top_n": None, "return_documents": False}
    expect_equal("results", len(post(url, key, "/jina/v1/rerank", asked)["results"]), len(TEXTS))
    refused = post(url, key, "/jina/v1/embeddings", {"model": "nobody", "input": texts}, 404)
    expect("nobody" in refused["detail"], f"its error: {refused}")


def dify_asks_tei(url, key):
    """langgenius/dify-official-plugins: models/huggingface_tei/models/helper.py."""
    info = get(url, key, "/tei/embedding/info")
    expect(info["max_client_batch_size"] > 0 and info["max_input_length"] > 0, f"limits: {info}")
    expect("embedding" in info["model_type"], f"kind: {info}")
    expect("reranker" in get(url, key, "/tei/reranker/info")["model_type"], "kind of the reranker")
    tokens = post(url, key, "/tei/embedding/tokenize", {"inputs": TEXTS})
    expect(all(row[0]["id"] >= 0 for row in tokens), f"tokens: {tokens}")
    expect_close("vectors", listed(post(url, key, "/tei/embedding/v1/embeddings", {"input": TEXTS})), VECTORS)
    ranked = post(url, key, "/tei/reranker/rerank", {"query": QUERY, "texts": TEXTS})
    expect_equal("results", sorted(result["index"] for result in ranked), list(range(len(TEXTS))))


def milvus_embeds_and_reranks(url, key):
    """milvus-io/milvus: internal/util/function/models/{vllm,tei}; milvus-io/milvus-model: src/pymilvus/model/{dense,reranker}/tei.py."""
    vllm = {"input": TEXTS, "encoding_format": "float", "truncate_prompt_tokens": 16}
    expect_close("vLLM", listed(post(url, key, "/vllm/v1/embeddings", vllm)), VECTORS)
    tei = {"inputs": TEXTS, "truncate": True, "truncation_direction": "Right"}
    expect_close("TEI", post(url, key, "/tei/embedding/embed", tei), VECTORS)
    ranked = post(url, key, "/vllm/v1/rerank", {"query": QUERY, "documents": TEXTS, "truncate_prompt_tokens": -1})
    expect_equal("vLLM's results", len(ranked["results"]), len(TEXTS))
    ranked = post(url, key, "/tei/reranker/rerank", {"query": QUERY, "texts": TEXTS, "truncate": True, "return_text": True})
    expect_equal("TEI's texts", sorted(result["text"] for result in ranked), sorted(TEXTS))
    expect("message" in post(url, key, "/tei/embedding/v1/embeddings", {"input": []}, 400), "TEI's error has no message")


def spring_ai_embeds(url, key):
    """spring-projects/spring-ai: OpenAiApi.java, OllamaApi.java."""
    asked = {"input": TEXTS, "model": "embedding", "user": "u", "encoding_format": "float"}
    expect_close("OpenAI", listed(post(url, key, "/v1/embeddings", asked)), VECTORS)
    asked = {"model": "embedding", "input": TEXTS, "keep_alive": "5m", "options": {"num_ctx": 2048}, "truncate": True}
    answer = post(url, key, "/api/embed", asked)
    expect_close("Ollama", answer["embeddings"], VECTORS)
    expect(answer["prompt_eval_count"] > 0 and answer["total_duration"] > 0, f"counts: {answer['prompt_eval_count']}")


def semantic_kernel_embeds(url, key):
    """microsoft/semantic-kernel by openai/openai-dotnet: EmbeddingClient.cs; vectors are asked for in base64."""
    answer = post(url, key, "/v1/embeddings", {"input": TEXTS, "model": "embedding", "encoding_format": "base64"})
    vectors = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in answer["data"]]
    expect_close("vectors", vectors, VECTORS)


def txtai_embeds(url, key):
    """neuml/txtai: src/python/txtai/vectors/dense/litellm.py, by LiteLLM's provider `openai`."""
    asked = {"input": TEXTS, "model": "embedding", "encoding_format": "float", "extra_headers": {}}
    expect_close("vectors", listed(post(url, key, "/v1/embeddings", asked)), VECTORS)


run(
    serving=[
        ragflow_embeds,
        ragflow_reranks,
        dify_asks_jina,
        dify_asks_tei,
        milvus_embeds_and_reranks,
        spring_ai_embeds,
        semantic_kernel_embeds,
        txtai_embeds,
    ],
    full=[],
    unready=[],
)
