#!/usr/bin/env python3
"""tritonclient.grpc and server-sent events against decoupled models: `repeat`, and `repeat_echo`, an ensemble of it."""

import http.client
import json
import queue

import numpy as np
import tritonclient.grpc as triton

import checks
from checks import expect, expect_equal

PATIENCE = 30


class Replies(queue.Queue):
    """The results of a stream, in order of arrival."""

    def __call__(self, result, error):
        self.put((result, error))

    def response(self):
        result, error = self.get(timeout=PATIENCE)
        expect(error is None, f"expected a response, found the error {error}")
        response = result.get_response()
        out = result.as_numpy("OUT")
        value = None if out is None else int(out[0])
        return response.id, value, response.parameters["triton_final_response"].bool_param


def inputs(values, delays):
    tensors = [("IN", "INT32", np.array(values, np.int32)), ("DELAY", "UINT32", np.array(delays, np.uint32))]
    return [triton.InferInput(name, [len(a)], kind).set_data_from_numpy(a) for name, kind, a in tensors]


def streaming(url, act):
    client = triton.InferenceServerClient(url)
    replies = Replies()
    client.start_stream(replies)
    try:
        return act(client, replies)
    finally:
        client.stop_stream()
        client.close()


def check_flags(url, model):
    def act(client, replies):
        for ask in (True, False):
            client.async_stream_infer(model, inputs([4, 5, 6], [0, 5, 0]), request_id="a", enable_empty_final_response=ask)
            expected = [("a", 4, False), ("a", 5, False), ("a", 6, False)] + [("a", None, True)] * ask
            expect_equal(f"responses, empty final one: {ask}", [replies.response() for _ in expected], expected)
        client.async_stream_infer(model, inputs([], []), request_id="b", enable_empty_final_response=True)
        expect_equal("the end of nothing", replies.response(), ("b", None, True))

    streaming(url, act)


def check_interleaving(url, model):
    """A long answer does not delay short ones, and the parts of each come in order."""

    def act(client, replies):
        client.async_stream_infer(model, inputs(range(50), [20] * 50), request_id="long")
        expect_equal("the first response", replies.response(), ("long", 0, False))
        for number in range(5):
            client.async_stream_infer(model, inputs(range(10), [0] * 10), request_id=str(number))
        seen = [replies.response() for _ in range(49 + 5 * 10)]
        for request, values in [("long", range(1, 50))] + [(str(n), range(10)) for n in range(5)]:
            expect_equal(f"responses of {request}", [value for id, value, _ in seen if id == request], list(values))
        expect_equal("who is last", seen[-1][0], "long")

    streaming(url, act)


def check_errors(url, model):
    def act(client, replies):
        client.async_stream_infer(model, inputs([1, 2], [0]), request_id="bad")
        client.async_stream_infer(model, inputs([3], [0]), request_id="good")
        seen = {}
        for _ in range(2):
            result, error = replies.get(timeout=PATIENCE)
            seen["error" if error else result.get_response().id] = error.message() if error else result.as_numpy("OUT")[0]
        expect("input 'DELAY' has 1 elements, expected 2" in seen.get("error", ""), f"expected the error, found {seen}")
        expect_equal("the other request", seen.get("good"), 3)

    streaming(url, act)


def check_unary(url, model):
    client = triton.InferenceServerClient(url)
    text = "ModelInfer RPC doesn't support models with decoupled transaction policy"
    checks.expect_error("infer", lambda: client.infer(model, inputs([1], [0])), "StatusCode.UNIMPLEMENTED", text)
    config = client.get_model_config(model).config
    expect(config.model_transaction_policy.decoupled, f"expected a decoupled model, found {config}")
    client.close()


def post(url, path, body):
    connection = http.client.HTTPConnection(url, timeout=PATIENCE)
    connection.request("POST", path, json.dumps(body))
    response = connection.getresponse()
    return connection, response


def check_events(url, model):
    path = f"/v2/models/{model}/generate_stream"
    connection, response = post(url, path, {"id": "7", "IN": [7, 8, 9], "DELAY": [0, 10, 0]})
    expect_equal("status", response.status, 200)
    expect_equal("type", response.headers["Content-Type"], "text/event-stream; charset=utf-8")
    events = response.read().decode().split("\n\n")
    expect_equal("end", events.pop(), "")
    events = [json.loads(event.removeprefix("data: ")) for event in events]
    expect_equal("values", [event["OUT"] for event in events], [7, 8, 9])
    expect_equal("names", {(event["model_name"], event["model_version"], event["id"]) for event in events}, {(model, "1", "7")})
    connection.close()
    connection, response = post(url, path, {"IN": [], "DELAY": []})
    expect_equal("no responses", (response.status, response.read()), (200, b""))
    connection.close()
    connection, response = post(url, path, {"IN": [1], "DELAY": [1, 1]})
    error = json.loads(response.read())["error"]
    expect_equal("status of an error before the first event", response.status, 400)
    expect("input 'DELAY' has 2 elements, expected 1" in error, f"found {error}")
    connection.close()


def check_one_answer(url, model):
    """`generate` accepts exactly one response, `infer` no decoupled model at all."""
    for path, body, status, text in [
        ("generate", {"IN": 7, "DELAY": 0}, 200, '"OUT":7'),
        ("generate", {"IN": [1, 2], "DELAY": [0, 0]}, 400, "generate expects model to produce exactly 1 response"),
        ("infer", {"inputs": []}, 501, "HTTP end point doesn't support models with decoupled transaction policy"),
    ]:
        connection, response = post(url, f"/v2/models/{model}/{path}", body)
        found = response.read().decode()
        expect(response.status == status and text in found, f"{path}: expected {status} {text!r}, found {response.status} {found!r}")
        connection.close()


def main():
    options = checks.arguments(
        __doc__, lambda parser: parser.add_argument("--grpc-url", required=True, metavar="HOST:PORT")
    )
    named = []
    for model in ("repeat", "repeat_echo"):
        for check, url in [
            (check_flags, options.grpc_url),
            (check_interleaving, options.grpc_url),
            (check_errors, options.grpc_url),
            (check_unary, options.grpc_url),
            (check_events, options.url),
            (check_one_answer, options.url),
        ]:
            named.append((f"{model}: {check.__name__}", lambda check=check, url=url, model=model: check(url, model)))
    checks.run(named)


if __name__ == "__main__":
    main()
