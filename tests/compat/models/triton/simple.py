"""Triton's twin of `simple`: the sum and the difference of two inputs."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
    outputs = {"OUTPUT0": a + b, "OUTPUT1": a - b}
    wanted = set(request.requested_output_names())
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, data) for name, data in outputs.items() if name in wanted])
