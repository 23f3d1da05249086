"""`trireme serve` for the length of a `with` block, at the ports that the posts' clients use."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

HTTP, GRPC = "localhost:8000", "localhost:8001"
START_LIMIT_S = 240


class Serve:
    """Serves a folder of models. `folder` is where it is started: models may name others relative to it."""

    def __init__(self, trireme, repository, folder):
        self.log = folder / f"{repository.name}.log"
        self.command = [trireme, "serve", "--model-repository", repository, "--python", sys.executable]
        self.command += ["--http-port", "8000", "--grpc-port", "8001", "--metrics-port", "8002", "--log-format", "json"]
        self.folder = folder

    def __enter__(self):
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRIREME_PYTHON_ENVIRONMENT": "HF_HUB_OFFLINE"}
        command = [str(word) for word in self.command]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, cwd=self.folder, stdout=log, stderr=log)
        until = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://{HTTP}/v2/health/ready", timeout=5):
                    return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        self.__exit__()
        raise AssertionError(f"the server is not ready; the end of its log:\n{self.written()[-3000:]}")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def written(self):
        """Its log."""
        return self.log.read_text(errors="replace")

    def events(self):
        """The messages in its log."""
        lines = [line for line in self.written().splitlines() if line.startswith("{")]
        return [json.loads(line).get("message", "") for line in lines]
