#!/usr/bin/env python3
"""tritonclient.http against tests/repositories/basic: JSON and binary tensors, metadata, health, and error texts."""

import itertools
import json
from pathlib import Path

import numpy as np
import tritonclient.http as triton

import checks
from checks import expect, expect_equal, expect_error, tensor, texts

GOLDEN = Path(__file__).resolve().parent.parent / "models/golden.json"
ENCODINGS = list(itertools.product(("JSON", "binary"), repeat=2))
MODELS = ["simple", "tiny_tokenizer", "tiny_encoder", "tiny_pool", "tiny_embedding", "identity_bytes"]
STRINGS = ["oar", "", "naïve ü", "漢字 🚣", 'quotes " and \\ and \n', "x" * 10_000]

A = np.arange(32, dtype=np.int32).reshape(2, 16)
B = np.full((2, 16), 3, np.int32)


def requested(names, form):
    return [triton.InferRequestedOutput(name, binary_data=form == "binary") for name in names]


def expect_form(result, name, form):
    """The output came as JSON data or as a binary block, as requested."""
    output = result.get_output(name)
    expect(output is not None, f"expected an output {name!r}, found {result.get_response()}")
    is_binary = "binary_data_size" in output.get("parameters", {})
    expect_equal(f"form of {name}", "binary" if is_binary else "JSON", form)


# === Tensors in both forms ===


def check_simple(client, sent, received):
    inputs = [tensor("INPUT0", A, sent == "binary"), tensor("INPUT1", B, sent == "binary")]
    result = client.infer("simple", inputs, outputs=requested(["OUTPUT0", "OUTPUT1"], received), request_id="42")
    for name, expected in (("OUTPUT0", A + B), ("OUTPUT1", A - B)):
        expect_form(result, name, received)
        expect_equal(name, result.as_numpy(name), expected)
        expect_equal(f"datatype of {name}", result.get_output(name)["datatype"], "INT32")
    response = result.get_response()
    expect_equal("id", response.get("id"), "42")
    expect_equal("model_name", response["model_name"], "simple")
    expect_equal("model_version", response["model_version"], "1")


def check_identity_bytes(client, sent, received):
    inputs = [tensor("INPUT0", texts(STRINGS), sent == "binary")]
    result = client.infer("identity_bytes", inputs, outputs=requested(["OUTPUT0"], received))
    expect_form(result, "OUTPUT0", received)
    expect_equal("OUTPUT0", checks.utf8(result.as_numpy("OUTPUT0")), STRINGS)


def check_tiny_embedding(client, sent, received):
    golden = json.loads(GOLDEN.read_text())
    inputs = [tensor("TEXT", texts([g["text"] for g in golden]), sent == "binary")]
    result = client.infer("tiny_embedding", inputs, outputs=requested(["embedding"], received))
    expect_form(result, "embedding", received)
    found, expected = result.as_numpy("embedding"), np.array([g["tiny_embedding"] for g in golden])
    expect_equal("shape", found.shape, expected.shape)
    worst = float(np.abs(found - expected).max())
    expect(worst < 1e-5, f"largest difference to the reference: expected below 1e-5, found {worst:g}")
    return f"{len(golden)} texts, largest difference {worst:.1e}"


def check_mixed_forms(client):
    """One input as JSON and one binary; one output of each form."""
    inputs = [tensor("INPUT0", A, binary=False), tensor("INPUT1", B, binary=True)]
    outputs = requested(["OUTPUT0"], "binary") + requested(["OUTPUT1"], "JSON")
    result = client.infer("simple", inputs, outputs=outputs)
    expect_form(result, "OUTPUT0", "binary")
    expect_form(result, "OUTPUT1", "JSON")
    expect_equal("OUTPUT0", result.as_numpy("OUTPUT0"), A + B)
    expect_equal("OUTPUT1", result.as_numpy("OUTPUT1"), A - B)


def check_any_bytes(client):
    """BYTES need not be text in the binary form."""
    values = [bytes(range(256)), b"", b"\xff\xfe\x00", b"\x00"]
    result = client.infer("identity_bytes", [tensor("INPUT0", texts(values))])
    expect_equal("OUTPUT0", list(result.as_numpy("OUTPUT0")), values)


