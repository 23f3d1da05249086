#!/usr/bin/env python3
"""Makes tests/models/gliner2: a small GLiNER2 model with random weights, what its library finds in texts, how it classifies them, and which records it makes of them.

    pip install 'gliner2[local]==2.1.0' onnx
    python tests/models/spans_of_gliner2.py
"""

import itertools
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import spans
import torch
from gliner2.configuration import ExtractorConfig
from gliner2.models.span import SpanExtractorModel
from gliner2 import GLiNER2, Schema
from transformers import DebertaV2Config

sys.path.insert(0, str(spans.ROOT / "cli" / "src" / "verify"))
import reference

logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
FOLDER = spans.ROOT / "tests" / "models" / "gliner2"
EXPORT = spans.ROOT / "cli" / "src" / "export" / "export.py"
TEXTS = [
    "Ada Lovelace was born in London, in 1815", "Ask A.B@ex.org, @Ada or https://EX.org/a?b", "The crew of the ship is in Addis Ababa; who sleeps?",
    "東京は日本の首都です。 雨が降る", "👩‍🚀 on the ISS 🚀 with 👨‍👩‍👧!", "e\u0301te\u0301 nai\u0308ve Ame\u0301lie", "Москва — столица России.",
    "ทดสอบ กรุงเทพ नमस्ते दिल्ली", "İstanbul ve Iğdır", "x.",
]
ASKS = [(["person", "organization", "place", "date"], 0.5), (["ship", "東京"], 0.4), (["a b c", "person", "x-y"], 0.45)]
HARMS = ["violence_and_weapons", "non_violent_crime", "hate_and_discrimination", "pii_exposure", "benign"]
# Tasks as `Schema.from_dict` reads them; some go with labels of entities. The second ones are GLiGuard's. The members of objects are in alphabetical
# order, in which the tests read them.
CLASS_ASKS = [
    ([{"task": "sentiment", "labels": ["positive", "negative", "neutral"]}], None),
    ([{"task": "prompt_safety", "labels": ["safe", "unsafe"]}, {"task": "prompt_toxicity", "labels": HARMS, "multi_label": True, "cls_threshold": 0.52}], None),
    ([{"task": "topic", "labels": {"crew": "about people", "ship": "about the sea", "東京": "about a town"}, "multi_label": True, "top_k": 2,
       "cls_threshold": 0.4, "prompt": "what the text is about"},
      {"task": "tone", "labels": ["calm", "loud"], "class_act": "sigmoid", "examples": [["The sea is calm.", "calm"], ["A drum!", "loud"]]}], None),
    ([{"task": "sentiment", "labels": ["positive", "negative"]}, {"task": "language", "labels": ["en", "ja", "th"], "multi_label": True, "class_act": "softmax"}],
     ["person", "place"]),
]
# Structures and relations, in alphabetical order; some go with labels of entities and tasks.
SIZES = {"name": "size", "dtype": "str", "choices": ["small", "large", "Crew of 9"]}
RECORD_ASKS = [
    dict(structures={"ship": {"fields": [{"name": "name", "dtype": "str"}, {"name": "crew", "description": "who is on it"}, SIZES]}}, threshold=0.5),
    dict(relations=["lives_in", "東京"], threshold=0.45),
    dict(relations={"born_in": "where a life began", "sails": {"threshold": 0.4}}, threshold=0.5),
    dict(structures={"a": {"fields": [{"name": "tone", "choices": ["calm", "loud", "calm"], "threshold": 0.4}, {"name": "who", "threshold": 0.3},
                                      {"name": "size", "choices": ["large"]}]},
                     "z": {"fields": [{"name": "place", "dtype": "str", "threshold": 0.45}]}},
         relations=["lives_in"], labels=["person", "place"], classifications=CLASS_ASKS[0][0], threshold=0.5),
]
# The layer of which the exporter writes out the attention.
COUNTING = "count_lstm_v2"


def entities(model, text, labels, threshold):
    found = model.extract_entities(text, labels, threshold=threshold, include_confidence=True, include_spans=True)["entities"]
    return in_order(found, text, labels)


