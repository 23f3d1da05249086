"""Sends requests to other models, as the first text of its input says."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [getattr(self, request.inputs()[0].as_numpy()[0].decode())() for request in requests]

    def exec(self):
        return texts(said(ask("echo", ["a", "b"]).exec()))

    def version(self):
        return texts(said(ask("echo", ["a"], model_version=1).exec()))

    def ensemble(self):
        return texts(said(ask("chain", ["names"]).exec()))

    def in_turn(self):
        first = ask("echo", ["a"]).exec()
        second = pb_utils.InferenceRequest(
            model_name="echo",
            requested_output_names=["OUT"],
            inputs=[pb_utils.Tensor("IN", pb_utils.get_output_tensor_by_name(first, "OUT").as_numpy())],
        ).exec()
        return texts(said(second))

    def missing_output(self):
        response = ask("echo", ["a"]).exec()
        return texts([str(pb_utils.get_output_tensor_by_name(response, "NONE"))])

    def unknown_model(self):
        return texts(said(ask("nobody", ["a"]).exec()))

    def unknown_version(self):
        return texts(said(ask("echo", ["a"], model_version=9).exec()))

    def unknown_output(self):
        return texts(said(ask("echo", ["a"], outputs=["NONE"]).exec()))

    def unknown_input(self):
        return texts(said(ask("echo", ["a"], name="OTHER").exec()))

    def other_datatype(self):
        tensor = pb_utils.Tensor("IN", np.array([1], dtype=np.int32))
        request = pb_utils.InferenceRequest(model_name="echo", requested_output_names=["OUT"], inputs=[tensor])
        return texts(said(request.exec()))

    def failing(self):
        return texts(said(ask("asked", ["invalid"]).exec()))

    def raising(self):
        response = ask("asked", ["invalid"]).exec()
        raise pb_utils.TritonModelException(response.error().message())

    def outputs_of_an_error(self):
        response = ask("asked", ["invalid"]).exec()
        try:
            response.output_tensors()
        except pb_utils.TritonModelException as error:
            return texts([type(error).__name__, str(error)])
        return texts(["no error"])

    def identified(self):
        return texts(said(ask("asked", ["request"], request_id="mine", correlation_id=7, flags=1).exec()))

    def parameters(self):
        return texts(said(ask("asked", ["request"], parameters={"a": 1, "b": "x", "c": True}).exec()))

    def response_parameters(self):
        found = json.loads(ask("asked", ["parameters"]).exec().parameters())
        return texts(sorted(f"{key} {value!r}" for key, value in found.items()))

    def several(self):
        responses = ask("counts", ["3"]).exec(decoupled=True)
        return texts([text for response in responses for text in said(response)])

    def none(self):
        responses = ask("counts", ["0"]).exec(decoupled=True)
        return texts([text for response in responses for text in said(response)] + ["end"])

    def several_as_one(self):
        return texts(said(ask("counts", ["3"]).exec()))

    def one_of_several(self):
        responses = ask("echo", ["a"]).exec(decoupled=True)
        return texts([text for response in responses for text in said(response)])

    def ready(self):
        names = ["echo", "nobody"]
        return texts([f"{name} {pb_utils.is_model_ready(model_name=name)}" for name in names])

    def made(self):
        request = ask("echo", ["a"], request_id="mine", timeout=5)
        found = [request.request_id(), str(request.timeout()), str(request.flags()), str(request.correlation_id())]
        return texts([*found, *request.requested_output_names(), *(tensor.name() for tensor in request.inputs())])

    def no_inputs(self):
        try:
            pb_utils.InferenceRequest(model_name="echo", requested_output_names=["OUT"])
        except TypeError:
            return texts(["TypeError"])
        return texts(["no error"])


def ask(model, elements, outputs=("OUT",), name="IN", **more):
    tensor = pb_utils.Tensor(name, np.array([text.encode() for text in elements], dtype=np.object_))
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=list(outputs), inputs=[tensor], **more)


def said(response):
    """The texts of a response, or of its error."""
    if response.has_error():
        return ["error", response.error().message(), str(int(response.error().code()))]
    return [text.decode() for tensor in response.output_tensors() for text in tensor.as_numpy().ravel()]


def texts(elements):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(elements, dtype=np.object_))])
