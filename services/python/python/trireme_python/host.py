"""Loads a model.py and runs it: what the worker asks for, one `execute` after the other."""

import asyncio
import ctypes
import importlib
import importlib.util
import inspect
import os
import signal
import socket
import sys
import threading
import time
import traceback
from concurrent.futures import CancelledError, wait

from trireme_python import current, metrics, values
from trireme_python.channel import Channel, Closed, Layout, Mailbox
from trireme_python.errors import TritonError, TritonModelException
from trireme_python.requests import InferenceRequest
from trireme_python.responses import InferenceResponse

# Requests of a frame that are executed one by one are calls of less than a millisecond. After this time the others are given back.
APART_SECONDS = 0.2

# Of linux/prctl.h: the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1


def main(model=None):
    """Serves one instance until the worker says that it is enough, or is gone: of the model file that the worker names, or
    of this class."""
    end_with_parent()
    # The model must not read the worker's words from standard input, nor its children.
    worker = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    channel = Channel(worker)
    try:
        Host(channel, model).run()
    except Closed:
        # Nobody is there to say anything to. Threads of the model must not hold this up.
        sys.stdout.flush()
        os._exit(0)


def end_with_parent():
    """The process ends when its worker does, whatever it is doing."""
    parent = os.environ.pop("TRIREME_WORKER_PID", None)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != int(parent):
        os._exit(0)


