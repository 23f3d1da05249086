#!/usr/bin/env python3
"""Writes the small models that the tests serve: the generated files in tests/repositories, and their expected answers.

Run it after a change here and commit what it writes; the tests themselves generate nothing. It needs the `onnx` package
on top of the tests' Python environment:

    scripts/setup-python.sh
    .tools/python/bin/pip install --no-deps -r tests/models/requirements.txt
    .tools/python/bin/python tests/models/generate.py

Models are ONNX opset 17 in IR version 8, which any ONNX Runtime since 1.12 loads. Weights come from a fixed seed, so a
second run writes the same bytes. Every model is executed with ONNX Runtime before it counts as written; the answers of
the two text models are stored in tests/models/golden.json.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import tokenizers
from onnx import TensorProto, helper, numpy_helper

MODELS = Path(__file__).resolve().parent
REPOSITORIES = MODELS.parent / "repositories"
OPSET, IR_VERSION = 17, 8
HIDDEN = 8
SEED_WIDTH = 1024
MAX_LENGTH = {"tiny": 16, "seed": 512}

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
PUNCTUATION = ".,;:!?'\"()-/&%$#@*+="
WORDS = """
a about after all also an and any are as at back be because been before but by can cause come could covid day did do does
down each even find first for from get give go good great had has have he her here him his how i if in into is it its just
know like long look made make man many may me more most much must my new no not now of off old on one only or other our out
over own part people place right said same see she should small so some such take than that the their them then there these
they thing this three through time to too two under up use very want was water way we well were what when where which while
who why will with work world would year you your
answer bank boat captain crew deck drum harbour hull keel mast message model oar queue river row rower sail sea ship stage
stroke tensor text token trireme wave wind worker
""".split()
SUFFIXES = ["s", "ed", "er", "ing", "ly", "ness", "tion"]

TEXTS = [
    "the rower takes the oar",
    "Three banks of rowers row the trireme through the wave.",
    "what cause covid",
    "a",
    "",
    "ünïcode, 漢字 and 🚣 are unknown or split",
    "every worker of a stage takes its work from one queue and gives the answer to the next stage of the route",
]


def vocabulary():
    """Special tokens, every ASCII letter and digit (alone and inside a word), punctuation, words."""
    inner = ["##" + c for c in CHARACTERS] + ["##" + s for s in SUFFIXES]
    tokens = [*SPECIAL, *CHARACTERS, *PUNCTUATION, *inner, *WORDS]
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}


def tokenizer_json(vocab):
    """A WordPiece tokenizer as saved by `tokenizers`, with the fixed padding and truncation of published files."""
    piece = lambda kind, name, type_id: {kind: {"id": name, "type_id": type_id}}
    cls, sep = (piece("SpecialToken", name, 0) for name in ("[CLS]", "[SEP]"))
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 12, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 12},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": vocab["[PAD]"],
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": [
            {
                "id": vocab[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in SPECIAL
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [cls, piece("Sequence", "A", 0), sep],
            "pair": [
                cls,
                piece("Sequence", "A", 0),
                sep,
                piece("Sequence", "B", 1),
                piece("SpecialToken", "[SEP]", 1),
            ],
            "special_tokens": {
                name: {"id": name, "ids": [vocab[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }


def write_tokenizer(folder, vocab, max_length):
    """The files of a Hugging Face tokenizer, as far as servers read them."""
    folder.mkdir(parents=True, exist_ok=True)
    special = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
    config = {"do_lower_case": True, "model_max_length": max_length, "tokenizer_class": "BertTokenizer", **special}
    write = lambda name, value, **how: (folder / name).write_text(json.dumps(value, ensure_ascii=False, **how) + "\n")
    write("tokenizer.json", tokenizer_json(vocab), separators=(",", ":"))
    write("tokenizer_config.json", config, indent=2)
    return folder / "tokenizer.json"


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name, array):
    return numpy_helper.from_array(np.ascontiguousarray(array), name)


def write_model(path, inputs, outputs, nodes, constants=()):
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="trireme")
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def run(path, **inputs):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)


def arithmetic():
    """`simple`: sum and difference, batched. `simple_identity`: strings through. `autocomplete`: x -> 2x, unconfigured."""
    basic = REPOSITORIES / "basic"
    rows = lambda name: value(name, TensorProto.INT32, ["batch", 16])
    path = write_model(
        basic / "simple/1/model.onnx",
        [rows("INPUT0"), rows("INPUT1")],
        [rows("OUTPUT0"), rows("OUTPUT1")],
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
    )
    a, b = np.arange(32, dtype=np.int32).reshape(2, 16), np.ones((2, 16), np.int32)
    total, difference = run(path, INPUT0=a, INPUT1=b)
    assert (total == a + b).all() and (difference == a - b).all()

    path = write_model(
        basic / "simple_identity/1/model.onnx",
        [value("INPUT0", TensorProto.STRING, ["batch", "items"])],
        [value("OUTPUT0", TensorProto.STRING, ["batch", "items"])],
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
    )
    strings = np.array([["oar", ""], ["ünï", "漢字"]], dtype=object)
    assert (run(path, INPUT0=strings)[0] == strings).all()

    path = write_model(
        basic / "autocomplete/1/model.onnx",
        [value("x", TensorProto.FLOAT, ["batch", 4])],
        [value("y", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_node("Mul", ["x", "two"], ["y"])],
        [constant("two", np.float32(2))],
    )
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert (run(path, x=x)[0] == 2 * x).all()


def countdown():
    """`countdown`: takes as many steps, one after the other, as the largest number in the batch, for runs of any
    duration."""
    steps = lambda name: value(name, TensorProto.INT64, ["batch", 1])
    running = lambda name: value(name, TensorProto.BOOL, [])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["running"], ["go_on"]),
            helper.make_node("Add", ["so_far", "one"], ["so_far_and_one"]),
        ],
        "step",
        [value("number", TensorProto.INT64, []), running("running"), steps("so_far")],
        [running("go_on"), steps("so_far_and_one")],
        [constant("one", np.array([[1]]))],
    )
    path = write_model(
        REPOSITORIES / "lasting/countdown/1/model.onnx",
        [steps("COUNT")],
        [steps("STEPS")],
        [
            helper.make_node("ReduceMax", ["COUNT"], ["most"], keepdims=0),
            helper.make_node("Sub", ["COUNT", "COUNT"], ["nothing"]),
            helper.make_node("Loop", ["most", "", "nothing"], ["STEPS"], body=body),
        ],
    )
    assert (run(path, COUNT=np.array([[3], [2]]))[0] == 3).all()


def sequences():
    """Models with `sequence_batching`. `simple_sequence` adds START to its input, `simple_dyna_sequence` also the correlation id
    where the sequence ends, as a number or, in `simple_string_dyna_sequence`, as a text; `accumulator` adds up a sequence, with the sum as implicit state;
    `memory` has all values of a sequence as its state."""
    number = lambda name, kind=TensorProto.INT32: value(name, kind, ["batch", 1])
    folder = REPOSITORIES / "sequences"
    path = write_model(
        folder / "simple_sequence/1/model.onnx",
        [number("INPUT"), number("START"), number("READY")],
        [number("OUTPUT")],
        [helper.make_node("Add", ["INPUT", "START"], ["sum"]), helper.make_node("Mul", ["sum", "READY"], ["OUTPUT"])],
    )
    one, two = np.array([[1]], np.int32), np.array([[2]], np.int32)
    assert run(path, INPUT=two, START=one, READY=one)[0] == 3

    numbers, texts = np.array([[100]], np.uint64), np.array([["100"]], dtype=object)
    ids = [("simple_dyna_sequence", TensorProto.UINT64, numbers), ("simple_string_dyna_sequence", TensorProto.STRING, texts)]
    for name, kind, id in ids:
        path = write_model(
            folder / name / "1/model.onnx",
            [number("INPUT"), number("START"), number("END"), number("READY"), number("CORRID", kind)],
            [number("OUTPUT")],
            [
                helper.make_node("Cast", ["CORRID"], ["id"], to=TensorProto.INT32),
                helper.make_node("Mul", ["id", "END"], ["last"]),
                helper.make_node("Add", ["INPUT", "START"], ["begun"]),
                helper.make_node("Add", ["begun", "last"], ["sum"]),
                helper.make_node("Mul", ["sum", "READY"], ["OUTPUT"]),
            ],
        )
        assert run(path, INPUT=two, START=one, READY=one, END=one, CORRID=id)[0] == 103

    path = write_model(
        folder / "accumulator/1/model.onnx",
        [number("INPUT"), number("START", TensorProto.BOOL), number("SUM_IN")],
        [number("OUTPUT"), number("SUM_OUT")],
        [
            helper.make_node("Add", ["INPUT", "SUM_IN"], ["sum"]),
            helper.make_node("Where", ["START", "INPUT", "sum"], ["OUTPUT"]),
            helper.make_node("Identity", ["OUTPUT"], ["SUM_OUT"]),
        ],
    )
    assert run(path, INPUT=two, START=np.array([[False]]), SUM_IN=one)[1] == 3
    assert run(path, INPUT=two, START=np.array([[True]]), SUM_IN=one)[1] == 2

    floats = lambda name: value(name, TensorProto.FLOAT, ["values"])
    path = write_model(
        folder / "memory/1/model.onnx",
        [floats("INPUT"), floats("SEEN_IN")],
        [value("COUNT", TensorProto.INT64, [1]), floats("SEEN")],
        [
            helper.make_node("Concat", ["SEEN_IN", "INPUT"], ["SEEN"], axis=0),
            helper.make_node("Shape", ["SEEN"], ["COUNT"]),
        ],
    )
    assert run(path, INPUT=np.ones(3, np.float32), SEEN_IN=np.ones(2, np.float32))[0] == 5


def ids_inputs():
    return [value(name, TensorProto.INT64, ["batch", "sequence"]) for name in ("input_ids", "attention_mask")]


def masked_mean(tokens, result):
    """Nodes that average `tokens` [batch, sequence, hidden] over the tokens that the mask keeps, as `result` [batch, 1, hidden]."""
    return [
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["mask3"]),
        helper.make_node("Mul", [tokens, "mask3"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "sequence_axis"], ["sum"], keepdims=1),
        helper.make_node("ReduceSum", ["mask3", "sequence_axis"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], [result]),
    ]


def axes():
    return [constant("last", np.array([-1])), constant("sequence_axis", np.array([1]))]


def tiny_encoder(vocab_size, random):
    """tanh(embedding · W + mean embedding · U): each token depends on its text, so a wrong mask changes every
    number."""
    return write_model(
        REPOSITORIES / "basic/tiny_encoder/1/model.onnx",
        ids_inputs(),
        [value("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", HIDDEN])],
        [
            helper.make_node("Gather", ["embeddings", "input_ids"], ["tokens"]),
            *masked_mean("tokens", "mean"),
            helper.make_node("MatMul", ["tokens", "W"], ["own"]),
            helper.make_node("MatMul", ["mean", "U"], ["context"]),
            helper.make_node("Add", ["own", "context"], ["mixed"]),
            helper.make_node("Tanh", ["mixed"], ["last_hidden_state"]),
        ],
        [
            *axes(),
            constant("embeddings", random.standard_normal((vocab_size, HIDDEN), np.float32)),
            constant("W", random.standard_normal((HIDDEN, HIDDEN), np.float32) / 2),
            constant("U", random.standard_normal((HIDDEN, HIDDEN), np.float32) / 2),
        ],
    )


def seed_embedder(vocab_size, random):
    """Mean embedding, widened to 1024; its output is named `3391`, as by an exporter without a given name."""
    return write_model(
        REPOSITORIES / "seed/embedding_model/1/bio-bert-embedder.onnx",
        ids_inputs(),
        [value("3391", TensorProto.FLOAT, ["batch", SEED_WIDTH])],
        [
            helper.make_node("Gather", ["embeddings", "input_ids"], ["tokens"]),
            *masked_mean("tokens", "mean"),
            helper.make_node("Squeeze", ["mean", "sequence_axis"], ["narrow"]),
            helper.make_node("MatMul", ["narrow", "widen"], ["3391"]),
        ],
        [
            *axes(),
            constant("embeddings", random.standard_normal((vocab_size, HIDDEN), np.float32)),
            constant("widen", random.standard_normal((HIDDEN, SEED_WIDTH), np.float32)),
        ],
    )


def sentiment_classifier(vocab):
    """Counts words that say something: [negative, neutral, positive], with the inputs and output that a published tutorial
    gives its traced model."""
    scores = np.tile(np.array([0, 0.1, 0], np.float32), (len(vocab), 1))
    for words, index in (("no not off cause covid", 0), ("good great like love very", 2)):
        for word in words.split():
            if word in vocab:
                scores[list(vocab).index(word)] = np.eye(3, dtype=np.float32)[index]
    inputs = [value(name, TensorProto.INT64, ["batch", "sequence"]) for name in ("INPUT__0", "INPUT__1")]
    path = write_model(
        REPOSITORIES / "sentiment/sentiment_classifier/1/model.onnx",
        inputs,
        [value("OUTPUT__0", TensorProto.FLOAT, ["batch", 3])],
        [
            helper.make_node("Gather", ["scores", "INPUT__0"], ["words"]),
            helper.make_node("Cast", ["INPUT__1"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["mask3"]),
            helper.make_node("Mul", ["words", "mask3"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "sequence_axis"], ["OUTPUT__0"], keepdims=0),
        ],
        [*axes(), constant("scores", scores)],
    )
    ids = np.array([[list(vocab).index("good")]], np.int64)
    assert run(path, INPUT__0=ids, INPUT__1=np.ones_like(ids))[0].argmax() == 2


def encode(path, text, max_length):
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return tokenizer.encode(text).ids


def pool(states):
    mean = states[0].astype(np.float64).mean(axis=0)
    return mean / np.linalg.norm(mean)


def golden(tokenizer, encoder, seed_tokenizer, embedder):
    """The answers of the two ensembles for `TEXTS`, one text at a time: `tiny_embedding` whole, `ensemble_model` its
    first 8."""
    answers = []
    for text in TEXTS:
        one = lambda ids: {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
        ids = encode(tokenizer, text, MAX_LENGTH["tiny"])
        seed_ids = encode(seed_tokenizer, text, MAX_LENGTH["seed"])
        answers.append(
            {
                "text": text,
                "input_ids": ids,
                "tiny_embedding": [round(float(x), 7) for x in pool(run(encoder, **one(ids))[0])],
                "seed_input_ids": seed_ids,
                "ensemble_model_first_8": [round(float(x), 6) for x in run(embedder, **one(seed_ids))[0][0][:8]],
            }
        )
    lines = ",\n".join("  " + json.dumps(answer, ensure_ascii=False) for answer in answers)
    (MODELS / "golden.json").write_text(f"[\n{lines}\n]\n")


def main():
    random = np.random.default_rng(20240407)
    vocab = vocabulary()
    tokenizer = write_tokenizer(REPOSITORIES / "basic/tiny_tokenizer/1", vocab, MAX_LENGTH["tiny"])
    write_tokenizer(REPOSITORIES / "texts/words/1", vocab, MAX_LENGTH["tiny"])
    seed_tokenizer = write_tokenizer(REPOSITORIES / "seed/tokenizer/1", vocab, MAX_LENGTH["seed"])
    arithmetic()
    countdown()
    sequences()
    encoder = tiny_encoder(len(vocab), random)
    shutil.copyfile(encoder, REPOSITORIES / "texts/encoder/1/model.onnx")
    embedder = seed_embedder(len(vocab), random)
    sentiment_classifier(vocab)
    golden(tokenizer, encoder, seed_tokenizer, embedder)
    written = [*REPOSITORIES.rglob("*.onnx"), *REPOSITORIES.rglob("*.json"), MODELS / "golden.json"]
    for path in sorted(written):
        print(f"{path.stat().st_size:8} {path.relative_to(MODELS.parent)}")
    print(f"{sum(path.stat().st_size for path in written):8} bytes in all, {len(vocab)} tokens")


if __name__ == "__main__":
    main()
