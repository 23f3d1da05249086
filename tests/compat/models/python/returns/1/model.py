"""Returns from `execute` what no model should."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        (number,) = requests[0].inputs()[0].as_numpy()[0]
        response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", requests[0].inputs()[0].as_numpy())])
        return {0: [response], 1: [], 2: [response, response], 3: None, 4: 5, 5: (response,)}[int(number)]
