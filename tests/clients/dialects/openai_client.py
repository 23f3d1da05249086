"""OpenAI's Python library."""

import json
import time

import openai
from checks import (
    TEXTS,
    TOO_LARGE,
    VECTORS,
    expect,
    expect_close,
    expect_equal,
    expect_raised,
    expect_retry_after,
    expect_status,
    run,
)


def client(url, key, max_retries=0):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=max_retries)


def embeddings_are_the_models(url, key):
    # The library asks for base64 and decodes it.
    answer = client(url, key).embeddings.create(model="embedding", input=TEXTS)
    expect_close("vectors", [item.embedding for item in answer.data], VECTORS)
    expect_equal("indices", [item.index for item in answer.data], list(range(len(TEXTS))))
    expect(answer.usage.prompt_tokens > len(TEXTS), f"usage: {answer.usage}")
    answer = client(url, key).embeddings.create(model="trireme/tiny-embedding", input=TEXTS[0], encoding_format="float")
    expect_close("one vector", answer.data[0].embedding, VECTORS[0])


def azures_client_names_the_model_in_the_path(url, key):
    azure = openai.AzureOpenAI(azure_endpoint=url, api_key=key, api_version="2024-10-21", max_retries=0)
    answer = azure.embeddings.create(model="embedding", input=TEXTS)
    expect_close("vectors", [item.embedding for item in answer.data], VECTORS)
    of_one = openai.AzureOpenAI(azure_endpoint=url, api_key=key, api_version="2024-10-21", azure_deployment="embedding", max_retries=0)
    answer = of_one.embeddings.create(model="any", input=TEXTS)
    expect_close("vectors of the deployment", [item.embedding for item in answer.data], VECTORS)
    for listing in (azure, of_one):
        names = [model.id for model in listing.models.list()]
        expect("embedding" in names, f"models: {names}")
    wrong = openai.AzureOpenAI(azure_endpoint=url, api_key="wrong", api_version="2024-10-21", max_retries=0)
    embed = wrong.embeddings.create
    expect_raised("a wrong key", openai.AuthenticationError, lambda: embed(model="embedding", input=TEXTS), "key")


def token_ids_are_openais(url, key):
    ids = client(url, key).embeddings.create(model="embedding", input=[[15339, 1917]])
    text = client(url, key).embeddings.create(model="embedding", input="hello world")
    expect_equal("vectors", ids.data[0].embedding, text.data[0].embedding)


def models_are_listed(url, key):
    names = [model.id for model in client(url, key).models.list()]
    expect("embedding" in names and "trireme/tiny-embedding" in names, f"models: {names}")
    expect_equal("a model", client(url, key).models.retrieve("embedding").id, "embedding")


def usage_is_read_by_administrators(url, key):
    # The library has a key of its own for these routes.
    client(url, key).embeddings.create(model="embedding", input="a")
    usage = openai.OpenAI(base_url=f"{url}/v1", admin_api_key=key, max_retries=0).admin.organization.usage
    page = usage.embeddings(start_time=int(time.time()) - 3600, bucket_width="1h", group_by=["model", "project_id"])
    results = [result for bucket in page.data for result in bucket.results if result.model == "embedding"]
    expect(results and all(result.input_tokens and result.num_model_requests for result in results), f"usage: {page}")
    expect_raised("a bucket of a minute", openai.BadRequestError, lambda: usage.embeddings(start_time=0, bucket_width="1m"), "bucket_width")


def errors_are_the_librarys(url, key):
    embed = client(url, key).embeddings.create
    expect_raised("an empty list", openai.BadRequestError, lambda: embed(model="embedding", input=[]), "empty")
    wrong = {"dimensions": "all"}
    error = expect_raised(
        "a field of another form",
        openai.BadRequestError,
        lambda: embed(model="embedding", input="a", extra_body=wrong),
        "expected a number",
    )
    expect_equal("its parameter", error.param, "dimensions")
    # Proxies add their own fields.
    embed(model="embedding", input="a", extra_body={"metadata": {}, "drop_params": True})
    error = expect_raised("an unknown model", openai.NotFoundError, lambda: embed(model="nobody", input="a"))
    expect_equal("its code", error.code, "model_not_found")
    wrong = client(url, "wrong").embeddings.create
    expect_raised("a wrong key", openai.AuthenticationError, lambda: wrong(model="embedding", input="a"))
    # The library has no class of its own for 413.
    large = lambda: embed(model="embedding", input=TOO_LARGE)  # noqa: E731
    expect_status("a body that is too large", 413, openai.APIStatusError, large)


