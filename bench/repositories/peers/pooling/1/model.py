"""The mean of the vectors of a text's tokens, made to length 1."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        states = pb_utils.get_input_tensor_by_name(request, "last_hidden_state").as_numpy()
        mask = pb_utils.get_input_tensor_by_name(request, "attention_mask").as_numpy()[:, :, None].astype(np.float32)
        pooled = (states * mask).sum(1) / mask.sum(1)
        pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor("embedding", pooled)])
