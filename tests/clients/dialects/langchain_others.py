"""LangChain's packages for Mistral, Voyage, Ollama and Together."""

from checks import QUERY, TEXTS, VECTORS, expect_close, expect_equal, run
from langchain_core.documents import Document
from langchain_mistralai import MistralAIEmbeddings
from langchain_ollama import OllamaEmbeddings
from langchain_together import TogetherEmbeddings
from langchain_voyageai import VoyageAIRerank


def mistrals_embeddings_are_the_models(url, key):
    # Without the Hub it counts a token for each character, in batches.
    embeddings = MistralAIEmbeddings(model="embedding", api_key=key, endpoint=f"{url}/v1/")
    expect_close("documents", embeddings.embed_documents(TEXTS), VECTORS)
    expect_close("a query", embeddings.embed_query(TEXTS[0]), VECTORS[0])


def togethers_embeddings_are_the_models(url, key):
    embeddings = TogetherEmbeddings(model="embedding", api_key=key, base_url=f"{url}/together/v1")
    expect_close("documents", embeddings.embed_documents(TEXTS), VECTORS)


def ollamas_embeddings_are_the_models(url, key):
    headers = {"headers": {"authorization": f"Bearer {key}"}}
    embeddings = OllamaEmbeddings(model="embedding", base_url=url, client_kwargs=headers, validate_model_on_init=True)
    expect_close("documents", embeddings.embed_documents(TEXTS), VECTORS)


def voyage_ranks_documents(url, key):
    ranker = VoyageAIRerank(model="reranker", voyage_api_key=key, top_k=2, base_url=f"{url}/voyage/v1")
    ranked = ranker.compress_documents([Document(page_content=text) for text in TEXTS], QUERY)
    scores = [document.metadata["relevance_score"] for document in ranked]
    expect_equal("documents", len(ranked), 2)
    expect_equal("their order", scores, sorted(scores, reverse=True))


run(
    serving=[
        mistrals_embeddings_are_the_models,
        togethers_embeddings_are_the_models,
        ollamas_embeddings_are_the_models,
        voyage_ranks_documents,
    ],
    full=[],
    unready=[],
)
