"""Pydantic AI: its embedding models of OpenAI, Cohere and Voyage."""

import cohere
import voyageai
from checks import TEXTS, VECTORS, expect, expect_close, expect_equal, expect_status, run
from pydantic_ai import Embedder
from pydantic_ai.embeddings.cohere import CohereEmbeddingModel
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.embeddings.voyageai import VoyageAIEmbeddingModel
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.providers.cohere import CohereProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.voyageai import VoyageAIProvider


def of_openai(url, key):
    return Embedder(OpenAIEmbeddingModel("embedding", provider=OpenAIProvider(base_url=f"{url}/v1", api_key=key)))


def of_cohere(url, key):
    client = cohere.AsyncClientV2(api_key=key, base_url=f"{url}/cohere")
    return Embedder(CohereEmbeddingModel("embedding", provider=CohereProvider(cohere_client=client)))


def of_voyage(url, key):
    client = voyageai.AsyncClient(api_key=key, base_url=f"{url}/voyage/v1")
    return Embedder(VoyageAIEmbeddingModel("embedding", provider=VoyageAIProvider(voyageai_client=client)))


def check(embedder):
    # Cohere's model lets no text be cut by default.
    answer = embedder.embed_documents_sync(TEXTS, settings={"truncate": True})
    expect_close("documents", answer.embeddings, VECTORS)
    expect(answer.usage.input_tokens > len(TEXTS), f"usage: {answer.usage}")
    expect_close("a query", embedder.embed_query_sync(TEXTS[0]).embeddings, VECTORS[:1])
    short = embedder.embed_documents_sync(TEXTS, settings={"dimensions": 4, "truncate": True}).embeddings
    expect_equal("numbers", {len(row) for row in short}, {4})


def openais_model_embeds(url, key):
    check(of_openai(url, key))


def coheres_model_embeds(url, key):
    check(of_cohere(url, key))


def voyages_model_embeds(url, key):
    check(of_voyage(url, key))


def a_wrong_key_is_401(url, _):
    expect_status("OpenAI", 401, ModelHTTPError, lambda: of_openai(url, "wrong").embed_query_sync("a"))


def a_full_queue_is_429(url, key):
    expect_status("OpenAI", 429, ModelHTTPError, lambda: of_openai(url, key).embed_query_sync("a"))


def a_model_that_is_not_ready_is_503(url, key):
    expect_status("OpenAI", 503, ModelHTTPError, lambda: of_openai(url, key).embed_query_sync("a"))


run(
    serving=[openais_model_embeds, coheres_model_embeds, voyages_model_embeds, a_wrong_key_is_401],
    full=[a_full_queue_is_429],
    unready=[a_model_that_is_not_ready_is_503],
)
