#!/usr/bin/env python3
"""Writes examples/folders: a model folder for each task that docs/rerankers-classifiers-ner.md shows, as transformers and
sentence-transformers write them. The models know some sixty words. Their weights are set by hand, so that the answers make sense.

It needs what generate.py needs. Run it after a change here and commit the files:

    .tools/python/bin/python tests/models/folders.py
"""

import json
from pathlib import Path

import numpy as np
from generate import constant, helper, ids_inputs, run, tokenizer_json, value, write_model
from onnx import TensorProto

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples" / "folders"
LONGEST = 32

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PLAIN = ". , ? ! ##s ##r ##er ##ing a an and are at from how in is it of on the this to was what where who with".split()
# Words that stand for something, in groups of like meaning.
TOPICS = [
    "oar row crew boat ship sea harbour captain".split(),
    "drum beat time song".split(),
    "report due friday late quarterly wrong slow broken lost".split(),
    "great good fast calm love".split(),
    "fly wanjiru amina nairobi mombasa addis ababa".split(),
]
WORDS = [word for topic in TOPICS for word in topic]
VOCABULARY = {token: index for index, token in enumerate([*SPECIAL, *PLAIN, *WORDS])}


def table(width, rows):
    """A row of numbers for each token: zeros, except for those in `rows`."""
    numbers = np.zeros((len(VOCABULARY), width), np.float32)
    for word, row in rows.items():
        numbers[VOCABULARY[word]] = row
    return numbers


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def folder(name, architecture, **config):
    """The files that every folder has."""
    path = EXAMPLES / name
    tokenizer = tokenizer_json(VOCABULARY)
    write(path, "tokenizer.json", {**tokenizer, "truncation": None, "padding": None})
    special = {f"{token.strip('[]').lower()}_token": token for token in SPECIAL}
    write(path, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": LONGEST, **special})
    sizes = {"vocab_size": len(VOCABULARY), "max_position_embeddings": LONGEST}
    write(path, "config.json", {"model_type": "bert", "architectures": [architecture], **sizes, **config})
    return path


def named(labels):
    return {"id2label": {str(id): label for id, label in enumerate(labels)}, "label2id": {label: id for id, label in enumerate(labels)}}


def modules(path, *kinds):
    listed = [{"idx": at, "name": str(at), "path": place, "type": kind} for at, (kind, place) in enumerate(kinds)]
    write(path, "modules.json", listed)


def floats(name, *shape):
    return value(name, TensorProto.FLOAT, ["batch", *shape])


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs.split(), [output], **attributes)


# The mask as a column of floats for each row: [batch, sequence, 1].
MASK = [node("Cast", "attention_mask", "mask", to=TensorProto.FLOAT), node("Unsqueeze", "mask last", "kept")]
LAST, SEQUENCE = constant("last", np.array([-1])), constant("sequence_axis", np.array([1]))


def ids(*words):
    return np.array([[VOCABULARY[word] for word in words]], np.int64)


def reranker():
    """The share of the query's words that the document has, as one logit from -4 to 4."""
    path = folder("reranker", "BertForSequenceClassification", **named(["LABEL_0"]), sentence_transformers={"activation_fn": "torch.nn.modules.activation.Sigmoid"})
    words = table(len(WORDS), {word: row for word, row in zip(WORDS, np.eye(len(WORDS)))})
    graph = write_model(
        path / "onnx/model.onnx",
        [*ids_inputs(), value("token_type_ids", TensorProto.INT64, ["batch", "sequence"])],
        [floats("logits", 1)],
        [
            *MASK,
            node("Gather", "words input_ids", "tokens"),
            node("Cast", "token_type_ids", "types", to=TensorProto.FLOAT),
            node("Unsqueeze", "types last", "type"),
            node("Mul", "kept type", "in_document"),
            node("Sub", "kept in_document", "in_query"),
            node("Mul", "tokens in_query", "query_tokens"),
            node("Mul", "tokens in_document", "document_tokens"),
            node("ReduceMax", "query_tokens", "query", axes=[1], keepdims=0),
            node("ReduceMax", "document_tokens", "document", axes=[1], keepdims=0),
            node("Mul", "query document", "common"),
            node("ReduceSum", "common last", "found", keepdims=1),
            node("ReduceSum", "query last", "wanted", keepdims=1),
            node("Max", "wanted one", "at_least_one"),
            node("Div", "found at_least_one", "share"),
            node("Mul", "share eight", "scaled"),
            node("Sub", "scaled four", "logits"),
        ],
        [LAST, constant("words", words), *(constant(name, np.float32(number)) for name, number in [("one", 1), ("four", 4), ("eight", 8)])],
    )
    pair = ids("[CLS]", "drum", "beat", "[SEP]", "drum", "[SEP]")
    types = np.array([[0, 0, 0, 0, 1, 1]])
    assert run(graph, input_ids=pair, attention_mask=np.ones_like(pair), token_type_ids=types)[0] == 0


