"""huggingface_hub's InferenceClient, which posts to the URL that it is given."""

from checks import TEXTS, VECTORS, expect, expect_close, expect_equal, expect_raised, run
from huggingface_hub import InferenceClient, InferenceTimeoutError
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
    empty = lambda: client(url, key, "embedding").feature_extraction([])  # noqa: E731
    error = expect_raised("no texts", HfHubHTTPError, empty)
    expect_equal("its status", error.response.status_code, 400)
    unknown = expect_raised("an unknown model", HfHubHTTPError, lambda: client(url, key, "x").feature_extraction("a"))
    expect_equal("its status", unknown.response.status_code, 404)
    wrong = lambda: client(url, "wrong", "embedding").feature_extraction("a")  # noqa: E731
    expect_equal("a wrong key", expect_raised("a wrong key", HfHubHTTPError, wrong).response.status_code, 401)


def a_full_server_is_429(url, key):
    error = expect_raised(
        "a full server", HfHubHTTPError, lambda: client(url, key, "embedding").feature_extraction("a")
    )
    expect(not isinstance(error, InferenceTimeoutError), "a full server is taken for one that starts")
    expect_equal("its status", error.response.status_code, 429)


run(
    {
        "serving": [features_are_the_models, sentences_are_compared, texts_are_classified, errors_are_the_librarys],
        "full": [a_full_server_is_429],
    }
)
