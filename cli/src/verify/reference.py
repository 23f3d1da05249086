"""What the library that a model folder is made for computes for texts: one JSON object a line, for `trireme verify`.

Standard input is a JSON object: `folder`, `tasks`, `texts`, `pairs` (the second texts), `prompt_name`, `aggregation`. Texts are
computed one by one, so that no padding plays a part.
"""

import json
import os
import sys
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.simplefilter("ignore")


def config_of(folder):
    path = os.path.join(folder, "config.json")
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def numbers(array):
    return [float(value) for value in array]


def encoding(model, ask):
    """The library's function for texts under this prompt: those of queries and documents have functions of their own."""
    name = ask["prompt_name"]
    sides = {"query": model.encode_query, "document": model.encode_document}
    sides |= {"passage": model.encode_document, "corpus": model.encode_document}
    function = sides.get(name, model.encode)
    prompt = {"prompt_name": name} if name and (name in model.prompts or name not in sides) else {}
    return lambda text, **options: function([text], show_progress_bar=False, **prompt, **options)[0]


def states_of(ask):
    """The states of each text's tokens as BGE-M3's own library takes them, with the ids of the tokens; and its tokenizer."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(ask["folder"]).eval(), AutoTokenizer.from_pretrained(ask["folder"])
    path = os.path.join(ask["folder"], "sentence_bert_config.json")
    told = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            told = json.load(file)
    length = told.get("max_seq_length") or tokenizer.model_max_length
    found = []
    for text in ask["texts"]:
        encoded = tokenizer([text], truncation=True, max_length=length, return_tensors="pt")
        with torch.no_grad():
            found.append((encoded["input_ids"][0].tolist(), model(**encoded).last_hidden_state[0]))
    return found, tokenizer


def head_of(folder, name):
    """A head of BGE-M3 as a function; `None` where the folder has none."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return None
    import torch

    layer = torch.load(path, map_location="cpu", weights_only=True)
    return lambda states: states @ layer["weight"].float().T + layer["bias"].float()


def embed(ask):
    if config_of(ask["folder"]).get("model_type") == "model2vec":
        from model2vec import StaticModel

        model = StaticModel.from_pretrained(ask["folder"])
        return [{"embedding": numbers(model.encode([text])[0])} for text in ask["texts"]]
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(ask["folder"], device="cpu")
    encode = encoding(model, ask)
    return [{"embedding": numbers(encode(text))} for text in ask["texts"]]


