"""Triton's twin of `failing`: looks numbers up in a table of three, and fails for an index outside of it."""

import numpy as np
import triton_python_backend_utils as pb_utils

TABLE = np.array([10, 20, 30], np.float32)


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    places = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
    try:
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", TABLE[places])])
    except IndexError as error:
        return pb_utils.InferenceResponse([], error=pb_utils.TritonError(str(error), pb_utils.TritonError.INTERNAL))