class Host:
    """A model in this process."""

    def __init__(self, channel, model=None):
        current.host = self
        self.channel = channel
        self.mailbox = Mailbox(channel, self.dispatch)
        # The class, where there is no model file; then the model.
        self.model, self.loop = model, None
        self.model_name, self.instance_name, self.model_version, self.decoupled = "", "", 1, False
        # The folder of the model's version.
        self.model_dir = ""
        # The senders of requests that are not answered, by ticket. Whoever holds `lock` may send, or take a sender out.
        self.senders, self.lock = {}, threading.Lock()
        # Requests of the model to other models, by their ids, and the threads that wait for them.
        self.calls, self.waiters = {}, None

    def dispatch(self, header, data):
        """Takes in a frame; says whether it is for the main thread."""
        if header["type"] == "answer":
            call = self.calls.get(header["id"])
            if call is not None:
                call.received.append((header, data))
            return False
        if header["type"] != "cancel":
            return True
        with self.lock:
            for ticket in header["ids"]:
                if ticket in self.senders:
                    self.senders[ticket]._cancelled = True
        return False

    def run(self):
        """Does what the worker asks for."""
        while True:
            header, data = self.mailbox.next_work()
            kind = header["type"]
            if kind == "load":
                self.load(header)
            elif kind == "execute":
                began = time.perf_counter_ns()
                answers, layout = self.execute(header["requests"], data.view, header.get("apart", False))
                took = time.perf_counter_ns() - began
                self.send_metrics()
                self.executed(answers, layout, data, took)
            elif kind == "ready":
                self.channel.send({"type": "ready", "ready": self.is_ready()})
            elif kind == "finalize":
                self.finalize()
                return
            else:
                raise RuntimeError(f"the worker sent a frame of type '{kind}', which this process does not know")

    # === Loading ===

    def load(self, header):
        """Imports the model, and completes its configuration or initializes an instance."""
        try:
            args = header["args"]
            self.model_name, self.model_version = args["model_name"], int(args["model_version"])
            self.decoupled = header["decoupled"]
            self.model_dir = os.path.abspath(os.path.join(args["model_repository"], args["model_version"]))
            model = self.model or self.import_model(header["file"])
            if header["complete"]:
                self.channel.send({"type": "loaded", "config": complete(model, args["model_config"])})
                return
            self.model = model()
            if hasattr(self.model, "initialize"):
                self.model.initialize(args)
            if not hasattr(self.model, "execute"):
                raise TritonModelException(f"Python model file '{header['file']}' has no `execute` function")
            self.instance_name = args["model_instance_name"]
            self.send_metrics()
            self.channel.send({"type": "loaded", "asks_ready": hasattr(self.model, "is_ready")})
        except Closed:
            raise
        except BaseException as error:
            self.channel.send({"type": "failed", "message": describe(error), "traceback": values.traced(error)})

    def import_model(self, file):
        """The class in a model file."""
        version = os.path.dirname(file)
        sys.path += [version, os.path.dirname(version)]
        # Where the file is a link, its target may have neighbours, too.
        target = os.path.dirname(os.path.realpath(file))
        if target != os.path.realpath(version):
            sys.path.append(target)
        # The version's folder is a package, as in Triton: `from . import x` finds what lies there.
        package, stem = os.path.basename(version), os.path.splitext(os.path.basename(file))[0]
        importlib.import_module(package)
        spec = importlib.util.spec_from_file_location(f"{package}.{stem}", file)
        if spec is None:
            raise TritonModelException(f"'{file}' is no Python file: its name has to end in .py")
        module = importlib.util.module_from_spec(spec)
        # Before the module runs: pickled objects of the model refer to it by these names.
        sys.modules[spec.name] = sys.modules[stem] = module
        spec.loader.exec_module(module)
        if not hasattr(module, "TritonPythonModel"):
            raise TritonModelException(f"'{file}' defines no class TritonPythonModel")
        return module.TritonPythonModel

    # === Executing ===

    def execute(self, headers, data, apart):
        """Has the model execute requests: together, or each alone. Gives the headers of the responses, and their tensors."""
        requests = [InferenceRequest.received(header, data, self) for header in headers]
        with self.lock:
            self.senders.update((request._ticket, request._sender) for request in requests)
        answers, layout, until = [], Layout(), time.monotonic() + APART_SECONDS
        for together in [[request] for request in requests] if apart else [requests]:
            if apart and answers and time.monotonic() > until:
                # Another process may be free, and the time limit of `execute` is for one call. The worker tries it again.
                reason = f"the requests before it took more than {APART_SECONDS} s"
                responses = [InferenceResponse(error=TritonError.not_executed(self.refusal(reason)))]
            else:
                responses = self.call(together)
            self.answer(together, responses, answers, layout)
        return answers, layout

    def executed(self, answers, layout, data, took):
        """Says that `execute` has returned, with the responses; with errors in their place where these cannot be sent."""
        message = {"type": "responses", "responses": answers, "executed": True, "took_ns": took}
        try:
            self.channel.answer(message, layout, data)
        except Closed:
            raise
        except BaseException as error:
            self.log("ERROR", f"responses cannot be sent: {values.traced(error)}")
            failed = self.error(error).describe()
            message["responses"] = [{"id": answer["id"], "final": True, "error": failed} for answer in answers]
            self.channel.answer(message, Layout(), data)

    def call(self, requests):
        """Calls the model's `execute`. Requests that fail are answered here; gives the responses to the others. Whatever the model
        raises is an answer, `SystemExit` and `KeyboardInterrupt` too."""
        try:
            responses = self.model.execute(requests)
            if inspect.iscoroutine(responses):
                responses = self.execute_async(responses, requests)
        except BaseException as error:
            self.fail(requests, error)
            return []
        if self.decoupled:
            if responses is not None:
                text = f"Python model '{self.instance_name}' is using the decoupled mode and the execute function must return None."
                self.refuse(requests, text)
            return []
        if responses is None:
            return [None] * len(requests)
        if not isinstance(responses, list):
            self.refuse(requests, f"Expected a list in the execute return, found type '{values.kind(responses)}'.")
            return []
        # Of a class of its own it could have no length, or another one later.
        responses = list.__getitem__(responses, slice(None))
        if len(responses) != len(requests) and any(request._ticket in self.senders for request in requests):
            self.refuse(requests, (
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(responses)}\n"
            ))
            return []
        return responses

    def execute_async(self, coroutine, requests):
        """Runs an `async` execute: that of a decoupled model goes on while others begin."""
        future = self.in_loop(coroutine)
        if not self.decoupled:
            wait([future])
            if future.exception() is not None:
                # Not by way of `result`, whose own place would be among those of the traceback.
                raise future.exception()
            return future.result()

        def ended(future):
            error = CancelledError() if future.cancelled() else future.exception()
            if error is not None:
                self.fail(requests, error)

        future.add_done_callback(ended)
        return None

    def in_loop(self, coroutine):
        """Begins to run a coroutine in the event loop, which has a thread of its own; gives its future."""
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            threading.Thread(target=self.run_loop, name="trireme-asyncio", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run_loop(self):
        """Runs the event loop. A task that raises SystemExit or KeyboardInterrupt ends `run_forever`, and the others go on."""
        while True:
            try:
                self.loop.run_forever()
            except BaseException as error:
                self.log("ERROR", f"a task has failed: {values.traced(error)}")

    def answer(self, requests, responses, answers, layout):
        """Adds what `execute` has returned to the headers of responses and to their tensors."""
        for request, response in zip(requests, responses):
            if response is None and request._sender.answers():
                continue
            if not isinstance(response, InferenceResponse):
                text = (
                    "Expected an 'InferenceResponse' object in the execute function return list, found type "
                    f"'{values.kind(response)}'."
                )
                response = InferenceResponse(error=TritonError(self.refusal(text)))
            if self.close_sender(request._ticket):
                try:
                    described = response.describe(layout)
                except BaseException as error:
                    described = {"error": self.error(error).describe()}
                described["id"], described["final"] = request._ticket, True
                answers.append(described)

    def fail(self, requests, error):
        """Answers those requests that are not answered with an error; the traceback goes to the log."""
        self.log("ERROR", f"execute failed: {values.traced(error)}")
        self.close(requests, self.error(error))

    def refuse(self, requests, reason):
        """Answers those requests that are not answered with an error about what the model has returned."""
        self.log("ERROR", reason)
        self.close(requests, TritonError(self.refusal(reason)))

    def close(self, requests, error):
        """Answers those requests that are not answered with an error."""
        headers = []
        for request in requests:
            if self.close_sender(request._ticket):
                headers.append({"id": request._ticket, "final": True, "error": error.describe()})
        self.channel.send({"type": "responses", "responses": headers})

    def error(self, error):
        """What clients read of an exception."""
        return TritonError(self.refusal(describe(error)))

    def refusal(self, reason):
        """Triton's words around a reason."""
        return f"Failed to process the request(s) for model '{self.instance_name}', message: {reason}"

    def close_sender(self, ticket):
        """Takes the right to answer a request from its sender. Returns whether the sender had it."""
        with self.lock:
            return self.senders.pop(ticket, None) is not None

    # === The rest ===

    def is_ready(self):
        """What the model says of itself. One that raises is not ready."""
        try:
            ready = self.model.is_ready()
            if inspect.iscoroutine(ready):
                ready = self.in_loop(ready).result()
            return bool(ready)
        except BaseException as error:
            self.log("ERROR", f"is_ready failed: {values.traced(error)}")
            return False

    def finalize(self):
        """Lets the model clean up."""
        try:
            if hasattr(self.model, "finalize"):
                self.model.finalize()
        except BaseException as error:
            self.log("ERROR", f"finalize failed: {values.traced(error)}")
        self.channel.send({"type": "finalized"})
        sys.stdout.flush()
        sys.stderr.flush()
        # Threads of the model must not hold this up.
        os._exit(0)

    def send_metrics(self):
        """Tells the worker of changes of the model's metrics."""
        changes = metrics.take()
        if changes:
            self.channel.send({"type": "metrics", "changes": changes})

    def log(self, level, message):
        """Writes to the worker's log."""
        self.channel.send({"type": "log", "level": level, "message": values.message(message)})


def complete(model, config):
    """The configuration as the model completes it."""
    from trireme_python.configuration import ModelConfig

    config = ModelConfig(config)
    if hasattr(model, "auto_complete_config"):
        config = model.auto_complete_config(config)
    if not isinstance(config, ModelConfig):
        raise TritonModelException("auto_complete_config has to return the ModelConfig that it was given")
    return config.as_dict()


def describe(error):
    """An exception in Triton's form: its text, then the places in other files than ours, the one that raised it first."""
    text = values.said(error)
    frames = traceback.extract_tb(error.__traceback__)
    package = os.path.dirname(__file__)
    own = [frame for frame in reversed(frames) if not frame.filename.startswith((package, "<frozen"))]
    if not own:
        return text
    places = "".join(f"  {frame.filename}({frame.lineno}): {frame.name}\n" for frame in own)
    return f"{text}\n\nAt:\n{places}"
