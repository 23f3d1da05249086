#!/usr/bin/env python3
"""Makes tests/models/spans: a small GLiNER model with random weights, and what its library finds in texts.

    pip install gliner==0.2.29 onnx
    python tests/models/spans.py
"""

import json
import os
import shutil
import tempfile
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
warnings.simplefilter("ignore")

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import DebertaV2Config, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "tests" / "models" / "spans"
CORPUS = (ROOT / "bench" / "texts.txt").read_text(encoding="utf-8").splitlines()[:400]
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
TEXTS = [
    "Ada Lovelace was born in London, in 1815.", "The crew of the state-of-the-art ship is in Addis Ababa; the captain sleeps.",
    "東京は日本の首都です。 雨が降る", "👩‍🚀 on the ISS 🚀 with 👨‍👩‍👧", "e\u0301te\u0301 nai\u0308ve Ame\u0301lie", "Москва — столица России",
    "ทดสอบ กรุงเทพ नमस्ते दिल्ली", "a\u200bb \u00a0 c\u2028d ½ Ⅷ", " \n ", "x", "",
]
ASKS = [
    dict(labels=["person", "organization", "place", "date"], threshold=0.5, flat_ner=True, multi_label=False),
    dict(labels=["ship", "東京"], threshold=0.4, flat_ner=False, multi_label=False),
    dict(labels=["a b c", "person", "x-y"], threshold=0.45, flat_ner=False, multi_label=True),
]


def tokenizer(folder):
    model = Tokenizer(models.Unigram())
    model.normalizer = normalizers.NFKC()
    model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    model.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False)
    model.train_from_iterator(CORPUS, trainer)
    model.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    named = dict(pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", mask_token="[MASK]")
    fast = PreTrainedTokenizerFast(tokenizer_object=model, **named)
    fast.save_pretrained(folder)
    return fast


def is_clear(model, text, ask):
    """Whether no two scores of the text, nor a score and the threshold, are nearly alike: rounding would decide between them."""
    rivals = model.predict_entities(text, ask["labels"], threshold=ask["threshold"] - 0.01, flat_ner=False, multi_label=True)
    scores = sorted([rival["score"] for rival in rivals] + [ask["threshold"]])
    return all(more - less > 2e-5 for less, more in zip(scores, scores[1:]))


def make(seed, base, encoder):
    """A model with random weights, and what it finds in the texts whose scores are clear."""
    from gliner import GLiNER, GLiNERConfig

    torch.manual_seed(seed)
    config = GLiNERConfig(
        model_name=str(base), encoder_config=dict(encoder), hidden_size=8, max_width=4, max_len=24, dropout=0.0, num_rnn_layers=1, name="spans"
    )
    model = GLiNER.from_config(config, backbone_from_pretrained=False)
    with torch.no_grad():
        # Random weights give scores that are all alike.
        for name, weights in model.model.named_parameters():
            if "prompt_rep" in name or "span_rep" in name:
                weights.mul_(4.0)
            elif "token_rep" in name and weights.dim() == 2:
                weights.mul_(4.0)
    model.eval()
    clear = [(ask, text) for ask in ASKS for text in TEXTS if is_clear(model, text, ask)]
    return model, [{**ask, "text": text, "entities": model.predict_entities(text, **ask)} for ask, text in clear]


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        base = Path(work) / "backbone"
        encoder = dict(
            model_type="deberta-v2", vocab_size=len(tokenizer(base)), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16, max_position_embeddings=64, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"],
            type_vocab_size=0, position_biased_input=False, norm_rel_ebd="layer_norm", share_att_key=True,
        )
        DebertaV2Config(**encoder).save_pretrained(base)
        # The first model that finds something in many texts.
        for seed in range(100):
            model, cases = make(seed, base, encoder)
            found = sum(len(case["entities"]) for case in cases)
            print(f"seed {seed}: {len(cases)} texts, {found} entities", flush=True)
            if len(cases) >= 20 and 25 <= found <= 120 and cases[0]["entities"]:
                break
        model.config.model_name = "spans"
        model.export_to_onnx(work)
        FOLDER.mkdir(exist_ok=True)
        for name in ["model.onnx", "gliner_config.json", "tokenizer.json", "tokenizer_config.json"]:
            shutil.copy(Path(work) / name, FOLDER / name)
    (FOLDER / "expected.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
