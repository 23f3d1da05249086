#!/usr/bin/env python3
"""Calls beside one another, over HTTP and gRPC, against models with and without `preserve_ordering`.

`ordered` and `unordered` have an instance that takes 0.3 s and one that takes 3 s; the slow one of `late_timeout` and
`late_gone` takes 30 s. All give their input back.
"""

import http.client
import json
import socket
import threading
import time

import numpy as np
import tritonclient.grpc as triton

import checks
from checks import expect, expect_equal

CALLS = 8
# Long enough for a call to arrive, short for the fast instance.
PAUSE = 0.1
# How often a check starts again because the slow instance was not given a call.
ATTEMPTS = 10
# Longer than thread scheduling separates two answers that leave together, shorter than the slow instance takes.
TOGETHER = 1
# Most of the time that the slowest instance takes.
SOON = 20
PATIENCE = 60


def http_call(url, model, value, done, **parameters):
    """Starts a call; `done` is called with its status and value."""
    body = {"parameters": parameters, "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [value]}]}
    return begin(url, f"/v2/models/{model}/infer", body, done, lambda text: json.loads(text)["outputs"][0]["data"][0])


def stream_call(url, model, value, done):
    """The same for a stream of one event."""
    value_of = lambda text: json.loads(text.removeprefix(b"data: "))["OUTPUT0"]
    return begin(url, f"/v2/models/{model}/generate_stream", {"INPUT0": [value]}, done, value_of)


def begin(url, path, body, done, value_of):
    connection = http.client.HTTPConnection(url, timeout=PATIENCE)
    connection.request("POST", path, json.dumps(body))

    def read():
        try:
            answer = connection.getresponse()
            text = answer.read()
            done(answer.status, value_of(text) if answer.status == 200 else text)
        except (OSError, http.client.HTTPException, AttributeError, ValueError) as error:
            done(0, error)

    threading.Thread(target=read, daemon=True).start()
    return connection


def grpc_call(client, model, value, done):
    tensor = triton.InferInput("INPUT0", [1], "FP32").set_data_from_numpy(np.array([value], np.float32))
    client.async_infer(
        model,
        [tensor],
        lambda result, error: done(0, error) if error else done(200, float(result.as_numpy("OUTPUT0")[0])),
    )


class Calls:
    """Calls that were started one after the other, and when each was answered."""

    def __init__(self):
        self.answers = []

    def next(self):
        place = len(self.answers)
        self.answers.append(None)

        def done(status, value):
            self.answers[place] = (time.monotonic(), status, value)

        time.sleep(PAUSE)
        return done

    def wait(self, seconds=PATIENCE):
        until = time.monotonic() + seconds
        while None in self.answers and time.monotonic() < until:
            time.sleep(0.01)
        expect(None not in self.answers, f"no answer within {seconds} s: {self.answers}")
        return self.answers


def overtakes(call, model):
    """The longest time by which an answer came before the answer to an earlier call."""
    calls = Calls()
    for value in range(CALLS):
        call(model, value, calls.next())
    answers = calls.wait()
    expect_equal("answers", [answer[1:] for answer in answers], [(200, float(value)) for value in range(CALLS)])
    times = [answer[0] for answer in answers]
    return max(max(times[: place + 1]) - times[place] for place in range(CALLS))


def check_order(call):
    for _ in range(ATTEMPTS):
        free = overtakes(call, "unordered")
        if free > TOGETHER:
            break
    expect(free > TOGETHER, f"the slow instance was not overtaken without `preserve_ordering`: {free:.2f} s")
    kept = overtakes(call, "ordered")
    expect(kept < TOGETHER, f"an answer came {kept:.2f} s before that of an earlier call")
    return f"{kept * 1000:.0f} ms, and {free * 1000:.0f} ms without"


def begin_late(url, model, **parameters):
    """Two calls, of which the slow instance has one, and others behind them."""
    for _ in range(ATTEMPTS):
        late = Calls()
        connections = [http_call(url, model, value, late.next(), **parameters) for value in range(2)]
        time.sleep(1)
        if None in late.answers:
            break
    expect(None in late.answers, f"the slow instance was not given a call: {late.answers}")
    others = Calls()
    for value in range(CALLS):
        http_call(url, model, value, others.next())
    time.sleep(1)
    expect_equal("answers that overtook the slow instance's", [answer for answer in others.answers if answer], [])
    return late, connections, others


def check_others(others):
    answers = others.wait(SOON)
    expect_equal("the others", [answer[1:] for answer in answers], [(200, float(value)) for value in range(CALLS)])


def check_timeout(url):
    late, _, others = begin_late(url, "late_timeout", trireme_timeout_ms=10_000)
    check_others(others)
    expect(503 in [status for _, status, _ in late.wait()], f"no call timed out: {late.answers}")


def check_gone(url):
    _, connections, others = begin_late(url, "late_gone")
    for connection in connections:
        # Shut down, not only closed, because its reader also holds the socket.
        if connection.sock:
            connection.sock.shutdown(socket.SHUT_RDWR)
    check_others(others)


def main():
    arguments = checks.arguments(__doc__, lambda parser: parser.add_argument("--grpc-url", required=True))
    client = triton.InferenceServerClient(arguments.grpc_url)
    over_http = lambda model, value, done: http_call(arguments.url, model, value, done)
    streamed = lambda model, value, done: stream_call(arguments.url, model, value, done)
    over_grpc = lambda model, value, done: grpc_call(client, model, value, done)
    checks.run(
        [
            ("answers of HTTP calls come in their order", lambda: check_order(over_http)),
            ("answers of gRPC calls come in their order", lambda: check_order(over_grpc)),
            ("answers of streams come in their order", lambda: check_order(streamed)),
            ("a call that times out is not waited for", lambda: check_timeout(arguments.url)),
            ("a call whose client is gone is not waited for", lambda: check_gone(arguments.url)),
        ]
    )


if __name__ == "__main__":
    main()
