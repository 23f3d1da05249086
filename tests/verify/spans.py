"""Model folders of GLiNER and GLiNER2, which find entities of labels of the request, and those of GLiNER2 classify by such labels: small, with random
weights, each with the graph that `trireme export` makes."""

import contextlib
import io
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import DebertaV2Config, PreTrainedTokenizerFast

from folders import CORPUS, Folder, folder

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "cli" / "src" / "export"))
import export  # noqa: E402

# Rows of more words are cut, as is asked for in comparisons.
WORDS = 48
SPECIAL = dict(pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", mask_token="[MASK]")


def backbone(path, added):
    """The configuration of a small DeBERTa with its tokenizer, and how many tokens the library adds."""
    model = Tokenizer(models.Unigram())
    model.normalizer = normalizers.NFKC()
    model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    model.decoder = decoders.Metaspace(prepend_scheme="always")
    model.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=400, special_tokens=list(SPECIAL.values()), unk_token="[UNK]"))
    model.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, **SPECIAL)
    tokenizer.save_pretrained(path)
    encoder = dict(
        model_type="deberta-v2", vocab_size=len(tokenizer) + added, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"], type_vocab_size=0,
        position_biased_input=False, norm_rel_ebd="layer_norm", share_att_key=True,
    )
    DebertaV2Config(**encoder).save_pretrained(path)
    return encoder, tokenizer


def exported(path, task):
    with contextlib.redirect_stdout(io.StringIO()):
        export.export(dict(folder=str(path), task=task, output=str(path)))


def of_gliner2(path, counting):
    from gliner2.configuration import ExtractorConfig
    from gliner2.models.span import SpanExtractorModel

    with tempfile.TemporaryDirectory() as base:
        encoder, tokenizer = backbone(base, 10)
        config = ExtractorConfig(model_name=base, max_width=4, max_len=WORDS, counting_layer=counting)
        model = SpanExtractorModel(config, encoder_config=DebertaV2Config(**encoder), tokenizer=tokenizer)
    with torch.no_grad():
        # Random weights give scores that are all alike.
        for name, weights in model.named_parameters():
            if any(part in name for part in ("attention", "intermediate", "output.dense")):
                weights.mul_(10.0)
            elif weights.dim() > 1 and any(part in name for part in ("span_rep", "count_embed", "classifier")):
                weights.mul_(2.2 if weights.dim() == 2 else 4.0)
        # In each text entities are found, and one to three records.
        model.count_pred[-1].bias[1:4] += 5
    model.config.model_name = path.name
    model.eval().save_pretrained(str(path))
    exported(path, "gliner2")
    return Folder("token_classify", more_tasks=["zero_shot", "extract"])


@folder
def gliner(path):
    from gliner import GLiNER, GLiNERConfig

    with tempfile.TemporaryDirectory() as base:
        encoder, _ = backbone(base, 0)
        config = GLiNERConfig(
            model_name=base, encoder_config=encoder, hidden_size=8, max_width=4, max_len=WORDS, dropout=0.0, num_rnn_layers=1, name="gliner"
        )
        # Many models find nothing at all, or everything.
        for seed in range(100):
            torch.manual_seed(seed)
            model = GLiNER.from_config(config, backbone_from_pretrained=False).eval()
            with torch.no_grad():
                for name, weights in model.model.named_parameters():
                    if "prompt_rep" in name or "span_rep" in name or ("token_rep" in name and weights.dim() == 2):
                        weights.mul_(4.0)
            found = [len(model.predict_entities(text, ["person", "organization", "place", "date"])) for text in CORPUS[:8]]
            if 0 < min(found) and max(found) < 40:
                break
        model.save_pretrained(str(path))
        exported(path, "gliner")
    return Folder("token_classify")


@folder
def gliner2(path):
    return of_gliner2(path, "count_lstm_v2")


@folder
def gliner2_with_count_lstm(path):
    return of_gliner2(path, "count_lstm")


@folder
def gliner2_with_count_lstm_moe(path):
    return of_gliner2(path, "count_lstm_moe")
