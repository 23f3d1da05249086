"""Agno: its embedders of OpenAI, Jina, Cohere, Mistral, Voyage and Together, and its reranker of Cohere."""

import cohere
from agno.knowledge.document import Document
from agno.knowledge.embedder.cohere import CohereEmbedder
from agno.knowledge.embedder.jina import JinaEmbedder
from agno.knowledge.embedder.mistral import MistralEmbedder
from agno.knowledge.embedder.openai_like import OpenAILikeEmbedder
from agno.knowledge.embedder.together import TogetherEmbedder
from agno.knowledge.embedder.voyageai import VoyageAIEmbedder
from agno.knowledge.reranker.cohere import CohereReranker
from checks import QUERY, TEXTS, VECTORS, expect, expect_close, expect_equal, run


def embedders(url, key):
    """By default they ask for as many numbers as the models of their own servers have."""
    model = {"id": "embedding", "api_key": key}
    return [
        OpenAILikeEmbedder(**model, base_url=f"{url}/v1", dimensions=8),
        JinaEmbedder(**model, base_url=f"{url}/v1/embeddings", dimensions=8),
        CohereEmbedder(**model, client_params={"base_url": f"{url}/cohere"}),
        MistralEmbedder(**model, endpoint=url),
        VoyageAIEmbedder(**model, client_params={"base_url": f"{url}/voyage/v1"}),
        TogetherEmbedder(**model, base_url=f"{url}/together/v1", dimensions=8),
    ]


def embeddings_are_the_models(url, key):
    for embedder in embedders(url, key):
        vector, usage = embedder.get_embedding_and_usage(TEXTS[0])
        expect_close(type(embedder).__name__, vector, VECTORS[0])
        expect(any(usage.values()), f"{type(embedder).__name__}: {usage}")


def documents_are_ranked(url, key):
    client = cohere.Client(api_key=key, base_url=f"{url}/cohere")
    ranked = CohereReranker(model="reranker", cohere_client=client).rerank(QUERY, [Document(content=text) for text in TEXTS])
    expect_equal("documents", sorted(document.content for document in ranked), sorted(TEXTS))
    scores = [document.reranking_score for document in ranked]
    expect_equal("their order", scores, sorted(scores, reverse=True))


run(serving=[embeddings_are_the_models, documents_are_ranked], full=[], unready=[])
