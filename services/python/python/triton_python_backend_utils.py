"""What a model.py of Triton's python backend imports, for models that Trireme hosts.

The names and what they do are Triton's; docs/python.md lists them. Tensors lie in the memory of the CPU. What is not there raises
a TritonModelException that says so.
"""

import enum as _enum

import numpy as np

from trireme_python import calls as _calls
from trireme_python import current as _current
from trireme_python.configuration import ModelConfig
from trireme_python.errors import TritonError, TritonModelException
from trireme_python.errors import unsupported as _unsupported
from trireme_python.calls import ResponseIterator
from trireme_python.metrics import COUNTER, GAUGE, HISTOGRAM, Metric, MetricFamily, MetricKind
from trireme_python.requests import (
    RELEASE_ALL as TRITONSERVER_REQUEST_RELEASE_ALL,
    RELEASE_RESCHEDULE as TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    SEQUENCE_END as TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    SEQUENCE_START as TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    InferenceRequest,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
)
from trireme_python.responses import RESPONSE_COMPLETE_FINAL as TRITONSERVER_RESPONSE_COMPLETE_FINAL
from trireme_python.responses import InferenceResponse
from trireme_python.responses import ResponseSender as InferenceResponseSender
from trireme_python.tensors import NAMES as _NAMES, NUMPY as _NUMPY, Tensor
from trireme_python.tensors import datatype_of as _datatype_of
from trireme_python.tensors import decode_bytes as deserialize_bytes_tensor

TRITONSERVER_MEMORY_GPU, TRITONSERVER_MEMORY_CPU = MemoryType

# By the name in config.pbtxt.
TRITON_STRING_TO_NUMPY = {f"TYPE_{name}": dtype.type for name, dtype in _NUMPY.items()}
TRITON_STRING_TO_NUMPY.update(TYPE_BOOL=bool, TYPE_STRING=np.object_)

# By number.
TRITON_TO_NUMPY_TYPE = {_NAMES.index(name) + 1: dtype.type for name, dtype in _NUMPY.items()}
TRITON_TO_NUMPY_TYPE[_NAMES.index("BYTES") + 1] = np.object_


def serialize_byte_tensor(input_tensor):
    """The bytes of an array of texts: each element's length in 4 bytes, then the element. None for other arrays."""
    from trireme_python.tensors import encode_bytes

    if input_tensor.dtype.kind not in "OS":
        return None
    return encode_bytes(input_tensor) if input_tensor.size else ()


def _named(tensors, name):
    for tensor in tensors:
        if tensor.name() == name:
            return tensor
    return None


def get_input_tensor_by_name(inference_request, name):
    """The input of this name; None where there is none."""
    return _named(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response, name):
    """The output of this name; None where there is none."""
    return _named(inference_response.output_tensors(), name)


def _declared(model_config, kind, name):
    for tensor in model_config.get(kind, ()):
        if tensor["name"] == name:
            return tensor
    return None


def get_input_config_by_name(model_config, name):
    """The declaration of this input in a configuration; None where there is none."""
    return _declared(model_config, "input", name)


def get_output_config_by_name(model_config, name):
    """The declaration of this output in a configuration; None where there is none."""
    return _declared(model_config, "output", name)


def using_decoupled_model_transaction_policy(model_config):
    """Whether a configuration's model is decoupled."""
    return model_config.get("model_transaction_policy", {}).get("decoupled", False)


def triton_to_numpy_type(data_type):
    """numpy's type for a datatype's number; None where there is none."""
    return TRITON_TO_NUMPY_TYPE.get(data_type)


def numpy_to_triton_type(data_type):
    """The number of the datatype that numpy's type is; None where there is none."""
    name = _datatype_of(np.empty(0, dtype=data_type))
    return None if name is None else _NAMES.index(name) + 1


def triton_string_to_numpy(triton_type_string):
    """numpy's type for a datatype as config.pbtxt names it."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


class Logger:
    """Writes to the worker's log, with the model's name."""

    LogLevel = _enum.IntEnum("LogLevel", ["INFO", "WARNING", "ERROR", "VERBOSE"], start=0)
    INFO, WARNING, ERROR, VERBOSE = LogLevel

    @staticmethod
    def log(message, level=INFO):
        """Writes a message at a level."""
        if not isinstance(level, Logger.LogLevel):
            raise TypeError("the level of a line for the log is none of Logger's")
        if not isinstance(message, (str, bytes)):
            raise TypeError(f"a line for the log is a {type(message).__name__}, expected a str")
        if _current.host is None or _current.host.channel.is_forked:
            print(message)
        else:
            _current.host.log(level.name, message)

    @staticmethod
    def log_info(message):
        """Writes a message."""
        Logger.log(message, Logger.INFO)

    @staticmethod
    def log_warn(message):
        """Writes a warning."""
        Logger.log(message, Logger.WARNING)

    @staticmethod
    def log_error(message):
        """Writes an error."""
        Logger.log(message, Logger.ERROR)

    @staticmethod
    def log_verbose(message):
        """Writes what is read when something is looked for."""
        Logger.log(message, Logger.VERBOSE)


def load_model(model_name, config="", files=None):
    """Has all workers load a model, where the gateways' --model-control-mode is explicit. `files` are its files by
    `file:` and their paths, as bytes; they need a `config`, JSON."""
    named = {name.removeprefix("file:").lstrip("/"): content for name, content in (files or {}).items()}
    _calls.control(_current.host, "load", model_name, parameters={"config": config} if config else None, files=named)


def unload_model(model_name, unload_dependents=False):
    """Has all workers unload a model; with `unload_dependents`, the models of an ensemble too."""
    _calls.control(_current.host, "unload", model_name, parameters={"unload_dependents": bool(unload_dependents)})


def is_model_ready(model_name, model_version=""):
    """Whether a model is ready, by default its latest version."""
    version = int(model_version) if model_version else -1
    return _calls.control(_current.host, "ready", model_name, version).get("ready", False)


def get_model_dir():
    """The folder of the model's version, which its model.py lies in."""
    if _current.host is None:
        raise TritonModelException("a model has a folder only in the process of a worker")
    return _current.host.model_dir


class SharedMemory:
    """The pool that tensors lie in: there is none here."""

    def __getattr__(self, name):
        _unsupported(f"shared_memory.{name}")


shared_memory = SharedMemory()
