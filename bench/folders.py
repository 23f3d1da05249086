"""The rows of model folders: `trireme serve FOLDER` beside the tuned repository, and beside its own variant of 8 bits."""

import json
import math
import os
import subprocess
import sys
import time
import urllib.request

from raw import read_texts
from servers import DIRECT, BenchError

NAME = "recipe"
# The variant's vectors are compared with the original's for this many texts. The variant was made with other texts.
COMPARED = 200
TOGETHER = 50
OPTIMIZED = 260  # texts for which `trireme optimize` chooses; the compared ones are others
VARIANT = "onnx/model_int8.onnx"


def make(model, folder):
    """The folder of `model` as sentence-transformers writes it: what the README's recipe starts from."""
    module = "sentence_transformers.models."
    files = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": f"{module}Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{module}Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{module}Normalize"},
        ],
        "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": False},
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    (folder / "onnx").mkdir()
    os.symlink(model.resolve() / "model.onnx", folder / "onnx/model.onnx")
    for path in model.glob("*.json"):
        os.symlink(path.resolve(), folder / path.name)
    return folder


def first_answers(bench, folder):
    """Seconds from the command to the first answer: of the first start on a machine, which measures what runs cost, and of a later
    one."""
    for start in ("first start", "later start"):
        started = time.monotonic()
        serve(bench, start, folder, "--cost-model-cache", bench.work / "costs")
        deployment = bench.deployments.pop(start)
        vectors(deployment, ["The first text."])
        bench.keep(f"serve FOLDER to its first answer, {start}", {"seconds": time.monotonic() - started})
        deployment.stop()


def serve(bench, name, folder, *flags):
    """Starts `trireme serve FOLDER`: nothing but the folder is said."""
    bench.all_in_one(name, [folder, *flags], NAME)


def optimize(bench, folder):
    """Makes the variant of 8 bits. `None`, or why there is none."""
    texts = bench.work / "optimize.txt"
    write_texts(texts, read_texts(bench.options.texts)[COMPARED : COMPARED + OPTIMIZED])
    argv = [
        bench.binaries / "trireme", "optimize", folder, "--python", sys.executable, "--texts", texts, "--seconds", 2,
        "--min-speedup", 0, "--log-level", "warning",
    ]
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True)
    print(done.stdout, flush=True)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or ["no variant holds the bar"])[-1]


def write_texts(path, texts):
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))


def turn(bench, left, right, in_flight, many=1):
    """Two deployments one after the other: each is (its name, its model)."""
    row = f"1 request of {many}" if many > 1 else in_flight
    sides = [(left, right), (right, left)]
    bench.measure_in_order(*(
        bench.load(name, model, in_flight, many, key=f"{name} beside {other} / {row}") for (name, model), (other, _) in sides
    ))


def vectors(deployment, texts, many=1):
    """The embedding of each text, asked alone or so many at a time."""
    found = []
    for asked in (texts[begin : begin + many] for begin in range(0, len(texts), many)):
        body = json.dumps({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [len(asked)], "data": asked}]}).encode()
        ask = urllib.request.Request(f"http://{deployment.address}/v2/models/{NAME}/infer", body, {"Content-Type": "application/json"})
        with DIRECT.open(ask, timeout=60) as answer:
            values = json.load(answer)["outputs"][0]["data"]
        width = len(values) // len(asked)
        found += [values[begin : begin + width] for begin in range(0, len(values), width)]
    return found


def fidelity(bench, exact, variant):
    """Lowest and mean cosine of the variant's vectors, alone and in large requests, over texts that it was not made with; and the lowest cosine
    of a text's vector alone and in a large request."""
    texts = read_texts(bench.options.texts)[:COMPARED]
    if not texts:
        raise BenchError("there are no texts to compare the variant with")
    length = lambda vector: math.sqrt(sum(value * value for value in vector))
    cosine = lambda left, right: sum(a * b for a, b in zip(left, right)) / (length(left) * length(right))
    alone, batched = (vectors(bench.deployments[variant], texts, many) for many in (1, TOGETHER))
    expected = vectors(bench.deployments[exact], texts)
    cosines = [min(cosine(exactly, one), cosine(exactly, other)) for exactly, one, other in zip(expected, alone, batched)]
    bench.keep("int8 / fidelity", {"lowest": min(cosines), "mean": sum(cosines) / len(cosines), "batched": min(map(cosine, alone, batched))})
