"""KServe's client of the v2 protocol, which reads bodies of health: `--oip-health-bodies` gives them."""

import asyncio

import httpx
from checks import TEXTS, VECTORS, expect, expect_close, expect_equal, expect_status, run
from kserve import InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig


def ask(url, key, call):
    """What `call` gives of a client and the headers with the key."""

    async def asked():
        async with InferenceRESTClient(RESTConfig(protocol="v2", retries=0)) as client:
            return await call(client, {"authorization": f"Bearer {key}"})

    return asyncio.run(asked())


def infer(url, key, texts=TEXTS):
    texts = InferInput(name="TEXT", shape=[len(texts)], datatype="BYTES", data=texts)
    request = InferRequest(model_name="embedding", infer_inputs=[texts])
    return ask(url, key, lambda client, headers: client.infer(url, request, model_name="embedding", headers=headers))


def vectors_are_the_models(url, key):
    (output,) = infer(url, key).outputs
    expect_equal("the output", output.name, "sentence_embedding")
    expect_close("vectors", output.as_numpy(), VECTORS)


def the_server_is_well(url, key):
    expect(ask(url, key, lambda client, headers: client.is_server_live(url, headers=headers)), "it does not live")
    expect(ask(url, key, lambda client, headers: client.is_server_ready(url, headers=headers)), "it is not ready")
    ready = lambda client, headers: client.is_model_ready(url, "embedding", headers=headers)  # noqa: E731
    expect(ask(url, key, ready), "the model is not ready")


def a_wrong_key_is_401(url, _):
    expect_status("infer", 401, httpx.HTTPStatusError, lambda: infer(url, "wrong"))


def a_full_queue_is_503(url, key):
    expect_status("infer", 503, httpx.HTTPStatusError, lambda: infer(url, key))


def the_model_is_not_ready(url, key):
    ready = lambda client, headers: client.is_model_ready(url, "embedding", headers=headers)  # noqa: E731
    expect(not ask(url, key, ready), "the model is ready")
    expect_status("infer", 503, httpx.HTTPStatusError, lambda: infer(url, key))


run(
    serving=[vectors_are_the_models, the_server_is_well, a_wrong_key_is_401],
    full=[a_full_queue_is_503],
    unready=[the_model_is_not_ready],
)
