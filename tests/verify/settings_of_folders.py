"""Model folders whose files say more than a model needs, say it in another place, or in another form of weights."""

import json

import numpy as np
import torch
import transformers

import folders
from folders import (
    SIZE, Folder, bert, classifier, folder, normalize, old_length, pooling, rewrite, sentence, wordpiece, write,
)

WIDTH = SIZE["hidden_size"]


def dense(function, **options):
    from sentence_transformers.models import Dense

    return Dense(WIDTH, 24, activation_function=function, **options)


@folder
def dense_gelu_behind_normalize(path):
    from sentence_transformers.models import Dropout

    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), normalize(), dense(torch.nn.GELU()), Dropout(0.2)])
    return Folder("embed", width=24)


@folder
def dense_relu_without_bias(path):
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("cls"), dense(torch.nn.ReLU(), bias=False), normalize()])
    return Folder("embed", width=24)


@folder
def dense_leaky(path):
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), dense(torch.nn.LeakyReLU())])
    return Folder("embed", width=24)


@folder
def dense_silu(path):
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), dense(torch.nn.SiLU())])
    return Folder("embed", width=24)


@folder
def tokenizer_with_padding_of_its_own(path):
    """tokenizer.json pads each text to 32 tokens and cuts it at 12, as a folder that was saved after a call may say."""
    known = folders.mean_normalized(path)

    def change(saved):
        saved["truncation"] = {"direction": "Right", "max_length": 12, "strategy": "LongestFirst", "stride": 0}
        saved["padding"] = {
            "strategy": {"Fixed": 32}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]",
        }
        return saved

    rewrite(path / "tokenizer.json", change)
    return known


@folder
def special_tokens_in_their_map_only(path):
    known = folders.mean_normalized(path)
    names = ["pad_token", "cls_token", "sep_token", "mask_token", "unk_token"]
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "special_tokens_map.json").write_text(json.dumps({name: config[name] for name in names}))
    rewrite(path / "tokenizer_config.json", lambda config: {key: value for key, value in config.items() if key not in names})
    return known


@folder
def no_length_in_the_transformers_file(path):
    known = folders.mean_normalized(path)
    old_length(path, None)
    return known


@folder
def narrower_by_truncate_dim(path):
    known = folders.mean_normalized(path)
    rewrite(path / "config_sentence_transformers.json", lambda config: {**config, "truncate_dim": 12})
    known.width = 12
    return known


def converted(path, convert):
    known = folders.mean_normalized(path)
    convert(path / "onnx" / "model.onnx")
    return known


def halved(graph):
    """Weights of 16 bits, which are cast to 32 before they are used: as exporters of weights write them."""
    import onnx
    from onnx import numpy_helper

    model, casts = onnx.load(graph), []
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) >= 64:
            half = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), f"{tensor.name}.half")
            casts.append(onnx.helper.make_node("Cast", [half.name], [tensor.name], to=onnx.TensorProto.FLOAT))
            tensor.CopyFrom(half)
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, graph)


@folder
def weights_of_16_bits(path):
    return converted(path, halved)


@folder
def states_of_16_bits(path):
    """The graph gives its states as FP16."""
    import onnx

    def cast(graph):
        model = onnx.load(graph)
        output = model.graph.output[0]
        model.graph.node.append(onnx.helper.make_node("Cast", [output.name], ["half"], to=onnx.TensorProto.FLOAT16))
        for node in model.graph.node[:-1]:
            node.output[:] = ["whole" if name == output.name else name for name in node.output]
            node.input[:] = ["whole" if name == output.name else name for name in node.input]
        model.graph.node[-1].input[:], model.graph.node[-1].output[:] = ["whole"], [output.name]
        output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
        onnx.save(model, graph)

    return converted(path, cast)


