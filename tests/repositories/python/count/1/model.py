"""Texts as they are, and their lengths."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info(f"counting as {args['model_instance_name']}")

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            lengths = np.array([[len(text)] for text in texts.ravel()], dtype=np.int64)
            outputs = [pb_utils.Tensor("TEXT_OUT", texts), pb_utils.Tensor("LENGTH", lengths)]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
