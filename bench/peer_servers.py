"""How each server of `make bench-peers` is started, and the memory and CPU time of all its processes."""

import base64
import json
import os
import shutil
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import peer_folders
from plan import Bench, MODEL, ROOT, STAGES, TRITON
from servers import DIRECT, TICKS, BenchError, Deployment

PEERS = ROOT / ".tools/peers"
READY_SECONDS = 300
SAMPLE_SECONDS = 0.25
SNAPSHOT = "0" * 39 + "1"
HUB_NAME = "bench/encoder"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}
# sie-server's own settings for all-MiniLM-L6-v2, with the model's folder in place of its name on the hub, and fp32.
SIE_MODEL = """
sie_id: {model}
hf_id: {hub_name}
inputs: {{text: true, image: false, audio: false, video: false}}
tasks: {{encode: {{dense: {{dim: {width}}}, sparse: null, multivector: null}}, score: null, extract: null}}
max_sequence_length: {max_length}
profiles:
  default:
    max_batch_tokens: 16384
    compute_precision: float32
    adapter_path: sie_server.adapters.sentence_transformer:SentenceTransformerDenseAdapter
    adapter_options: {{loadtime: {{trust_remote_code: false}}, runtime: {{pooling: mean, normalize: true}}}}
"""


class PeersBench(Bench):
    """Starts one deployment at a time."""

    def __init__(self, options, work):
        super().__init__(options, work)
        self.model, self.cores = Path(options.model), len(os.sched_getaffinity(0))
        self.plain = self.repository("plain")

    def started(self, name):
        return self.deployments.pop(name)

    # === Trireme ===

    def trireme(self, name):
        self.all_in_one(name, ["--model-repository", self.plain], MODEL)
        return self.started(name)

    def trireme_services(self, name):
        return self.on_new_broker(name, self.plain, MODEL, STAGES)

    def trireme_python(self, name):
        self.all_in_one(name, ["--model-repository", ROOT / "bench/repositories/python"], "python_chain")
        return self.started(name)

    def trireme_python_services(self, name):
        stages = [("python", ["trireme-python", "--allow-python"])]
        return self.on_new_broker(name, ROOT / "bench/repositories/python", "python_chain", stages)

    def on_new_broker(self, name, repository, model, stages):
        shutil.rmtree(self.work / f"nats-{name}", ignore_errors=True)
        self.services(name, repository, model, stages)
        return self.started(name)

    # === Triton ===

    def triton_python(self, name):
        self.triton(name, ROOT / "bench/repositories/python", "python_chain")
        return self.started(name)

    def triton_texts(self, instances, threads):
        """Triton with the pipeline in its python backend: so many processes of the model with so many threads each."""
        def start(name):
            target = self.work / f"triton-{instances}-{threads}"
            if not target.exists():
                values = {"instances": instances, "threads": threads, "batch": self.options.triton_batch}
                peer_folders.triton_repository(self.model, ROOT / "bench/repositories/peers", target, **values)
            deployment, server = Deployment(name, self.logs), TRITON / "tritonserver"
            # Triton's backend finds the Python for its models by PATH.
            environment = {"LD_LIBRARY_PATH": str(TRITON / "libraries"), "PATH": f"{PEERS / 'triton/bin'}:{os.environ['PATH']}"}
            deployment.start("tritonserver", [
                server / "bin/tritonserver", "--model-repository", target, "--backend-directory", server / "backends",
                "--http-address", "127.0.0.1", "--http-port", deployment.port, "--allow-grpc=false", "--allow-metrics=false",
                "--log-info=false",
            ], environment)
            return ready(deployment, lambda: deployment.wait_ready(MODEL))
        return start

    # === Servers with OpenAI's route ===

    def infinity(self, batch):
        """infinity-emb with at most so many texts in a batch."""
        return lambda name: self.start_infinity(name, batch)

    def start_infinity(self, name, batch):
        folder = self.work / "infinity-model"
        peer_folders.once(folder, lambda: peer_folders.with_onnx(self.model, folder))
        deployment = Deployment(name, self.logs)
        environment = {**OFFLINE, "HF_HOME": str(self.work / "infinity-home"), "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
        # Its loader finds the file of a folder that is not on the hub only from within the folder.
        deployment.start("infinity", [
            "env", f"--chdir={folder}", PEERS / "infinity/bin/infinity_emb", "v2", "--model-id", ".", "--served-model-name", MODEL,
            "--engine", "optimum", "--device", "cpu", "--pooling-method", "mean", "--batch-size", batch, "--log-level", "warning",
            "--host", "127.0.0.1", "--port", deployment.port,
        ], environment)
        return ready(deployment, lambda: wait_embedding(deployment, "/embeddings"))

    def sie(self, batch):
        """sie-server with at most so many requests in a batch."""
        return lambda name: self.start_sie(name, batch)

    def start_sie(self, name, batch):
        home, models = self.work / "sie-home", self.work / "sie-home/models"
        peer_folders.once(home, lambda: self.sie_home(home, models))
        deployment = Deployment(name, self.logs)
        environment = {
            **OFFLINE, "HF_HOME": str(home), "SIE_TELEMETRY_DISABLED": "1", "SIE_TORCH_NUM_THREADS": str(self.cores),
            "SIE_IPC_SOCKET_PATH": str(self.work / "sie.sock"), "SIE_MAX_BATCH_REQUESTS": str(batch),
        }
        deployment.start("sie-server", [
            PEERS / "sie/bin/sie-server", "serve", "--host", "127.0.0.1", "--port", deployment.port, "--device", "cpu",
            "--models-dir", models, "--models", MODEL, "--preload", MODEL, "--no-hf-fallback", "--log-level", "warning",
        ], environment)
        return ready(deployment, lambda: wait_embedding(deployment, "/v1/embeddings"))

    def sie_home(self, home, models):
        """The model as in a cache of the hub, and sie-server's settings for it."""
        hub = home / "hub" / f"models--{HUB_NAME.replace('/', '--')}"
        peer_folders.with_weights(self.model, hub / "snapshots" / SNAPSHOT)
        (hub / "refs").mkdir()
        (hub / "refs/main").write_text(SNAPSHOT)
        models.mkdir()
        width = json.loads((self.model / "config.json").read_text())["hidden_size"]
        settings = {"model": MODEL, "hub_name": HUB_NAME, "width": width, "max_length": peer_folders.MAX_LENGTH}
        (models / "encoder.yaml").write_text(SIE_MODEL.format(**settings))


def ready(deployment, wait):
    """The deployment when it serves; otherwise its processes are stopped."""
    try:
        wait()
    except BaseException:
        deployment.stop()
        raise
    return deployment


# === Answers ===


def post(deployment, path, body):
    request = json.dumps(body).encode()
    url = f"http://{deployment.address}{path}"
    with DIRECT.open(urllib.request.Request(url, request, {"Content-Type": "application/json"}), timeout=120) as answer:
        return json.load(answer)


def wait_embedding(deployment, path):
    until = time.monotonic() + READY_SECONDS
    while True:
        for process in deployment.processes:
            process.check()
        try:
            openai_vector(deployment, path, "a boat")
            return
        except (urllib.error.URLError, OSError, KeyError) as error:
            found = error
        if time.monotonic() > until:
            raise BenchError(f"{deployment.name} answers no request after {READY_SECONDS} s ({found}): see {deployment.logs}")
        time.sleep(0.3)


def openai_vector(deployment, path, text):
    answer = post(deployment, path, {"model": MODEL, "input": text, "encoding_format": "base64"})
    data = base64.b64decode(answer["data"][0]["embedding"])
    return struct.unpack(f"<{len(data) // 4}f", data)


def v2_vector(deployment, text):
    with DIRECT.open(f"http://{deployment.address}/v2/models/{MODEL}", timeout=30) as answer:
        shape = [max(size, 1) for size in json.load(answer)["inputs"][0]["shape"]]
    body = {"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": shape, "data": [text]}]}
    outputs = post(deployment, f"/v2/models/{MODEL}/infer", body)["outputs"]
    return next(one["data"] for one in outputs if one["name"] == "embedding")


