"""Makes the tokenizers in this folder, and golden files with the results of Hugging Face's AutoTokenizer for them.

    pip install tokenizers transformers
    python make.py

Each folder gets a small `tokenizer.json`, trained on corpus.txt, and a `tokenizer_config.json`. `<folder>.json` holds, for
each case, the parameters (as config.pbtxt would have them), the texts and the rows that transformers returned. A text that
is an array `[piece, times]` is the piece repeated. Masks and type ids are written as one digit for each token.
"""

import json
import pathlib

import tokenizers
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
CORPUS = (HERE / "corpus.txt").read_text(encoding="utf-8").splitlines()

TEXTS = [
    "", " ", "\n", "\t \t", "a", "A", "ab", "the", "The harbour", "unaffable", "don't", "It's deeper than you'd think",
    "Hello, world!", "  two  spaces  ", "trailing ", " leading", "line one\nline two\r\nline three", "tab\tseparated\tvalues",
    "UPPER CASE TEXT", "MiXeD cAsE", "camelCaseWord", "snake_case_word", "kebab-case-word", "path/to/some/file.txt",
    "https://example.org/a?b=c&d=%20#e", "name@example.org", "3.14159", "1,000,000.00", "2025-01-31T12:34:56Z", "0x1F", "50%",
    "$12.99 €13,50 £9 ¥100", "a+b=c", "x²+y³", "½ cup", "…", "—", "“quoted” ‘text’", "(a) [b] {c} <d>", "!!!???...", "#hashtag",
    "[CLS] literal [SEP]", "[MASK] the [PAD]", "<s> literal </s>", "<|endoftext|>", "x<|endoftext|>y", "[UNK]", "<pad>", "##the",
    "▁the", "Ġthe",
    "café", "cafe\u0301", "naïve", "A\u030Angström", "Ångström", "fährt über", "Straße", "İstanbul", "ı", "ſ", "ﬁnd ﬂow",
    "Ｆｕｌｌｗｉｄｔｈ", "①②③", "e\u0301\u0302\u0303\u0304", "\u0301", "n\u0303o", "Z\u0351\u036B\u0343algo", "한국어", "\u1112\u1161\u11ab",
    "船は夜に港へ", "我们在河边", "漢字とかな", "𠀀𪛖", "ｶﾀｶﾅ", "ไทย", "हिन्दी", "தமிழ்", "ქართული", "Кораблі", "Το πλοίο",
    "السفينة تصل", "مَرْحَبًا", "הספינה", "abc אבג def", "\u202eright to left\u202c", "\u200fmark",
    "😀", "👍🏽", "👨‍👩‍👧‍👦", "🇺🇦", "text 😀 text", "☃️", "\u0000", "a\u0000b", "\u0001\u0002\u0003", "bell\u0007", "\u001b[31mred\u001b[0m", "\u007f",
    "\u0085", "\u00a0nbsp\u00a0", "zero\u200bwidth", "soft\u00adhyphen", "\ufeffbom", "\ufffd", "\uffff", "\u2028\u2029", "\U0010ffff", "\ue000",
    "Send the request to the server, wait for the answer, and close the connection when you are done.",
    "Nobody on the quay knew which of the forty-two boats would be the first to return in the morning.",
    ["the harbour ", 400], ["a", 3000], ["0123456789", 300], ["é😀船 ", 200], [" ", 2000], ["\n", 700], ["=", 1500], [" a", 900],
]
FEW = [0, 4, 8, 12, 51, 52, 64, 72, 84, 90, 94, 112, 113, 114]
SECOND = ["the answer", "", "Is the water deep enough? " * 6, "船は夜に港へ", "x"]

# Parameters of config.pbtxt, and the equivalent arguments of the call.
VARIANTS = [
    ("defaults", {}, {}),
    ("max_length", {"max_length": "16"}, {"max_length": 16}),
    ("untruncated", {"truncation": "false"}, {"truncation": False}),
    ("fixed", {"padding": "max_length", "max_length": "24"}, {"padding": "max_length", "max_length": 24}),
    ("multiple", {"pad_to_multiple_of": "8", "max_length": "32"}, {"pad_to_multiple_of": 8, "max_length": 32}),
    ("left", {"padding_side": "left", "truncation_side": "left", "max_length": "12"}, {"max_length": 12}),
    ("plain", {"add_special_tokens": "false", "max_length": "10"}, {"add_special_tokens": False, "max_length": 10}),
    ("prefix", {"prefix": "query: ", "max_length": "20"}, {"max_length": 20}),
]
PAIR_VARIANTS = [
    ("pairs", {"max_length": "24"}, {"max_length": 24}),
    ("pairs_first", {"max_length": "60", "truncation": "only_first"}, {"max_length": 60, "truncation": "only_first"}),
    ("pairs_second", {"max_length": "60", "truncation": "only_second"}, {"max_length": 60, "truncation": "only_second"}),
    ("pairs_plain", {"max_length": "9", "add_special_tokens": "false"}, {"max_length": 9, "add_special_tokens": False}),
]


