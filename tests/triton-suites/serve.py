"""`trireme serve` for the length of a `with` block, at the ports that the suites' files name."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request

PORTS = {"--http-port": 8000, "--grpc-port": 8001, "--metrics-port": 8002}
START_LIMIT_S = 300


class Serve:
    """Serves a folder of models. `folder` is where it is started: flags may name folders relative to it."""

    def __init__(self, trireme, python, folder, repository, run):
        self.folder, self.run, self.log = folder, run, folder / run.log
        self.command = [trireme, "serve", "--allow-python=uploads", "--python", python]
        # Triton has no limit of its own for a request.
        self.command += ["--default-timeout-ms", "600000"]
        for flag, port in PORTS.items():
            self.command += [flag, str(port)]
        self.command += ["--model-repository", repository, *run.flags]

    def __enter__(self):
        for port in PORTS.values():
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    raise SystemExit(f"port {port} is in use; Triton's tests name the ports {sorted(PORTS.values())}")
        environment = {**os.environ, **self.run.env, "TRIREME_PYTHON_ENVIRONMENT": ",".join(self.run.env)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self.command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        until = time.monotonic() + START_LIMIT_S
        path = "ready" if self.run.ready else "live"
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORTS['--http-port']}/v2/health/{path}", timeout=5):
                    return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        self.__exit__()
        raise NotReady(f"the server did not become {path}: {self.log.read_text(errors='replace')[-1500:]}")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class NotReady(Exception):
    """The server did not start; the text has the end of its log."""
