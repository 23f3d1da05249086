"""Folders of models that the benchmark makes for itself: a cross-encoder from the encoder, and a model of wide hidden states. Each has a
`model.onnx` for raw ONNX Runtime and the files from which `trireme init` derives a repository."""

import json
import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 1024
KNOWN_TOKENS = 1024  # rows of the table of wide states: more would only make the file larger
SEED = 1
MAX_LENGTH = 512  # tokens that both models read
CONFIG = {"model_type": "bert", "max_position_embeddings": MAX_LENGTH}


def cross_encoder(model, folder):
    """A reranker: the encoder of `model` with a linear head of random weights on the first token's state."""
    graph = onnx.load(model / "model.onnx")
    states = graph.graph.output.pop(0)
    width = states.type.tensor_type.shape.dim[-1].dim_value
    graph.graph.initializer.extend([array("pairs_weight", random(width, 1)), array("pairs_first", np.array(0))])
    graph.graph.node.extend([
        helper.make_node("Gather", [states.name, "pairs_first"], ["pairs_state"], axis=1),
        helper.make_node("MatMul", ["pairs_state", "pairs_weight"], ["logits"]),
    ])
    del graph.graph.output[:]
    graph.graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1]))
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return write(model, folder, graph, {**CONFIG, "architectures": ["BertForSequenceClassification"], **labels})


def wide_states(model, folder):
    """An encoder of two matrices: a hundredth of the work of a real model of this width, so that the way of its states shows."""
    nodes = [
        helper.make_node("Mod", ["input_ids", "known"], ["rows"]),
        helper.make_node("Gather", ["table", "rows"], ["known_states"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["kept"]),
        helper.make_node("Mul", ["known_states", "kept"], ["embedded"]),
        helper.make_node("MatMul", ["embedded", "up"], ["inner"]),
        helper.make_node("Relu", ["inner"], ["active"]),
        helper.make_node("MatMul", ["active", "down"], ["outer"]),
        helper.make_node("Add", ["embedded", "outer"], ["last_hidden_state"]),
    ]
    constants = [
        array("known", np.array(KNOWN_TOKENS)), array("last", np.array([-1])), array("table", random(KNOWN_TOKENS, WIDTH)),
        array("up", random(WIDTH, WIDTH)), array("down", random(WIDTH, WIDTH)),
    ]
    names = ("input_ids", "attention_mask")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in names]
    states = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", WIDTH])
    made = helper.make_graph(nodes, "wide_states", inputs, [states], constants)
    graph = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return write(model, folder, graph, {**CONFIG, "architectures": ["BertModel"], "hidden_size": WIDTH})


def random(*shape):
    return np.random.default_rng(SEED).normal(0, 0.02, shape).astype(np.float32)


def array(name, values):
    return numpy_helper.from_array(values, name)


def write(model, folder, graph, config):
    """The folder of a graph, with the tokenizer of `model`."""
    folder.mkdir()
    onnx.save(graph, folder / "model.onnx")
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        os.symlink((model / name).resolve(), folder / name)
    return folder
