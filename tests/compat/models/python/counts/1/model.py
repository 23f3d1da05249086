"""A decoupled model: as many responses as its text says, and whatever else it says."""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = request.inputs()[0].as_numpy()[0].decode()
            sender = request.get_response_sender()
            if text.isdigit():
                count(sender, int(text))
            else:
                getattr(self, text)(sender)
        return None

    def last_with_response(self, sender):
        sender.send(response("first"))
        sender.send(response("last"), FINAL)

    def by_a_thread(self, sender):
        threading.Timer(0.05, count, (sender, 2)).start()

    def error_at_the_end(self, sender):
        sender.send(response("first"))
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("at the end")), FINAL)

    def error_alone(self, sender):
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("alone", pb_utils.TritonError.INVALID_ARG)), FINAL)

    def error_then_end(self, sender):
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("then the end")))
        sender.send(flags=FINAL)

    def error_between(self, sender):
        sender.send(response("first"))
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("between")))
        sender.send(response("last"))
        sender.send(flags=FINAL)

    def after_the_end(self, sender):
        sender.send(response("first"), FINAL)
        try:
            sender.send(response("more"))
        except Exception as error:
            pb_utils.Logger.log_info(f"marked: {error}")

    def nothing_to_send(self, sender):
        said = []
        for given in ({}, {"flags": 5}, {"response": 1, "flags": FINAL}):
            try:
                sender.send(**given)
                said.append("sent")
            except Exception as error:
                said.append(type(error).__name__)
        sender.send(response(*said), FINAL)

    def with_parameters(self, sender):
        for number in range(2):
            sender.send(response("x", parameters={"number": number}))
        sender.send(flags=FINAL)

    def raises(self, sender):
        raise pb_utils.TritonModelException("it was raised")

    def raises_later(self, sender):
        sender.send(response("first"))
        raise pb_utils.TritonModelException("it was raised")


def count(sender, number):
    for index in range(number):
        sender.send(response(str(index)))
    sender.send(flags=FINAL)


def response(*elements, **more):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(elements, dtype=np.object_))], **more)
