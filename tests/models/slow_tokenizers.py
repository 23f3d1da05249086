"""Creates the SentencePiece tokenizers in crates/text/tests/golden/slow, and records the results of transformers' slow ones.

    pip install 'transformers<5' sentencepiece sacremoses protobuf
    python slow_tokenizers.py

Version 4 of transformers is the last whose T5, NLLB and mBART tokenizers run the SentencePiece library itself. Each
folder gets the files that such a tokenizer has, trained on crates/text/tests/golden/corpus.txt. `golden.json` there holds
the ids of every text of texts.json with special tokens, what they decode to, and what random ids decode to.
"""

import json
import pathlib
import random
import shutil
import tempfile

import sentencepiece
import transformers
from sentencepiece import sentencepiece_model_pb2

HERE = pathlib.Path(__file__).resolve().parents[2] / "crates" / "text" / "tests" / "golden"
SLOW = HERE / "slow"
CORPUS = HERE / "corpus.txt"

# A small table of replacements instead of the usual one of 240 kB: one character by several, several by one (the
# longest match must win), and by nothing.
RULES = [("ﬁ", "fi"), ("ﬂ", "fl"), ("e\u0301", "\u00e9"), ("e\u0301\u0302", "\u1ebf"), ("...", "…"), ("..", "‥"), ("\u00ad", ""), ("\u3000", " "), ("\t", " "), ("½", " 1/2 ")]

ALPHABET = (
    "aabcdeeefghiijklmnoopqrssttuvwxyz      ABCDE.,;:!?-'\"()0123456789▁\t\n\u00a0\u3000éàüßñçœøåŁž½²ﬁﬂ\u00ad\u0301\u200b\u200d\ufeff"
    "дляЖπβשלםمرحבका한국船夜港😀👍🏽🇺🇦〜…"
)
SPECIAL = [
    "</s>", "<unk>", "<pad>", "<s>", "<mask>", "__sw__", "__en__", "eng_Latn", "swh_Latn", "en_XX", "sw_KE", "<extra_id_0>", "<extra_id_1>", "<extra_id_10>",
    ">>fra<<", ">>xxx<<", ">>", "<<", "[new]", "<sep>", "<0x41>",
]


def texts():
    """The texts of make.py, sentences, and random strings with special tokens in them."""
    source = (HERE / "make.py").read_text(encoding="utf-8")
    names = {}
    exec(source[source.index("TEXTS = [") : source.index("FEW = ")], names)
    result = [t if isinstance(t, str) else t[0] * min(t[1], 30) for t in names["TEXTS"]]
    result += CORPUS.read_text(encoding="utf-8").splitlines()
    rng = random.Random(11)
    for _ in range(120):
        parts = []
        for _ in range(rng.randint(1, 5)):
            if rng.random() < 0.35:
                parts.append(rng.choice(SPECIAL))
            parts.append("".join(rng.choice(ALPHABET) for _ in range(rng.randint(0, 12))))
        result.append("".join(parts))
    for _ in range(30):
        result.append(">>fra<<" + "".join(rng.choice(ALPHABET) for _ in range(rng.randint(0, 20))))
    return result