@folder
def mask_of_32_bits(path):
    """The graph takes INT32, as exporters for other devices write it."""
    import onnx

    def cast(graph):
        model = onnx.load(graph)
        for given in model.graph.input:
            given.type.tensor_type.elem_type = onnx.TensorProto.INT32
            for node in model.graph.node:
                node.input[:] = [f"{given.name}.long" if name == given.name else name for name in node.input]
        casts = [onnx.helper.make_node("Cast", [given.name], [f"{given.name}.long"], to=onnx.TensorProto.INT64) for given in model.graph.input]
        nodes = [*casts, *model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        onnx.save(model, graph)

    return converted(path, cast)


@folder
def tokens_and_vector_of_one_graph(path):
    """The graph of sentence-transformers' own exporter gives the vectors of tokens, and the text's behind all modules."""
    from sentence_transformers import SentenceTransformer

    known = folders.dense_tanh(path)
    whole = SentenceTransformer(str(path), device="cpu", model_kwargs={"attn_implementation": "eager"}).eval()

    class Graph(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.whole = whole

        def forward(self, *tensors):
            features = dict(zip(folders.BERT, tensors))
            for module in self.whole:
                features = module(features)
            return features["token_embeddings"], features["sentence_embedding"]

    outputs = ["token_embeddings", "sentence_embedding"]
    axes = {name: {0: "batch", 1: "length"} for name in [*folders.BERT, outputs[0]]} | {outputs[1]: {0: "batch"}}
    example = tuple(torch.ones(2, 7, dtype=torch.int64) for _ in folders.BERT)
    with torch.no_grad():
        torch.onnx.export(
            Graph().eval(), example, str(path / "onnx" / "model.onnx"), input_names=folders.BERT, output_names=outputs, dynamic_axes=axes,
            dynamo=False, opset_version=17,
        )
    return known


@folder
def vocabulary_without_tokenizer_json(path):
    known = folders.mean_normalized(path)
    vocabulary = json.loads((path / "tokenizer.json").read_text())["model"]["vocab"]
    (path / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)))
    (path / "tokenizer.json").unlink()
    return known


@folder
def graph_of_one_row(path):
    import onnx

    def fix(graph):
        model = onnx.load(graph)
        for tensor in [*model.graph.input, *model.graph.output]:
            tensor.type.tensor_type.shape.dim[0].Clear()
            tensor.type.tensor_type.shape.dim[0].dim_value = 1
        onnx.save(model, graph)

    return converted(path, fix)


@folder
def graph_of_a_head(path):
    """The architecture is none that has a task here, and its graph gives a logit for each token."""
    tokenizer = wordpiece()
    config = transformers.ElectraConfig(vocab_size=len(tokenizer), embedding_size=16, max_position_embeddings=folders.LONGEST, **SIZE)
    write(path, transformers.ElectraForPreTraining(folders.eager(config)).eval(), tokenizer, pooled=False)
    return Folder("embed")


@folder
def labels_as_integers(path):
    model, tokenizer = classifier(path, ["a", "b", "c"])
    write(path, model, tokenizer)
    rewrite(path / "config.json", lambda config: {**config, "label2id": {"a": "0", "b": "1", "c": "2"}})
    return Folder("classify", output="logits", labels=["a", "b", "c"])


@folder
def labels_of_id2label_alone(path):
    model, tokenizer = classifier(path, ["a", "b", "c"])
    write(path, model, tokenizer)
    rewrite(path / "config.json", lambda config: {**config, "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}})
    return Folder("classify", output="logits", labels=["a", "b", "c"])


@folder
def rerank_several_scores(path):
    from sentence_transformers import CrossEncoder

    model, tokenizer = classifier(path, ["contradiction", "entailment", "neutral"])
    write(path, model, tokenizer)
    CrossEncoder(str(path), device="cpu").save_pretrained(str(path))
    return Folder("rerank", output="logits", labels=["contradiction", "entailment", "neutral"])


@folder
def padded_to_a_multiple(path):
    known = folders.mean_normalized(path)
    rewrite(path / "tokenizer_config.json", lambda config: {**config, "pad_to_multiple_of": 8, "padding_side": "left"})
    return known


@folder
def cut_on_the_left(path):
    known = folders.mean_normalized(path)
    rewrite(path / "tokenizer_config.json", lambda config: {**config, "truncation_side": "left"})
    return known
