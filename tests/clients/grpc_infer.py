#!/usr/bin/env python3
"""tritonclient.grpc against tests/repositories/basic: tensors, streams, asyncio, metadata, health, and error texts."""

import asyncio
import functools
import json
import queue
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype

import checks
from checks import expect, expect_equal, expect_error, texts

GOLDEN = Path(__file__).resolve().parent.parent / "models/golden.json"
MODELS = ["simple", "tiny_tokenizer", "tiny_encoder", "tiny_pool", "tiny_embedding", "identity_bytes"]
PATIENCE = 30

A = np.arange(32, dtype=np.int32).reshape(2, 16)
B = np.full((2, 16), 3, np.int32)
# The input of slow_identity, which takes 50 ms.
SLOW = np.zeros(1, np.float32)


def tensor(name, array):
    """An input that holds `array`; object arrays are BYTES."""
    array = np.asarray(array)
    kind = "BYTES" if array.dtype == np.object_ else np_to_triton_dtype(array.dtype)
    return triton.InferInput(name, list(array.shape), kind).set_data_from_numpy(array)


def simple(a=A, b=B):
    return [tensor("INPUT0", a), tensor("INPUT1", b)]


def requested(*names):
    return [triton.InferRequestedOutput(name) for name in names]


def expect_sums(result, a=A, b=B):
    expect_equal("OUTPUT0", result.as_numpy("OUTPUT0"), a + b)
    expect_equal("OUTPUT1", result.as_numpy("OUTPUT1"), a - b)


class Replies:
    """A callback that stores its results."""

    def __init__(self):
        self.queue = queue.Queue()

    def __call__(self, result, error):
        self.queue.put((result, error))

    def next(self):
        try:
            return self.queue.get(timeout=PATIENCE)
        except queue.Empty:
            raise checks.Failure(f"no reply within {PATIENCE} s") from None

    def result(self):
        result, error = self.next()
        if error is not None:
            raise error
        return result


# === Tensors ===


def check_simple(client):
    result = client.infer("simple", simple(), outputs=requested("OUTPUT0", "OUTPUT1"), request_id="42")
    expect_sums(result)
    response = result.get_response()
    expect_equal("id", response.id, "42")
    expect_equal("model_name", response.model_name, "simple")
    expect_equal("model_version", response.model_version, "1")
    expect_equal("outputs without typed contents", [o.HasField("contents") for o in response.outputs], [False, False])
    expect_equal("raw outputs", len(response.raw_output_contents), 2)
    expect_equal("datatype", result.get_output("OUTPUT0").datatype, "INT32")


def check_output_subset(client):
    result = client.infer("simple", simple(), outputs=requested("OUTPUT1"), model_version="1")
    expect_equal("outputs", [output.name for output in result.get_response().outputs], ["OUTPUT1"])
    expect_equal("OUTPUT1", result.as_numpy("OUTPUT1"), A - B)


def check_bytes(client):
    values = ["oar".encode(), b"", "漢字 🚣".encode(), bytes(range(256)), b"x" * 100_000]
    result = client.infer("identity_bytes", [tensor("INPUT0", texts(values))])
    expect_equal("OUTPUT0", list(result.as_numpy("OUTPUT0")), values)
    result = client.infer("identity_bytes", [tensor("INPUT0", texts([]))])
    expect_equal("shape of no elements", result.as_numpy("OUTPUT0").shape, (0,))


def check_embedding(client):
    golden = json.loads(GOLDEN.read_text())
    result = client.infer("tiny_embedding", [tensor("TEXT", texts([g["text"] for g in golden]))])
    found, expected = result.as_numpy("embedding"), np.array([g["tiny_embedding"] for g in golden])
    expect_equal("shape", found.shape, expected.shape)
    worst = float(np.abs(found - expected).max())
    expect(worst < 1e-5, f"largest difference to the reference: expected below 1e-5, found {worst:g}")
    expect_equal("model_name", result.get_response().model_name, "tiny_embedding")
    return f"{len(golden)} texts, largest difference {worst:.1e}"


def check_large_message(client):
    """More than the 4 MB that gRPC libraries accept by default, and less than one message over NATS holds."""
    values = [b"y" * (6 << 20)]
    result = client.infer("identity_bytes", [tensor("INPUT0", texts(values))])
    expect_equal("OUTPUT0", list(result.as_numpy("OUTPUT0")), values)


