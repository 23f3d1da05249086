"""DSPy: its embedder and its retriever over one, by LiteLLM's provider `openai`."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy  # noqa: E402
from checks import TEXTS, VECTORS, expect_close, expect_equal, run  # noqa: E402


def embedder(url, key, **more):
    return dspy.Embedder("openai/embedding", api_base=f"{url}/v1", api_key=key, caching=False, **more)


def embeddings_are_the_models(url, key):
    expect_close("vectors", embedder(url, key)(TEXTS), VECTORS)
    expect_close("in batches", embedder(url, key, batch_size=2)(TEXTS), VECTORS)
    expect_close("a text", embedder(url, key)(TEXTS[0]), VECTORS[0])


def a_text_is_found_by_itself(url, key):
    search = dspy.retrievers.Embeddings(embedder=embedder(url, key), corpus=TEXTS, k=1)
    expect_equal("found", search(TEXTS[1]).passages, [TEXTS[1]])


run(serving=[embeddings_are_the_models, a_text_is_found_by_itself], full=[], unready=[])
