"""Responses as a model makes and sends them."""

import json

from trireme_python import values
from trireme_python.channel import Layout
from trireme_python.errors import TritonError, TritonModelException
from trireme_python.tensors import Tensor

# Triton's number for "no more responses".
RESPONSE_COMPLETE_FINAL = 1


class InferenceResponse:
    """The outputs of a request, or why there are none."""

    def __init__(self, output_tensors=(), error=None, parameters=None):
        self._outputs = tensors("the output_tensors of an InferenceResponse", output_tensors)
        if isinstance(error, (str, BaseException)):
            error = TritonError(error)
        if not isinstance(error, (TritonError, type(None))):
            raise TypeError(f"the error of an InferenceResponse is a {values.kind(error)}, expected a TritonError")
        self._error, self._parameters = error, parse_parameters(parameters)

    def output_tensors(self):
        """The outputs; those beside an error do not count."""
        return self._outputs

    def has_error(self):
        """Whether there are no outputs."""
        return self._error is not None

    def error(self):
        """Why there are none."""
        return self._error

    def parameters(self):
        """Its parameters, as JSON."""
        return json.dumps(self._parameters)

    def describe(self, layout):
        """The response as a frame's header has it."""
        if self._error is not None:
            return {"error": self._error.describe()}
        described = {"outputs": [output.describe(layout) for output in self._outputs]}
        if self._parameters:
            described["parameters"] = self._parameters
        return described


class ResponseSender:
    """Sends the responses of one request, from any thread. It is open for as long as the host has it under its ticket."""

    __slots__ = ("_ticket", "_host", "_cancelled", "_sent", "_taken")

    def __init__(self, ticket, host):
        # Not the request, which has this sender: its tensors are freed with it.
        self._ticket, self._host, self._cancelled, self._sent, self._taken = ticket, host, False, False, False

    def send(self, response=None, flags=0):
        """Sends a response; with TRITONSERVER_RESPONSE_COMPLETE_FINAL it is the last one, or says that none follows."""
        if flags not in (0, RESPONSE_COMPLETE_FINAL):
            raise TritonModelException(f"Unable to send response. Unsupported flag provided: {flags}")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero"
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send() takes an InferenceResponse, found a {values.kind(response)}")
        final = flags == RESPONSE_COMPLETE_FINAL
        layout, header = Layout(), {"id": self._ticket, "final": final}
        if response is not None:
            header.update(response.describe(layout))
        with self._host.lock:
            if not self.is_open():
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if not self._host.decoupled and response is not None and self._sent:
                raise TritonModelException("Unable to send response. Non-decoupled model cannot send more than one response.")
            if not self._host.decoupled and response is None and not self._sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
                )
            # A response that cannot be sent is an error of the model, which may still answer.
            self._host.channel.send({"type": "responses", "responses": [header]}, layout.buffers)
            if final:
                del self._host.senders[self._ticket]
            self._sent = self._sent or response is not None

    def is_open(self):
        """Whether something may be sent."""
        return self._ticket in self._host.senders

    def answers(self):
        """Whether the model answers by this, or has."""
        return self._taken or not self.is_open()

    def is_cancelled(self):
        """Whether no client waits for the answer any more."""
        if not self._cancelled:
            self._host.mailbox.poll()
        return self._cancelled


def tensors(what, given):
    """A list of tensors."""
    given = list(given)
    for tensor in given:
        if not isinstance(tensor, Tensor):
            raise TritonModelException(f"{what} have a {values.kind(tensor)} among them, expected Tensor")
    return given


def parse_parameters(parameters):
    """A model gives parameters as a dictionary of scalars, or as the JSON of one."""
    if parameters is None or parameters == "":
        return {}
    if isinstance(parameters, str):
        parameters = json.loads(parameters)
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect a dict, or the JSON of one, as parameters, got {values.kind(parameters)}")
    checked = {}
    for key, value in parameters.items():
        if not isinstance(key, (str, bytes)):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {values.kind(key)}")
        if not isinstance(value, (bool, int, float, str)):
            # Triton's words; floats are taken as well.
            found = f"found type {values.kind(value)} in parameter {key!a}"
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, {found}")
        key = values.name("the name of a parameter", key)
        checked[key] = values.parameter(f"parameter '{key}'", value)
    longest = values.LONGEST_PARAMETERS
    if sum(len(key) + (len(value) if isinstance(value, str) else 8) for key, value in checked.items()) > longest:
        raise ValueError(f"parameters have more than {longest} characters together")
    return checked