def check_compression(client):
    for algorithm in ("gzip", "deflate"):
        expect_sums(client.infer("simple", simple(), compression_algorithm=algorithm))


def check_parameters(client):
    expect_sums(client.infer("simple", simple(), parameters={"text": "t", "count": 3, "flag": True}))
    expect_sums(client.infer("simple", simple(), priority=1, timeout=PATIENCE * 1_000_000))


def check_typed_contents(url):
    """Without raw contents, as with the generated stubs."""
    with grpc.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="simple")
        for name in ("INPUT0", "INPUT1"):
            sent = request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
            sent.contents.int_contents.extend(range(16))
        response = stub.ModelInfer(request)
        expected = (np.arange(16, dtype=np.int32) * 2).tobytes()
        expect_equal("OUTPUT0", response.raw_output_contents[0], expected)
        request.inputs[0].contents.ClearField("int_contents")
        request.inputs[0].contents.fp32_contents.append(1)
        try:
            stub.ModelInfer(request)
            raise checks.Failure("contents of the wrong type: expected an error, found an answer")
        except grpc.RpcError as error:
            expect_equal("code", error.code(), grpc.StatusCode.INVALID_ARGUMENT)
            text = "for model 'simple' of type 'FP32', expected datatype 'INT32'"
            expect(text in error.details(), f"expected {text!r}, found {error.details()!r}")


# === Many at a time ===


def check_async(client):
    replies = [Replies() for _ in range(64)]
    for number, reply in enumerate(replies):
        rows = np.full((1, 16), number, np.int32)
        client.async_infer("simple", simple(rows, B[:1]), reply)
    for number, reply in enumerate(replies):
        expect_equal(f"OUTPUT0 of {number}", reply.result().as_numpy("OUTPUT0"), np.full((1, 16), number + 3, np.int32))
    return f"{len(replies)} requests, each with its own answer"


def check_asyncio(url):
    async def run():
        async with triton_aio.InferenceServerClient(url) as client:
            expect(await client.is_server_ready(), "expected the server to be ready")
            results = await asyncio.gather(*(client.infer("simple", simple(), request_id=str(n)) for n in range(32)))
            for number, result in enumerate(results):
                expect_equal("id", result.get_response().id, str(number))
                expect_sums(result)

            async def requests():
                for number in range(8):
                    yield {"model_name": "simple", "inputs": simple(), "request_id": str(number)}

            found = []
            async for result, error in client.stream_infer(requests()):
                expect(error is None, f"expected no error, found {error}")
                found.append(result.get_response().id)
            expect_equal("ids of the stream", found, [str(number) for number in range(8)])
            try:
                await client.infer("no_such_model", simple())
                raise checks.Failure("unknown model: expected an error, found an answer")
            except triton.InferenceServerException as error:
                expect_equal("status", error.status(), "StatusCode.NOT_FOUND")

    asyncio.run(run())


def check_cancel(client):
    """A cancelled call ends with that status, and the server goes on."""
    reply = Replies()
    call = client.async_infer("slow_identity", [tensor("INPUT0", SLOW)], reply)
    time.sleep(0.02)
    call.cancel()
    result, error = reply.next()
    expect(error is not None, f"a cancelled call: expected an error, found {result}")
    expect_equal("status", error.status(), "StatusCode.CANCELLED")
    expect(client.is_server_ready(), "expected the server to be ready")


# === Streams ===


def check_stream(client):
    replies = Replies()
    client.start_stream(replies)
    try:
        for number in range(200):
            client.async_stream_infer(
                "simple",
                simple(np.full((1, 16), number, np.int32), B[:1]),
                request_id=str(number),
                enable_empty_final_response=number % 2 == 0,
            )
        for number in range(200):
            result = replies.result()
            response = result.get_response()
            expect_equal("id", response.id, str(number))
            expect(response.parameters["triton_final_response"].bool_param, f"expected the final flag, found {response}")
            expect_equal("OUTPUT0", result.as_numpy("OUTPUT0"), np.full((1, 16), number + 3, np.int32))
    finally:
        client.stop_stream()
    return "200 requests, answered in order"


