"""Model folders of encoder-decoder models, which generate texts: small, with random weights, exported as an encoder and a decoder without a
cache."""

import contextlib
import io
import json

import sentencepiece
import torch
import transformers
from transformers.modeling_outputs import BaseModelOutput

from folders import CORPUS, LONGEST, Folder, eager, folder, unigram

ENCODER = ["input_ids", "attention_mask"]
DECODER = ["encoder_attention_mask", "input_ids", "encoder_hidden_states"]


class Encoder(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, input_ids, attention_mask):
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class Decoder(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, mask, input_ids, states):
        encoded = BaseModelOutput(last_hidden_state=states)
        return self.model(attention_mask=mask, decoder_input_ids=input_ids, encoder_outputs=encoded, use_cache=False).logits


def save(path, model, tokenizer, **generation):
    """Writes the folder; `generation` goes into generation_config.json."""
    # Larger weights, so that answers do not repeat one token.
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "position" not in name:
                weight.normal_(std=0.3)
    model = model.eval()
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(path)
    if tokenizer:
        tokenizer.save_pretrained(path)
    (path / "onnx").mkdir(exist_ok=True)
    ids, mask, width = torch.ones(2, 7, dtype=torch.int64), torch.ones(2, 7, dtype=torch.int64), model.config.hidden_size
    written, read = {0: "batch", 1: "target"}, {0: "batch", 1: "source"}
    parts = [
        ("encoder_model", Encoder(model), (ids, mask), ENCODER, "last_hidden_state", dict.fromkeys([*ENCODER, "last_hidden_state"], read)),
        ("decoder_model", Decoder(model), (mask, ids[:, :3], torch.rand(2, 7, width)), DECODER, "logits",
         {"encoder_attention_mask": read, "input_ids": written, "encoder_hidden_states": read, "logits": written}),
    ]
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        for name, graph, example, inputs, output, axes in parts:
            torch.onnx.export(
                graph.eval(), example, str(path / "onnx" / f"{name}.onnx"), input_names=inputs, output_names=[output], dynamic_axes=axes,
                dynamo=False, opset_version=17,
            )
    return Folder("generate")


def t5(tokenizer):
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, pad_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )
    return transformers.T5ForConditionalGeneration(eager(config))


@folder
def generate_t5_without_lengths(path):
    """No file says how long an answer may be: the library's default is 20 new tokens."""
    tokenizer = unigram("$A </s>", [("</s>", 2)])
    return save(path, t5(tokenizer), tokenizer)


@folder
def generate_bart_by_beams(path):
    tokenizer = unigram("<s> $A </s>", [("<s>", 0), ("</s>", 2)])
    config = transformers.BartConfig(
        vocab_size=len(tokenizer), d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=LONGEST, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=2, forced_eos_token_id=None,
    )
    model = transformers.BartForConditionalGeneration(eager(config))
    return save(path, model, tokenizer, num_beams=2, max_length=12, no_repeat_ngram_size=2, early_stopping=True, forced_bos_token_id=0)


@folder
def generate_marian_by_two_vocabularies(path):
    """Two SentencePiece models and no tokenizer.json, as translators between two languages have them."""
    (path / "corpus.txt").write_text("\n".join(CORPUS), encoding="utf-8")
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            input=str(path / "corpus.txt"), model_prefix=str(path / side), vocab_size=300, hard_vocab_limit=False, minloglevel=2, num_threads=1,
            character_coverage=1.0,
        )
        (path / f"{side}.model").rename(path / f"{side}.spm")
        (path / f"{side}.vocab").unlink()
    (path / "corpus.txt").unlink()
    pieces = sentencepiece.SentencePieceProcessor(str(path / "source.spm"))
    words = ["</s>", "<unk>", *(pieces.id_to_piece(i) for i in range(len(pieces)) if pieces.id_to_piece(i) not in ("<s>", "</s>", "<unk>")), "<pad>"]
    (path / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}, ensure_ascii=False), encoding="utf-8")
    tokenizer = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "sw", "model_max_length": LONGEST, "separate_vocabs": False}
    pad = len(words) - 1
    config = transformers.MarianConfig(
        vocab_size=len(words), d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64,
        decoder_ffn_dim=64, max_position_embeddings=LONGEST, pad_token_id=pad, eos_token_id=0, bos_token_id=0, decoder_start_token_id=pad,
        forced_eos_token_id=0, scale_embedding=True,
    )
    model = transformers.MarianMTModel(eager(config))
    known = save(path, model, None, num_beams=2, max_length=10, bad_words_ids=[[pad]], forced_eos_token_id=0)
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return known


@folder
def generate_m2m100_without_a_target(path):
    """A generic tokenizer class that names no target language: the generation configuration has its token."""
    tokenizer = unigram("</s> $A </s>", [("</s>", 2)])
    config = transformers.M2M100Config(
        vocab_size=len(tokenizer), d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=LONGEST, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=2,
    )
    model = transformers.M2M100ForConditionalGeneration(eager(config))
    return save(path, model, tokenizer, max_length=10, forced_bos_token_id=9)


@folder
def generate_by_sampling(path):
    """Answers are drawn by chance, so that there is nothing to compare."""
    tokenizer = unigram("$A </s>", [("</s>", 2)])
    return save(path, t5(tokenizer), tokenizer, do_sample=True, top_k=5, max_new_tokens=8)
