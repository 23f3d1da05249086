#!/usr/bin/env python3
"""Writes tests/models/external: the tiny encoder of the basic repository with its weights beside the graph, in the layouts that exporters
write. Large models have no other form, because an ONNX file holds 2 GB at most. And the same encoder in half precision, in one file.

It needs what generate.py needs. Run it after a change here or there and commit the files:

    .tools/python/bin/python tests/models/external.py
"""

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

MODELS = Path(__file__).resolve().parent
ENCODER = MODELS.parent / "repositories" / "basic" / "tiny_encoder" / "1" / "model.onnx"
# Smaller tensors stay in the graph: onnx reads shapes and axes while it checks a model.
SMALLEST = 128
LAYOUTS = {
    # optimum and onnx-community
    "one": dict(location="model.onnx_data"),
    # torch.onnx.export, in a folder of its own
    "nested": dict(location="weights/model.onnx.data"),
    # older exports of torch: a file for each tensor
    "several": dict(all_tensors_to_one_file=False),
}


def half():
    """The encoder with weights and operations in FP16. As converters do by default, the graph takes and gives what the original does."""
    model = onnx.load(ENCODER)
    graph, single, small = model.graph, onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    for place, tensor in enumerate(graph.initializer):
        if tensor.data_type == single:
            numbers = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            graph.initializer[place].CopyFrom(onnx.numpy_helper.from_array(numbers, tensor.name))
    for node in graph.node:
        assert node.op_type != "Constant", "a constant may have another datatype"
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == single:
                attribute.i = small
    (output,) = graph.output
    inner = f"{output.name}_half"
    for node in graph.node:
        node.output[:] = [inner if name == output.name else name for name in node.output]
    graph.node.append(onnx.helper.make_node("Cast", [inner], [output.name], to=single))
    del graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    return model


def answer(path):
    ids = np.array([[2, 7, 9, 3]], np.int64)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]


def main():
    shutil.rmtree(MODELS / "external", ignore_errors=True)
    for layout, how in LAYOUTS.items():
        model = onnx.load(ENCODER)
        for place, tensor in enumerate(model.graph.initializer):
            # Tensors without a location get random names.
            if layout == "several" and len(tensor.raw_data) >= SMALLEST:
                onnx.external_data_helper.set_external_data(tensor, f"{place}.bin")
        path = MODELS / "external" / layout / "model.onnx"
        (path.parent / "weights").mkdir(parents=True)
        if layout == "several":
            onnx.save(model, path)
        else:
            onnx.save(model, path, save_as_external_data=True, size_threshold=SMALLEST, **how)
        if not any((path.parent / "weights").iterdir()):
            (path.parent / "weights").rmdir()
        assert np.array_equal(answer(path), answer(ENCODER))
    path = MODELS / "external" / "half" / "model.onnx"
    path.parent.mkdir()
    onnx.save(half(), path)
    difference = np.abs(answer(path) - answer(ENCODER)).max()
    assert 0 < difference < 0.01, difference
    for path in sorted((MODELS / "external").rglob("*")):
        if path.is_file():
            print(f"{path.stat().st_size:8} {path.relative_to(MODELS)}")


if __name__ == "__main__":
    main()