# === Processes ===


def tree(deployment):
    """The ids of the deployment's processes and of those that they have started."""
    found, waiting = [], [process.process.pid for process in deployment.processes]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                waiting += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
        except OSError:
            continue  # it ended meanwhile
    return found


def kibibytes(pids, file, field):
    """The sum of a field of /proc over these processes."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
    return total


def cpu_seconds(deployment):
    total = 0
    for pid in tree(deployment):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


class Memory:
    """Resident memory of a deployment while it is loaded. Pages that processes share count for each of them in `rss` and `peak`, and
    once in `pss`."""

    def __init__(self, deployment):
        self.deployment, self.peak, self.ended = deployment, 0, threading.Event()
        self.thread = threading.Thread(target=self.sample)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def sample(self):
        while not self.ended.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, self.rss())

    def rss(self):
        return kibibytes(tree(self.deployment), "status", "VmRSS")

    def figures(self):
        rss, pss = self.rss(), kibibytes(tree(self.deployment), "smaps_rollup", "Pss")
        return {"rss_mib": rss / 1024, "pss_mib": pss / 1024, "peak_mib": max(self.peak, rss) / 1024}


def version(environment, package):
    """The version of a package in a Python environment."""
    ask = f"import importlib.metadata; print(importlib.metadata.version('{package}'))"
    done = subprocess.run([environment / "bin/python", "-c", ask], capture_output=True, text=True)
    return done.stdout.strip() or "of unknown version"
