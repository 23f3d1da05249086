#!/usr/bin/env python3
"""Compares a server of the demo's model repository with Python's onnxruntime and tokenizers on the same files.

Needs no reference data: it computes the embedding of each text, one text at a time, and then asks the server one at a
time, all at once and in one request. The result for a text must not depend on the other texts.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import tokenizers
import tritonclient.http as triton

import checks
from checks import expect_equal, tensor, texts

MAX_LENGTH = 256
CONCURRENCY = 16
ROWS_A_REQUEST = 16
SUBJECTS = ["The trireme", "A worker that was killed", "Every request", "The tokenizer of the second model"]
VERBS = ["waits for", "carries", "does not lose", "is measured against"]
OBJECTS = [
    "the answer.",
    "a queue of messages that nobody has read yet, although the deadline is near",
    "batches of different length; naïve padding costs 2.6 times the tokens",
    "three banks of oars, each with its own drummer, its own pace and its own reason to be tired in the evening",
]
EDGE_CASES = [
    "",
    " \t\n ",
    "a",
    "[MASK] is a special token, [SEP] too",
    "漢字かな交じり文",
    "Ünïcödé façade, ＦＵＬＬ ｗｉｄｔｈ, ﬁ ligature, e\u0301 combining",
    "🚣‍♀️ rows 🌊",
    "zero\u200bwidth and \u00ad soft hyphen and \ufffd",
    "control \x01 character and \x00 NUL",
    "1234567890" * 30,
    "row " * 1000,
]


def sentences():
    return [f"{s} {v} {o}" for s in SUBJECTS for v in VERBS for o in OBJECTS] + EDGE_CASES


def add_options(parser):
    parser.add_argument("--repository", required=True, type=Path, metavar="DIR", help="the model repository that is served")
    parser.add_argument("--model", default="sentence_embedding", help="(default %(default)s)")
    parser.add_argument("--min-cosine", type=float, default=0.99999, metavar="X", help="(default %(default)s)")


class Reference:
    """The ensemble's three steps in Python."""

    def __init__(self, repository):
        self.tokenizer = tokenizers.Tokenizer.from_file(str(repository / "tokenizer/1/tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MAX_LENGTH)
        path = repository / "minilm/1/model.onnx"
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def encode(self, text):
        return self.tokenizer.encode(text).ids

    def embed(self, text):
        ids = np.array([self.encode(text)])
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        return checks.normalized(self.session.run(["last_hidden_state"], inputs)[0][0].mean(axis=0))


def embed(url, model, batch):
    with triton.InferenceServerClient(url, network_timeout=300.0) as client:
        return client.infer(model, [tensor("TEXT", texts(batch))]).as_numpy("embedding")


def compare(found, expected, least, values):
    expect_equal("shape", found.shape, expected.shape)
    cosine = checks.cosines(found, expected)
    for text, close in zip(values, cosine):
        checks.expect(close >= least, f"cosine of {text[:80]!r}: expected at least {least}, found {close:.6f}")
    length = np.abs(np.linalg.norm(found, axis=1) - 1).max()
    checks.expect(length < 1e-5, f"lengths: expected 1, found a difference of {length:g}")
    return f"{len(values)} texts, min cosine {cosine.min():.7f}"


def check_tokenizer(options, reference, values):
    with triton.InferenceServerClient(options.url) as client:
        result = client.infer("tokenizer", [tensor("TEXT", texts(values))])
    ids, mask, types = (result.as_numpy(name) for name in ("input_ids", "attention_mask", "token_type_ids"))
    encoded = [reference.encode(text) for text in values]
    longest = max(len(row) for row in encoded)
    for name, array in (("input_ids", ids), ("attention_mask", mask), ("token_type_ids", types)):
        expect_equal(f"shape of {name}", array.shape, (len(values), longest))
    for index, (text, row) in enumerate(zip(values, encoded)):
        padding = [0] * (longest - len(row))
        expect_equal(f"input_ids of {text[:80]!r}", ids[index].tolist(), row + padding)
        expect_equal(f"attention_mask of {text[:80]!r}", mask[index].tolist(), [1] * len(row) + padding)
    expect_equal("token_type_ids", int(np.abs(types).sum()), 0)
    return f"{len(values)} texts, padded to {longest} tokens"


def main():
    options = checks.arguments(__doc__, add_options)
    reference, values = Reference(options.repository), sentences()
    print(f"computing references for {len(values)} texts", flush=True)
    expected = np.stack([reference.embed(text) for text in values])
    ask = lambda batch: embed(options.url, options.model, batch)

    def alone():
        return compare(np.concatenate([ask([text]) for text in values]), expected, options.min_cosine, values)

    def concurrent():
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            rows = list(pool.map(lambda text: ask([text]), values))
        return compare(np.concatenate(rows), expected, options.min_cosine, values)

    def together():
        batches = [values[start : start + ROWS_A_REQUEST] for start in range(0, len(values), ROWS_A_REQUEST)]
        return compare(np.concatenate([ask(batch) for batch in batches]), expected, options.min_cosine, values)

    checks.run(
        [
            ("tokenizer", lambda: check_tokenizer(options, reference, values)),
            ("one at a time", alone),
            (f"{CONCURRENCY} requests at once", concurrent),
            (f"{ROWS_A_REQUEST} texts a request", together),
        ]
    )


if __name__ == "__main__":
    main()