def check_stream_errors(client):
    replies = Replies()
    client.start_stream(replies)
    try:
        client.async_stream_infer("no_such_model", simple(), request_id="1")
        client.async_stream_infer("simple", simple()[:1], request_id="2")
        client.async_stream_infer("simple", simple(), request_id="3")
        for text in ("Request for unknown model: 'no_such_model' is not found", "missing required input(s) ['INPUT1']"):
            result, error = replies.next()
            expect(error is not None, f"expected an error with {text!r}, found {result}")
            expect(text in error.message(), f"expected a message with {text!r}, found {error.message()!r}")
        expect_equal("id after two errors", replies.result().get_response().id, "3")
    finally:
        client.stop_stream()


def check_stream_status(client):
    """With triton_grpc_error the first error ends the stream."""
    replies = Replies()
    client.start_stream(replies, headers={"triton_grpc_error": "true"})
    try:
        client.async_stream_infer("no_such_model", simple(), request_id="1")
        _, error = replies.next()
        expect(error is not None, "expected the stream to end with an error")
        expect_equal("status", error.status(), "StatusCode.NOT_FOUND")
    finally:
        client.stop_stream()


# === Health, metadata ===


def check_health(client):
    expect(client.is_server_live(), "expected the server to be live")
    expect(client.is_server_ready(), "expected the server to be ready")
    for model in MODELS:
        expect(client.is_model_ready(model), f"expected model {model!r} to be ready")
    expect(client.is_model_ready("simple", "1"), "expected version 1 of 'simple' to be ready")
    unknown = "Request for unknown model: 'no_such_model' is not found"
    expect_error("readiness of an unknown model", lambda: client.is_model_ready("no_such_model"), "StatusCode.NOT_FOUND", unknown)


def check_health_service(url):
    """grpc.health.v1, which orchestrators probe. Its messages are declared here, because there is no package with
    them."""
    file = FileDescriptorProto(name="health.proto", package="grpc.health.v1", syntax="proto3")
    file.message_type.add(name="Request").field.add(name="service", number=1, type=9, label=1)
    file.message_type.add(name="Response").field.add(name="status", number=1, type=5, label=1)
    pool = DescriptorPool()
    pool.Add(file)
    message = lambda name: GetMessageClass(pool.FindMessageTypeByName(f"grpc.health.v1.{name}"))
    with grpc.insecure_channel(url) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=message("Request").SerializeToString,
            response_deserializer=message("Response").FromString,
        )
        serving = 1
        expect_equal("status", check(message("Request")(service="any")).status, serving)


def check_metadata(client):
    metadata = client.get_server_metadata()
    expect_equal("name", metadata.name, "triton")
    expect("binary_tensor_data" in metadata.extensions, f"expected binary_tensor_data, found {metadata.extensions}")
    metadata = client.get_model_metadata("simple", as_json=True)
    rows = lambda *names: [{"name": name, "datatype": "INT32", "shape": ["-1", "16"]} for name in names]
    expect_equal("versions", metadata["versions"], ["1"])
    expect_equal("inputs", metadata["inputs"], rows("INPUT0", "INPUT1"))
    expect_equal("outputs", metadata["outputs"], rows("OUTPUT0", "OUTPUT1"))
    metadata = client.get_model_metadata("tiny_embedding")
    expect_equal("platform", metadata.platform, "ensemble")
    expect_equal("shape of embedding", list(metadata.outputs[0].shape), [-1, 8])


def check_config(client):
    config = client.get_model_config("simple", as_json=True)["config"]
    expect_equal("name", config["name"], "simple")
    expect_equal("max_batch_size", config["max_batch_size"], 8)
    expect_equal("backend", config["backend"], "onnxruntime")
    expect_equal("data_type of INPUT0", config["input"][0]["data_type"], "TYPE_INT32")
    expect_equal("dims of INPUT0", config["input"][0]["dims"], ["16"])
    config = client.get_model_config("tiny_embedding").config
    steps = [(step.model_name, step.model_version) for step in config.ensemble_scheduling.step]
    expect_equal("steps", steps, [("tiny_tokenizer", -1), ("tiny_encoder", -1), ("tiny_pool", -1)])


# === Repository, settings, shared memory ===


def check_repository(client):
    models = client.get_model_repository_index().models
    for model in MODELS:
        found = [(line.version, line.state, line.reason) for line in models if line.name == model]
        expect_equal(f"lines of {model!r}", found, [("1", "READY", "")])
    polling = "explicit model load / unload is not allowed if polling is enabled"
    unavailable = "StatusCode.UNAVAILABLE"
    expect_error("load", lambda: client.load_model("simple"), unavailable, polling)
    expect_error("unload", lambda: client.unload_model("simple"), unavailable, polling)
    expect(client.is_model_ready("simple"), "expected 'simple' to be ready still")


