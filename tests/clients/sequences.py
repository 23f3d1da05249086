#!/usr/bin/env python3
"""Sequences with the official clients, sent as Triton's own examples send them: over HTTP and gRPC one request after the other,
and on a gRPC stream; with numbers and texts as ids.

`simple_sequence` adds 1 to the first value of a sequence. `simple_dyna_sequence` also adds the correlation id to the last one,
as `simple_string_dyna_sequence` does for ids that are texts. `accumulator` adds up.
"""

import functools
import queue
import uuid

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http

import checks
from checks import expect, expect_equal, expect_error

VALUES = [11, 7, 5, 3, 2, 0, 1]
PATIENCE = 60


def grpc_arguments(parser):
    parser.add_argument("--grpc-url", required=True, metavar="HOST:PORT", help="the server's gRPC address")


def request(library, value):
    """The tensors of a request."""
    data = np.full((1, 1), value, np.int32)
    tensor = library.InferInput("INPUT", data.shape, "INT32")
    tensor.set_data_from_numpy(data)
    return {"inputs": [tensor], "outputs": [library.InferRequestedOutput("OUTPUT")]}


def flags(values):
    """Each value with the parameters that mark it as the first or last of its sequence."""
    last = len(values) - 1
    return [(value, {"sequence_start": at == 0, "sequence_end": at == last}) for at, value in enumerate(values)]


def expected(values, last=0):
    return [values[0] + 1, *values[1:-1], values[-1] + last]


def one_by_one(library, client, model, ids):
    """Sends a sequence for each id, one request after the other; returns the results of each."""
    sent = dict(zip(ids, ([0, *VALUES], [100, *(-value for value in VALUES)], [0, *VALUES]), strict=False))
    results = {}
    for id, values in sent.items():
        answers = [client.infer(model, **request(library, value), sequence_id=id, **marks) for value, marks in flags(values)]
        results[id] = [int(answer.as_numpy("OUTPUT")[0][0]) for answer in answers]
    return sent, results


def check_one_by_one(library, client, model, ids, last=lambda id: 0):
    sent, results = one_by_one(library, client, model, ids)
    for id, values in sent.items():
        expect_equal(f"{model}, sequence {id}", results[id], expected(values, last(id)))


def check_stream(url, model, ids, last=lambda id: 0):
    """All requests of all sequences on one stream, before the first answer is read."""
    replies = queue.Queue()
    sent = dict(zip(ids, ([0, *VALUES], [100, *(-value for value in VALUES)]), strict=True))
    results = {id: [] for id in ids}
    with grpc.InferenceServerClient(url) as client:
        client.start_stream(callback=functools.partial(lambda queue, result, error: queue.put((result, error)), replies))
        for id, values in sent.items():
            for number, (value, marks) in enumerate(flags(values), 1):
                tensors = request(grpc, value)
                client.async_stream_infer(model, **tensors, request_id=f"{id}_{number}", sequence_id=id, **marks)
        for _ in range(sum(map(len, sent.values()))):
            result, error = replies.get(timeout=PATIENCE)
            expect(error is None, f"expected a response, found the error {error}")
            id = result.get_response().id.rsplit("_", 1)[0]
            results[next(known for known in ids if str(known) == id)].append(int(result.as_numpy("OUTPUT")[0][0]))
    for id, values in sent.items():
        expect_equal(f"{model}, sequence {id}", results[id], expected(values, last(id)))


def check_sums(client):
    """Two sequences in turn; a new START begins again, without an END before it."""
    ask = lambda id, value, **marks: int(
        client.infer("accumulator", **request(http, value), sequence_id=id, **marks).as_numpy("OUTPUT")[0][0]
    )
    found = [ask(1, 1, sequence_start=True), ask("1", 10, sequence_start=True), ask(1, 2), ask("1", 20), ask(1, 3)]
    expect_equal("sums", found, [1, 10, 3, 30, 6])
    found = [ask(1, 7, sequence_start=True), ask(1, 1, sequence_end=True), ask("1", 5, sequence_end=True)]
    expect_equal("sums after a second start", found, [7, 8, 35])
    again = lambda: ask(1, 1)
    text = "inference request for sequence 1 to model 'accumulator' must specify the START flag on the first request of the sequence"
    expect_error("a sequence that has ended", again, 400, text)


