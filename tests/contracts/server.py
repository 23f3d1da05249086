"""`trireme serve` for a suite, on a free port, with flags of its own."""

import json
import subprocess
import time


class Server:
    """A server that runs until the block ends."""

    def __init__(self, trireme, work, *flags):
        self.command = [
            str(trireme), "serve", "--http-address=127.0.0.1", "--http-port=0", "--allow-grpc=false", "--allow-metrics=false",
            "--log-format=json", *flags,
        ]
        self.log = work / "server.log"

    def __enter__(self):
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=log)
        for _ in range(600):
            lines = self.log.read_text(errors="replace").splitlines()
            ready = [line for line in lines if '"ready"' in line and '"http"' in line]
            if ready:
                self.url = "http://" + json.loads(ready[0])["http"]
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.__exit__()
        raise RuntimeError(f"trireme serve does not start: {self.log.read_text(errors='replace')[-3000:]}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
