"""MLServer's codecs: requests that they write, answers and metadata that they read."""

import httpx
from checks import TEXTS, VECTORS, expect_close, expect_equal, run
from mlserver.codecs import NumpyCodec, StringCodec, StringRequestCodec
from mlserver.types import InferenceRequest, InferenceResponse, MetadataModelResponse, MetadataServerResponse


def infer(url, key, request, **how):
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    body = request.model_dump_json(**how)
    answer = httpx.post(f"{url}/v2/models/embedding/infer", content=body, headers=headers, timeout=60)
    expect_equal(answer.text[:300], answer.status_code, 200)
    return InferenceResponse.model_validate_json(answer.text)


def a_codec_of_inputs_writes_texts(url, key):
    for name in ("TEXT", "text"):
        request = InferenceRequest(inputs=[StringCodec.encode_input(name, TEXTS, use_bytes=False)])
        # Fields that have no value may be null.
        for how in ({}, {"exclude_none": True}):
            expect_close(name, NumpyCodec.decode_output(infer(url, key, request, **how).outputs[0]), VECTORS)


def a_codec_of_requests_writes_texts(url, key):
    request = StringRequestCodec.encode_request(TEXTS, use_bytes=False)
    expect_close("vectors", NumpyCodec.decode_output(infer(url, key, request).outputs[0]), VECTORS)


def metadata_are_read(url, key):
    headers = {"authorization": f"Bearer {key}"}
    read = lambda path: httpx.get(f"{url}{path}", headers=headers, timeout=60).text  # noqa: E731
    expect_equal("the server", bool(MetadataServerResponse.model_validate_json(read("/v2")).extensions), True)
    model = MetadataModelResponse.model_validate_json(read("/v2/models/embedding"))
    expect_equal("the model", (model.name, model.inputs[0].shape), ("embedding", [-1]))


run(serving=[a_codec_of_inputs_writes_texts, a_codec_of_requests_writes_texts, metadata_are_read], full=[], unready=[])
