"""Not decoupled, and answers by response senders."""

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        return [getattr(self, request.inputs()[0].as_numpy()[0].decode())(request) for request in requests]

    def sent(self, request):
        request.get_response_sender().send(response("sent"), FINAL)

    def sent_then_closed(self, request):
        sender = request.get_response_sender()
        sender.send(response("sent"))
        sender.send(flags=FINAL)

    def returned(self, request):
        return response("returned")


def response(*elements):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(elements, dtype=np.object_))])