def sentiment():
    """Counts words of praise and of blame: [negative, neutral, positive]."""
    path = folder("sentiment", "BertForSequenceClassification", **named(["negative", "neutral", "positive"]), problem_type="single_label_classification")
    words = table(3, {**dict.fromkeys(TOPICS[2][3:], [2.5, 0, 0]), **dict.fromkeys(TOPICS[3], [0, 0, 2.5])})
    graph = write_model(
        path / "onnx/model.onnx",
        ids_inputs(),
        [floats("logits", 3)],
        [
            *MASK,
            node("Gather", "words input_ids", "tokens"),
            node("Mul", "tokens kept", "counted"),
            node("ReduceSum", "counted sequence_axis", "sum", keepdims=0),
            node("Add", "sum bias", "logits"),
        ],
        [LAST, SEQUENCE, constant("words", words), constant("bias", np.array([0, 1, 0], np.float32))],
    )
    text = ids("[CLS]", "great", "[SEP]")
    assert run(graph, input_ids=text, attention_mask=np.ones_like(text))[0].tolist() == [[0, 1, 2.5]]


def names():
    """Names of people and places."""
    labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    path = folder("names", "BertForTokenClassification", **named(labels))
    words = table(5, {word: [1, 0, 0, 0, 0] for word in VOCABULARY})
    for label, found in [("B-PER", "wanjiru amina"), ("B-LOC", "nairobi mombasa addis"), ("I-LOC", "ababa")]:
        for word in found.split():
            words[VOCABULARY[word]] = [0, 0, 0, 0, 0]
            words[VOCABULARY[word], labels.index(label)] = 6
    graph = write_model(
        path / "onnx/model.onnx",
        ids_inputs(),
        [floats("logits", "sequence", 5)],
        [*MASK, node("Gather", "words input_ids", "tokens"), node("Mul", "tokens kept", "logits")],
        [LAST, constant("words", words)],
    )
    text = ids("addis", "ababa")
    assert run(graph, input_ids=text, attention_mask=np.ones_like(text))[0].argmax(-1).tolist() == [[3, 4]]


def sparse():
    """SPLADE: each word counts, and so do the first words of its topic, a little."""
    path = folder("sparse", "BertForMaskedLM")
    modules(
        path,
        ("sentence_transformers.sparse_encoder.models.MLMTransformer", ""),
        ("sentence_transformers.sparse_encoder.models.SpladePooling", "1_SpladePooling"),
    )
    write(path, "sentence_bert_config.json", {"max_seq_length": LONGEST, "do_lower_case": False})
    write(path, "1_SpladePooling/config.json", {"pooling_strategy": "max", "activation_function": "relu"})
    words = table(len(VOCABULARY), {})
    for topic in TOPICS:
        for word in topic:
            words[VOCABULARY[word], VOCABULARY[topic[0]]] = 0.5
            words[VOCABULARY[word], VOCABULARY[word]] = 3
    graph = write_model(
        path / "onnx/model.onnx",
        ids_inputs(),
        [floats("logits", "sequence", len(VOCABULARY))],
        [*MASK, node("Gather", "words input_ids", "tokens"), node("Mul", "tokens kept", "logits")],
        [LAST, constant("words", words)],
    )
    text = ids("row")
    assert (run(graph, input_ids=text, attention_mask=np.ones_like(text))[0] > 0).sum() == 2


def colbert():
    """A vector for each token: one number for each topic but the last one."""
    path = folder("colbert", "BertModel", hidden_size=4)
    modules(
        path,
        ("sentence_transformers.models.Transformer", ""),
        ("sentence_transformers.base.modules.normalize.Normalize", "1_Normalize"),
        ("sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask", "2_MultiVectorMask"),
    )
    write(path, "sentence_bert_config.json", {"max_seq_length": LONGEST, "do_lower_case": False})
    write(path, "1_Normalize/config.json", {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"})
    write(path, "2_MultiVectorMask/config.json", {"skiplist_words": []})
    words = np.full((len(VOCABULARY), 4), 0.5, np.float32)
    for at, topic in enumerate(TOPICS[:4]):
        for step, word in enumerate(topic):
            words[VOCABULARY[word]] = 0.1 * step
            words[VOCABULARY[word], at] = 2
    graph = write_model(
        path / "onnx/model.onnx",
        ids_inputs(),
        [floats("last_hidden_state", "sequence", 4)],
        [*MASK, node("Gather", "words input_ids", "tokens"), node("Mul", "tokens kept", "last_hidden_state")],
        [LAST, constant("words", words)],
    )
    text = ids("drum")
    assert run(graph, input_ids=text, attention_mask=np.ones_like(text))[0].tolist() == [[[0, 2, 0, 0]]]


def main():
    for make in (reranker, sentiment, names, sparse, colbert):
        make()
    written = [path for path in sorted(EXAMPLES.rglob("*")) if path.is_file()]
    for path in written:
        print(f"{path.stat().st_size:8} {path.relative_to(EXAMPLES)}")
    print(f"{sum(path.stat().st_size for path in written):8} bytes in all, {len(VOCABULARY)} tokens")


if __name__ == "__main__":
    main()
