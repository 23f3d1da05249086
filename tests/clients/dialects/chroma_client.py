"""Chroma: its embedding functions of OpenAI and of Hugging Face's server. That of Ollama sends no key, so no server with keys answers it."""

import os

from checks import TEXTS, VECTORS, expect_close, run
from chromadb.utils.embedding_functions import HuggingFaceEmbeddingServer, OpenAIEmbeddingFunction


def openais_function_embeds(url, key):
    os.environ["KEY_OF_THE_TEST"] = key
    embed = OpenAIEmbeddingFunction(api_key_env_var="KEY_OF_THE_TEST", model_name="embedding", api_base=f"{url}/v1")
    expect_close("vectors", embed(TEXTS), VECTORS)


def hugging_faces_function_embeds(url, key):
    os.environ["KEY_OF_THE_TEST"] = key
    embed = HuggingFaceEmbeddingServer(url=f"{url}/tei/embedding/embed", api_key_env_var="KEY_OF_THE_TEST")
    short = [index for index, text in enumerate(TEXTS) if len(text) < 30]
    expect_close("vectors", embed([TEXTS[index] for index in short]), VECTORS[short])


run(serving=[openais_function_embeds, hugging_faces_function_embeds], full=[], unready=[])
