#!/usr/bin/env python3
"""Writes the ONNX models of tests/compat/models/repository and sequences. Run it after a change here and commit the written files.

Set up as for tests/models/generate.py:

    .tools/python/bin/pip install --no-deps -r tests/models/requirements.txt
    .tools/python/bin/python tests/compat/models/generate.py

Every model has a twin of the same behaviour in tests/compat/models/triton, for a Triton that has the python backend.
"""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

REPOSITORY = Path(__file__).resolve().parent / "repository"
SEQUENCES = REPOSITORY.parent / "sequences"
OPSET, IR_VERSION = 17, 8


def write(name, inputs, outputs, nodes, constants=(), folder=REPOSITORY):
    """Writes the model; inputs and outputs are (name, type, shape). Returns a function that runs it."""
    values = [[helper.make_tensor_value_info(*value) for value in side] for side in (inputs, outputs)]
    graph = helper.make_graph(nodes, name, *values, list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="trireme")
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model, full_check=True)
    path = folder / name / "1/model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda **inputs: session.run(None, inputs)


def simple():
    """Sum and difference."""
    rows = lambda name: (name, TensorProto.INT32, ["batch", 16])
    run = write(
        "simple",
        [rows("INPUT0"), rows("INPUT1")],
        [rows("OUTPUT0"), rows("OUTPUT1")],
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
    )
    a, b = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)
    assert all((got == want).all() for got, want in zip(run(INPUT0=a, INPUT1=b), (a + b, a - b)))


def reshape():
    """Copies its inputs; its tensors are [batch, 2, 2] and [batch], while the configuration says [4] and [1]."""
    square = lambda name: (name, TensorProto.FLOAT, ["batch", 2, 2])
    scalar = lambda name: (name, TensorProto.FLOAT, ["batch"])
    run = write(
        "reshape",
        [square("INPUT0"), scalar("INPUT1")],
        [square("OUTPUT0"), scalar("OUTPUT1")],
        [
            helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"]),
            helper.make_node("Identity", ["INPUT1"], ["OUTPUT1"]),
        ],
    )
    a, b = np.arange(4, dtype=np.float32).reshape(1, 2, 2), np.float32([7])
    assert all((got == want).all() for got, want in zip(run(INPUT0=a, INPUT1=b), (a, b)))


def failing():
    """Looks numbers up in a table of three; an index outside of it makes the execution fail."""
    table = np.array([10, 20, 30], np.float32)
    run = write(
        "failing",
        [("INPUT0", TensorProto.INT64, ["places"])],
        [("OUTPUT0", TensorProto.FLOAT, ["places"])],
        [helper.make_node("Gather", ["table", "INPUT0"], ["OUTPUT0"])],
        [numpy_helper.from_array(table, "table")],
    )
    assert (run(INPUT0=np.int64([2, 0]))[0] == [30, 10]).all()


def controls(name, flags, id, example):
    """Shows its input and its controls."""
    kinds = {"INPUT": TensorProto.INT32, **dict.fromkeys(("START", "END", "READY"), flags), "CORRID": id}
    run = write(
        name,
        [(tensor, kind, ["batch", 1]) for tensor, kind in kinds.items()],
        [(f"{tensor}_SEEN", kind, ["batch", 1]) for tensor, kind in kinds.items()],
        [helper.make_node("Identity", [tensor], [f"{tensor}_SEEN"]) for tensor in kinds],
        folder=SEQUENCES,
    )
    flag = helper.tensor_dtype_to_np_dtype(flags)
    values = {tensor: np.array([[1]], flag) for tensor in ("START", "END", "READY")}
    values |= {"INPUT": np.int32([[7]]), "CORRID": example}
    assert all((got == values[tensor]).all() for tensor, got in zip(kinds, run(**values)))


def sequences():
    """The models whose inputs are the controls of sequences."""
    controls("direct", TensorProto.INT32, TensorProto.UINT64, np.uint64([[5]]))
    controls("hasty", TensorProto.INT32, TensorProto.UINT64, np.uint64([[5]]))
    controls("oldest", TensorProto.BOOL, TensorProto.UINT32, np.uint32([[5]]))
    controls("texts", TensorProto.FLOAT, TensorProto.STRING, np.array([["five"]], object))


def state():
    """Adds its input to its state."""
    column = lambda name: (name, TensorProto.INT32, ["batch", 1])
    run = write(
        "state",
        [column("INPUT"), column("SUM_IN")],
        [column("OUTPUT"), column("SUM_OUT")],
        [
            helper.make_node("Add", ["INPUT", "SUM_IN"], ["SUM_OUT"]),
            helper.make_node("Identity", ["SUM_OUT"], ["OUTPUT"]),
        ],
        folder=SEQUENCES,
    )
    assert run(INPUT=np.int32([[3]]), SUM_IN=np.int32([[4]]))[0] == [[7]]


if __name__ == "__main__":
    for model in (simple, reshape, failing, sequences, state):
        model()
        print(model.__name__)
