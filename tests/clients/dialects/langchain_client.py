"""LangChain's OpenAIEmbeddings. With its own settings it sends token ids, which it makes with a vocabulary that it downloads: a
stand-in for that vocabulary, which knows two texts, is put in its place."""

import tiktoken
from checks import TEXTS, VECTORS, expect_close, expect_equal, run
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


def embeddings(url, key, **options):
    return OpenAIEmbeddings(model="embedding", base_url=f"{url}/v1", api_key=key, max_retries=0, **options)


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


run({"serving": [texts_give_the_models_vectors, token_ids_give_the_same_vectors_as_texts], "full": []})