def sparse(ask):
    if head := head_of(ask["folder"], "sparse_linear.pt"):
        states, tokenizer = states_of(ask)
        unused = {tokenizer.cls_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
        found = []
        for ids, tokens in states:
            weights = {}
            for token, weight in zip(ids, numbers(head(tokens).relu().flatten())):
                if token not in unused and weight > weights.get(token, 0):
                    weights[token] = weight
            found.append({"sparse": {"indices": sorted(weights), "values": [weights[token] for token in sorted(weights)]}})
        return found
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(ask["folder"], device="cpu")
    encode, found = encoding(model, ask), []
    for text in ask["texts"]:
        vector = encode(text, convert_to_sparse_tensor=False)
        indices = [int(index) for index in vector.nonzero().flatten()]
        found.append({"sparse": {"indices": indices, "values": numbers(vector[indices])}})
    return found


def multi_vector(ask):
    if head := head_of(ask["folder"], "colbert_linear.pt"):
        states, _ = states_of(ask)
        vectors = [head(tokens[1:]) for _, tokens in states]
        return [{"token_embeddings": [numbers(v / v.norm()) for v in tokens]} for tokens in vectors]
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(ask["folder"], device="cpu")
    encode = encoding(model, ask)
    return [{"token_embeddings": [numbers(token) for token in encode(text)]} for text in ask["texts"]]


def rerank(ask):
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(ask["folder"], device="cpu")
    pairs = zip(ask["texts"], ask["pairs"])
    scores = [model.predict([pair], show_progress_bar=False)[0] for pair in pairs]
    return [{"scores": numbers(score) if getattr(score, "ndim", 0) else [float(score)]} for score in scores]


def classify(ask):
    from transformers import pipeline

    model = pipeline("text-classification", model=ask["folder"], device="cpu")
    # label2id may be an older one, which nothing in the library reads.
    classes = {label: number for number, label in model.model.config.id2label.items()}
    found = []
    for text, pair in zip(ask["texts"], ask["pairs"] or [None] * len(ask["texts"])):
        given = {"text": text} if pair is None else {"text": text, "text_pair": pair}
        scores = model([given], top_k=None, truncation=True)[0]
        found.append({"scores": numbers(s["score"] for s in sorted(scores, key=lambda s: classes[s["label"]]))})
    return found


def spans(ask):
    from gliner import GLiNER

    model, labels = GLiNER.from_pretrained(ask["folder"], local_files_only=True), ["person", "organization", "place", "date"]
    found = []
    for text in ask["texts"]:
        entities = model.predict_entities(text, labels)
        found.append({"entities": [
            {"entity_group": e["label"], "score": float(e["score"]), "word": e["text"], "start": e["start"], "end": e["end"]} for e in entities
        ]})
    return found


# The tasks of classes that the server is asked for (one.rs): all labels come with their scores.
CLASSIFICATIONS = [
    {"task": "a_sentiment", "labels": ["positive", "negative", "neutral"], "multi_label": True, "cls_threshold": 0.0, "class_act": "softmax"},
    {"task": "topic", "labels": {"sea": "about ships", "town": "about streets"}, "multi_label": True, "cls_threshold": 0.0},
]
# Likewise the structures and relations.
RECORDS = {
    "structures": {
        "vessel": {"fields": [{"name": "name", "dtype": "str"}, {"name": "crew", "description": "who is on it", "threshold": 0.45},
                              {"name": "size", "dtype": "str", "choices": ["small", "large"]}]},
        "place": {"fields": [{"name": "town"}]},
    },
    "relations": ["lives_in", "sails_on"],
}


def extracted_by_gliner2(ask):
    """What the library finds in each text for the labels of all tasks that are asked for, which stand in one row."""
    from gliner2 import GLiNER2, Schema

    model, labels = GLiNER2.from_pretrained(ask["folder"]).eval(), ["person", "organization", "place", "date"]
    entities = {"entities": labels} if "token_classify" in ask["tasks"] else {}
    classes = {"classifications": CLASSIFICATIONS} if "zero_shot" in ask["tasks"] else {}
    records = RECORDS if "extract" in ask["tasks"] else {}
    schema = Schema.from_dict({**entities, **classes, **records})
    # The server cuts a text that is to have one row.
    words = model.config.max_len or 512
    return labels, [model.extract(text, schema, include_confidence=True, include_spans=True, max_len=words) for text in ask["texts"]]


def zero_shot(ask):
    _, extracted = extracted_by_gliner2(ask)
    return [{"class_scores": [label["confidence"] for task in CLASSIFICATIONS for label in found[task["task"]]]} for found in extracted]


def extract(ask):
    _, extracted = extracted_by_gliner2(ask)
    return [{"records": records_of(result, text, **RECORDS)} for text, result in zip(ask["texts"], extracted)]


def records_of(result, text, structures=(), relations=()):
    """The records that gliner2 finds in a text, in the form of the server's answer. The full stop that the library puts behind a text is no value."""
    def value(given):
        if isinstance(given, list):
            return [one for one in map(value, given) if one]
        if not given or given.get("start") == len(text):
            return None
        if "start" not in given:
            return {"label": given["text"], "score": given["confidence"]}
        end = min(given["end"], len(text))
        return {"word": text[given["start"]:end], "score": given["confidence"], "start": given["start"], "end": end}

    def records(given, counts):
        every = [{name: value(one) for name, one in record.items()} for record in given or []]
        return [record for record in every if counts(record.values())]

    # The library answers a relation with a description under `name: description`, and without it.
    related = {key.split(": ")[0]: of for key, of in result.get("relation_extraction", {}).items() if of}
    answer = {
        "structures": {name: records(result[name], any) for name in structures},
        "relations": {name: records(related.get(name), all) for name in relations},
    }
    return {kind: found for kind, found in answer.items() if found}


def spans_of_gliner2(ask):
    labels, extracted = extracted_by_gliner2(ask)
    found = []
    for text, result in zip(ask["texts"], extracted):
        by_label = result["entities"]
        # The library counts the full stop that it puts behind a text.
        every = [(label, e["confidence"], e["start"], min(e["end"], len(text))) for label in labels for e in by_label[label] if e["start"] < len(text)]
        every.sort(key=lambda entity: (entity[2], -entity[1]))
        found.append({"entities": [
            {"entity_group": label, "score": score, "word": text[start:end], "start": start, "end": end} for label, score, start, end in every
        ]})
    return found


def is_of_gliner2(folder):
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            return json.load(file).get("model_type") == "extractor"
    except OSError:
        return False


def token_classify(ask):
    if os.path.exists(os.path.join(ask["folder"], "gliner_config.json")):
        return spans(ask)
    if is_of_gliner2(ask["folder"]):
        return spans_of_gliner2(ask)
    from transformers import pipeline

    model = pipeline("token-classification", model=ask["folder"], device="cpu", aggregation_strategy=ask["aggregation"])
    return [{"entities": [plain(entity) for entity in model(text)] if text.strip() else []} for text in ask["texts"]]


class Refused(Exception):
    """Why there is nothing to compare with, in words for the person who asked."""


def generate(ask):
    """As `generate` of transformers does with the folder's own generation configuration."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ask["folder"])
    model = AutoModelForSeq2SeqLM.from_pretrained(ask["folder"]).float().eval()
    if model.generation_config.do_sample:
        raise Refused("do_sample is true in the folder's generation configuration, so that each answer is drawn by chance: verify a copy whose "
                      "generation_config.json has do_sample false")
    lengths = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    longest = min((length for length in lengths if length and length < 1e9), default=None)
    options, target = {}, getattr(tokenizer, "tgt_lang", None)
    if target:
        # The first token of the output, as the tokenizer names it for the language.
        by_name = getattr(tokenizer, "get_lang_id", tokenizer.convert_tokens_to_ids)
        options["forced_bos_token_id"] = by_name(target)
    found = []
    for text in ask["texts"]:
        encoded = tokenizer([text], truncation=longest is not None, max_length=longest, return_tensors="pt")
        taken = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            ids = model.generate(**taken, **options)
        found.append({"generated_text": tokenizer.decode(ids[0], skip_special_tokens=True)})
    return found


def plain(entity):
    return {key: value if isinstance(value, (int, str)) else float(value) for key, value in entity.items()}


def lines_of(ask):
    lines = [{"text": text} for text in ask["texts"]]
    for index, pair in enumerate(ask["pairs"] or []):
        lines[index]["text_pair"] = pair
    for task in ask["tasks"]:
        for line, found in zip(lines, globals()[task](ask)):
            line.update(found)
    return lines


def main():
    ask = json.load(sys.stdin)
    # Libraries print to standard output; the answer keeps it for itself, and their prints go to standard error.
    answer, sys.stdout = sys.stdout, sys.stderr
    try:
        lines = lines_of(ask)
    except Refused as refused:
        lines = [{"refused": str(refused)}]
    except ValueError as error:
        # The class that transformers 5 writes for tokenizers, which transformers 4 does not know.
        if "TokenizersBackend" not in str(error):
            raise
        import transformers

        lines = [{"refused": f"the folder was saved by transformers 5, whose tokenizers transformers {transformers.__version__} does not read: "
                             "pip install --upgrade transformers, in an environment without optimum-onnx"}]
    for line in lines:
        answer.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
