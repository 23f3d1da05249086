#!/usr/bin/env python3
"""Serves the demo's model repository, asks it for three sentence embeddings, and shows how alike the sentences are.

What `make demo` runs once everything is built and fetched.
"""

import json
import math

import demo_server
from demo_server import ROOT, DemoError, show_timing

MODEL = "sentence_embedding"
WIDTH = 384
SENTENCES = [
    "The rowers pull together to the beat of a drum.",
    "A crew rows in time with the drummer.",
    "The quarterly report is due on Friday.",
]


def infer(url, texts):
    """Sends `texts`; returns their embeddings, the Server-Timing header and the total time in milliseconds."""
    body = {"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [len(texts)], "data": texts}]}
    output, *timing = demo_server.infer(url, MODEL, body, "embedding")
    shape, data = output["shape"], output["data"]
    if shape != [len(texts), WIDTH] or len(data) != len(texts) * WIDTH:
        raise DemoError(f"expected embeddings of shape [{len(texts)}, {WIDTH}], found {len(data)} numbers, shape {shape}")
    return [data[start : start + WIDTH] for start in range(0, len(data), WIDTH)], *timing


def show_similarity(rows):
    print("\nHow alike are they (cosine)?\n")
    for number, sentence in enumerate(SENTENCES, 1):
        print(f"  [{number}] {sentence}")
    print("\n       " + "".join(f"{f'[{number}]':>8}" for number in range(1, len(rows) + 1)))
    for number, row in enumerate(rows, 1):
        print(f"  {f'[{number}]':<5}" + "".join(f"{cosine(row, other):8.3f}" for other in rows))


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def show_calls(url):
    example = json.dumps({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["hello"]}]})
    print(
        f"""
Call it yourself (`make demo KEEP=1` keeps the server):

  curl -s {url}/v2/models/{MODEL}/infer -d '{example}'

  # pip install tritonclient[http]
  import numpy as np, tritonclient.http as triton
  client = triton.InferenceServerClient("{url.removeprefix('http://')}")
  text = triton.InferInput("TEXT", [1], "BYTES")
  text.set_data_from_numpy(np.array(["hello"], dtype=object))
  print(client.infer("{MODEL}", [text]).as_numpy("embedding").shape)
"""
    )


def show(url):
    infer(url, SENTENCES)  # the first run of a model also fills its memory pools, so later ones are faster
    rows, *timing = infer(url, SENTENCES)
    show_similarity(rows)
    show_timing(*timing)
    show_calls(url)


if __name__ == "__main__":
    demo_server.main(__doc__.splitlines()[0], ROOT / ".tools/demo-repository", show)
