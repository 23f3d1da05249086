"""Token ids to a vector for each token, with ONNX Runtime."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.tokens_per_run = int(parameters["tokens_per_run"]["string_value"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(parameters["threads"]["string_value"])
        # Threads that spin would take the cores of Triton's other processes.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        folder = Path(args["model_repository"]) / args["model_version"]
        self.session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
        self.inputs = {one.name for one in self.session.get_inputs()}

    def execute(self, requests):
        tensor = lambda request, name: pb_utils.get_input_tensor_by_name(request, name).as_numpy()
        pairs = [(tensor(request, "input_ids"), tensor(request, "attention_mask")) for request in requests]
        answers = [None] * len(requests)
        for chosen in self.runs([ids.shape for ids, _ in pairs]):
            for index, states in zip(chosen, self.run([pairs[index] for index in chosen])):
                answers[index] = pb_utils.InferenceResponse([pb_utils.Tensor("last_hidden_state", states)])
        return answers

    def runs(self, shapes):
        """Requests sorted by length, in runs of about so many tokens."""
        run, rows = [], 0
        for index in sorted(range(len(shapes)), key=lambda index: shapes[index][1]):
            count, length = shapes[index]
            if run and (rows + count) * length > self.tokens_per_run:
                yield run
                run, rows = [], 0
            run.append(index)
            rows += count
        yield run

    def run(self, pairs):
        """The states of several requests, which are padded to the longest."""
        length = max(ids.shape[1] for ids, _ in pairs)
        rows = sum(ids.shape[0] for ids, _ in pairs)
        ids, mask = np.zeros((rows, length), np.int64), np.zeros((rows, length), np.int64)
        places, first = [], 0
        for some_ids, some_mask in pairs:
            count, width = some_ids.shape
            ids[first : first + count, :width], mask[first : first + count, :width] = some_ids, some_mask
            places.append((slice(first, first + count), width))
            first += count
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        [states, *_] = self.session.run(None, {name: feed[name] for name in self.inputs})
        return [np.ascontiguousarray(states[place, :width]) for place, width in places]