def check_empty_tensor(client):
    result = client.infer("identity_bytes", [tensor("INPUT0", texts([]))])
    expect_equal("shape", result.as_numpy("OUTPUT0").shape, (0,))


def check_output_subset(client):
    inputs = [tensor("INPUT0", A), tensor("INPUT1", B)]
    result = client.infer("simple", inputs, outputs=requested(["OUTPUT1"], "binary"))
    expect_equal("outputs", [output["name"] for output in result.get_response()["outputs"]], ["OUTPUT1"])
    expect_equal("OUTPUT1", result.as_numpy("OUTPUT1"), A - B)


def check_all_outputs(client):
    """Without `outputs`, tritonclient asks for all of them in binary form."""
    result = client.infer("simple", [tensor("INPUT0", A), tensor("INPUT1", B)])
    for name, expected in (("OUTPUT0", A + B), ("OUTPUT1", A - B)):
        expect_form(result, name, "binary")
        expect_equal(name, result.as_numpy(name), expected)
    expect("id" not in result.get_response(), f"expected no id, found {result.get_response()}")


def check_version(client):
    result = client.infer("simple", [tensor("INPUT0", A), tensor("INPUT1", B)], model_version="1")
    expect_equal("OUTPUT0", result.as_numpy("OUTPUT0"), A + B)


def check_many_connections(url):
    with triton.InferenceServerClient(url, concurrency=8) as client:
        pending = []
        for number in range(64):
            rows = np.full((1, 16), number, np.int32)
            pending.append(client.async_infer("simple", [tensor("INPUT0", rows), tensor("INPUT1", B[:1])]))
        for number, request in enumerate(pending):
            expected = np.full((1, 16), number + 3, np.int32)
            expect_equal(f"OUTPUT0 of request {number}", request.get_result().as_numpy("OUTPUT0"), expected)
    return "64 requests over 8 connections, each with its own answer"


# === Health and metadata ===


def check_health(client):
    expect(client.is_server_live(), "expected the server to be live")
    expect(client.is_server_ready(), "expected the server to be ready")
    for model in MODELS:
        expect(client.is_model_ready(model), f"expected model {model!r} to be ready")
    expect(client.is_model_ready("simple", "1"), "expected version 1 of 'simple' to be ready")
    expect(not client.is_model_ready("no_such_model"), "expected model 'no_such_model' not to be ready")


def check_server_metadata(client):
    metadata = client.get_server_metadata()
    for field, kind in (("name", str), ("version", str), ("extensions", list)):
        expect(isinstance(metadata.get(field), kind), f"expected {field!r} as {kind.__name__}, found {metadata}")
    expect("binary_tensor_data" in metadata["extensions"], f"expected binary_tensor_data, found {metadata['extensions']}")
    return f"{metadata['name']} {metadata['version']}"


def check_model_metadata(client):
    rows = lambda *names: [{"name": name, "datatype": "INT32", "shape": [-1, 16]} for name in names]
    metadata = client.get_model_metadata("simple")
    expect_equal("name", metadata["name"], "simple")
    expect_equal("versions", metadata["versions"], ["1"])
    expect_equal("inputs", metadata["inputs"], rows("INPUT0", "INPUT1"))
    expect_equal("outputs", metadata["outputs"], rows("OUTPUT0", "OUTPUT1"))
    metadata = client.get_model_metadata("tiny_embedding")
    expect_equal("platform", metadata["platform"], "ensemble")
    expect_equal("inputs", metadata["inputs"], [{"name": "TEXT", "datatype": "BYTES", "shape": [-1]}])
    expect_equal("outputs", metadata["outputs"], [{"name": "embedding", "datatype": "FP32", "shape": [-1, 8]}])


def check_model_config(client):
    config = client.get_model_config("simple")
    expect_equal("name", config["name"], "simple")
    expect_equal("max_batch_size", config["max_batch_size"], 8)
    expect_equal("backend", config["backend"], "onnxruntime")
    expect_equal("dims of INPUT0", config["input"][0]["dims"], [16])
    expect_equal("data_type of INPUT0", config["input"][0]["data_type"], "TYPE_INT32")
    expect("dynamic_batching" in config, f"expected dynamic_batching, found the fields {sorted(config)}")
    config = client.get_model_config("tiny_embedding")
    steps = [(step["model_name"], step["model_version"]) for step in config["ensemble_scheduling"]["step"]]
    expect_equal("steps", steps, [("tiny_tokenizer", -1), ("tiny_encoder", -1), ("tiny_pool", -1)])


