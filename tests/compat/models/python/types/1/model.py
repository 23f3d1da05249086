"""Answers with its inputs, whichever there are, and with what it sees of each."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    seen, outputs = [], []
    for tensor in request.inputs():
        array = tensor.as_numpy()
        shape = list(tensor.shape())
        seen.append(f"{tensor.name()} {array.dtype} {shape} {array.shape} {tensor.is_cpu()}")
        if array.dtype == np.object_:
            seen.append(" ".join(type(element).__name__ for element in array.ravel()))
        outputs.append(pb_utils.Tensor(tensor.name(), array))
    outputs.append(pb_utils.Tensor("SEEN", np.array(seen, dtype=np.object_)))
    return pb_utils.InferenceResponse(outputs)
