#!/usr/bin/env python3
"""tritonclient.grpc against a model folder that is served as `boats`: a long text is read in windows by the words that HTTP has."""

import functools

import numpy as np
import tritonclient.grpc as triton

import checks
from checks import expect, expect_equal, expect_error

LONG = "The ship is on the sea. The harbour is calm and the crew is on the boat. The captain of the ship beats the drum."


def infer(client, model, output, text, **parameters):
    texts = np.array([text], dtype=object)
    given = triton.InferInput("TEXT", [1], "BYTES").set_data_from_numpy(texts)
    return client.infer(model, [given], outputs=[triton.InferRequestedOutput(output)], parameters=parameters).as_numpy(output)


def a_long_text_has_the_fold_of_its_windows(client):
    vector = functools.partial(infer, client, "boats", "sentence_embedding")
    places = infer(client, "boats_tokenizer", "windows", LONG, windows=True, overlap=0)
    expect(len(places) > 2, f"several windows, found {places}")
    alone = np.concatenate([vector(LONG[begin:end]) for _, begin, end, *_ in places])
    folds = {"first": alone[0], "max": alone.max(axis=0), "mean": np.average(alone, axis=0, weights=places[:, 5])}
    for fold, expected in folds.items():
        expected = expected / np.linalg.norm(expected)
        found = vector(LONG, windows=True, overlap=0, fold=fold)[0]
        expect(np.abs(found - expected).max() < 1e-6, f"the fold {fold}, {expected}, found {found}")
    expect_equal("without words for it the text is cut", vector(LONG).tolist(), vector(LONG, windows=False).tolist())
    expect_error("an unknown fold", lambda: vector(LONG, fold="median"), "StatusCode.INVALID_ARGUMENT", "expected 'mean', 'first', 'max' or 'keep'")
    texts = triton.InferInput("TEXT", [2], "BYTES").set_data_from_numpy(np.array(["the sea", LONG], dtype=object))
    kept = client.infer("boats", [texts], parameters={"windows": True, "overlap": 0, "fold": "keep"})
    found, windows = kept.as_numpy("sentence_embedding"), kept.as_numpy("windows")
    expect_equal("the texts of the rows", windows[:, 0].tolist(), [0] + [1] * len(places))
    expect_equal("their characters", windows[1:, 1:3].tolist(), places[:, 1:3].tolist())
    expect(np.abs(found - np.concatenate([vector("the sea"), alone])).max() < 1e-6, "a vector for each window")


if __name__ == "__main__":
    with triton.InferenceServerClient(checks.arguments(__doc__).url) as client:
        checks.run([("a long text has the fold of its windows", functools.partial(a_long_text_has_the_fold_of_its_windows, client))])
