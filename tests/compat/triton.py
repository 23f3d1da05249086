"""A real tritonserver to record from: a model repository made of the twins, and the process.

It is started with the python backend only. `models/repository` is what Trireme serves; for Triton each model gets the
same configuration with the backend changed, and the twin from `models/triton` as its `model.py`.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from servers import SERVERS

MODELS = Path(__file__).resolve().parent / "models"
# The twins of models whose names are not those of their files in `models/triton`.
TWINS = dict.fromkeys(("direct", "oldest", "texts", "hasty"), "controls")
BACKEND = re.compile(r'^backend: "(\w+)"$', re.MULTILINE)
START_LIMIT_S = 120
# How long a crashing Triton may take to exit.
DYING_S = 3


def assemble_repository(source, target):
    """Writes the model repository for Triton that corresponds to `source`, a folder in models/."""
    for model in sorted((MODELS / source).iterdir()):
        config = (model / "config.pbtxt").read_text()
        backend = BACKEND.search(config)
        shutil.copytree(model, target / model.name, ignore=shutil.ignore_patterns("*.onnx", ".gitkeep"))
        if backend is None:
            continue
        twin = "identity" if backend[1] == "identity" else TWINS.get(model.name, model.name)
        if not (MODELS / "triton" / f"{twin}.py").exists():
            continue
        (target / model.name / "config.pbtxt").write_text(BACKEND.sub('backend: "python"', config))
        for version in (target / model.name).iterdir():
            if version.is_dir():
                shutil.copy(MODELS / "triton" / f"{twin}.py", version / "model.py")


class Triton:
    """A tritonserver that runs for the length of a `with` block; `url` and `grpc` are its addresses."""

    def __init__(self, program, backends, libraries, python, port, server):
        self.source, self.flags = SERVERS[server]
        # Lines of models are recorded, too.
        self.log_info = int(server == "python")
        self.program, self.backends, self.libraries, self.python, self.port = program, backends, libraries, python, port
        self.url, self.grpc = f"http://127.0.0.1:{port}", f"127.0.0.1:{port + 1}"

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="trireme-compat-")
        self.log = Path(self.folder.name) / "log"
        self.repository = Path(self.folder.name) / "models"
        self.repository.mkdir()
        assemble_repository(self.source, self.repository)
        self.start(self.repository)
        return self

    def start(self, repository):
        environment = dict(os.environ)
        if self.libraries:
            environment["LD_LIBRARY_PATH"] = str(self.libraries)
        if self.python:
            # The backend's stub finds its Python interpreter through PATH.
            environment["PATH"] = f"{Path(self.python).parent}:{environment['PATH']}"
        command = [self.program, "--model-repository", repository, f"--log-info={self.log_info}"]
        command += ["--http-port", self.port, "--grpc-port", self.port + 1, "--metrics-port", self.port + 2]
        for listener in ("http", "grpc", "metrics"):
            command += [f"--{listener}-address", "127.0.0.1"]
        command += self.flags
        if self.backends:
            command += ["--backend-directory", self.backends]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([str(part) for part in command], env=environment, stdout=log, stderr=log)
        try:
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise

    @staticmethod
    def adapted(request):
        """The request for models whose backend is python: it may contain a model's configuration."""
        ours, theirs = (json.dumps(f'"backend": "{name}"')[1:-1] for name in ("identity", "python"))
        return json.loads(json.dumps(request).replace(ours, theirs))

    def revive(self):
        """Starts Triton again if it has died, which some requests cause. Returns whether it had."""
        try:
            self.process.wait(timeout=DYING_S)
        except subprocess.TimeoutExpired:
            return False
        self.start(self.repository)
        return True

    def wait_ready(self):
        give_up = time.monotonic() + START_LIMIT_S
        while self.process.poll() is None and time.monotonic() < give_up:
            try:
                with urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise SystemExit(f"tritonserver did not get ready; it wrote:\n{self.log.read_text(errors='replace')}")

    def marked_lines(self):
        """The lines that models have marked in its log: each its level's letter and its text."""
        lines = self.log.read_text(errors="replace").splitlines()
        found = [re.match(r'([IWEV])\d{4} .*?\] "?(marked: .*?)"?$', line) for line in lines]
        return [[line[1], line[2]] for line in found if line]

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()
