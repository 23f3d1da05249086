"""Requests and responses as a model sees them."""

import enum
import json

from trireme_python import calls, host, values
from trireme_python.channel import Layout
from trireme_python.errors import TritonError, TritonModelException, unsupported
from trireme_python.tensors import Tensor

# Triton's number for "no more responses".
RESPONSE_COMPLETE_FINAL = 1
SEQUENCE_START, SEQUENCE_END = 1, 2
RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2

# Parameters of the protocol, which a model does not see as its own.
RESERVED = {
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "headers",
    "binary_data_output",
}


class MemoryType(enum.IntEnum):
    """The kinds of memory that PreferredMemory has."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """Where the outputs of a nested request shall lie: always in the memory of the CPU."""

    def __init__(self, preferred_memory_type, preferred_device_id=0):
        self.memory_type, self.device_id = preferred_memory_type, preferred_device_id


class InferenceTrace:
    """What a nested request's trace belongs to. The worker sees to that; this holds nothing."""

    def get_context(self):
        """No context: spans are made by the worker."""
        return None


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


class InferenceRequest:
    """A request: one that has come, or one that a model makes."""

    def __init__(
        self,
        request_id="",
        correlation_id=0,
        inputs=None,
        requested_output_names=None,
        model_name=None,
        model_version=-1,
        flags=0,
        timeout=0,
        preferred_memory=None,
        trace=None,
        parameters=None,
    ):
        for name, given in (("inputs", inputs), ("requested_output_names", requested_output_names), ("model_name", model_name)):
            if given is None:
                raise TypeError(f"an InferenceRequest needs {name}")
        self._id = values.name("the request_id of an InferenceRequest", request_id)
        self._correlation_id = correlation(correlation_id)
        self._inputs = tensors("the inputs of an InferenceRequest", inputs)
        self._outputs = values.names("the requested_output_names of an InferenceRequest", requested_output_names)
        self._timeout = values.whole("the timeout of an InferenceRequest", timeout)
        self._model = values.name("the model_name of an InferenceRequest", model_name)
        self._version = values.whole("the model_version of an InferenceRequest", model_version, -(2**63), 2**63 - 1)
        self.set_flags(flags)
        self._parameters, self._sender, self._ticket = parse_parameters(parameters), None, None

    @classmethod
    def received(cls, header, data, host):
        """The request that a frame's header describes."""
        request = cls.__new__(cls)
        parameters = header["parameters"]
        request._ticket, request._id = header["id"], header["request_id"]
        request._inputs = [Tensor.received(tensor, data) for tensor in header["inputs"]]
        request._outputs, request._model, request._version = header["outputs"], host.model_name, host.model_version
        request._correlation_id = request._timeout = request._flags = 0
        request._parameters = parameters
        if parameters:
            request._correlation_id = parameters.get("sequence_id", 0)
            request._timeout = int(parameters.get("timeout") or 0)
            request._flags = SEQUENCE_START * bool(parameters.get("sequence_start"))
            request._flags |= SEQUENCE_END * bool(parameters.get("sequence_end"))
            request._parameters = {key: value for key, value in parameters.items() if key not in RESERVED}
        request._sender = ResponseSender(request._ticket, host)
        return request

    def inputs(self):
        """Its inputs, in the order in which they were sent."""
        return self._inputs

    def request_id(self):
        """The id that the client gave it."""
        return self._id

    def correlation_id(self):
        """The sequence that it belongs to, 0 for none."""
        return self._correlation_id

    def flags(self):
        """Where in its sequence it is."""
        return self._flags

    def set_flags(self, flags):
        """Says where in its sequence it is."""
        self._flags = values.whole("the flags of an InferenceRequest", flags, 0, 2**32 - 1)

    def timeout(self):
        """The timeout that the client gave it, in microseconds; 0 for none."""
        return self._timeout

    def parameters(self):
        """Its own parameters, as JSON."""
        return json.dumps(self._parameters)

    def trace(self):
        """Nothing that a model could use: spans are made by the worker."""
        return InferenceTrace()

    def requested_output_names(self):
        """The outputs that somebody needs."""
        return self._outputs

    def model_name(self):
        """The model that it is for."""
        return self._model

    def model_version(self):
        """Its version."""
        return self._version

    def get_response_sender(self):
        """What sends its responses."""
        if self._sender is None:
            raise TritonModelException("this request has come from no client: it has no response sender")
        self._sender._taken = True
        return self._sender

    def is_cancelled(self):
        """Whether no client waits for the answer any more."""
        return self._sender is not None and self._sender.is_cancelled()

    def set_release_flags(self, flags):
        """Rescheduling is not supported; giving everything back is what happens anyway."""
        if flags != RELEASE_ALL:
            unsupported("request rescheduling (TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)")

    def exec(self, decoupled=False):
        """Sends the request to its model and waits for the response; with `decoupled`, gives an iterator of responses."""
        return calls.start(host.HOST, self, decoupled)()

    def async_exec(self, decoupled=False):
        """Sends the request to its model at once; what it gives is awaited for what `exec` would return."""
        return calls.wait(host.HOST, calls.start(host.HOST, self, decoupled))


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
            if response is not None and self._sent and not self._host.decoupled:
                raise TritonModelException(
                    "a model without the decoupled transaction policy sends one response for each request"
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


def correlation(given):
    """The name of a sequence: a whole number, or a text."""
    if isinstance(given, (str, bytes)):
        return values.name("the correlation_id of an InferenceRequest", given)
    return values.whole("the correlation_id of an InferenceRequest", given)


def parse_parameters(parameters):
    """A model gives parameters as a dictionary of scalars, or as the JSON of one."""
    if parameters is None or parameters == "":
        return {}
    if isinstance(parameters, str):
        parameters = json.loads(parameters)
    if not isinstance(parameters, dict):
        raise TypeError(f"parameters are a {values.kind(parameters)}, expected a dictionary, or the JSON of one")
    checked = {}
    for key, value in parameters.items():
        key = values.name("the name of a parameter", key)
        checked[key] = values.parameter(f"parameter '{key}'", value)
    longest = values.LONGEST_PARAMETERS
    if sum(len(key) + (len(value) if isinstance(value, str) else 8) for key, value in checked.items()) > longest:
        raise ValueError(f"parameters have more than {longest} characters together")
    return checked
