"""An encoder of BERT's form with random weights, as large as a real one: 294 MB in fp32, unless another size is asked for. The graph is
written where `onnx` is (`random_encoder.py FOLDER`, which makes `fp32/` and `fp16/` in it), the weights where the model runs, with numpy alone.

The weights of both precisions are the same numbers, so that their answers can be compared.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WIDTH, HEADS, INNER, POSITIONS = 768, 12, 3072, 512
SEED = 1
GRAPH, WEIGHTS = "model.onnx", "model.onnx_data"
PRECISIONS = {"fp32": np.float32, "fp16": np.float16}
ALIGNED = 4096  # where a tensor may begin in the file of weights
MASKED = -10_000.0  # added to the attention scores of padding; in the range of fp16


@dataclass(frozen=True)
class Size:
    """What differs between encoders."""

    layers: int = 7
    tokens: int = 30522


# 1.1 GB in fp32, as large as xlm-roberta-base.
LARGE = Size(layers=12, tokens=250_002)


def tensors(size):
    """Name and shape of each tensor, in the order of the file."""
    yield "words", (size.tokens, WIDTH)
    yield "positions", (POSITIONS, WIDTH)
    yield "types", (2, WIDTH)
    yield from norm("embedded")
    for layer in range(size.layers):
        for name in ("query", "key", "value", "output"):
            yield f"{layer}.{name}", (WIDTH, WIDTH)
            yield f"{layer}.{name}.bias", (WIDTH,)
        yield from norm(f"{layer}.attended")
        yield f"{layer}.inner", (WIDTH, INNER)
        yield f"{layer}.inner.bias", (INNER,)
        yield f"{layer}.outer", (INNER, WIDTH)
        yield f"{layer}.outer.bias", (WIDTH,)
        yield from norm(f"{layer}.done")


def norm(name):
    yield f"{name}.scale", (WIDTH,)
    yield f"{name}.bias", (WIDTH,)


def places(dtype, size):
    """Name, shape, offset and length of each tensor in the file of weights."""
    offset = 0
    for name, shape in tensors(size):
        length = int(np.prod(shape)) * np.dtype(dtype).itemsize
        yield name, shape, offset, length
        offset += -(-length // ALIGNED) * ALIGNED


def write_weights(folder, dtype, size=Size()):
    """Writes the file of weights beside the graph."""
    generator = np.random.default_rng(SEED)
    with open(folder / WEIGHTS, "wb") as file:
        for name, shape, offset, _ in places(dtype, size):
            values = generator.standard_normal(shape, np.float32) * 0.04
            if name.endswith(".scale"):
                values += 1
            file.seek(offset)
            file.write(values.astype(dtype).tobytes())


def write_graph(folder, dtype, size=Size()):
    """Writes the graph, which names the file of weights."""
    import onnx
    from onnx import TensorProto, helper

    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes, constants = [], []

    def add(operation, *inputs, name, **attributes):
        nodes.append(helper.make_node(operation, list(inputs), [name], **attributes))
        return name

    def number(name, values, data_type=TensorProto.INT64):
        values = np.atleast_1d(values) if isinstance(values, list) else np.array(values)
        constants.append(helper.make_tensor(name, data_type, values.shape, values.flatten()))
        return name

    def normalized(value, name):
        return add("LayerNormalization", value, f"{name}.scale", f"{name}.bias", name=name, axis=-1, epsilon=1e-12)

    def dense(value, name):
        return add("Add", add("MatMul", value, name, name=f"{name}.product"), f"{name}.bias", name=f"{name}.sum")

    for name, values in {"zero": 0, "one": 1, "split": [0, 0, HEADS, WIDTH // HEADS], "joined": [0, 0, WIDTH], "mask_axes": [1, 2]}.items():
        number(name, values)
    for name, value in {"real_one": 1.0, "half": 0.5, "root": 2**0.5, "scale": (WIDTH // HEADS) ** -0.5, "masked": MASKED}.items():
        number(name, value, kind)
    length = add("Gather", add("Shape", "input_ids", name="shape"), "one", name="length")
    rows = add("Gather", "positions", add("Range", "zero", length, "one", name="places"), name="placed")
    sum_ = add("Add", add("Gather", "words", "input_ids", name="looked_up"), rows, name="with_places")
    state = normalized(add("Add", sum_, add("Gather", "types", "token_type_ids", name="typed"), name="with_types"), "embedded")
    kept = add("Unsqueeze", add("Cast", "attention_mask", name="kept", to=kind), "mask_axes", name="kept_wide")
    mask = add("Mul", add("Sub", "real_one", kept, name="padding"), "masked", name="mask")
    for layer in range(size.layers):
        split = {}
        for name, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
            made = add("Reshape", dense(state, f"{layer}.{name}"), "split", name=f"{layer}.{name}.split")
            split[name] = add("Transpose", made, name=f"{layer}.{name}.heads", perm=order)
        scores = add("MatMul", split["query"], split["key"], name=f"{layer}.scores")
        scores = add("Add", add("Mul", scores, "scale", name=f"{layer}.scaled"), mask, name=f"{layer}.masked")
        mixed = add("MatMul", add("Softmax", scores, name=f"{layer}.shares", axis=-1), split["value"], name=f"{layer}.mixed")
        mixed = add("Transpose", mixed, name=f"{layer}.rows", perm=[0, 2, 1, 3])
        mixed = dense(add("Reshape", mixed, "joined", name=f"{layer}.joined"), f"{layer}.output")
        state = normalized(add("Add", state, mixed, name=f"{layer}.residual"), f"{layer}.attended")
        inner = dense(state, f"{layer}.inner")
        error = add("Erf", add("Div", inner, "root", name=f"{layer}.shrunk"), name=f"{layer}.erf")
        active = add("Mul", add("Mul", inner, "half", name=f"{layer}.halved"), add("Add", error, "real_one", name=f"{layer}.raised"), name=f"{layer}.gelu")
        outer = add("Add", state, dense(active, f"{layer}.outer"), name=f"{layer}.residual_2")
        state = normalized(outer, f"{layer}.done")
    add("Cast", state, name="last_hidden_state", to=TensorProto.FLOAT)
    for name, shape, offset, length in places(dtype, size):
        tensor = onnx.TensorProto(name=name, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
        for key, value in {"location": WEIGHTS, "offset": offset, "length": length}.items():
            tensor.external_data.add(key=key, value=str(value))
        constants.append(tensor)
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in names]
    states = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", WIDTH])
    graph = helper.make_graph(nodes, "random_encoder", inputs, [states], constants)
    folder.mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / GRAPH).write_bytes(model.SerializeToString())


if __name__ == "__main__":
    for precision, dtype in PRECISIONS.items():
        write_graph(Path(sys.argv[1]) / precision, dtype)
