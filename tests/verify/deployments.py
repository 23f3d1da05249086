"""Deployments that serve all folders at once: one process, and services over NATS."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
READY_SECONDS = 300
STOP_SECONDS = 60
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
NATS_CONFIG = 'host: 127.0.0.1\nport: {port}\nmax_payload: 8MB\njetstream {{ store_dir: "{store}", max_mem: 2GB }}\n'


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Deployment:
    """Processes that serve together; `url` is for clients."""

    def __init__(self, name, binaries, work, models, flags=()):
        self.flags = flags
        self.name, self.binaries, self.work = name, Path(binaries), work / f"deployment-{name.replace(' ', '-')}"
        self.work.mkdir(parents=True, exist_ok=True)
        self.port, self.processes = free_port(), []
        self.url = f"http://127.0.0.1:{self.port}"
        self.models = [word for name, folder in models.items() for word in ("--model", f"{name}={folder}")]
        self.http = ["--http-address=127.0.0.1", f"--http-port={self.port}", "--allow-grpc=false", "--allow-metrics=false"]

    def start(self, name, *argv):
        log = open(self.work / f"{name}.log", "wb")
        self.processes.append((name, subprocess.Popen([str(word) for word in argv], stdout=log, stderr=log)))

    def __enter__(self):
        try:
            self.begin()
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_ready(self):
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            for name, process in self.processes:
                if process.poll() is not None:
                    raise AssertionError(f"{self.name}: {name} ended:\n{self.last_words(name)}")
            try:
                if DIRECT.open(f"{self.url}/v2/health/ready", timeout=5).status == 200:
                    return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.2)
        raise AssertionError(f"{self.name} is not ready after {READY_SECONDS} s:\n{self.last_words(self.processes[-1][0])}")

    def last_words(self, name):
        return "\n".join((self.work / f"{name}.log").read_text(errors="replace").splitlines()[-5:])

    def __exit__(self, *_):
        for _, process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = []


class OneProcess(Deployment):
    """`trireme serve --model NAME=FOLDER …`, and further flags."""

    def begin(self):
        self.start("serve", self.binaries / "trireme", "serve", *self.models, *self.flags, *self.http)


class OverNats(Deployment):
    """A gateway, and a process for each stage, that NATS links."""

    def begin(self):
        port, config = free_port(), self.work / "nats.conf"
        config.write_text(NATS_CONFIG.format(port=port, store=self.work / "nats"))
        server = os.environ.get("TRIREME_NATS_SERVER", ROOT / ".tools/nats-server/nats-server")
        self.start("nats-server", server, "--config", config)
        bus = ["--nats-url", f"nats://127.0.0.1:{port}", *self.models]
        self.start("gateway", self.binaries / "trireme-gateway", *bus, *self.http)
        for stage in ("tokenizer", "model", "postprocess"):
            self.start(stage, self.binaries / f"trireme-{stage}", *bus)