def batches_are_answered(url, key):
    ask = client(url, key)
    lines = [
        {"custom_id": str(at), "method": "POST", "url": "/v1/embeddings", "body": {"model": "embedding", "input": text}}
        for at, text in enumerate(TEXTS)
    ]
    written = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = ask.files.create(file=("lines.jsonl", written), purpose="batch")
    expect_equal("the size of the file", file.bytes, len(written))
    batch = ask.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    give_up = time.monotonic() + 60
    while batch.status != "completed":
        expect(batch.status in ("validating", "in_progress"), f"the batch is {batch.status}")
        expect(time.monotonic() < give_up, "the batch does not end")
        time.sleep(0.2)
        batch = ask.batches.retrieve(batch.id)
    expect_equal("the counts", (batch.request_counts.total, batch.request_counts.completed), (len(TEXTS), len(TEXTS)))
    answers = [json.loads(line) for line in ask.files.content(batch.output_file_id).text.splitlines()]
    expect_equal("the order", [answer["custom_id"] for answer in answers], [line["custom_id"] for line in lines])
    vectors = [answer["response"]["body"]["data"][0]["embedding"] for answer in answers]
    expect_close("vectors of a batch", vectors, VECTORS)
    expect(batch.id in [one.id for one in ask.batches.list(limit=100)], "the list has the batch")
    expect(file.id in [one.id for one in ask.files.list()], "the list has the file")
    expect(ask.files.delete(file.id).deleted, "the file is deleted")
    expect_raised("a deleted file", openai.NotFoundError, lambda: ask.files.retrieve(file.id), "no file with id")
    unknown = {"input_file_id": "none", "endpoint": "/v1/embeddings", "completion_window": "24h"}
    expect_raised("a file that is not there", openai.NotFoundError, lambda: ask.batches.create(**unknown))
    parts = ask.uploads.create(filename="lines.jsonl", purpose="batch", bytes=len(written), mime_type="application/jsonl")
    half = len(written) // 2
    ids = [ask.uploads.parts.create(parts.id, data=data).id for data in (written[:half], written[half:])]
    whole = ask.uploads.complete(parts.id, part_ids=ids).file
    expect_equal("a file in parts", ask.files.content(whole.id).read(), written)


def a_full_queue_is_a_rate_limit(url, key):
    embed = client(url, key).embeddings.create
    error = expect_raised("a full queue", openai.RateLimitError, lambda: embed(model="embedding", input="a"))
    expect_retry_after("a full queue", error.response.headers)
    started = time.monotonic()
    again = client(url, key, max_retries=1).embeddings.create
    expect_raised("a full queue twice", openai.RateLimitError, lambda: again(model="embedding", input="a"))
    expect(time.monotonic() - started >= 1, "the library did not wait as Retry-After says")


def a_model_that_is_not_ready_is_503(url, key):
    for name in ("embedding", "trireme/tiny-embedding"):
        embed = lambda: client(url, key).embeddings.create(model=name, input="a")  # noqa: E731, B023
        error = expect_status(name, 503, openai.InternalServerError, embed)
        expect_retry_after(name, error.response.headers)


run(
    serving=[
        embeddings_are_the_models,
        azures_client_names_the_model_in_the_path,
        token_ids_are_openais,
        models_are_listed,
        batches_are_answered,
        usage_is_read_by_administrators,
        errors_are_the_librarys,
    ],
    full=[a_full_queue_is_a_rate_limit],
    unready=[a_model_that_is_not_ready_is_503],
)
