"""Executes until its request is cancelled, some seconds at most, and leaves a file that says what it saw."""

import os
import time
from pathlib import Path

import triton_python_backend_utils as pb_utils

PATIENCE_S = 5


class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"]).parent

    def execute(self, requests):
        until = time.monotonic() + PATIENCE_S
        while not requests[0].is_cancelled() and time.monotonic() < until:
            time.sleep(0.01)
        seen = [f"request {requests[0].is_cancelled()}", f"sender {requests[0].get_response_sender().is_cancelled()}"]
        file = self.folder / "cancellation"
        Path(f"{file}.new").write_text(", ".join(seen))
        os.replace(f"{file}.new", file)
        cancelled = pb_utils.TritonError("it was cancelled", pb_utils.TritonError.CANCELLED)
        return [pb_utils.InferenceResponse(error=cancelled) for _ in requests]
