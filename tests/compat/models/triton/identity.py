"""Triton's twin of the `identity` backend: OUTPUTn is a copy of INPUTn; each execution sleeps for
`execute_delay_ms`."""

import json
import time

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.outputs = [(output["name"], output["data_type"], output["dims"]) for output in config["output"]]
        delay = config["parameters"].get("execute_delay_ms", {"string_value": "0"})
        self.delay = int(delay["string_value"]) / 1000

    def execute(self, requests):
        time.sleep(self.delay)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        wanted = set(request.requested_output_names())
        outputs = []
        for name, datatype, dims in self.outputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name.replace("OUTPUT", "INPUT"))
            if name not in wanted:
                continue
            # As Triton's identity backend: an absent optional input is answered with zeros.
            zeros = numpy.zeros([max(dim, 1) for dim in dims], pb_utils.triton_string_to_numpy(datatype))
            outputs.append(copy(name, datatype, tensor) if tensor is not None else pb_utils.Tensor(name, zeros))
        return pb_utils.InferenceResponse(outputs)


def copy(name, datatype, tensor):
    # numpy has no BF16, and DLPack has no strings.
    if datatype == "TYPE_BF16":
        return pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack())
    return pb_utils.Tensor(name, tensor.as_numpy())
