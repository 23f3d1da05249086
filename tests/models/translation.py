"""Trains the translation model of examples/translation and exports it: number words, English to Swahili and back.

    pip install torch transformers sentencepiece onnx onnxscript onnxruntime
    python translation.py train WORK        # some minutes on two cores; WORK gets the PyTorch model
    python translation.py export WORK       # writes the files under examples/translation

A small M2M100ForConditionalGeneration (2 + 2 layers of width 64) with a SentencePiece model of its own. It learns 8000 of
the numbers from 0 to 9999; the other 2000 are never shown to it. `export` writes what Hugging Face's ONNX export does:
encoder_model.onnx, decoder_model.onnx, decoder_with_past_model.onnx and the configurations, and prints how many of the
2000 the model translates right, by transformers' greedy `generate` and by the exported files.
"""

import json
import pathlib
import random
import shutil
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "translation"
STEPS = 6000
BATCH = 64
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
PAD, EOS = 1, 2
LAYERS = 2
# The languages of M2M100, in the order of their ids: the tokens `__en__` and so on come after those of vocab.json.
LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id ig "
    "ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so "
    "sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
).split()
MADE_UP_WORDS = 8

ONES_EN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS_EN = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
ONES_SW = "sifuri moja mbili tatu nne tano sita saba nane tisa".split()
TENS_SW = "sifuri kumi ishirini thelathini arobaini hamsini sitini sabini themanini tisini".split()