def spm(path, **options):
    """Trains a model and puts it at `path`."""
    with tempfile.TemporaryDirectory() as directory:
        options = {"model_type": "unigram", "vocab_size": 420, "character_coverage": 0.995, **options}
        if "normalization_rule_name" not in options:
            rules = pathlib.Path(directory) / "rules.tsv"
            code = lambda text: " ".join(f"{ord(c):X}" for c in text)
            rules.write_text("".join(f"{code(a)}\t{code(b)}\n" for a, b in RULES))
            options["normalization_rule_tsv"] = str(rules)
        sentencepiece.SentencePieceTrainer.train(
            input=str(CORPUS), model_prefix=f"{directory}/m", num_threads=1, minloglevel=2, hard_vocab_limit=False, **options
        )
        # The file contains paths of the machine that created it.
        model = sentencepiece_model_pb2.ModelProto.FromString(pathlib.Path(f"{directory}/m.model").read_bytes())
        model.trainer_spec.ClearField("input")
        model.trainer_spec.ClearField("model_prefix")
        model.normalizer_spec.ClearField("normalization_rule_tsv")
        path.write_bytes(model.SerializeToString(deterministic=True))


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def vocabulary(models, without=(), more=()):
    """vocab.json of all pieces of `models`."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>"]
    for model in models:
        processor = sentencepiece.SentencePieceProcessor(str(model))
        tokens += [processor.id_to_piece(i) for i in range(len(processor))]
    tokens = list(dict.fromkeys(tokens + list(more)))
    return {t: i for i, t in enumerate(t for t in tokens if t not in without)}


def m2m100(directory, **options):
    spm(directory / "sentencepiece.bpe.model", model_type="bpe", **options)
    without = ["▁the", "s", "▁wa"]
    write_json(directory / "vocab.json", vocabulary([directory / "sentencepiece.bpe.model"], without))
    listed = [f"__{code}__" for code in transformers.models.m2m_100.tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    config = {"tokenizer_class": "M2M100Tokenizer", "src_lang": "en", "tgt_lang": "sw", "additional_special_tokens": listed}
    write_json(directory / "tokenizer_config.json", config)
    return transformers.M2M100Tokenizer


def nllb(directory):
    spm(directory / "sentencepiece.bpe.model", model_type="bpe", byte_fallback=False, remove_extra_whitespaces=False)
    codes = transformers.models.nllb.tokenization_nllb.FAIRSEQ_LANGUAGE_CODES
    write_json(directory / "special_tokens_map.json", {"additional_special_tokens": codes, "mask_token": {"content": "<mask>", "lstrip": True, "rstrip": False, "normalized": True, "single_word": False, "__type": "AddedToken"}})
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "NllbTokenizer", "src_lang": "swh_Latn", "tgt_lang": "eng_Latn"})
    return transformers.NllbTokenizer


def mbart(directory):
    spm(directory / "sentencepiece.bpe.model")
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "MBartTokenizer"})
    return transformers.MBartTokenizer


def mbart50(directory):
    spm(directory / "sentencepiece.bpe.model", split_by_whitespace=False, user_defined_symbols=["<sep>", "harbour"])
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "MBart50Tokenizer", "src_lang": "en_XX"})
    return transformers.MBart50Tokenizer


def marian(directory):
    spm(directory / "source.spm", normalization_rule_name="identity", vocab_size=300)
    spm(directory / "target.spm", normalization_rule_name="identity", vocab_size=400, seed_sentencepiece_size=2000)
    more = [">>fra<<", ">>swa<<", "船", "<pad>"]
    tokens = vocabulary([directory / "source.spm", directory / "target.spm"], ["<s>", "<pad>", "</s>"], more)
    tokens = dict.fromkeys(["</s>"] + [t for t in tokens if t != "<pad>"] + ["<pad>"])
    write_json(directory / "vocab.json", {t: i for i, t in enumerate(tokens)})
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "mul"})
    return transformers.MarianTokenizer


def t5(directory, legacy=True):
    spm(directory / "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, user_defined_symbols=["<sep>"])
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 20, "legacy": legacy}
    write_json(directory / "tokenizer_config.json", config)
    return transformers.T5Tokenizer


MODELS = {
    "m2m100": lambda d: m2m100(d, normalization_rule_name="nmt_nfkc"),
    "m2m100-bytes": lambda d: m2m100(d, byte_fallback=True, vocab_size=600),
    "nllb": nllb,
    "mbart": mbart,
    "mbart50": mbart50,
    "marian": marian,
    "t5": t5,
    "t5-fixed": lambda d: t5(d, legacy=False),
}


def with_tokenizer_json(name, kind, languages, every):
    """The same model as `tokenizer.json`, whose template is for one language, and its results for other languages."""
    directory = SLOW / f"{name}-json"
    directory.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as saved:
        kind.from_pretrained(str(SLOW / name)).save_pretrained(saved)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(f"{saved}/{file}", directory / file)
    golden = {}
    for language in languages:
        tokenizer = kind.from_pretrained(str(directory), src_lang=language)
        golden[language] = [tokenizer(t)["input_ids"] for t in every]
    write_json(directory / "golden.json", golden)
    print(directory.name, languages)


def main():
    transformers.logging.set_verbosity_error()
    SLOW.mkdir(exist_ok=True)
    every = texts()
    write_json(SLOW / "texts.json", every)
    for name, make in MODELS.items():
        directory = SLOW / name
        directory.mkdir(exist_ok=True)
        kind = make(directory)
        tokenizer = kind.from_pretrained(str(directory))
        rows = [tokenizer(t)["input_ids"] for t in every]
        decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        rng = random.Random(5)
        size = tokenizer.vocab_size
        chosen = [[rng.randrange(size) for _ in range(rng.randint(1, 14))] for _ in range(60)]
        languages = getattr(tokenizer, "lang_code_to_id", None) or {
            t: i for t, i in tokenizer.get_vocab().items() if name == "nllb" and len(t) == 8 and t[3] == "_"
        }
        golden = {
            "made_with": {"transformers": transformers.__version__, "sentencepiece": sentencepiece.__version__},
            "input_ids": rows, "decoded": [decode(row) for row in rows],
            "random": [[ids, decode(ids)] for ids in chosen], "languages": languages,
        }
        write_json(directory / "golden.json", golden)
        print(name, len(every), "texts,", sum(map(len, rows)), "ids", size, "pieces")
    chosen = every[:60]
    with_tokenizer_json("nllb", transformers.NllbTokenizerFast, ["eng_Latn", "swh_Latn"], chosen)
    with_tokenizer_json("mbart", transformers.MBartTokenizerFast, ["en_XX", "fr_XX"], chosen)


if __name__ == "__main__":
    main()
