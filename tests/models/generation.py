#!/usr/bin/env python3
"""Writes the small encoder-decoder models for the tests of backend `generation`, and the answers of `transformers` for them.

Run it after a change here and commit what it writes; the tests themselves generate nothing. It needs an environment of
its own:

    python3 -m venv .venv
    .venv/bin/pip install -r tests/models/requirements-generation.txt
    .venv/bin/python tests/models/generation.py

For each architecture it creates a model of the real class with random weights, exports it in the layout of Hugging Face's
ONNX export, and stores the answers of the PyTorch model's `generate()`: greedy and with four beams for 200 inputs, and
samples of every option. The quantised model's answers come from the same loop of `transformers` over ONNX Runtime.

With a directory as its argument it writes a larger model there, for `bench/generation.py`, and nothing else.

An input whose answer changes when the model computes in double precision is left out: it would test rounding. Several
architectures share graphs where their classes are the same (NLLB's is M2M100's).
"""

import json
import random
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import onnx
import torch
import transformers
from onnxruntime.quantization import QuantType, quantize_dynamic
from optimum.exporters.onnx import onnx_export_from_model
from optimum.onnxruntime import ORTModelForSeq2SeqLM
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.generation import logits_process

torch.set_num_threads(1)

OUT = Path(__file__).resolve().parent / "generation"
VOCABULARY = 96
LANGUAGES = [90, 91, 92]
INPUTS = 200
QUANTISED = 60
SAMPLES = 6
MAX_LENGTH = 24
FILES = ["encoder_model", "decoder_model", "decoder_with_past_model", "decoder_model_merged"]

COMMON = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    # With an output tied to random embeddings, a model would repeat its last token for ever.
    "tie_word_embeddings": False,
}

# Class, configuration, generation configuration as in published models, and the seed of the weights.
MODELS = {
    "m2m100": (
        M2M100ForConditionalGeneration,
        M2M100Config(**COMMON, init_std=0.9),
        {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "max_length": MAX_LENGTH},
        3,
    ),
    "marian": (
        MarianMTModel,
        MarianConfig(**COMMON, init_std=0.6, scale_embedding=True, activation_function="swish", pad_token_id=95, decoder_start_token_id=95, eos_token_id=0),
        {
            "bos_token_id": 0,
            "pad_token_id": 95,
            "eos_token_id": 0,
            "decoder_start_token_id": 95,
            "forced_eos_token_id": 0,
            "bad_words_ids": [[95]],
            "max_length": MAX_LENGTH,
        },
        9,
    ),
    "t5": (
        T5ForConditionalGeneration,
        T5Config(
            d_model=16,
            d_kv=8,
            d_ff=16,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=2,
            vocab_size=VOCABULARY,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=16,
            initializer_factor=4.0,
            decoder_start_token_id=0,
            tie_word_embeddings=False,
        ),
        {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "max_length": MAX_LENGTH},
        9,
    ),
    "bart": (
        BartForConditionalGeneration,
        BartConfig(**COMMON, init_std=0.9),
        {
            "bos_token_id": 0,
            "pad_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
            "forced_bos_token_id": 0,
            "forced_eos_token_id": 2,
            "no_repeat_ngram_size": 3,
            "length_penalty": 2.0,
            "early_stopping": True,
            "max_length": MAX_LENGTH,
        },
        11,
    ),
    "mbart": (
        MBartForConditionalGeneration,
        MBartConfig(**COMMON, init_std=0.9, scale_embedding=True),
        {
            "bos_token_id": 0,
            "pad_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": 2,
            "early_stopping": True,
            "max_length": MAX_LENGTH,
        },
        6,
    ),
}
# The same graphs under another model's generation configuration.
SHARED = {
    "nllb": (
        "m2m100",
        {
            "bos_token_id": 0,
            "pad_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
            "max_length": 60,
        },
    )
}
MULTILINGUAL = {"m2m100", "mbart", "nllb"}

