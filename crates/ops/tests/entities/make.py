#!/usr/bin/env python3
"""Makes the tokenizers here, and records the results of transformers' TokenClassificationPipeline for made-up logits.

    pip install torch transformers
    python services/postprocess/tests/entities/make.py
"""

import json
import random
import warnings
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForTokenClassification, PreTrainedTokenizerFast, TokenClassificationPipeline
from transformers.pipelines.token_classification import AggregationStrategy

HERE = Path(__file__).parent
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]
CORPUS = [
    "Angela Merkel met Emmanuel Macron in Paris on Monday.",
    "The New York office of Microsoft hired Jean-Baptiste Müller!",
    "Montréal, São Paulo and 東京 are cities; Wolfgang lives in Tübingen.",
]
TEXTS = CORPUS + ["", "   ", "Zürich 🎉 Ωmega", "a b  c", "Merkel"]


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    # The alphabet lacks some letters, so that texts contain unknown words.
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=special, limit_alphabet=40)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, {"unk_token": "[UNK]", "pad_token": "[PAD]"}


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "<pad>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, {"pad_token": "<pad>"}


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=80, special_tokens=special, unk_token="<unk>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, {"unk_token": "<unk>", "pad_token": "<pad>"}


def logits_of(tokens, generator):
    """Logits that favour one class clearly for some tokens and hardly for others."""
    logits = generator.normal(size=(tokens, len(LABELS)))
    favoured = generator.integers(len(LABELS), size=tokens)
    logits[np.arange(tokens), favoured] += generator.choice([0.0, 3.0], size=tokens)
    return np.round(logits, 2).astype(np.float32)


def record(name, tokenizer, config):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"}))
    fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(str(folder / "tokenizer.json")), **config)
    size = BertConfig(
        vocab_size=len(fast), hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4,
        id2label=dict(enumerate(LABELS)), label2id={label: i for i, label in enumerate(LABELS)},
    )
    pipeline = TokenClassificationPipeline(model=BertForTokenClassification(size), tokenizer=fast)
    generator = np.random.default_rng(7)
    cases = []
    for text in TEXTS:
        encoded = fast(text, return_offsets_mapping=True, return_special_tokens_mask=True)
        logits = logits_of(len(encoded["input_ids"]), generator)
        output = {
            "logits": torch.tensor(logits)[None],
            "input_ids": torch.tensor([encoded["input_ids"]]),
            "offset_mapping": torch.tensor([encoded["offset_mapping"]]),
            "special_tokens_mask": torch.tensor([encoded["special_tokens_mask"]]),
            "sentence": text,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            entities = {s.value: pipeline.postprocess([output], aggregation_strategy=s) for s in AggregationStrategy}
        for found in entities.values():
            for entity in found:
                entity["score"] = round(float(entity["score"]), 6)
        cases.append({
            "text": text, "input_ids": encoded["input_ids"], "offsets": encoded["offset_mapping"],
            "special_tokens_mask": encoded["special_tokens_mask"],
            "logits": [[round(float(v), 2) for v in row] for row in logits], "entities": entities,
        })
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (folder / "golden.json").write_text(f'{{"labels": {json.dumps(LABELS)}, "cases": [\n{lines}\n]}}\n')


random.seed(1)
for make in [wordpiece, byte_level, unigram]:
    record(make.__name__.replace("_", "-"), *make())
