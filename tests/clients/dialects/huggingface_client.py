"""huggingface_hub's InferenceClient, which posts to the URL that it is given."""

from checks import TEXTS, TOO_LARGE, VECTORS, expect, expect_close, expect_equal, expect_retry_after, expect_status, run
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError


def client(url, key, model):
    return InferenceClient(model=f"{url}/tei/{model}", token=key, timeout=60)


def features_are_the_models(url, key):
    ask = client(url, key, "embedding")
    expect_close("a vector", ask.feature_extraction(TEXTS[0]), VECTORS[:1])
    found = ask.feature_extraction(TEXTS[1], normalize=True, truncation_direction="Right")
    expect_close("with options", found, VECTORS[1:2])


def sentences_are_compared(url, key):
    found = client(url, key, "embedding").sentence_similarity(TEXTS[0], other_sentences=TEXTS[:2])
    expect_close("cosines", found, VECTORS[:2] @ VECTORS[0])


def texts_are_classified(url, key):
    found = client(url, key, "classifier").text_classification(TEXTS[0], top_k=2)
    expect_equal("how many", len(found), 2)
    expect(found[0].score > found[1].score, f"the best is not first: {found}")
    expect({label.label for label in found} <= {"calm", "breeze", "storm"}, f"labels: {found}")


def errors_are_the_librarys(url, key):
    def expect_refused(what, status, text="a", key=key, model="embedding", **options):
        ask = client(url, key, model).feature_extraction
        expect_status(what, status, HfHubHTTPError, lambda: ask(text, **options))

    expect_refused("no texts", 400, [])
    expect_refused("a wrong key", 401, key="wrong")
    expect_refused("an unknown model", 404, model="x")
    expect_refused("a body that is too large", 413, TOO_LARGE)
    expect_refused("an unknown prompt", 422, prompt_name="nobody")


def refused(url, key, status):
    calls = {
        "a vector": lambda: client(url, key, "embedding").feature_extraction("a"),
        "cosines": lambda: client(url, key, "embedding").sentence_similarity("a", other_sentences=["b"]),
        "classes": lambda: client(url, key, "classifier").text_classification("a"),
    }
    for what, call in calls.items():
        expect_retry_after(what, expect_status(what, status, HfHubHTTPError, call).response.headers)


def a_full_queue_is_429(url, key):
    refused(url, key, 429)


def a_model_that_is_not_ready_is_503(url, key):
    refused(url, key, 503)


run(
    serving=[features_are_the_models, sentences_are_compared, texts_are_classified, errors_are_the_librarys],
    full=[a_full_queue_is_429],
    unready=[a_model_that_is_not_ready_is_503],
)