# Every option, in addition to the model's own generation configuration.
OPTIONS = [
    {"max_new_tokens": 5},
    {"max_length": 7},
    {"min_length": 9},
    {"min_new_tokens": 9},
    {"repetition_penalty": 1.7},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"bad_words_ids": [[5], [2], [7, 8]]},
    {"suppress_tokens": list(range(4, 40))},
    {"begin_suppress_tokens": list(range(3, 60))},
    {"forced_bos_token_id": 17},
    {"forced_eos_token_id": 2, "max_length": 6},
    {"eos_token_id": [2, 30, 31, 32, 33, 34, 35, 36]},
    {"num_beams": 4, "length_penalty": 0.0},
    {"num_beams": 4, "length_penalty": 2.5},
    {"num_beams": 4, "length_penalty": -1.0},
    {"num_beams": 3, "early_stopping": True},
    {"num_beams": 3, "early_stopping": False},
    {"num_beams": 3, "early_stopping": "never"},
    {"num_beams": 3, "early_stopping": "never", "length_penalty": -0.5},
    {"num_beams": 4, "num_return_sequences": 3},
    {"num_beams": 5, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4},
    {"num_beams": 2, "eos_token_id": [2, 30, 31, 32, 33, 34, 35, 36], "num_return_sequences": 2},
    {"num_beams": 4, "forced_bos_token_id": 17, "suppress_tokens": [4, 5, 6], "max_new_tokens": 8},
    {"num_beams": 4, "bad_words_ids": [[9, 10], [11]], "renormalize_logits": True},
]


def model_of(name):
    """The PyTorch model, the same at each call."""
    kind, config, generation, seed = MODELS[name]
    transformers.set_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        # One of many tokens rarely ends a sentence, so its logits are stretched, and lengths differ.
        model.lm_head.weight[generation["eos_token_id"]] *= 1.5
        # With random weights, the last token would decide the next one, so the text and earlier tokens get more weight.
        for key, weight in model.named_parameters():
            if "decoder" in key and any(part in key for part in ("attn.out_proj", "Attention.o.", "fc2", "DenseReluDense.wo")):
                weight *= 3
            if "encoder_attn.out_proj" in key:
                weight *= 3
            if key == "decoder.embed_tokens.weight" or key == "model.decoder.embed_tokens.weight":
                weight *= 0.3
    model.generation_config = GenerationConfig(**generation)
    for key in ("decoder_start_token_id", "forced_eos_token_id", "forced_bos_token_id"):
        if key in generation and hasattr(config, key):
            setattr(config, key, None)
    config.decoder_start_token_id = generation["decoder_start_token_id"]
    return model


def inputs(name, count):
    """Ids of `count` texts, without padding, with the end that the models' tokenizers add."""
    choose = random.Random(f"inputs of {name}")
    end = {"t5": 1, "marian": 0}.get(name.split()[0], 2)
    return [[choose.randrange(4, 90) for _ in range(choose.randint(1, 11))] + [end] for _ in range(count)]