# === Errors ===


def check_errors(client):
    infer = lambda *inputs, model="simple", **options: lambda: client.infer(model, list(inputs), **options)
    zero, one = tensor("INPUT0", A), tensor("INPUT1", B)
    expect_error(
        "unknown model",
        infer(zero, one, model="no_such_model"),
        404,
        "Request for unknown model: 'no_such_model' is not found",
    )
    expect_error(
        "unknown version",
        infer(zero, one, model_version="99"),
        404,
        "Request for unknown model: 'simple' version 99 is not found",
    )
    expect_error("missing input", infer(zero), 400, "expected 2 inputs but got 1 inputs for model 'simple'", "['INPUT1']")
    expect_error("unknown input", infer(zero, tensor("OTHER", B)), 400, "OTHER")
    expect_error(
        "unknown output",
        infer(zero, one, outputs=requested(["OTHER"], "binary")),
        400,
        "unexpected inference output 'OTHER'",
    )
    expect_error(
        "datatype",
        infer(tensor("INPUT0", A.astype(np.float32)), one),
        400,
        "inference input 'INPUT0' data-type is 'FP32', but model 'simple' expects 'INT32'",
    )
    expect_error(
        "shape",
        infer(tensor("INPUT0", A[:, :15]), one),
        400,
        "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [2,15]",
    )
    nine = np.zeros((9, 16), np.int32)
    expect_error(
        "batch size",
        infer(tensor("INPUT0", nine), tensor("INPUT1", nine)),
        400,
        "inference request batch-size must be <= 8 for 'simple'",
    )
    expect_error("metadata of an unknown model", lambda: client.get_model_metadata("no_such_model"), 404, "no_such_model")
    result = client.infer("simple", [zero, one])
    expect_equal("OUTPUT0 after all those errors", result.as_numpy("OUTPUT0"), A + B)


def check_error_in_a_step(client):
    """Ids beyond the vocabulary fail in the model itself; invalid UTF-8 in the tokenizer. The server goes on."""
    ids = np.full((1, 3), 1_000_000, np.int64)
    inputs = [tensor("input_ids", ids), tensor("attention_mask", np.ones_like(ids))]
    try:
        client.infer("tiny_encoder", inputs)
        raise checks.Failure("ids beyond the vocabulary: expected an error, found an answer")
    except triton.InferenceServerException as error:
        expect("tiny_encoder" in error.message(), f"expected a message that names 'tiny_encoder', found {error.message()!r}")
    expect_error(
        "invalid UTF-8",
        lambda: client.infer("tiny_embedding", [tensor("TEXT", texts([b"\xff\xfe"]))]),
        400,
        "tiny_embedding",
    )
    expect(client.is_model_ready("tiny_embedding"), "expected 'tiny_embedding' to be ready after those errors")


def main():
    url = checks.arguments(__doc__).url
    client = triton.InferenceServerClient(url)
    bind = lambda check, *arguments: lambda: check(client, *arguments)
    table = [
        ("health", bind(check_health)),
        ("server metadata", bind(check_server_metadata)),
        ("model metadata", bind(check_model_metadata)),
        ("model configuration", bind(check_model_config)),
    ]
    for model, check in (
        ("simple", check_simple),
        ("identity_bytes", check_identity_bytes),
        ("tiny_embedding", check_tiny_embedding),
    ):
        for sent, received in ENCODINGS:
            table.append((f"{model}, {sent} in, {received} out", bind(check, sent, received)))
    table += [
        ("mixed forms in one request", bind(check_mixed_forms)),
        ("bytes that are no text", bind(check_any_bytes)),
        ("tensor without elements", bind(check_empty_tensor)),
        ("subset of outputs", bind(check_output_subset)),
        ("all outputs", bind(check_all_outputs)),
        ("version in the request", bind(check_version)),
        ("many connections", lambda: check_many_connections(url)),
        ("errors", bind(check_errors)),
        ("errors in a step", bind(check_error_in_a_step)),
    ]
    checks.run(table)


if __name__ == "__main__":
    main()
