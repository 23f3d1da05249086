"""Text to token ids."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

MAX_LENGTH = 256


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"]) / args["model_version"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MAX_LENGTH)

    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1) for request in requests]
        encoded = iter(self.tokenizer.encode_batch([text.decode() for row in rows for text in row]))
        return [self.answer([next(encoded).ids for _ in row]) for row in rows]

    def answer(self, rows):
        """The ids of one request's texts, padded to its longest."""
        ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        return pb_utils.InferenceResponse([pb_utils.Tensor("input_ids", ids), pb_utils.Tensor("attention_mask", mask)])