def wordpiece():
    """Like BERT. As in many published files, its truncation and padding are not meant to be used, and its normalizer is
    overridden by tokenizer_config.json."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=600, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(t, tokenizer.token_to_id(t)) for t in ["[CLS]", "[SEP]"]],
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    config = {"tokenizer_class": "BertTokenizer", "model_max_length": 64, "do_lower_case": False, "strip_accents": True, **names}
    return tokenizer, config


def byte_bpe():
    """Like GPT-2 made into an embedding model: byte level, one token appended, padded with that token, no maximal length."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<|endoftext|>"], show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A <|endoftext|> $B:1 <|endoftext|>:1", special_tokens=[("<|endoftext|>", 0)]
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1000000000000000019884624838656,
        "pad_token": {"content": "<|endoftext|>", "special": True, "__type": "AddedToken"}, "eos_token": "<|endoftext|>",
        "padding_side": "left", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    return tokenizer, config


def unigram():
    """Like XLM-RoBERTa: SentencePiece's unigram model, no config of truncation or padding but its own."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=700, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 96, "pad_token": "<pad>", "truncation_side": "left",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    return tokenizer, config


def expand(text):
    return text if isinstance(text, str) else text[0] * text[1]


def case(directory, name, parameters, arguments, texts, pairs):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    for side in ("padding_side", "truncation_side"):
        if side in parameters:
            setattr(tokenizer, side, parameters[side])
    prefixed = [parameters.get("prefix", "") + expand(t) for t in texts]
    encoded = tokenizer(prefixed, pairs, **{"padding": True, "truncation": True, "return_token_type_ids": True, **arguments})
    decoded = [tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False) for row in encoded["input_ids"]]
    result = {"name": name, "parameters": parameters, "texts": texts, "pairs": pairs}
    result["input_ids"] = encoded["input_ids"]
    for key in ["attention_mask", "token_type_ids"]:
        result[key] = ["".join(map(str, row)) for row in encoded[key]]
    if name == "every text":
        result["decoded"] = decoded
    return result


def main():
    few = [TEXTS[i] for i in FEW]
    for folder, make in [("wordpiece", wordpiece), ("byte-bpe", byte_bpe), ("unigram", unigram)]:
        directory = HERE / folder
        directory.mkdir(exist_ok=True)
        if not (directory / "tokenizer.json").exists():  # training need not give the same vocabulary twice
            tokenizer, config = make()
            tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
            (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
        # Cases without a limit have few and short texts, to keep the file small.
        short = [expand(t)[:150] for t in few]
        cases = [case(directory, "every text", {"max_length": "48"}, {"max_length": 48}, TEXTS, None)]
        for variant in VARIANTS:
            unlimited = variant[0] == "untruncated" or (variant[0] == "defaults" and folder == "byte-bpe")
            cases.append(case(directory, *variant, short if unlimited else few, None))
        pairs = [SECOND[i % len(SECOND)] for i in range(len(few))]
        for variant in PAIR_VARIANTS:
            chosen = list(zip(few, pairs))
            if "only_first" in variant[1].values():
                chosen = [(["the harbour ", 40], "the answer"), ("a", "x"), (["é😀船 ", 30], "")]
            if "only_second" in variant[1].values():
                chosen = [("the harbour", "the answer " * 60), ("a", "x"), ("", "船は夜に港へ " * 20)]
            cases.append(case(directory, *variant, [t for t, _ in chosen], [p for _, p in chosen]))
        text = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
        versions = json.dumps({"tokenizers": tokenizers.__version__, "transformers": transformers.__version__})
        (HERE / f"{folder}.json").write_text(f'{{"made_with":{versions},"cases":[\n{text}\n]}}\n')


main()
