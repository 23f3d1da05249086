#!/usr/bin/env python3
"""The client of a published tutorial on serving a sentiment classifier with Triton, over gRPC, and its index request.

The calls between the marks are the tutorial's own, in its order; only where the tokenizer comes from differs: it is asked
of the server.
"""

import json
import urllib.request

import numpy as np
import tritonclient.grpc as grpcclient

import checks


class ServedTokenizer:
    """The part of transformers' tokenizer that the tutorial uses, computed by the server."""

    def __init__(self, address):
        self.client = grpcclient.InferenceServerClient(address)

    def __call__(self, text, return_tensors):
        checks.expect_equal("return_tensors", return_tensors, "np")
        texts = grpcclient.InferInput("TEXT", [1], "BYTES").set_data_from_numpy(checks.texts([text]))
        result = self.client.infer("tiny_tokenizer", [texts])
        return {name: result.as_numpy(name) for name in ("input_ids", "attention_mask")}


def tutorial(args, tokenizer):
    # --- as published ---
    inputs = []
    outputs = []

    triton_client = grpcclient.InferenceServerClient(args.triton_adress, verbose=False)

    encoded_input = tokenizer(args.input_text, return_tensors="np")
    input_lenghts = encoded_input["input_ids"].shape[1]

    inputs.append(grpcclient.InferInput("INPUT__0", [1, input_lenghts], "INT64"))
    inputs.append(grpcclient.InferInput("INPUT__1", [1, input_lenghts], "INT64"))
    outputs.append(grpcclient.InferRequestedOutput("OUTPUT__0"))

    inputs[0].set_data_from_numpy(encoded_input["input_ids"].astype(np.int64))
    inputs[1].set_data_from_numpy(encoded_input["attention_mask"].astype(np.int64))

    results = triton_client.infer(model_name="sentiment_classifier", inputs=inputs, outputs=outputs)
    logits = results.as_numpy("OUTPUT__0")

    class_index = np.argmax(logits[0])
    labels = ["negative", "neutral", "positive"]
    # --- as published ---
    return labels[class_index]


class Arguments:
    def __init__(self, triton_adress, input_text):
        self.triton_adress, self.input_text = triton_adress, input_text


def check_tutorial(address):
    tokenizer = ServedTokenizer(address)
    expected = {"a very good boat": "positive", "the oar": "neutral", "not a good cause, no": "negative"}
    found = {text: tutorial(Arguments(address, text), tokenizer) for text in expected}
    checks.expect_equal("sentiments", found, expected)
    return str(found)


def check_index(url):
    """As the tutorial's curl asks: POST without a body."""
    request = urllib.request.Request(f"http://{url}/v2/repository/index", method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        index = json.load(answer)
    line = {"name": "sentiment_classifier", "version": "1", "state": "READY"}
    checks.expect(line in index, f"index: expected {line} in it, found {index}")


def main():
    add_grpc = lambda parser: parser.add_argument("--grpc-url", required=True, metavar="HOST:PORT")
    arguments = checks.arguments(__doc__, add_grpc)
    checks.run(
        [
            ("the tutorial's client", lambda: check_tutorial(arguments.grpc_url)),
            ("the tutorial's index request", lambda: check_index(arguments.url)),
        ]
    )


if __name__ == "__main__":
    main()
