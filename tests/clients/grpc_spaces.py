#!/usr/bin/env python3
"""tritonclient.grpc against a model folder that is served as `boats`: metadata `if-space` of a call."""

import functools
import queue

import numpy as np
import tritonclient.grpc as triton

import checks
from checks import expect, expect_equal, expect_error

WRONG = "000000000000.000000000000.000000000000"
PATIENCE = 30


def given():
    return [triton.InferInput("TEXT", [1], "BYTES").set_data_from_numpy(np.array(["the boat"], dtype=object))]


def infer(client, spaces, **more):
    return client.infer("boats", given(), headers={"if-space": spaces}, **more).as_numpy("sentence_embedding").tolist()


def a_call_names_the_spaces(client, space):
    own = client.infer("boats", given()).as_numpy("sentence_embedding").tolist()
    for right in [space, f"{WRONG}, {space}"]:
        expect_equal(f"the vector for {right}", infer(client, right), own)
    expect_error("another space", lambda: infer(client, WRONG), "StatusCode.FAILED_PRECONDITION", WRONG, space, "'boats'")
    expect_error("no space", lambda: infer(client, "a b"), "StatusCode.INVALID_ARGUMENT", "'a b'")


def a_parameter_names_the_spaces(client, space):
    parameters = {"trireme_if_space": space}
    expect(infer(client, WRONG, parameters=parameters), "the request's own parameter has the last word")
    wrong = functools.partial(infer, client, space, parameters={"trireme_if_space": WRONG})
    expect_error("another space", wrong, "StatusCode.FAILED_PRECONDITION", WRONG, space)


def metadata_is_read(client, space):
    metadata = client.get_model_metadata("boats", as_json=True)
    expect_equal("the model's name", metadata["name"], "boats")
    expect_equal("its inputs", [tensor["name"] for tensor in metadata["inputs"]], ["TEXT"])


def a_stream_names_the_spaces(client, space):
    for spaces, fails in [(space, False), (WRONG, True)]:
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put(error), headers={"if-space": spaces})
        client.async_stream_infer("boats", given())
        error = answers.get(timeout=PATIENCE)
        client.stop_stream()
        expect_equal(f"whether the stream refuses {spaces}: {error}", error is not None, fails)
        expect(not fails or space in error.message(), f"the error names the space: {error}")


if __name__ == "__main__":
    arguments = checks.arguments(__doc__, lambda parser: parser.add_argument("--space", required=True))
    with triton.InferenceServerClient(arguments.url) as client:
        checks.run(
            [
                ("a call names the spaces", functools.partial(a_call_names_the_spaces, client, arguments.space)),
                ("a parameter names the spaces", functools.partial(a_parameter_names_the_spaces, client, arguments.space)),
                ("metadata is read", functools.partial(metadata_is_read, client, arguments.space)),
                ("a stream names the spaces", functools.partial(a_stream_names_the_spaces, client, arguments.space)),
            ]
        )
