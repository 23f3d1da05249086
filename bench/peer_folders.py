"""Model folders for the peers of `make bench-peers`, made of one folder with an ONNX file: the forms that each peer loads."""

import json
import shutil

import numpy as np

from servers import BenchError

MAX_LENGTH = 256  # tokens of a text, as examples/demo says
FILES = ["config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"]
# The matrices of a layer in the order in which the graph multiplies by them, by their names in a file of weights.
MATRICES = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense", "intermediate.dense", "output.dense"]
NORMS = ["attention.output.LayerNorm", "output.LayerNorm"]
DTYPES = {"float32": "F32", "int64": "I64"}


class LeftOut(BenchError):
    """Why a peer cannot serve this model."""


def once(target, make):
    """Makes a folder, unless it is there. One that cannot be made whole is removed."""
    if target.exists():
        return
    try:
        make()
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def tokenizer_and_config(model, target, **changes):
    """Copies the files of the tokenizer, and config.json with these changes."""
    target.mkdir(parents=True)
    for name in FILES:
        if (model / name).exists():
            shutil.copyfile(model / name, target / name)
    if not (target / "config.json").exists():
        raise LeftOut(f"{model} has no config.json")
    change(target / "config.json", **changes)
    change(target / "tokenizer_config.json", model_max_length=MAX_LENGTH)
    return target


def change(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}, indent=1))


def with_onnx(model, target):
    """A folder with model.onnx. Its config.json names as many positions as texts may have tokens, because infinity cuts texts by the
    number of positions."""
    tokenizer_and_config(model, target, max_position_embeddings=MAX_LENGTH)
    shutil.copyfile(model / "model.onnx", target / "model.onnx")
    return target


def with_weights(model, target):
    """A folder of sentence-transformers with model.safetensors, which is made of the ONNX file where there is none."""
    tokenizer_and_config(model, target)
    if (model / "model.safetensors").exists():
        shutil.copyfile(model / "model.safetensors", target / "model.safetensors")
    else:
        weights = weights_of(model / "model.onnx", json.loads((target / "config.json").read_text()))
        write_safetensors(target / "model.safetensors", weights)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (target / "modules.json").write_text(json.dumps(modules))
    (target / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": MAX_LENGTH, "do_lower_case": False}))
    (target / "1_Pooling").mkdir()
    width = json.loads((target / "config.json").read_text())["hidden_size"]
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (target / "1_Pooling/config.json").write_text(json.dumps(pooling))
    (target / "2_Normalize").mkdir()
    return target


# === Weights of an ONNX file ===


def weights_of(path, config):
    """The weights of a BERT encoder by their names in PyTorch. They are found by their place in the graph, because exports keep only
    some of their names."""
    import onnx
    graph = onnx.load(path).graph
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    layers = config["num_hidden_layers"]
    if config["model_type"] != "bert" or any(one.dtype not in (np.float32, np.int64) for one in constants.values()):
        raise LeftOut(f"{path} is no BERT encoder in fp32, so that no file of weights can be made of it")
    matrices = [node for node in graph.node if node.op_type == "MatMul" and np.ndim(constants.get(node.input[1])) == 2]
    norms = [node for node in graph.node if node.op_type == "LayerNormalization"]
    if len(matrices) != len(MATRICES) * layers or len(norms) != len(NORMS) * layers + 1:
        raise LeftOut(f"{path} has {len(matrices)} matrices and {len(norms)} nodes LayerNormalization, which are not those of {layers} layers")
    weights = embeddings(constants, config)
    names = ["embeddings.LayerNorm", *(f"encoder.layer.{layer}.{name}" for layer in range(layers) for name in NORMS)]
    for name, node in zip(names, norms):
        weights[f"{name}.weight"], weights[f"{name}.bias"] = (constants[one] for one in node.input[1:3])
    names = [f"encoder.layer.{layer}.{name}" for layer in range(layers) for name in MATRICES]
    for name, node in zip(names, matrices):
        weights[f"{name}.weight"] = constants[node.input[1]].T
        weights[f"{name}.bias"] = bias_after(graph, node, constants)
    return weights


def embeddings(constants, config):
    """The tables of the embeddings, which have their sizes for themselves."""
    sizes = {"word_embeddings": "vocab_size", "position_embeddings": "max_position_embeddings", "token_type_embeddings": "type_vocab_size"}
    found = {}
    for name, size in sizes.items():
        shape = (config[size], config["hidden_size"])
        tables = [one for one in constants.values() if one.shape == shape]
        if len(tables) != 1:
            raise LeftOut(f"the ONNX file has {len(tables)} tables of {shape}, one is needed as {name}")
        found[f"embeddings.{name}.weight"] = tables[0]
    return found


def bias_after(graph, matrix, constants):
    for node in graph.node:
        if node.op_type == "Add" and matrix.output[0] in node.input:
            for name in node.input:
                if name in constants:
                    return constants[name]
    raise LeftOut(f"the ONNX file adds no bias after {matrix.name}")


def write_safetensors(path, weights):
    """The format of safetensors: the length of a header, the header as JSON, the numbers."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, one in weights.items():
        header[name] = {"dtype": DTYPES[str(one.dtype)], "shape": list(one.shape), "data_offsets": [offset, offset + one.nbytes]}
        offset += one.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for one in weights.values():
            file.write(np.ascontiguousarray(one).tobytes())


# === Triton ===


def triton_repository(model, source, target, **values):
    """The repository of Triton's python backend with the model's files, and with these values in its configurations."""
    shutil.copytree(source, target)
    for config in target.glob("*/config.pbtxt"):
        text = config.read_text()
        for name, value in values.items():
            text = text.replace(f"@{name.upper()}@", str(value))
        config.write_text(text)
    # Git keeps no empty folders.
    for name in ("tokenizer", "encoder", "pooling", "sentence_embedding"):
        (target / name / "1").mkdir(exist_ok=True)
    shutil.copyfile(model / "tokenizer.json", target / "tokenizer/1/tokenizer.json")
    shutil.copyfile(model / "model.onnx", target / "encoder/1/model.onnx")
    return target
