"""One base URL for each server: its own client asks for all that it knows behind the dialect's name."""

import cohere
import ollama
import openai
from checks import QUERY, TEXTS, VECTORS, expect, expect_close, expect_equal, expect_raised, run
from infinity_client import AuthenticatedClient
from infinity_client.api.default import health, models
from langchain_openai import OpenAIEmbeddings


def openai_clients_have_vectors_and_models(url, key):
    """OpenAI's own client, which those of vLLM, TEI, NIM, Jina and Ollama are told to use."""
    for base, more in {
        "openai/v1": {},
        "vllm/v1": {"truncate_prompt_tokens": -1, "normalize": True, "add_special_tokens": True},
        "tei/embedding/v1": {},
        "nim/v1": {"input_type": "passage", "truncate": "END"},
        "jina/v1": {"task": "retrieval.passage", "late_chunking": False},
        "ollama/v1": {},
    }.items():
        ask = openai.OpenAI(base_url=f"{url}/{base}", api_key=key)
        found = ask.embeddings.create(model="embedding", input=TEXTS, extra_body=more)
        expect_close(base, [item.embedding for item in found.data], VECTORS)
        if not base.startswith("tei"):
            expect("embedding" in [model.id for model in ask.models.list()], f"{base}: models")
        wrong = openai.OpenAI(base_url=f"{url}/{base}", api_key="wrong")
        create = lambda: wrong.embeddings.create(model="embedding", input="a")  # noqa: E731, B023
        expect_raised(f"{base}: a wrong key", openai.AuthenticationError, create)
    expect_equal("files", [file.id for file in openai.OpenAI(base_url=f"{url}/openai/v1", api_key=key).files.list()], [])


def a_blank_document_has_a_vector(url, key):
    ask = OpenAIEmbeddings(base_url=f"{url}/openai/v1", api_key=key, model="embedding", tiktoken_enabled=True)
    found = ask.embed_documents(["", TEXTS[0]])
    expect_close("the other document", found[1:], VECTORS[:1])
    expect_equal("numbers of the blank one", len(found[0]), len(VECTORS[0]))


def cohere_asks_for_all(url, key):
    ask = cohere.ClientV2(api_key=key, base_url=f"{url}/cohere")
    found = ask.embed(model="embedding", texts=TEXTS, input_type="search_document", embedding_types=["float"])
    expect_close("vectors", found.embeddings.float_, VECTORS)
    expect_equal("ranked", len(ask.rerank(model="reranker", query=QUERY, documents=TEXTS, top_n=2).results), 2)
    tokens = ask.tokenize(model="embedding", text="the oar", offline=False).tokens
    expect_equal("back", ask.detokenize(model="embedding", tokens=tokens, offline=False).text, "the oar")
    expect("embedding" in [model.name for model in ask.models.list().models], "models")
    expect_equal("a model", ask.models.get("embedding").name, "embedding")


def infinity_is_well(url, key):
    for base in (url, f"{url}/infinity"):
        ask = AuthenticatedClient(base_url=base, token=key)
        expect(health.sync(client=ask).additional_properties["unix"] > 1.7e9, f"{base}: health")
        expect("embedding" in [model.id for model in models.sync(client=ask).data], f"{base}: models")


def ollama_lists_and_embeds(url, key):
    ask = ollama.Client(host=f"{url}/ollama", headers={"Authorization": f"Bearer {key}"})
    expect("embedding" in [model.model for model in ask.list().models], "models")
    expect_close("vectors", ask.embed(model="embedding", input=TEXTS).embeddings, VECTORS)


run(
    serving=[
        openai_clients_have_vectors_and_models,
        a_blank_document_has_a_vector,
        cohere_asks_for_all,
        infinity_is_well,
        ollama_lists_and_embeds,
    ],
    full=[],
    unready=[],
)
