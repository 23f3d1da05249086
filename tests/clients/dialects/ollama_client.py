"""Ollama's own client."""

import ollama
from checks import TEXTS, TOO_LARGE, VECTORS, expect, expect_close, expect_equal, expect_raised, run


def client(url, key):
    return ollama.Client(host=f"http://{url}" if "://" not in url else url, headers={"Authorization": f"Bearer {key}"})


def embeddings_are_the_models(url, key):
    found = client(url, key).embed(model="embedding:latest", input=TEXTS)
    expect_close("vectors", found.embeddings, VECTORS)
    expect(found.prompt_eval_count > len(TEXTS), f"tokens: {found.prompt_eval_count}")
    expect_close("one text", client(url, key).embed(model="embedding", input=TEXTS[0]).embeddings, VECTORS[:1])
    expect_close("as before", client(url, key).embeddings(model="embedding", prompt=TEXTS[1]).embedding, VECTORS[1])


def models_are_listed_and_shown(url, key):
    names = [model.model for model in client(url, key).list().models]
    expect("embedding" in names, f"models: {names}")
    expect_equal("what it does", client(url, key).show("embedding").capabilities, ["embedding"])


def refused(url, key, status, model="embedding", text="a"):
    error = expect_raised("embed", ollama.ResponseError, lambda: client(url, key).embed(model=model, input=text))
    expect_equal("status", error.status_code, status)


def errors_are_the_clients_own(url, key):
    refused(url, "wrong", 401)
    refused(url, key, 404, model="no such model")
    refused(url, key, 413, text=TOO_LARGE)


def server_is_busy(url, key):
    refused(url, key, 503)


run(
    serving=[embeddings_are_the_models, models_are_listed_and_shown, errors_are_the_clients_own],
    full=[server_is_busy],
    unready=[server_is_busy],
)
