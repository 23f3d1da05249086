#!/usr/bin/env python3
"""The client of a published tutorial on serving a text embedder with Triton, against the repository tests/repositories/seed.

The calls between the two marks are the tutorial's own, in its order; only the address differs.
"""

import json
from pathlib import Path

import numpy as np
import tritonclient.http as httpclient

import checks

GOLDEN = Path(__file__).resolve().parent.parent / "models/golden.json"


def tutorial(url):
    # --- as published ---
    http_client = httpclient.InferenceServerClient(url=url, verbose=False)

    text_input = httpclient.InferInput("TEXT", shape=[1], datatype="BYTES")
    embedding_output = httpclient.InferRequestedOutput("3391", binary_data=False)

    sentences = ["what cause covid"]
    np_input_data = np.asarray([sentences], dtype=object)
    text_input.set_data_from_numpy(np_input_data.reshape(-1))

    results = http_client.infer(model_name="ensemble_model", inputs=[text_input], outputs=[embedding_output])

    inference_output = results.as_numpy("3391")
    # --- as published ---
    return inference_output


def check_tutorial(url):
    output = tutorial(url)
    checks.expect_equal("shape", output.shape, (1, 1024))
    checks.expect_equal("dtype", output.dtype, np.dtype(np.float32))
    golden = next(g for g in json.loads(GOLDEN.read_text()) if g["text"] == "what cause covid")
    expected, found = np.array(golden["ensemble_model_first_8"]), output[0, :8]
    checks.expect(np.allclose(found, expected, atol=1e-4), f"first 8 numbers: expected {expected}, found {found}")
    return f"embedding of shape {output.shape}"


def check_many_texts(url):
    golden = json.loads(GOLDEN.read_text())
    text_input = checks.tensor("TEXT", checks.texts([g["text"] for g in golden]))
    output = httpclient.InferenceServerClient(url=url).infer("ensemble_model", [text_input]).as_numpy("3391")
    checks.expect_equal("shape", output.shape, (len(golden), 1024))
    expected = np.array([g["ensemble_model_first_8"] for g in golden])
    worst = float(np.abs(output[:, :8] - expected).max())
    checks.expect(worst < 1e-4, f"largest difference to the reference: expected below 1e-4, found {worst:g}")
    return f"{len(golden)} texts of different lengths, largest difference {worst:.1e}"


def main():
    url = checks.arguments(__doc__).url
    checks.run(
        [
            ("the tutorial's request", lambda: check_tutorial(url)),
            ("many texts in one request", lambda: check_many_texts(url)),
        ]
    )


if __name__ == "__main__":
    main()
