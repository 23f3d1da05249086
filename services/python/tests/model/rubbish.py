"""Answers a text of RUBBISH with what its function gives or raises, `count TEXT` with how often TEXT was executed, and any other
text with the process's number: by a list, or, if the model's parameter `sends` says so, by response senders."""

import argparse
import asyncio
import json
import os
import sys

import numpy as np
import triton_python_backend_utils as pb_utils

HALF = "\ud83d"


class Silent(Exception):
    def __str__(self):
        raise SystemExit("no text")

    __repr__ = __str__


class Loose(type):
    def __repr__(cls):
        raise KeyError("no text")


class Nameless(metaclass=Loose):
    def __str__(self):
        raise Silent

    __repr__ = __str__


def throw(error):
    raise error


def out(*values):
    return pb_utils.Tensor("OUT", np.array(values, dtype=object))


def answer(*values, **more):
    return pb_utils.InferenceResponse([out(*values)], **more)


def with_parameter(value):
    return answer("x", parameters={"a": value})


def nested(**wrong):
    return pb_utils.InferenceRequest(**{"model_name": "m", "inputs": [], "requested_output_names": ["OUT"], **wrong}).exec()


def recurse():
    return recurse()


# No function gives a response with outputs.
RUBBISH = {
    "half raised": lambda: throw(ValueError(f"no such name: {HALF}")),
    "half answered": lambda: pb_utils.InferenceResponse(error=pb_utils.TritonError(HALF)),
    "half output": lambda: answer(HALF),
    "half name": lambda: pb_utils.InferenceResponse([pb_utils.Tensor(HALF, np.zeros(1))]),
    "half parameter": lambda: with_parameter(HALF),
    "half key": lambda: answer("x", parameters={HALF: 1}),
    "nan": lambda: with_parameter(float("nan")),
    "infinity": lambda: with_parameter(-float("inf")),
    "large number": lambda: with_parameter(2**70),
    "larger number": lambda: with_parameter(2**70000),
    "object": lambda: with_parameter(Nameless()),
    "long parameter": lambda: with_parameter("x" * (70 << 20)),
    "parameters": lambda: answer("x", parameters=5),
    "name": lambda: pb_utils.InferenceResponse([pb_utils.Tensor(5, np.zeros(1))]),
    "no name": lambda: pb_utils.InferenceResponse([pb_utils.Tensor(None, np.zeros(1))]),
    "list": lambda: pb_utils.InferenceResponse([pb_utils.Tensor("OUT", ["x"])]),
    "structure": lambda: pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, dtype=[("a", int)]))]),
    "items": lambda: answer(Nameless()),
    "no tensors": lambda: pb_utils.InferenceResponse([Nameless()]),
    "no list": lambda: pb_utils.InferenceResponse(5),
    "error": lambda: pb_utils.InferenceResponse(error=Nameless()),
    "code": lambda: pb_utils.InferenceResponse(error=pb_utils.TritonError("x", "INTERNAL")),
    "large code": lambda: pb_utils.InferenceResponse(error=pb_utils.TritonError("x", 99)),
    "message": lambda: pb_utils.InferenceResponse(error=pb_utils.TritonError(Nameless())),
    "long message": lambda: throw(ValueError("x" * (70 << 20))),
    "no response": lambda: Nameless(),
    "text": lambda: "x",
    "shape": lambda: reshaped(),
    "endless": lambda: pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.broadcast_to(np.float32(0), (1 << 20, 1 << 30)))]),
    "exit": lambda: sys.exit("not so"),
    "exit with 0": lambda: sys.exit(0),
    "arguments": lambda: argparse.ArgumentParser().parse_args(["--nonesuch"]),
    "interrupt": lambda: throw(KeyboardInterrupt()),
    "generator": lambda: throw(GeneratorExit()),
    "cancelled": lambda: throw(asyncio.CancelledError()),
    "stop": lambda: next(iter(())),
    "recursion": recurse,
    "base": lambda: throw(BaseException("x")),
    "silent": lambda: throw(Silent()),
    "level": lambda: pb_utils.Logger.log("x", 5),
    "label": lambda: pb_utils.MetricFamily("rubbish", HALF, 0).Metric({"a": HALF}),
    "buckets": lambda: pb_utils.MetricFamily("rubbish", "x", 2).Metric(buckets=[float("nan")]),
    "model": lambda: nested(model_name=Nameless()),
    "inputs": lambda: nested(inputs=[5]),
    "outputs": lambda: nested(requested_output_names="OUT"),
    "timeout": lambda: nested(timeout=-1),
    "version": lambda: nested(model_version="x"),
    "half model": lambda: nested(model_name=HALF),
}


def reshaped():
    """A tensor whose array has fewer elements than the tensor says."""
    array = np.zeros(4, dtype=np.float32)
    tensor = pb_utils.Tensor("OUT", array)
    tensor.as_numpy().resize(2, refcheck=False)
    return pb_utils.InferenceResponse([tensor])


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.sends = parameters["sends"]["string_value"] == "true"
        self.executed = {}

    def execute(self, requests):
        responses = [self.respond(request) for request in requests]
        return None if self.sends else responses

    def respond(self, request):
        text = request.inputs()[0].as_numpy().ravel()[0].decode()
        self.executed[text] = self.executed.get(text, 0) + 1
        pb_utils.Logger.log_info(f"executes {text} {HALF}")
        if text == "every":
            response = answer(*RUBBISH)
        elif text.startswith("count "):
            response = answer(str(self.executed.get(text[len("count ") :], 0)))
        else:
            kind = text.partition("#")[0]
            response = RUBBISH[kind]() if kind in RUBBISH else answer(str(os.getpid()))
        if self.sends:
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return response
