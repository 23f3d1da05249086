"""Reads files that other models leave in the folder of the repository, and removes them."""

import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

PATIENCE_S = 5


class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"]).parent

    def execute(self, requests):
        return [self.read(request.inputs()[0].as_numpy()[0].decode()) for request in requests]

    def read(self, name):
        file, until = self.folder / name, time.monotonic() + PATIENCE_S
        while not file.exists() and time.monotonic() < until:
            time.sleep(0.05)
        found = file.read_text() if file.exists() else "no file"
        file.unlink(missing_ok=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([found], dtype=np.object_))])