def english(n):
    """1234: one thousand two hundred and thirty-four."""
    if n < 20:
        return ONES_EN[n]
    if n < 100:
        return TENS_EN[n // 10] + ("-" + ONES_EN[n % 10] if n % 10 else "")
    if n < 1000:
        return ONES_EN[n // 100] + " hundred" + (" and " + english(n % 100) if n % 100 else "")
    rest = n % 1000
    return ONES_EN[n // 1000] + " thousand" + (("" if rest >= 100 else " and") + " " + english(rest) if rest else "")


def swahili(n):
    """1234: elfu moja mia mbili thelathini na nne. The last part is joined by `na`."""
    if n == 0:
        return ONES_SW[0]
    parts = []
    if n >= 1000:
        parts.append("elfu " + ONES_SW[n // 1000])
    if n % 1000 >= 100:
        parts.append("mia " + ONES_SW[n % 1000 // 100])
    if n % 100 >= 10:
        parts.append(TENS_SW[n % 100 // 10])
    if n % 10:
        parts.append(ONES_SW[n % 10])
    return parts[0] if len(parts) == 1 else " ".join(parts[:-1]) + " na " + parts[-1]


def variant(text, language, rng):
    """Another way to write the same number: without `and` or the hyphen, with a capital letter."""
    if language == "en":
        if rng.random() < 0.2:
            text = text.replace(" and ", " ")
        if rng.random() < 0.2:
            text = text.replace("-", " ")
    return text[0].upper() + text[1:] if rng.random() < 0.2 else text


def split_numbers():
    numbers = list(range(10000))
    random.Random(7).shuffle(numbers)
    # Every word must occur, so numbers below 100 are always learnt.
    held_out = sorted([n for n in numbers if n >= 100][:2000])
    return sorted(set(numbers) - set(held_out)), held_out


def make_tokenizer(work):
    """SentencePiece by byte pairs, and vocab.json: the files of M2M100's tokenizer."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    rng = random.Random(1)
    lines = [f(n) for n in range(10000) for f in (english, swahili)]
    lines += [variant(english(n), "en", rng) for n in range(10000)] + [swahili(n).capitalize() for n in range(2000)]
    (work / "corpus.txt").write_text("\n".join(lines) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(work / "corpus.txt"), model_prefix=str(work / "sentencepiece.bpe"), model_type="bpe", vocab_size=224,
        character_coverage=1.0, bos_id=0, pad_id=1, eos_id=2, unk_id=3, num_threads=1, minloglevel=2,
        required_chars="abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?'-",
    )
    # The file contains paths of the machine that created it.
    path = work / "sentencepiece.bpe.model"
    model = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    model.trainer_spec.ClearField("input")
    model.trainer_spec.ClearField("model_prefix")
    path.write_bytes(model.SerializeToString(deterministic=True))
    pieces = sentencepiece.SentencePieceProcessor(str(work / "sentencepiece.bpe.model"))
    vocabulary = SPECIAL + [pieces.id_to_piece(i) for i in range(len(pieces)) if pieces.id_to_piece(i) not in SPECIAL]
    (work / "vocab.json").write_text(json.dumps({p: i for i, p in enumerate(vocabulary)}, ensure_ascii=False, indent=0) + "\n")
    config = {
        "tokenizer_class": "M2M100Tokenizer", "language_codes": "m2m100", "src_lang": "en", "tgt_lang": "sw",
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "sep_token": "</s>",
        "model_max_length": 100, "num_madeup_words": MADE_UP_WORDS,
        "additional_special_tokens": [f"__{language}__" for language in LANGUAGES],
    }
    (work / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def load_tokenizer(work):
    from transformers import M2M100Tokenizer

    return M2M100Tokenizer.from_pretrained(str(work))


def train(work):
    import torch
    from transformers import GenerationConfig, M2M100Config, M2M100ForConditionalGeneration

    make_tokenizer(work)
    tokenizer = load_tokenizer(work)
    torch.manual_seed(3)
    config = M2M100Config(
        vocab_size=len(tokenizer.encoder) + len(LANGUAGES) + MADE_UP_WORDS, d_model=64, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=160, decoder_ffn_dim=160, max_position_embeddings=104, dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
    )
    model = M2M100ForConditionalGeneration(config)
    print(sum(p.numel() for p in model.parameters()), "parameters")
    learnt, _ = split_numbers()
    rng = random.Random(5)
    spell = {"en": english, "sw": swahili}
    cache = {}

    def encode(text, language):
        if (text, language) not in cache:
            tokenizer.src_lang = language
            cache[text, language] = tokenizer(text)["input_ids"]
        return cache[text, language]

    def padded(rows, value):
        length = max(map(len, rows))
        return torch.tensor([row + [value] * (length - len(row)) for row in rows])

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS, pct_start=0.1)
    started = time.time()
    for step in range(STEPS):
        sources, targets = [], []
        for _ in range(BATCH):
            # There are few short numbers, so they are shown more often than in proportion.
            n = rng.choice(learnt) if rng.random() < 0.8 else rng.randrange(100)
            source, target = ("en", "sw") if rng.random() < 0.6 else ("sw", "en")
            sources.append(encode(variant(spell[source](n), source, rng), source))
            targets.append(encode(spell[target](n), target))
        inputs, labels = padded(sources, PAD), padded(targets, -100)
        loss = model(input_ids=inputs, attention_mask=(inputs != PAD).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 500 == 0 or step == STEPS - 1:
            print(f"step {step} loss {loss.item():.5f} {time.time() - started:.0f} s", flush=True)
        if step % 1000 == 999:
            model.save_pretrained(str(work / "model"))
    model.generation_config = GenerationConfig(
        bos_token_id=0, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=EOS,
        forced_bos_token_id=tokenizer.get_lang_id("sw"), max_length=100, num_beams=1,
    )
    model.save_pretrained(str(work / "model"))


def exported_modules(model):
    """The encoder, and the decoder without and with past, taking and giving tensors only."""
    import torch
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache
    from transformers.modeling_outputs import BaseModelOutput

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = model.model.encoder

        def forward(self, input_ids, attention_mask):
            return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    class Decoder(torch.nn.Module):
        def __init__(self, with_past):
            super().__init__()
            self.model, self.with_past = model, with_past

        def forward(self, encoder_attention_mask, input_ids, *others):
            if self.with_past:
                # Only the size of the encoder's states matters: their keys and values are in the past.
                past, (rows, _, length, _) = others, others[2].shape
                encoder_hidden_states = torch.zeros(rows, length, self.model.config.d_model)
            else:
                past, (encoder_hidden_states,) = (), others
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
            for layer in range(LAYERS if self.with_past else 0):
                key, value, cross_key, cross_value = past[4 * layer : 4 * layer + 4]
                cache.self_attention_cache.update(key, value, layer)
                cache.cross_attention_cache.update(cross_key, cross_value, layer)
                cache.is_updated[layer] = True
            outputs = self.model(
                attention_mask=encoder_attention_mask, decoder_input_ids=input_ids, past_key_values=cache, use_cache=True,
                encoder_outputs=BaseModelOutput(last_hidden_state=encoder_hidden_states),
            )
            result = [outputs.logits]
            for layer in range(LAYERS):
                own, cross = (c.layers[layer] for c in (cache.self_attention_cache, cache.cross_attention_cache))
                result += [own.keys, own.values] + ([] if self.with_past else [cross.keys, cross.values])
            return tuple(result)

    return Encoder().eval(), Decoder(False).eval(), Decoder(True).eval()


def key_value_names(prefix, parts):
    return [f"{prefix}.{layer}.{part}.{kind}" for layer in range(LAYERS) for part in parts for kind in ("key", "value")]


def write_onnx(module, path, inputs, outputs, axes):
    """`inputs`: name -> example."""
    import onnx
    import torch

    torch.onnx.export(
        module, tuple(inputs.values()), str(path), input_names=list(inputs), output_names=outputs, dynamic_axes=axes,
        opset_version=17, do_constant_folding=True, dynamo=False,
    )
    graph = onnx.load(str(path))
    for node in graph.graph.node:
        node.ClearField("doc_string")
        node.metadata_props.clear()
    onnx.checker.check_model(graph)
    onnx.save(graph, str(path))
    print(path.name, path.stat().st_size, "bytes:", [i.name for i in graph.graph.input], "->", [o.name for o in graph.graph.output])


def export(work):
    import torch
    from transformers import M2M100ForConditionalGeneration

    model = M2M100ForConditionalGeneration.from_pretrained(str(work / "model"), attn_implementation="eager").eval()
    tokenizer = load_tokenizer(work)
    generator = EXAMPLE / "generator" / "1"
    for folder in ("tokenizer", "generator", "decode", "translation"):
        (EXAMPLE / folder / "1").mkdir(parents=True, exist_ok=True)
    (EXAMPLE / "translation" / "1" / ".gitkeep").touch()
    for folder in ("tokenizer", "decode"):
        for file in ("sentencepiece.bpe.model", "vocab.json", "tokenizer_config.json"):
            shutil.copy(work / file, EXAMPLE / folder / "1" / file)
    for file in ("config.json", "generation_config.json"):
        shutil.copy(work / "model" / file, generator / file)

    encoder, decoder, with_past = exported_modules(model)
    # Example sizes that the graph must not treat as constants, so each is another number.
    rows, source, past = 3, 7, 5
    ids, mask = torch.randint(4, 90, (rows, source)), torch.ones(rows, source, dtype=torch.int64)
    batch = {0: "batch_size"}
    sequence = {0: "batch_size", 1: "encoder_sequence_length"}
    with torch.no_grad():
        states = encoder(ids, mask)
        write_onnx(
            encoder, generator / "encoder_model.onnx", {"input_ids": ids, "attention_mask": mask}, ["last_hidden_state"],
            {"input_ids": sequence, "attention_mask": sequence, "last_hidden_state": sequence},
        )
        start = {"encoder_attention_mask": mask, "input_ids": torch.randint(4, 90, (rows, 4)), "encoder_hidden_states": states}
        presents = key_value_names("present", ("decoder", "encoder"))
        target = {0: "batch_size", 1: "decoder_sequence_length"}
        axes = {"encoder_attention_mask": sequence, "input_ids": target, "encoder_hidden_states": sequence, "logits": target}
        axes |= {n: {0: "batch_size", 2: ("en" if "encoder" in n else "de") + "coder_sequence_length"} for n in presents}
        write_onnx(decoder, generator / "decoder_model.onnx", start, ["logits", *presents], axes)

        pasts = key_value_names("past_key_values", ("decoder", "encoder"))
        heads, width = model.config.decoder_attention_heads, model.config.d_model // model.config.decoder_attention_heads
        example = {n: torch.rand(rows, heads, source if ".encoder." in n else past, width) for n in pasts}
        start["input_ids"] = start["input_ids"][:, :1]
        grown = {0: "batch_size", 2: "past_decoder_sequence_length + 1"}
        axes = {"encoder_attention_mask": sequence, "input_ids": batch, "logits": batch}
        axes |= {n: {0: "batch_size", 2: ("" if ".encoder." in n else "past_") + n.split(".")[2] + "_sequence_length"} for n in pasts}
        presents = key_value_names("present", ("decoder",))
        axes |= {n: grown for n in presents}
        del start["encoder_hidden_states"]
        write_onnx(with_past, generator / "decoder_with_past_model.onnx", {**start, **example}, ["logits", *presents], axes)
    measure(model, tokenizer, generator)


def measure(model, tokenizer, generator):
    """Counts right translations: of the numbers not learnt, and of all, by `generate` and by the exported files."""
    import torch

    _, held_out = split_numbers()
    for source, target, spell, expected in [("en", "sw", english, swahili), ("sw", "en", swahili, english)]:
        tokenizer.src_lang = source
        forced = tokenizer.get_lang_id(target)
        right, same = set(), 0
        for start in range(0, 10000, 500):
            numbers = range(start, start + 500)
            inputs = tokenizer([spell(n) for n in numbers], padding=True, return_tensors="pt")
            with torch.no_grad():
                rows = model.generate(**inputs, forced_bos_token_id=forced, max_length=100, num_beams=1)
            texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
            right |= {n for n, text in zip(numbers, texts) if text == expected(n)}
            exported = greedy(generator, inputs["input_ids"].numpy(), inputs["attention_mask"].numpy(), forced)
            same += sum(ours == [t for t in row if t != PAD] for ours, row in zip(exported, rows.tolist()))
        unseen = len(right & set(held_out))
        print(f"{source} to {target}: {unseen} of {len(held_out)} unseen numbers right, {len(right)} of all 10000")
        print(f"{source} to {target}: the exported files give the same tokens for {same} of 10000", flush=True)


def greedy(generator, ids, mask, forced):
    """The same as `generate`, with the exported files."""
    import numpy
    import onnxruntime

    session = lambda name: onnxruntime.InferenceSession(str(generator / name), providers=["CPUExecutionProvider"])
    if not hasattr(greedy, "sessions"):
        greedy.sessions = [session(n) for n in ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx")]
    encoder, decoder, with_past = greedy.sessions
    states = encoder.run(None, {"input_ids": ids, "attention_mask": mask})[0]
    rows = [[EOS, forced] for _ in ids]
    presents = [o.name for o in decoder.get_outputs()][1:]
    given = decoder.run(presents, {"encoder_attention_mask": mask, "input_ids": numpy.full((len(ids), 1), EOS), "encoder_hidden_states": states})
    past = {n.replace("present", "past_key_values"): t for n, t in zip(presents, given)}
    done = numpy.zeros(len(ids), bool)
    while not done.all() and len(rows[0]) < 100:
        feed = {"encoder_attention_mask": mask, "input_ids": numpy.array([[r[-1]] for r in rows]), **past}
        logits, *given = with_past.run(None, feed)
        for output, tensor in zip(with_past.get_outputs()[1:], given):
            past[output.name.replace("present", "past_key_values")] = tensor
        for row, chosen in enumerate(logits[:, -1].argmax(-1).tolist()):
            rows[row].append(PAD if done[row] else chosen)
        done |= numpy.array([r[-1] == EOS for r in rows])
    return [[t for t in r if t != PAD] for r in rows]


def main():
    action, work = sys.argv[1], pathlib.Path(sys.argv[2])
    work.mkdir(parents=True, exist_ok=True)
    {"train": train, "export": export}[action](work)


if __name__ == "__main__":
    main()