def in_order(found, text, labels):
    """The entities of a text in the order of their characters. The full stop that the library puts behind a text is none of them, and in none of them."""
    every = [
        dict(label=label, text=text[entity["start"]:entity["end"]], score=entity["confidence"], start=entity["start"], end=min(entity["end"], len(text)))
        for label in labels for entity in found.get(label, []) if entity["start"] < len(text)
    ]
    return sorted(every, key=lambda entity: (entity["start"], -entity["score"]))


def is_clear(model, text, labels, threshold):
    """Whether the scores of spans that meet, and each score and the threshold, differ: rounding would decide between them otherwise."""
    found = model.extract_entities(text, labels, threshold=threshold - 0.01, include_confidence=True, include_spans=True, overlap_policy="allow")["entities"]
    every = [entity for label in labels for entity in found.get(label, [])]
    meets = lambda one, other: one["start"] < other["end"] and other["start"] < one["end"]
    pairs = ((one["confidence"], other["confidence"]) for one, other in itertools.combinations(every, 2) if meets(one, other))
    beside = ((entity["confidence"], threshold) for entity in every)
    return all(abs(one - other) > 2e-5 for one, other in itertools.chain(pairs, beside))


def classified(model, text, tasks, labels):
    """The scores of all labels of a text, the labels that count, and its entities where there are labels of them."""
    entities = {"entities": labels} if labels else {}
    extract = lambda tasks: model.extract(text, Schema.from_dict({**entities, "classifications": tasks}), include_confidence=True, include_spans=True)
    # The library gives all scores of a task where several labels may count, and any score does.
    activation = lambda task: task.get("class_act") or ("sigmoid" if task.get("multi_label") else "softmax")
    every = lambda task: {**{name: value for name, value in task.items() if name != "top_k"}, "multi_label": True, "cls_threshold": 0.0, "class_act": activation(task)}
    all_of, found = extract([every(task) for task in tasks]), extract(tasks)
    scores = [label["confidence"] for task in tasks for label in all_of[task["task"]]]
    plain = lambda said: [plain(label) for label in said] if isinstance(said, list) else {"label": said["label"], "score": said["confidence"]}
    case = dict(classifications=tasks, text=text, scores=scores, classes={task["task"]: plain(found[task["task"]]) for task in tasks})
    return {**case, "labels": labels, "entities": in_order(found["entities"], text, labels)} if labels else case


def is_clear_choice(case):
    """Whether rounding decides neither which score of a task is the highest nor whether one reaches the threshold."""
    scores = iter(case["scores"])
    for task in case["classifications"]:
        own = [next(scores) for _ in task["labels"]] + [task.get("cls_threshold", 0.5)]
        if any(abs(one - other) < 2e-5 for one, other in itertools.combinations(own, 2)):
            return False
    return True


def extracted(model, text, ask, threshold, **options):
    schema = {name: ask[name] for name in ("structures", "relations", "classifications") if name in ask}
    if "labels" in ask:
        schema["entities"] = ask["labels"]
    return model.extract(text, Schema.from_dict(schema), threshold=threshold, include_confidence=True, include_spans=True, **options)


def recorded(model, text, ask, threshold):
    """The case of a text: its records in the form of the server's answer, and what else it is asked for."""
    found = extracted(model, text, ask, threshold)
    answer = reference.records_of(found, text, ask.get("structures", ()), ask.get("relations", ()))
    case = {**ask, "text": text, "records": answer}
    if "labels" in ask:
        case["entities"] = in_order(found["entities"], text, ask["labels"])
    if "classifications" in ask:
        plain = {task["task"]: found[task["task"]] for task in ask["classifications"]}
        case["classes"] = {task: dict(label=said["label"], score=said["confidence"]) for task, said in plain.items()}
    return case


