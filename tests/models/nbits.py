#!/usr/bin/env python3
"""Writes tests/models/nbits: an encoder whose weights ONNX Runtime's quantizer has packed into 4 bits, without accuracy_level. In `one` the
weights lie in the graph's file, in `beside` in a file beside it.

It needs onnx, onnxruntime and onnx-ir, with what they require. Run it after a change here and commit the files:

    .tools/python/bin/python tests/models/nbits.py
"""

import logging
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

FOLDER = Path(__file__).resolve().parent / "nbits"
LAYOUTS = {"one": {}, "beside": {"save_as_external_data": True, "location": "model.onnx_data", "size_threshold": 128}}
VOCABULARY, WIDTH, INNER, BLOCK = 64, 128, 256, 32


def main():
    logging.disable(logging.INFO)
    random = np.random.default_rng(7)
    weights = {
        "words": random.normal(size=(VOCABULARY, WIDTH)),
        "up": random.normal(size=(WIDTH, INNER)) / WIDTH**0.5,
        "down": random.normal(size=(INNER, WIDTH)) / INNER**0.5,
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["embedded"]),
        helper.make_node("MatMul", ["embedded", "up"], ["wide"]),
        helper.make_node("Tanh", ["wide"], ["bent"]),
        helper.make_node("MatMul", ["bent", "down"], ["narrow"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["narrow", "column"], ["last_hidden_state"]),
    ]
    ids = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask")]
    states = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "length", WIDTH])
    constants = [numpy_helper.from_array(values.astype(np.float32), name) for name, values in weights.items()]
    constants.append(numpy_helper.from_array(np.array([-1], np.int64), "last"))
    graph = helper.make_graph(nodes, "encoder", ids, [states], constants)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    quantizer = MatMulNBitsQuantizer(model, bits=4, block_size=BLOCK, is_symmetric=True)
    quantizer.process()
    shutil.rmtree(FOLDER, ignore_errors=True)
    for layout, how in LAYOUTS.items():
        target = FOLDER / layout / "model.onnx"
        target.parent.mkdir(parents=True)
        # Saving with weights beside the graph changes the model, so each layout gets its own.
        packed = onnx.ModelProto()
        packed.CopyFrom(quantizer.model.model)
        onnx.save(packed, target, **how)


if __name__ == "__main__":
    main()
