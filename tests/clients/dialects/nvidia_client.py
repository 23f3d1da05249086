"""LangChain's client of NVIDIA NIM."""

import warnings

from checks import QUERY, TEXTS, VECTORS, expect_close, expect_equal, expect_raised, run
from langchain_core.documents import Document
from langchain_nvidia_ai_endpoints import NVIDIAEmbeddings, NVIDIARerank

# The client warns of models that are not NVIDIA's.
warnings.simplefilter("ignore")


def embedder(url, key, model="embedding"):
    return NVIDIAEmbeddings(base_url=f"{url}/v1", model=model, api_key=key, truncate="END")


def ranker(url, key, **more):
    return NVIDIARerank(base_url=f"{url}/v1", model="reranker", api_key=key, truncate="END", **more)


def embeddings_are_the_models(url, key):
    expect_close("documents", embedder(url, key).embed_documents(TEXTS), VECTORS)
    expect_equal("numbers of a query's vector", len(embedder(url, key).embed_query(QUERY)), len(VECTORS[0]))


def documents_are_ranked(url, key):
    documents = [Document(page_content=text) for text in TEXTS]
    found = ranker(url, key, top_n=3).compress_documents(documents, QUERY)
    scores = [document.metadata["relevance_score"] for document in found]
    expect_equal("how many", len(scores), 3)
    expect_equal("their order", scores, sorted(scores, reverse=True))


def refused(url, key, text):
    expect_raised("embed", Exception, lambda: embedder(url, key).embed_query("a"), text)


def errors_are_the_clients_own(url, key):
    refused(url, "wrong", "401")


def server_is_busy(url, key):
    expect_raised("embed", Exception, lambda: embedder(url, key).embed_query("a"), "429")


run(
    serving=[embeddings_are_the_models, documents_are_ranked, errors_are_the_clients_own],
    full=[server_is_busy],
    unready=[lambda url, key: refused(url, key, "ready")],
)