def is_clear_record(model, text, ask):
    """Whether rounding decides neither what counts nor what stays: other thresholds give the same, and all scores of a field differ."""
    told = lambda by: json.dumps({**recorded(model, text, ask, ask["threshold"] + by), "threshold": 0})
    every = extracted(model, text, ask, ask["threshold"] - 0.01, overlap_policy="allow")

    def fields(of):
        if isinstance(of, list) and of and "confidence" in of[0]:
            yield sorted(one["confidence"] for one in of)
        for part in of.values() if isinstance(of, dict) else of if isinstance(of, list) else []:
            yield from fields(part)

    return told(-2e-5) == told(2e-5) and all(other - one > 2e-5 for scores in fields(every) for one, other in itertools.pairwise(scores))


def make(seed, base, encoder, work):
    """A model with random weights, and what it finds in the texts whose scores are clear."""
    torch.manual_seed(seed)
    shutil.rmtree(work, ignore_errors=True)
    tokenizer = spans.PreTrainedTokenizerFast.from_pretrained(base)
    config = ExtractorConfig(model_name=str(base), max_width=4, counting_layer=COUNTING)
    made = SpanExtractorModel(config, encoder_config=DebertaV2Config(**encoder), tokenizer=tokenizer)
    with torch.no_grad():
        # Random weights give scores that are all alike.
        for name, weights in made.named_parameters():
            if "classifier" in name and weights.dim() == 2:
                weights.mul_(3.0)
            elif ("span_rep" in name or "count_embed" in name) and weights.dim() == 2:
                weights.mul_(1.8)
            elif "attention" in name or "intermediate" in name or "output.dense" in name:
                weights.mul_(10.0)
        # Of few texts the model finds nothing at all.
        made.count_pred[-1].bias[1:4] += 0.5
    # The folder that it was made in is gone later, and nothing reads it.
    made.config.model_name = "gliner2"
    made.eval().save_pretrained(str(work))
    model = GLiNER2.from_pretrained(str(work)).eval()
    cases = []
    for labels, threshold in ASKS:
        for text in TEXTS:
            if is_clear(model, text, labels, threshold):
                found = entities(model, text, labels, threshold)
                cases.append(dict(labels=labels, threshold=threshold, flat_ner=True, multi_label=False, text=text, entities=found))
    every = (classified(model, text, tasks, labels) for tasks, labels in CLASS_ASKS for text in TEXTS if not labels or is_clear(model, text, labels, 0.5))
    records = [recorded(model, text, ask, ask["threshold"]) for ask in RECORD_ASKS for text in TEXTS if is_clear_record(model, text, ask)]
    return cases, [case for case in every if is_clear_choice(case)], records


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        base, work = Path(scratch) / "backbone", Path(scratch) / "model"
        # 10 tokens are added by the library.
        encoder = dict(
            model_type="deberta-v2", vocab_size=len(spans.tokenizer(base)) + 10, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=64, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"],
            type_vocab_size=0, position_biased_input=False, norm_rel_ebd="layer_norm", share_att_key=True,
        )
        DebertaV2Config(**encoder).save_pretrained(base)
        # The first model that finds something in many texts.
        for seed in range(200):
            cases, classes, records = make(seed, base, encoder, work)
            found = sum(len(case["entities"]) for case in cases)
            counts = [len(of) for case in records for kinds in case["records"].values() for of in kinds.values()]
            print(f"seed {seed}: {len(cases)} texts, {found} entities, {len(classes)} classified, {len(records)} with {sum(counts)} records", flush=True)
            if len(cases) >= 18 and 25 <= found <= 150 and cases[0]["entities"] and len(records) >= 18 and sum(counts) >= 30 and {0, 1, 2, 3} <= set(counts):
                break
        ask = dict(folder=str(work), task="gliner2", output=str(work))
        made = subprocess.run([sys.executable, EXPORT], input=json.dumps(ask), capture_output=True, text=True, check=True)
        if "by" not in json.loads(made.stdout):
            sys.exit(made.stdout)
        shutil.rmtree(FOLDER, ignore_errors=True)
        (FOLDER / "encoder_config").mkdir(parents=True)
        for name in ["model.onnx", "config.json", "encoder_config/config.json", "tokenizer.json", "tokenizer_config.json"]:
            shutil.copy(work / name, FOLDER / name)
    for name, expected in (("expected.json", cases), ("classes.json", classes), ("records.json", records)):
        (FOLDER / name).write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
