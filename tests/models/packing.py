#!/usr/bin/env python3
"""Writes small encoders with random weights, as torch exports them, for the tests of packing: tests/models/packing/*.onnx.

Run it in the environment of `make verify-test` after a change here, and commit what it writes:

    scripts/setup-verify.sh
    .tools/verify-python/bin/python tests/models/packing.py
"""

import warnings
from pathlib import Path

import onnx
import torch
import transformers

FOLDER = Path(__file__).resolve().parent / "packing"
TRACER, DYNAMO = False, True
SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 60}
BERT = SMALL | {"max_position_embeddings": 80}
DECODER = BERT | {"num_key_value_heads": 1, "head_dim": 4, "use_cache": False}
T5 = {"vocab_size": 60, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2, "feed_forward_proj": "gated-gelu"}
DISENTANGLED = {
    "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "max_relative_positions": -1, "position_biased_input": False, "type_vocab_size": 0,
}  # fmt: skip
ENCODERS = [
    ("bert", TRACER, transformers.BertModel, transformers.BertConfig(**BERT)),
    ("bert_dynamo", DYNAMO, transformers.BertModel, transformers.BertConfig(**BERT)),
    ("classifier", TRACER, transformers.BertForSequenceClassification, transformers.BertConfig(**BERT)),
    ("distilbert", TRACER, transformers.DistilBertModel, transformers.DistilBertConfig(dim=8, n_layers=2, n_heads=2, hidden_dim=12, vocab_size=60, max_position_embeddings=80)),
    ("electra_dynamo", DYNAMO, transformers.ElectraModel, transformers.ElectraConfig(**BERT, embedding_size=6)),
    ("albert", TRACER, transformers.AlbertModel, transformers.AlbertConfig(**BERT, embedding_size=6)),
    ("roberta", TRACER, transformers.RobertaModel, transformers.RobertaConfig(**BERT, pad_token_id=1)),
    ("mpnet_dynamo", DYNAMO, transformers.MPNetModel, transformers.MPNetConfig(**BERT, pad_token_id=1)),
    ("deberta", TRACER, transformers.DebertaV2Model, transformers.DebertaV2Config(**BERT, **DISENTANGLED)),
    ("modernbert", TRACER, transformers.ModernBertModel, transformers.ModernBertConfig(**BERT, pad_token_id=0, local_attention=8, global_attn_every_n_layers=2)),
    ("qwen3", TRACER, transformers.Qwen3Model, transformers.Qwen3Config(**DECODER)),
    ("t5_encoder", TRACER, transformers.T5EncoderModel, transformers.T5Config(**T5)),
    ("convbert", TRACER, transformers.ConvBertModel, transformers.ConvBertConfig(**BERT, embedding_size=8)),
]  # fmt: skip


class First(torch.nn.Module):
    """The model's first output."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]


def write(name, dynamo, kind, configuration):
    torch.manual_seed(59)
    configuration._attn_implementation = "eager"
    model = kind(configuration).eval()
    for weights in model.parameters():
        weights.data = torch.randn_like(weights) * (0.4 if weights.dim() > 1 else 1)
    names, ids = ["input_ids", "attention_mask"], torch.randint(2, 60, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    path, dynamic = FOLDER / f"{name}.onnx", torch.export.Dim.DYNAMIC
    shapes = (
        {"dynamic_shapes": {name: {0: dynamic, 1: dynamic} for name in names}}
        if dynamo
        else {"dynamic_axes": {name: {0: "batch", 1: "length"} for name in names}}
    )
    with torch.no_grad():
        torch.onnx.export(First(model), (ids, mask), path, input_names=names, output_names=["output"], opset_version=18, dynamo=dynamo,
                          **({"external_data": False} if dynamo else {}), **shapes)  # fmt: skip
    made = onnx.load(path)
    shorten(made.graph)
    onnx.save(made, path)
    print(f"{path.name}: {path.stat().st_size} bytes")


def shorten(graph):
    """Leaves out what the graph does not need to run, and gives its tensors short names: no rule may go by these."""
    short = {tensor.name: tensor.name for tensor in [*graph.input, *graph.output]} | {"": ""}
    del graph.value_info[:], graph.metadata_props[:]
    for node in graph.node:
        del node.metadata_props[:]
        node.doc_string = node.name = ""
        for names in (node.input, node.output):
            names[:] = [short.setdefault(name, f"t{len(short)}") for name in names]
    for tensor in graph.initializer:
        tensor.name = short.setdefault(tensor.name, f"t{len(short)}")


def main():
    warnings.filterwarnings("ignore")
    FOLDER.mkdir(exist_ok=True)
    for encoder in ENCODERS:
        write(*encoder)


if __name__ == "__main__":
    main()
