"""Triton's twin of `state`: OUTPUT is the sum of the sequence's inputs."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value, before = (pb_utils.get_input_tensor_by_name(request, name) for name in ("INPUT", "SUM_IN"))
        if before is None:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("no state"))
        total = value.as_numpy() + before.as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", total), pb_utils.Tensor("SUM_OUT", total)])
