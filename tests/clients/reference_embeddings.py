#!/usr/bin/env python3
"""Compares a server's embeddings of real texts with reference embeddings: one at a time, all at once, in one request.

The reference folder holds `texts-dev.jsonl` ({"text": ..., "input_ids": [...]} a line) and
`texts-dev-minilm-fp32-mean-l2.npy` (one row a text, length 1). No embedding may depend on what else the server was
doing: each way of sending has to give every text a cosine of at least 0.99999 to its reference.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tritonclient.http as triton

import checks
from checks import expect, expect_equal, tensor, texts

TEXTS = "texts-dev.jsonl"
EMBEDDINGS = "texts-dev-minilm-fp32-mean-l2.npy"
ROWS_A_REQUEST = 32
TOKENIZER_TEXTS = 100
WAYS = ["alone", "concurrent", "together"]


def add_options(parser):
    parser.add_argument("--references", required=True, type=Path, metavar="DIR", help=f"folder with {TEXTS} and {EMBEDDINGS}")
    parser.add_argument("--model", default="sentence_embedding", help="TEXT in, embedding out (default %(default)s)")
    parser.add_argument("--tokenizer", metavar="MODEL", help="also compare this model's input_ids with the reference's")
    parser.add_argument("--concurrency", type=int, default=64, metavar="N", help="requests in flight (default %(default)s)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N texts")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="of sending the texts (default: every one)")
    parser.add_argument("--min-cosine", type=float, default=0.99999, metavar="X", help="(default %(default)s)")


class References:
    def __init__(self, folder, limit):
        lines = [json.loads(line) for line in (folder / TEXTS).read_text(encoding="utf-8").splitlines()][:limit]
        self.texts = [line["text"] for line in lines]
        self.input_ids = [line["input_ids"] for line in lines]
        self.embeddings = np.load(folder / EMBEDDINGS)[: len(lines)]
        if len(self.embeddings) != len(lines):
            raise SystemExit(f"{folder}: {len(lines)} texts in {TEXTS}, but {len(self.embeddings)} rows in {EMBEDDINGS}")

    def compare(self, found, least, seconds):
        """Every text's cosine is at least `least`; says how close and how fast."""
        expect_equal("shape of all embeddings", found.shape, self.embeddings.shape)
        cosine = checks.cosines(found, self.embeddings)
        worst = int(np.nanargmin(cosine)) if not np.isnan(cosine).all() else 0
        bad = int((~(cosine >= least)).sum())
        expect(
            bad == 0,
            f"{bad} of {len(cosine)} texts below cosine {least}; the worst, {cosine[worst]:.6f}, is {self.texts[worst][:80]!r}",
        )
        return f"min cosine {cosine[worst]:.7f}, {len(cosine) / seconds:.0f} texts/s"


def embed(client, model, batch):
    return client.infer(model, [tensor("TEXT", texts(batch))]).as_numpy("embedding")


def timed(rows):
    """Runs a generator of row blocks to its end; returns all rows and the duration in seconds."""
    started = time.monotonic()
    found = np.concatenate(list(rows))
    return found, time.monotonic() - started


def check_alone(options, references):
    with triton.InferenceServerClient(options.url) as client:
        found, seconds = timed(embed(client, options.model, [text]) for text in references.texts)
    return references.compare(found, options.min_cosine, seconds)


def check_concurrent(options, references):
    """Threads with one client each, because a tritonclient.http client can only be used by the thread that created
    it."""
    blocks = [range(start, len(references.texts), options.concurrency) for start in range(options.concurrency)]
    found = np.full_like(references.embeddings, np.nan)

    def work(block):
        with triton.InferenceServerClient(options.url) as client:
            for index in block:
                row = embed(client, options.model, [references.texts[index]])
                expect_equal("shape", row.shape, (1, found.shape[1]))
                found[index] = row[0]

    started = time.monotonic()
    with ThreadPoolExecutor(options.concurrency) as pool:
        for done in [pool.submit(work, block) for block in blocks]:
            done.result()
    return references.compare(found, options.min_cosine, time.monotonic() - started)


def check_together(options, references):
    with triton.InferenceServerClient(options.url, network_timeout=300.0) as client:
        starts = range(0, len(references.texts), ROWS_A_REQUEST)
        batches = [references.texts[start : start + ROWS_A_REQUEST] for start in starts]
        found, seconds = timed(embed(client, options.model, batch) for batch in batches)
    return references.compare(found, options.min_cosine, seconds)


def check_tokenizer(options, references):
    with triton.InferenceServerClient(options.url) as client:
        for text, expected in list(zip(references.texts, references.input_ids))[:TOKENIZER_TEXTS]:
            found = client.infer(options.tokenizer, [tensor("TEXT", texts([text]))]).as_numpy("input_ids")
            expect_equal(f"input_ids of {text[:80]!r}", found.tolist(), [expected])
    return f"{min(TOKENIZER_TEXTS, len(references.texts))} texts"


def main():
    options = checks.arguments(__doc__, add_options)
    references = References(options.references, options.limit)
    ways = {
        "alone": ("one at a time", lambda: check_alone(options, references)),
        "concurrent": (f"{options.concurrency} requests at once", lambda: check_concurrent(options, references)),
        "together": (f"{ROWS_A_REQUEST} texts a request", lambda: check_together(options, references)),
    }
    table = [ways[way] for way in options.ways]
    if options.tokenizer:
        table.insert(0, ("tokenizer", lambda: check_tokenizer(options, references)))
    checks.run(table)


if __name__ == "__main__":
    main()
