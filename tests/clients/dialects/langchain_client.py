"""LangChain's OpenAIEmbeddings. With its own settings it sends token ids, which it makes with a vocabulary that it downloads: a
stand-in for that vocabulary, which knows two texts, is put in its place."""

import openai
import tiktoken
from checks import TEXTS, TOO_LARGE, VECTORS, expect_close, expect_equal, expect_raised, expect_status, run
from langchain_openai import OpenAIEmbeddings

#: The ids of texts in cl100k_base.
IDS = {"hello world": [15339, 1917], "a": [64]}


class Vocabulary:
    def encode(self, text, **_):
        return IDS[text]

    def encode_ordinary(self, text):
        return IDS[text]

    def decode(self, ids):
        return next(text for text, known in IDS.items() if known == list(ids))


def embeddings(url, key, model="embedding", **options):
    return OpenAIEmbeddings(model=model, base_url=f"{url}/v1", api_key=key, max_retries=0, **options)


def embed(url, key, text="a", model="embedding"):
    return embeddings(url, key, model, check_embedding_ctx_length=False).embed_query(text)


def texts_give_the_models_vectors(url, key):
    client = embeddings(url, key, check_embedding_ctx_length=False)
    expect_close("documents", client.embed_documents(TEXTS), VECTORS)
    expect_close("a query", client.embed_query(TEXTS[0]), VECTORS[0])


def token_ids_give_the_same_vectors_as_texts(url, key):
    tiktoken.encoding_for_model = tiktoken.get_encoding = lambda _: Vocabulary()
    texts = list(IDS)
    by_ids = embeddings(url, key).embed_documents(texts)
    by_text = embeddings(url, key, check_embedding_ctx_length=False).embed_documents(texts)
    expect_close("documents", by_ids, by_text)
    expect_equal("how many", len(by_ids), len(texts))


def errors_are_the_librarys(url, key):
    expect_raised("an empty text", openai.BadRequestError, lambda: embed(url, key, ""), "empty")
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
