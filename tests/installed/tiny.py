"""A small model folder, as sentence-transformers writes it, and a server of it. Needs Python's standard library only."""

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MODELS = ROOT / "tests/repositories/basic"
READY_LIMIT = 180
STOP_LIMIT = 60
# Without a proxy, because servers are on this machine.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def write(folder):
    """Writes the tiny encoder of the basic repository as a model folder."""
    files = {
        "onnx/model.onnx": "tiny_encoder/1/model.onnx",
        "tokenizer.json": "tiny_tokenizer/1/tokenizer.json",
        "tokenizer_config.json": "tiny_tokenizer/1/tokenizer_config.json",
    }
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    texts = {
        "modules.json": [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()],
        "config.json": {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 8},
        "sentence_bert_config.json": {"max_seq_length": 16, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True},
    }
    for name, source in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(MODELS / source, folder / name)
    for name, value in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(value))


def golden():
    """A text, and the vector that the tiny model has for it."""
    first = json.loads((ROOT / "tests/models/golden.json").read_text())[0]
    return first["text"], first["tiny_embedding"]


def embed(url, model, text):
    """A text's vector, asked over v2."""
    body = {"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [text]}]}
    request = urllib.request.Request(f"{url}/v2/models/{model}/infer", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with DIRECT.open(request, timeout=60) as response:
        outputs = {output["name"]: output["data"] for output in json.load(response)["outputs"]}
    return outputs["sentence_embedding"]


class Served:
    """`trireme serve` on a free port, stopped at the end."""

    def __init__(self, binary, words, environment, log):
        arguments = ["--http-address=127.0.0.1", "--http-port=0", "--allow-grpc=false", "--allow-metrics=false", "--log-format=json"]
        self.log = log
        with open(log, "wb") as output:
            command = [str(word) for word in [binary, "serve", *words, *arguments]]
            self.process = subprocess.Popen(command, env=environment, cwd=log.parent, stdout=output, stderr=output)

    def __enter__(self):
        give_up = time.monotonic() + READY_LIMIT
        while time.monotonic() < give_up:
            ready = [event for event in self.events() if event.get("message") == "ready"]
            if ready:
                self.url = f"http://{ready[0]['http']}"
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.process.kill()
        fail(f"the server is not ready:\n{self.log.read_text()}")

    def events(self):
        lines = (line for line in self.log.read_text().splitlines() if line.startswith("{") and line.endswith("}"))
        return [json.loads(line) for line in lines]

    def embed(self, model, text):
        return embed(self.url, model, text)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=STOP_LIMIT)


def check(name, holds):
    print(f"{'ok    ' if holds else 'FAILED'}  {name}", flush=True)
    if not holds:
        sys.exit(1)


def fail(words):
    sys.exit(f"FAILED  {words}")


def close(found, expected):
    return len(found) == len(expected) and all(abs(a - b) < 1e-5 for a, b in zip(found, expected))
