"""Requests as a model sees them."""

import enum
import json

from trireme_python import calls, current, values
from trireme_python.errors import TritonModelException, unsupported
from trireme_python.responses import ResponseSender, parse_parameters, tensors
from trireme_python.tensors import Tensor

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
        return calls.start(current.host, self, decoupled)()

    def async_exec(self, decoupled=False):
        """Sends the request to its model at once; what it gives is awaited for what `exec` would return."""
        return calls.wait(current.host, calls.start(current.host, self, decoupled))


def correlation(given):
    """The name of a sequence: a whole number, or a text."""
    if isinstance(given, (str, bytes)):
        return values.name("the correlation_id of an InferenceRequest", given)
    return values.whole("the correlation_id of an InferenceRequest", given)
