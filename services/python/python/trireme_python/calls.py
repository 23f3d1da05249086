"""Requests that a model sends to other models."""

import asyncio
import itertools
import json
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from trireme_python.channel import Layout
from trireme_python.errors import TritonError, TritonModelException
from trireme_python.responses import InferenceResponse
from trireme_python.tensors import Tensor

# Threads that wait for responses on behalf of coroutines. Requests are sent before, so more of them may run at once.
WAITERS = 32

IDS = itertools.count(1)


class Call:
    """A request to another model, and its responses as they come."""

    def __init__(self, host, header, layout):
        self._host, self._id = host, next(IDS)
        # Appended to by the thread that reads the socket.
        self.received = deque()
        self._open = True
        host.calls[self._id] = self
        try:
            host.channel.send({"type": "infer", "id": self._id, **header}, layout.buffers)
        except BaseException:
            host.calls.pop(self._id, None)
            raise

    def next(self):
        """Waits for the next response and says whether it is the last one. None after that."""
        if not self._open:
            return None
        header, data = self._host.mailbox.wait(lambda: self.received.popleft() if self.received else None)
        if header["final"]:
            self._close()
        return response(header, data.view), header["final"]

    def cancel(self):
        """Waits no longer: the request is cancelled. Says whether it was under way."""
        was_open = self._open
        if was_open:
            self._close()
            self._host.channel.send({"type": "hang_up", "ids": [self._id]})
        return was_open

    def _close(self):
        self._open = False
        self._host.calls.pop(self._id, None)


class ResponseIterator:
    """The responses to a request, each as soon as it is there. The last one has no outputs where it only says that nothing
    follows. Once all are there, another loop gives them again."""

    def __init__(self, call):
        self._call, self._given, self._next = call, [], 0

    def __iter__(self):
        if self._call is None and self._next >= len(self._given):
            self._next = 0
        return self

    def __next__(self):
        if self._next == len(self._given):
            if self._call is None:
                raise StopIteration
            answer, final = self._call.next()
            self._end(answer) if final else self._given.append(answer)
        self._next += 1
        return self._given[self._next - 1]

    def cancel(self):
        """Ends the request. The next response, and the last, is an error of code CANCELLED."""
        if self._call is not None and self._call.cancel():
            self._end(InferenceResponse(error=TritonError("the model has cancelled its request", TritonError.CANCELLED)))

    def _end(self, answer):
        self._given.append(answer)
        self._call = None


def start(host, request, decoupled):
    """Sends a request; gives a function that waits for its response, or for an iterator of its responses."""
    if host is None:
        raise TritonModelException("a model can send requests only in the process of a worker")
    layout = Layout()
    header = {
        "model": request._model,
        "version": request._version,
        "request_id": request._id,
        "inputs": [tensor.describe(layout) for tensor in request._inputs],
        "outputs": request._outputs,
        "parameters": parameters(request),
        "in_parts": bool(decoupled),
    }
    call = Call(host, header, layout)
    if decoupled:
        return lambda: ResponseIterator(call)
    return lambda: call.next()[0]


def control(host, action, model, version=-1, parameters=None, files=None):
    """Has a gateway load or unload a model, or asks whether it is ready; gives the parameters of the answer."""
    if host is None:
        raise TritonModelException("a model can ask for other models only in the process of a worker")
    layout = Layout()
    files = [Tensor(name, np.frombuffer(content, dtype=np.uint8)) for name, content in (files or {}).items()]
    header = {
        "action": action,
        "model": model,
        "version": version,
        "inputs": [file.describe(layout) for file in files],
        "parameters": parameters or {},
    }
    answer, _ = Call(host, header, layout).next()
    if answer.has_error():
        raise TritonModelException(answer.error().message())
    return json.loads(answer.parameters())


async def wait(host, result):
    """Waits for what `start` has given, in a thread, so that other coroutines go on."""
    if host.waiters is None:
        host.waiters = ThreadPoolExecutor(WAITERS, thread_name_prefix="trireme-waits")
    return await asyncio.get_running_loop().run_in_executor(host.waiters, result)


def parameters(request):
    """The parameters of a request, those of the protocol among them."""
    found = dict(request._parameters)
    if request._correlation_id:
        found["sequence_id"] = request._correlation_id
        found["sequence_start"] = bool(request._flags & 1)
        found["sequence_end"] = bool(request._flags & 2)
    if request._timeout:
        found["timeout"] = request._timeout
    return found


def response(header, data):
    """The response that a frame's header describes."""
    if header.get("error") is not None:
        return InferenceResponse(error=TritonError.received(header["error"]))
    outputs = [Tensor.received(output, data) for output in header["outputs"]]
    return InferenceResponse(outputs, parameters=header.get("parameters"))
