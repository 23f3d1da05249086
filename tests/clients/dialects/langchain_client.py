"""LangChain's OpenAIEmbeddings. With its own settings it sends token ids, which tiktoken makes with the vocabulary cl100k_base: a
file of the folder TIKTOKEN_CACHE_DIR, as tiktoken would leave it there after its download."""

import openai
import tiktoken
from checks import TEXTS, TOO_LARGE, VECTORS, expect, expect_close, expect_equal, expect_raised, expect_status, run
from langchain_openai import OpenAIEmbeddings


def embeddings(url, key, model="embedding", **options):
    return OpenAIEmbeddings(model=model, base_url=f"{url}/v1", api_key=key, max_retries=0, **options)


def embed(url, key, text="a", model="embedding"):
    return embeddings(url, key, model, check_embedding_ctx_length=False).embed_query(text)


def texts_give_the_models_vectors(url, key):
    client = embeddings(url, key, check_embedding_ctx_length=False)
    expect_close("documents", client.embed_documents(TEXTS), VECTORS)
    expect_close("a query", client.embed_query(TEXTS[0]), VECTORS[0])


def token_ids_give_the_same_vectors_as_texts(url, key):
    # Long enough for several tokens, and with characters of several tokens each.
    texts = [*TEXTS, "  spaces, 🚣🏽 and\nlines\t", "naïve Σίσυφος"]
    expect_equal("the vocabulary", tiktoken.get_encoding("cl100k_base").encode("hello world"), [15339, 1917])
    by_ids, sent = embeddings(url, key), []
    create = by_ids.client.create
    by_ids.client.create = lambda **request: (sent.append(request["input"]), create(**request))[1]
    by_ids = by_ids.embed_documents(texts)
    expect(all(isinstance(row, list) for rows in sent for row in rows), f"not token ids: {sent}")
    by_text = embeddings(url, key, check_embedding_ctx_length=False).embed_documents(texts)
    expect_close("documents", by_ids, by_text)
    expect_close("the model's vectors", by_ids[: len(TEXTS)], VECTORS)


def errors_are_the_librarys(url, key):
    expect_raised("a wrong key", openai.AuthenticationError, lambda: embed(url, "wrong"))
    expect_raised("an unknown model", openai.NotFoundError, lambda: embed(url, key, model="nobody"))
    large = lambda: embed(url, key, TOO_LARGE)  # noqa: E731
    expect_status("a body that is too large", 413, openai.APIStatusError, large)


def a_full_queue_is_a_rate_limit(url, key):
    expect_raised("a full queue", openai.RateLimitError, lambda: embed(url, key))


def a_model_that_is_not_ready_is_503(url, key):
    expect_status("no model", 503, openai.InternalServerError, lambda: embed(url, key))


run(
    serving=[texts_give_the_models_vectors, token_ids_give_the_same_vectors_as_texts, errors_are_the_librarys],
    full=[a_full_queue_is_a_rate_limit],
    unready=[a_model_that_is_not_ready_is_503],
)