def generate(model, texts, **options):
    """The answers of `generate()` for texts of one batch: sequences up to their end, and beams' scores."""
    generation = model.generation_config
    longest = max(map(len, texts))
    ids = torch.tensor([text + [generation.pad_token_id] * (longest - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        answer = model.generate(
            input_ids=ids, attention_mask=mask, return_dict_in_generate=True, output_scores=True, **options
        )
    # After the end there is padding, which `generate()` does not always take from `pad_token_id`.
    ends = options.get("eos_token_id", generation.eos_token_id)
    ends = ends if isinstance(ends, list) else [ends]
    sequences = []
    for sequence in answer.sequences.tolist():
        stop = next((i for i in range(1, len(sequence)) if sequence[i] in ends), len(sequence) - 1)
        sequences.append(sequence[: stop + 1])
    scores = getattr(answer, "sequences_scores", None)
    returned = len(sequences) // len(texts)
    rows = range(0, len(sequences), returned)
    scores = [[None] * returned] * len(texts) if scores is None else scores.reshape(-1, returned).tolist()
    return [{"sequences": sequences[row : row + returned], "scores": score} for row, score in zip(rows, scores)]


def firm(model, exact, texts, **options):
    """The answer for each text, or None if it depends on rounding."""
    answers = generate(model, texts, **options)
    others = [generate(exact, texts, **options), generate(model, texts, use_cache=False, **options)]
    same = [all(answer["sequences"] == other["sequences"] for other in every) for answer, *every in zip(answers, *others)]
    if options.get("num_beams", 1) > 1:
        # The order of two sequences with the same score also depends on rounding.
        returned = max(2, options.get("num_return_sequences", 1))
        ranked = generate(exact, texts, **options | {"num_return_sequences": returned})
        for index, rank in enumerate(ranked):
            scores = rank["scores"]
            same[index] &= all(a - b > 1e-4 * abs(a) for a, b in zip(scores, scores[1:]))
    return [answer if equal else None for answer, equal in zip(answers, same)]


def golden(name, graphs, generation):
    model, exact = model_of(graphs), model_of(graphs).double()
    for each in (model, exact):
        each.generation_config = GenerationConfig(**generation)
    languages = LANGUAGES if name in MULTILINGUAL else [None]
    cases = []
    for language in languages:
        options = {} if language is None else {"forced_bos_token_id": language}
        if name == "nllb":
            options["max_new_tokens"] = 16
        texts = inputs(f"{name} {language}", 2 * INPUTS // len(languages))
        greedy, beams = (firm(model, exact, texts, num_beams=beams, **options) for beams in (1, 4))
        cases += [
            {"input": text, "greedy": one["sequences"][0], "beams": four["sequences"][0]}
            | ({} if language is None else {"forced_bos_token_id": language})
            for text, one, four in zip(texts, greedy, beams)
            if one and four
        ][: -(-INPUTS // len(languages))]
    cases = cases[:INPUTS]
    assert len(cases) == INPUTS, (name, len(cases))
    options = []
    for each in OPTIONS if name in ("m2m100", "bart", "t5") else []:
        texts = inputs(f"{name} {json.dumps(each)}", 3 * SAMPLES)
        samples = [{"input": text} | answer for text, answer in zip(texts, firm(model, exact, texts, **each)) if answer]
        assert len(samples) >= SAMPLES, (name, each)
        options.append({"options": each, "samples": samples[:SAMPLES]})
    lengths = sorted(len(case["greedy"]) for case in cases)
    print(f"{name}: {len(cases)} cases, lengths {lengths[0]}..{lengths[-1]}, median {lengths[len(cases) // 2]},", end=" ")
    print(f"{len({tuple(case['greedy']) for case in cases})} different answers,", end=" ")
    print(f"{len({t for case in cases for t in case['greedy']})} tokens,", end=" ")
    print("beams differ in", sum(case["greedy"] != case["beams"] for case in cases), flush=True)
    return {"cases": cases, "options": options}


def strip(path):
    """Removes data that runtimes do not need, which is a large part of so small a file."""
    model = onnx.load(path)

    def clean(graph):
        del graph.value_info[:]
        graph.doc_string = ""
        for node in graph.node:
            node.name = node.doc_string = ""
            del node.metadata_props[:]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    clean(attribute.g)

    clean(model.graph)
    onnx.save(model, path)


def export(name, directory, model=None):
    model = model or model_of(name)
    with tempfile.TemporaryDirectory() as scratch:
        onnx_export_from_model(model, Path(scratch), task="text2text-generation-with-past", opset=17, do_validation=False)
        directory.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            shutil.copy(Path(scratch) / f"{file}.onnx", directory)
            strip(directory / f"{file}.onnx")
    config = model.config.to_diff_dict()
    (directory / "config.json").write_text(json.dumps(config | {"model_type": model.config.model_type}, indent=1) + "\n")
    (directory / "generation_config.json").write_text(json.dumps(MODELS[name][2], indent=1) + "\n")


def quantise(directory):
    """Quantised files beside the others, with the names of Hugging Face's tools, and their answers."""
    for file in FILES[:3]:
        # Seven bits, because sums of eight overflow on processors without VNNI, and answers would depend on the
        # machine.
        quantize_dynamic(
            directory / f"{file}.onnx",
            directory / f"{file}_quantized.onnx",
            weight_type=QuantType.QInt8,
            reduce_range=True,
            extra_options={"DisableShapeInference": True},
        )
        strip(directory / f"{file}_quantized.onnx")
    with tempfile.TemporaryDirectory() as scratch:
        for file in [*(f"{file}_quantized.onnx" for file in FILES[:3]), "config.json", "generation_config.json"]:
            shutil.copy(directory / file, scratch)
        model = ORTModelForSeq2SeqLM.from_pretrained(
            scratch,
            encoder_file_name="encoder_model_quantized.onnx",
            decoder_file_name="decoder_model_quantized.onnx",
            decoder_with_past_file_name="decoder_with_past_model_quantized.onnx",
            use_cache=True,
        )
        answer = lambda text, beams: generate(model, [text], num_beams=beams, forced_bos_token_id=LANGUAGES[0])
        cases = [
            {"input": text, "greedy": answer(text, 1)[0]["sequences"][0], "beams": answer(text, 4)[0]["sequences"][0]}
            | {"forced_bos_token_id": LANGUAGES[0]}
            for text in inputs("quantised", QUANTISED)
        ]
        return {"cases": cases, "options": []}


def warpers():
    """The ids that remain after each way of narrowing a distribution."""
    torch.manual_seed(1)
    makers = {
        "temperature": lambda v, n: logits_process.TemperatureLogitsWarper(v),
        "top_k": lambda v, n: logits_process.TopKLogitsWarper(v, min_tokens_to_keep=n),
        "top_p": lambda v, n: logits_process.TopPLogitsWarper(v, min_tokens_to_keep=n),
        "min_p": lambda v, n: logits_process.MinPLogitsWarper(v, min_tokens_to_keep=n),
    }
    cases = []
    for settings in [
        {"temperature": 0.7},
        {"temperature": 1.9},
        {"top_k": 1},
        {"top_k": 5},
        {"top_k": 1000},
        {"top_p": 0.05},
        {"top_p": 0.5},
        {"top_p": 0.95},
        {"min_p": 0.1},
        {"temperature": 0.8, "top_k": 10, "top_p": 0.9},
        {"temperature": 1.5, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    ]:
        for keep in (1, 2):
            scores = torch.randn(1, 32) * 2
            processed = scores
            for key, value in settings.items():
                processed = makers[key](value, keep)(None, processed)
            probabilities = [round(p, 6) for p in torch.softmax(processed, -1)[0].tolist()]
            cases.append({"settings": settings, "keep": keep, "scores": scores[0].tolist(), "probabilities": probabilities})
    return cases


def write(path, value):
    path.write_text(json.dumps(value, separators=(",", ":")) + "\n")


def export_for_bench(directory):
    """A model whose weights do not fit into caches, like those of real ones; its answers do not matter."""
    torch.manual_seed(0)
    layers = {"encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8, "decoder_attention_heads": 8}
    sizes = {"d_model": 512, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "vocab_size": 16000}
    model = M2M100ForConditionalGeneration(M2M100Config(**layers, **sizes, max_position_embeddings=256)).eval()
    model.config.decoder_start_token_id = 2
    export("m2m100", directory, model)


def main():
    if len(sys.argv) > 1:
        return export_for_bench(Path(sys.argv[1]))
    for name in MODELS:
        export(name, OUT / name)
        write(OUT / name / "golden.json", golden(name, name, MODELS[name][2]))
    for name, (graphs, generation) in SHARED.items():
        (OUT / name).mkdir(exist_ok=True)
        (OUT / name / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
        write(OUT / name / "golden.json", golden(name, graphs, generation))
    write(OUT / "m2m100" / "golden_quantized.json", quantise(OUT / "m2m100"))
    write(OUT / "warpers.json", warpers())
    for file in sorted(OUT.rglob("*.onnx")):
        assert file.stat().st_size < 200_000, (file, file.stat().st_size)


if __name__ == "__main__":
    main()
