"""The part of a large model: what `trireme serve FOLDER` costs until it serves, beside a session of raw ONNX Runtime.

The folder is made here: an encoder as large as xlm-roberta-base with random weights, once in one file and once with its weights beside the graph.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import random_encoder
from servers import DIRECT, READY_SECONDS, BenchError, Deployment

NAME = "large"
KINDS = ("one file", "weights beside")
# A limit for texts far below the positions, as it is usual; rows of the greatest length would cost memory on both sides alike.
LONGEST = 256
# The server is measured again when its checks and measurements after the start have ended, and it has answered.
SETTLED_SECONDS = 6
TEXTS = ["A first text.", "A second text that is somewhat longer than the first one, so that their rows differ in length."]

# Prints the seconds from the command to a session, and the most memory that the process had until then and after a run, in bytes.
RAW = """
import sys, time
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
ready = time.monotonic() - float(sys.argv[2])
peak = lambda: 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
at_ready = peak()
row = np.ones((1, 8), np.int64)
session.run(None, {each.name: row for each in session.get_inputs()})
print(ready, at_ready, peak())
"""


def path(bench, kind):
    return bench.work / kind.replace(" ", "-") / NAME


def start(bench):
    """Makes a folder of each kind."""
    beside = folder(bench, KINDS[1])
    random_encoder.write_graph(beside / "onnx", np.float32, random_encoder.LARGE)
    random_encoder.write_weights(beside / "onnx", np.float32, random_encoder.LARGE)
    one = folder(bench, KINDS[0])
    script = "import sys, onnx; onnx.save(onnx.load(sys.argv[1]), sys.argv[2])"
    subprocess.run([sys.executable, "-c", script, beside / "onnx/model.onnx", one / "onnx/model.onnx"], check=True)


def folder(bench, kind):
    """A folder without its graph."""
    made = path(bench, kind)
    (made / "onnx").mkdir(parents=True)
    (made / "1_Pooling").mkdir()
    module = "sentence_transformers.models."
    files = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": f"{module}Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{module}Pooling"},
        ],
        "sentence_bert_config.json": {"max_seq_length": LONGEST, "do_lower_case": False},
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
        "config.json": {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": random_encoder.WIDTH},
    }
    for name, content in files.items():
        (made / name).write_text(json.dumps(content))
    for file in Path(bench.options.model).glob("tokenizer*.json"):
        shutil.copy(file, made)
    return made


def measure(bench):
    """Raw and served, one after the other."""
    for kind in KINDS:
        raw, served = run_raw(path(bench, kind) / "onnx/model.onnx"), serve(bench, path(bench, kind))
        ratios = {field: served[field] / raw[field] for field in raw}
        bench.keep(f"{NAME} / {kind}", {"raw": raw, "served": served, "ratios": ratios, "copied": served["copied"]})


def run_raw(graph):
    done = subprocess.run([sys.executable, "-c", RAW, graph, str(time.monotonic())], capture_output=True, text=True, check=True)
    seconds, peak, settled = map(float, done.stdout.split())
    return {"seconds": seconds, "peak": peak, "settled": settled}


def serve(bench, made):
    """Seconds from the command to readiness, the most memory until then and until later, and the most bytes of files that the process
    made meanwhile."""
    temporary, kept = bench.work / "temporary", bench.work / "kept"
    for fresh in (temporary, kept):
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
    deployment, copied = Deployment(NAME, bench.logs), 0
    bench.deployments[NAME] = deployment
    environment = {"TMPDIR": str(temporary), "XDG_CACHE_HOME": str(kept), "HOME": str(kept)}
    started = time.monotonic()
    deployment.start("serve", [
        bench.binaries / "trireme", "serve", made, "--http-address", "127.0.0.1", "--http-port", deployment.port, "--allow-grpc=false",
        "--allow-metrics=false",
    ], environment)
    while not deployment.is_ready(NAME):
        if time.monotonic() - started > READY_SECONDS:
            raise BenchError(f"the large model is not ready after {READY_SECONDS} s: see {bench.logs}")
        copied = max(copied, bytes_in(temporary, kept))
        time.sleep(0.02)
    found = {"seconds": time.monotonic() - started, "peak": deployment.processes[0].peak()}
    answer(deployment)
    time.sleep(SETTLED_SECONDS)
    answer(deployment)
    found |= {"settled": deployment.processes[0].peak(), "copied": max(copied, bytes_in(temporary, kept))}
    deployment.stop()
    return found


def answer(deployment):
    body = {"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [len(TEXTS)], "data": TEXTS}]}
    url = f"http://{deployment.address}/v2/models/{NAME}/infer"
    with DIRECT.open(url, data=json.dumps(body).encode(), timeout=60) as answer:
        answer.read()


def bytes_in(*folders):
    """Bytes of the files there; links count as nothing."""
    total = 0
    for top in folders:
        for at, _, names in os.walk(top):
            for name in names:
                try:
                    total += os.lstat(os.path.join(at, name)).st_size
                except FileNotFoundError:
                    pass
    return total