def check_logging(client):
    read = lambda response: {name: getattr(v, v.WhichOneof("parameter_choice")) for name, v in response.settings.items()}
    before = read(client.get_log_settings())
    fields = ["log_error", "log_file", "log_format", "log_info", "log_verbose_level", "log_warning"]
    expect_equal("fields", sorted(before), fields)
    changes = {"log_verbose_level": 1, "log_format": "ISO8601"}
    expect_equal("settings", read(client.update_log_settings(changes)), before | changes)
    expect_equal("settings read again", read(client.get_log_settings()), before | changes)
    back = {name: value for name, value in before.items() if name != "log_file"}
    expect_equal("settings put back", read(client.update_log_settings(back)), before)
    update = lambda settings: lambda: client.update_log_settings(settings)
    refused = "log file location can not be updated through network protocol"
    expect_error("log_file", update({"log_file": "x"}), "StatusCode.UNIMPLEMENTED", refused)
    wrong = "invalid argument for --log_format, got: x"
    expect_error("log_format", update({"log_format": "x"}), "StatusCode.UNAVAILABLE", wrong)


def check_trace(client):
    read = lambda response: {name: list(setting.value) for name, setting in response.settings.items()}
    show = lambda *model: read(client.get_trace_settings(*model))
    change = lambda model, settings: read(client.update_trace_settings(model, settings))
    before = show()
    for field in ("trace_level", "trace_rate", "trace_count", "trace_mode"):
        expect(field in before, f"expected {field!r}, found {before}")
    expect_equal("rate", change(None, {"trace_rate": "7"})["trace_rate"], ["7"])
    expect_equal("rate of a model", show("simple")["trace_rate"], ["7"])
    found = change("simple", {"trace_rate": "9", "trace_count": "5"})
    expect_equal("settings of a model", (found["trace_rate"], found["trace_count"]), (["9"], ["5"]))
    expect_equal("rate of all", show()["trace_rate"], ["7"])
    expect_equal("cleared settings of a model", change("simple", {"trace_rate": None, "trace_count": None}), show())
    expect_equal("cleared settings", change(None, {"trace_rate": None}), before)
    invalid = "StatusCode.INVALID_ARGUMENT"
    refused = "trace file location can not be updated through network protocol"
    expect_error("trace_file", lambda: change(None, {"trace_file": "x"}), "StatusCode.UNIMPLEMENTED", refused)
    traced = lambda: change(None, {"trace_level": ["TIMESTAMPS"]})
    expect_error("no trace file", traced, invalid, "trace file name is not given")
    expect_error("trace_rate", lambda: change(None, {"trace_rate": "x"}), invalid, "Unable to parse 'trace_rate', got: x")
    expect_error("two rates", lambda: change(None, {"trace_rate": ["1", "2"]}), invalid, "expect only 1 value for 'trace_rate'")
    expect_error("unknown model", lambda: show("none"), invalid, "Request for unknown model : none")


def check_shared_memory(client):
    expect_equal("system regions", len(client.get_system_shared_memory_status().regions), 0)
    expect_equal("CUDA regions", len(client.get_cuda_shared_memory_status().regions), 0)
    named = lambda: client.get_system_shared_memory_status("r")
    expect_error("one region", named, "StatusCode.NOT_FOUND", "Unable to find system shared memory region: 'r'")
    disabled = ("StatusCode.UNIMPLEMENTED", "Client shared memory is disabled.")
    expect_error("register", lambda: client.register_system_shared_memory("r", "/k", 16), *disabled)
    expect_error("unregister", lambda: client.unregister_system_shared_memory(), *disabled)
    expect_error("unregister CUDA", lambda: client.unregister_cuda_shared_memory(), *disabled)


# === Errors ===


