"""Counts its executions since it was initialized; leaves a file behind when it is finalized."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.marker = Path(args["model_repository"]).parent / "finalized"
        self.count = 0

    def execute(self, requests):
        made = []
        for _ in requests:
            self.count += 1
            text = np.array([str(self.count)], dtype=np.object_)
            made.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]))
        return made

    def finalize(self):
        self.marker.write_text(f"finalized after {self.count}")
