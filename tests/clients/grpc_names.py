#!/usr/bin/env python3
"""tritonclient.grpc against a model folder that is served as `org/boats`: every call takes each of its names."""

import functools

import numpy as np
import tritonclient.grpc as triton

import checks
from checks import expect_equal, expect_error


def vector(client, name):
    texts = np.array(["the boat"], dtype=object)
    given = triton.InferInput("TEXT", [1], "BYTES").set_data_from_numpy(texts)
    result = client.infer(name, [given])
    expect_equal(f"the answer for {name} has the model's own name", result.get_response().model_name, "boats")
    return result.as_numpy("sentence_embedding").tolist()


def every_call_takes_both_names(client):
    own = vector(client, "boats")
    for name in ["org/boats", "harbour"]:
        expect_equal(f"the vector of {name}", vector(client, name), own)
        expect_equal(f"{name} is ready", client.is_model_ready(name), True)
        expect_equal(f"metadata of {name}", client.get_model_metadata(name).name, "boats")
        expect_equal(f"configuration of {name}", client.get_model_config(name).config.name, "boats")
        expect_equal(f"statistics of {name}", client.get_inference_statistics(name).model_stats[0].name, "boats")
    expect_error("an unknown name", lambda: vector(client, "org/other"), "StatusCode.NOT_FOUND", "unknown model: 'org/other'")


if __name__ == "__main__":
    with triton.InferenceServerClient(checks.arguments(__doc__).url) as client:
        checks.run([("every call takes each name", functools.partial(every_call_takes_both_names, client))])
