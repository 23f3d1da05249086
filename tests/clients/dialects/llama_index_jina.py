"""LlamaIndex' classes for Jina. The embedder has no setting for another address, so the test puts it there."""

import numpy as np
from checks import QUERY, TEXTS, VECTORS, expect, expect_close, expect_equal, expect_raised, run
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.jinaai import JinaEmbedding
from llama_index.postprocessor.jinaai_rerank import JinaRerank


def embedder(url, key, model="embedding", **more):
    client = JinaEmbedding(model=model, api_key=key, **more)
    client._api.api_url = f"{url}/jina/v1/embeddings"
    return client


def ranked(url, key):
    client = JinaRerank(base_url=f"{url}/jina/v1", model="reranker", api_key=key, top_n=3)
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
    return client.postprocess_nodes(nodes, query_bundle=QueryBundle(QUERY))


def embeddings_are_the_models(url, key):
    expect_close("vectors", embedder(url, key).get_text_embedding_batch(TEXTS), VECTORS)
    asked = embedder(url, key, task="retrieval.passage", late_chunking=False)
    expect_close("with a task", asked.get_text_embedding_batch(TEXTS), VECTORS)
    expect_equal("shortened", len(embedder(url, key, dimensions=4).get_query_embedding(QUERY)), 4)


def vectors_are_signs(url, key):
    for encoding in ("binary", "ubinary"):
        found = embedder(url, key, encoding_documents=encoding).get_text_embedding_batch(TEXTS[:1])
        expect_close(encoding, found, (VECTORS[:1] > 0).astype(float))


def documents_are_ranked(url, key):
    scores = [node.score for node in ranked(url, key)]
    expect_equal("how many", len(scores), 3)
    expect_equal("their order", scores, sorted(scores, reverse=True))


def errors_are_the_librarys(url, key):
    embed = lambda **options: embedder(url, **options).get_text_embedding("a")  # noqa: E731
    expect_raised("an unknown model", RuntimeError, lambda: embed(key=key, model="nobody"), "model 'nobody' does not exist")
    expect_raised("a wrong key", RuntimeError, lambda: embed(key="wrong"), "API key")


def chunks_know_of_each_other(url, key):
    chunks = ["the oar", "is on the ship"]
    found = embedder(url, key, model="token_vectors", late_chunking=True).get_text_embedding_batch(chunks)
    alone = [embedder(url, key, model="token_vectors", late_chunking=True).get_text_embedding(chunk) for chunk in chunks]
    expect_equal("a vector for each", len(found), 2)
    expect(not np.allclose(found, alone, atol=1e-4), "each text has the vector that it has alone")


def refused(url, key, text):
    expect_raised("the embedder", RuntimeError, lambda: embedder(url, key).get_text_embedding("a"), text)
    expect_raised("the ranker", RuntimeError, lambda: ranked(url, key), text)


def a_full_queue_is_an_error(url, key):
    refused(url, key, "queue")


def a_model_that_is_not_ready_is_an_error(url, key):
    refused(url, key, "ready")


run(
    serving=[embeddings_are_the_models, vectors_are_signs, documents_are_ranked, errors_are_the_librarys, chunks_know_of_each_other],
    full=[a_full_queue_is_an_error],
    unready=[a_model_that_is_not_ready_is_an_error],
)