def check_errors(client, rpc):
    ask = lambda library, client, **marks: client.infer("accumulator", **request(library, 1), **marks)
    no_id = "inference request to model 'accumulator' must specify a non-zero or non-empty correlation ID"
    start = "inference request for sequence 99 to model 'accumulator' must specify the START flag on the first request of the sequence"
    expect_error("HTTP without an id", lambda: ask(http, client), 400, no_id)
    expect_error("HTTP without START", lambda: ask(http, client, sequence_id=99), 400, start)
    expect_error("gRPC without an id", lambda: ask(grpc, rpc), "StatusCode.INVALID_ARGUMENT", no_id)
    expect_error("gRPC without START", lambda: ask(grpc, rpc, sequence_id=99), "StatusCode.INVALID_ARGUMENT", start)
    rows = np.ones((2, 1), np.int32)
    tensor = http.InferInput("INPUT", rows.shape, "INT32").set_data_from_numpy(rows)
    text = "inference request to model 'accumulator' must specify batch-size 1 due to requirements of sequence batcher"
    two = lambda: client.infer("accumulator", [tensor], sequence_id=98, sequence_start=True)
    expect_error("two rows", two, 400, text)
    number = lambda: client.infer("simple_dyna_sequence", **request(http, 1), sequence_id="text", sequence_start=True)
    expect_error("a text for a number", number, 400, "does not fit the control input 'CORRID'", "TYPE_UINT64")


def check_metadata(client):
    metadata = client.get_model_metadata("accumulator")
    expect_equal("inputs", [tensor["name"] for tensor in metadata["inputs"]], ["INPUT"])
    expect_equal("outputs", [tensor["name"] for tensor in metadata["outputs"]], ["OUTPUT"])
    batching = client.get_model_config("accumulator")["sequence_batching"]
    expect_equal("the idle time", batching["max_sequence_idle_microseconds"], 60000000)
    expect_equal("the state", (batching["state"][0]["input_name"], batching["state"][0]["dims"]), ("SUM_IN", [1]))
    expect("sequence" in client.get_server_metadata()["extensions"], "expected the extension 'sequence'")
    result = client.infer("accumulator", **request(http, 1) | {"outputs": None}, sequence_id=50, sequence_start=True)
    expect_equal("outputs of an answer", [tensor["name"] for tensor in result.get_response()["outputs"]], ["OUTPUT"])


def main():
    args = checks.arguments(__doc__, grpc_arguments)
    client, rpc = http.InferenceServerClient(args.url), grpc.InferenceServerClient(args.grpc_url)
    text = str(uuid.uuid4())
    number = lambda id: int(id)
    dyna, strings = "simple_dyna_sequence", "simple_string_dyna_sequence"
    checks.run(
        [
            ("HTTP", lambda: check_one_by_one(http, client, "simple_sequence", [1000, 1001, text])),
            ("HTTP, dyna", lambda: check_one_by_one(http, client, dyna, [1000, 1001], number)),
            ("HTTP, dyna, texts", lambda: check_one_by_one(http, client, strings, ["1002"], number)),
            ("gRPC", lambda: check_one_by_one(grpc, rpc, "simple_sequence", [1002, 1003, text])),
            ("gRPC, dyna", lambda: check_one_by_one(grpc, rpc, dyna, [1002, 1003], number)),
            ("gRPC, dyna, texts", lambda: check_one_by_one(grpc, rpc, strings, ["1003"], number)),
            ("stream", lambda: check_stream(args.grpc_url, "simple_sequence", [1004, text])),
            ("stream, dyna", lambda: check_stream(args.grpc_url, dyna, [1004, 1005], number)),
            ("sums", lambda: check_sums(client)),
            ("errors", lambda: check_errors(client, rpc)),
            ("metadata", lambda: check_metadata(client)),
        ]
    )


if __name__ == "__main__":
    main()