def check_errors(client):
    infer = lambda inputs, model="simple", **options: lambda: client.infer(model, inputs, **options)
    invalid, not_found = "StatusCode.INVALID_ARGUMENT", "StatusCode.NOT_FOUND"
    unknown = "Request for unknown model: 'simple' version 99 is not found"
    expect_error("unknown model", infer(simple(), "no_such_model"), not_found, "Request for unknown model: 'no_such_model' is")
    expect_error("unknown version", infer(simple(), model_version="99"), not_found, unknown)
    expect_error(
        "version that is no number",
        infer(simple(), model_version="x"),
        invalid,
        "failed to get model version from specified version string 'x' (details: stol), version should be an integral",
    )
    expect_error(
        "missing input",
        infer(simple()[:1], request_id="7"),
        invalid,
        "[request id: 7] expected 2 inputs but got 1 inputs for model 'simple'",
    )
    expect_error("unknown output", infer(simple(), outputs=requested("X")), invalid, "unexpected inference output 'X'")
    expect_error(
        "datatype",
        infer(simple(A.astype(np.float32))),
        invalid,
        "inference input 'INPUT0' data-type is 'FP32', but model 'simple' expects 'INT32'",
    )
    expect_error(
        "shape",
        infer(simple(A[:, :15])),
        invalid,
        "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [2,15]",
    )
    nine = np.zeros((9, 16), np.int32)
    expect_error("batch size", infer(simple(nine, nine)), invalid, "inference request batch-size must be <= 8 for 'simple'")
    no_data = [triton.InferInput("INPUT0", [1, 16], "INT32"), *simple(B, B[:1])[1:]]
    expect_error("one blob for two inputs", infer(no_data), invalid, "unable to find data for input tensor 'INPUT1' for model")
    expect_error(
        "invalid UTF-8",
        infer([tensor("TEXT", texts([b"\xff\xfe"]))], "tiny_embedding"),
        invalid,
        "tiny_embedding",
    )
    expect_error(
        "timeout of the request",
        infer([tensor("INPUT0", SLOW)], "slow_identity", parameters={"trireme_timeout_ms": 5}),
        "StatusCode.UNAVAILABLE",
        "Request timeout expired",
    )
    expect_sums(client.infer("simple", simple()))


def check_client_timeout(client):
    call = lambda: client.infer("slow_identity", [tensor("INPUT0", SLOW)], client_timeout=0.01)
    expect_error("deadline of the call", call, "StatusCode.DEADLINE_EXCEEDED", "Deadline Exceeded")
    client.infer("slow_identity", [tensor("INPUT0", SLOW)], client_timeout=PATIENCE)


def check_threads(url):
    """One client, many threads: one connection."""
    failures = queue.Queue()

    def work(client, number):
        rows = np.full((1, 16), number, np.int32)
        for _ in range(20):
            try:
                expect_equal("OUTPUT0", client.infer("simple", simple(rows, B[:1])).as_numpy("OUTPUT0"), rows + 3)
            except Exception as error:  # passed on to the main thread
                failures.put(error)

    with triton.InferenceServerClient(url) as client:
        threads = [threading.Thread(target=work, args=(client, number)) for number in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    if not failures.empty():
        raise failures.get()


def main():
    url = checks.arguments(__doc__).url
    with triton.InferenceServerClient(url) as client:
        bind = lambda check, argument=client: functools.partial(check, argument)
        checks.run([
            ("health", bind(check_health)),
            ("grpc.health.v1", bind(check_health_service, url)),
            ("metadata", bind(check_metadata)),
            ("model configuration", bind(check_config)),
            ("repository", bind(check_repository)),
            ("logging", bind(check_logging)),
            ("trace", bind(check_trace)),
            ("shared memory", bind(check_shared_memory)),
            ("simple", bind(check_simple)),
            ("subset of outputs", bind(check_output_subset)),
            ("identity_bytes", bind(check_bytes)),
            ("tiny_embedding", bind(check_embedding)),
            ("large message", bind(check_large_message)),
            ("compression", bind(check_compression)),
            ("parameters", bind(check_parameters)),
            ("typed contents", bind(check_typed_contents, url)),
            ("async_infer", bind(check_async)),
            ("asyncio", bind(check_asyncio, url)),
            ("threads", bind(check_threads, url)),
            ("cancelled call", bind(check_cancel)),
            ("stream", bind(check_stream)),
            ("errors in a stream", bind(check_stream_errors)),
            ("stream that ends with an error", bind(check_stream_status)),
            ("errors", bind(check_errors)),
            ("client_timeout", bind(check_client_timeout)),
        ])


if __name__ == "__main__":
    main()
