"""Model folders under the names that vLLM's tests of pooling models use: small, with random weights, of the same kinds.

Their vocabularies have the tokens that the tests know by number. `make` writes them as the hub's cache has them, so that the tests' own
calls of transformers and sentence-transformers find them by name.
"""

import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "verify"))

import torch
from folders import BERT, PLAIN, eager, export, sentence
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig, BertModel, BertTokenizerFast, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification, XLMRobertaConfig, XLMRobertaForSequenceClassification,
)

CHATML = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# The pieces of the tests' conversation, as many as the tests count.
TALK = (
    "▁user : ▁assistant ▁The ▁cat ▁sat ▁on ▁the ▁mat . ▁A ▁fel ine ▁was ▁rest ing ▁a ▁rug ▁Star s ▁twinkle ▁bright ly ▁in ▁night ▁sky"
).split()
LETTERS = [chr(code) for code in range(33, 127)]
MADE = {}


def model(name):
    def register(function):
        MADE[name] = function
        return function

    return register


def bert(tokenizer, width):
    """An encoder whose vectors are those of their texts' words: each token attends to all others alike, so that texts with the same
    words are alike, as the tests expect of models that were trained."""
    encoder = BertModel(eager(BertConfig(
        vocab_size=len(tokenizer), max_position_embeddings=512, pad_token_id=0, hidden_size=width, num_hidden_layers=1,
        num_attention_heads=width // 32, intermediate_size=64, initializer_range=0.1,
    )))
    attention = encoder.encoder.layer[0].attention.self
    for weights in (attention.query.weight, attention.key.weight, encoder.embeddings.position_embeddings.weight):
        torch.nn.init.normal_(weights, std=0.01)
    return encoder


def wordpiece(length):
    corpus = ["The capital of France is Paris. Brazil Germany Berlin Brasilia machine deep learning language " + " ".join(LETTERS)]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=500, special_tokens=special))
    pieces = tokenizer.get_vocab()
    for letter in LETTERS:
        pieces.setdefault(f"##{letter.lower()}", len(pieces))
    return BertTokenizerFast(vocab=pieces, do_lower_case=True, model_max_length=length)


def unigram(known, special, template, length, pair=None):
    """A tokenizer of SentencePiece's kind: the pieces `known` by their numbers, those of `TALK`, and single letters."""
    numbers = {number: piece for piece, number in known.items()} | {number: piece for piece, number in special.items()}
    rest = iter([piece for piece in [*TALK, "▁", *LETTERS] if piece not in numbers.values()])
    size = max(max(numbers), len(numbers) + len(TALK) + len(LETTERS)) + 1
    vocabulary = []
    for number in range(size):
        piece = numbers.get(number) or next(rest, f"<unused{number}>")
        score = -10.0 if len(piece) == 1 else -1.0
        vocabulary.append((piece, score))
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=special["<unk>"]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\n", " "), normalizers.Strip(left=False)])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, pair=pair,
        special_tokens=[(token, number) for token, number in special.items() if token in template],
    )
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>", cls_token="<s>",
        sep_token="</s>", model_max_length=length,
    )


def pooled(path, transformer, tokenizer, mode):
    from sentence_transformers.models import Normalize, Pooling

    sentence(path, transformer, tokenizer, [Pooling(transformer.config.hidden_size, pooling_mode=mode), Normalize()])


XLM_ROBERTA = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
PAIR = "<s> $A </s> </s> $B </s>"


def e5_tokenizer():
    text = {
        "▁The": 581, "▁best": 2965, "▁thing": 13580, "▁about": 1672, "▁v": 81, "LL": 23708, "M": 594, "▁is": 83, "▁that": 450, "▁it": 442,
        "▁support": 8060, "s": 7, "▁many": 5941, "▁different": 12921, "▁models": 115774,
    }
    return unigram(text, XLM_ROBERTA, "<s> $A </s>", 512, PAIR)


@model("intfloat/multilingual-e5-small")
def e5(path):
    tokenizer = e5_tokenizer()
    pooled(path, bert(tokenizer, 384), tokenizer, "mean")


@model("BAAI/bge-base-en-v1.5")
def bge_base(path):
    tokenizer = wordpiece(512)
    pooled(path, bert(tokenizer, 768), tokenizer, "cls")


@model("Snowflake/snowflake-arctic-embed-m-v1.5")
def snowflake(path):
    tokenizer = wordpiece(512)
    pooled(path, bert(tokenizer, 768), tokenizer, "cls")


@model("sentence-transformers/all-MiniLM-L12-v2")
def minilm(path):
    tokenizer = wordpiece(128)
    pooled(path, bert(tokenizer, 384), tokenizer, "mean")


@model("BAAI/bge-reranker-base")
def bge_reranker(path):
    from sentence_transformers import CrossEncoder

    text = {
        "▁This": 3293, "▁product": 12996, "▁was": 509, "▁excellent": 40881, "▁and": 136, "▁exceed": 204839, "ed": 297, "▁my": 759,
        "▁expectations": 202702,
    }
    tokenizer = unigram(text, XLM_ROBERTA, "<s> $A </s>", 512, PAIR)
    network = XLMRobertaForSequenceClassification(eager(XLMRobertaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=514, pad_token_id=1, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, num_labels=1, initializer_range=0.5,
    ))).eval()
    network.save_pretrained(path)
    tokenizer.save_pretrained(path)
    export(network, path, PLAIN, "logits", pooled=True)
    CrossEncoder(str(path), device="cpu").save_pretrained(str(path))


def apeach_tokenizer():
    words = {"This": 1986, " product": 1985, " was": 572, " excellent": 9073, " and": 323, " exceeded": 33808, " my": 847, " expectations": 16665}
    talk = [*words, "You", "The", "A", "Star", " are", " a", " helpful", " assistant", " cat", " sat", " on", " the", " mat", " fel", " resting"]
    talk += [" rug", " twinkle", " brightly", " in", " night", " sky", "system", "user", "assistant", "hello", " hello", "ine", "s"]
    special = {"<|endoftext|>": 40000, "<|im_start|>": 40001, "<|im_end|>": 40002}
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=2000, min_frequency=1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    # Each word is a text, so that all of it becomes one token.
    tokenizer.train_from_iterator(talk, trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    known = {pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(word)[0][0]: number for word, number in words.items()}
    free = iter(number for number in range(40000) if number not in known.values())
    numbers = {token: known.get(token) or next(free) for token in trained["vocab"]} | special
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=[tuple(pair) for pair in trained["merges"]]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", extra_special_tokens=["<|im_start|>"],
        model_max_length=512, chat_template=CHATML,
    )


def apeach_config():
    return eager(Qwen2Config(
        vocab_size=40003, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, intermediate_size=64,
        max_position_embeddings=512, pad_token_id=40000, id2label={0: "Default", 1: "Spoiled"}, label2id={"Default": 0, "Spoiled": 1},
        use_cache=False, initializer_range=0.5,
    ))


@model("jason9693/Qwen2.5-1.5B-apeach")
def apeach(path):
    tokenizer = apeach_tokenizer()
    network = Qwen2ForSequenceClassification(apeach_config()).eval()
    network.save_pretrained(path)
    tokenizer.save_pretrained(path)
    export(network, path, PLAIN, "logits", pooled=True)


def late(path, tokenizer, transformer, dense, normalized):
    """A folder of a model with a vector for each token."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.base.modules.normalize import Normalize
    from sentence_transformers.models import Transformer
    from sentence_transformers.multi_vector_encoder.modules.multi_vector_mask import MultiVectorMask

    plain = path.with_name(f"{path.name}-transformer")
    transformer.eval().save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    loaded = Transformer(str(plain))
    tokens = dict(module_input_name="token_embeddings", module_output_name="token_embeddings")
    modules = [loaded]
    if dense:
        modules.append(Dense(transformer.config.hidden_size, dense, bias=False, activation_function=torch.nn.Identity(), **tokens))
    modules += [Normalize(**tokens)] if normalized else []
    MultiVectorEncoder(modules=[*modules, MultiVectorMask()], device="cpu").save(str(path), create_model_card=False)
    export(loaded.auto_model, path, BERT)
    shutil.rmtree(plain)
    return modules


@model("answerdotai/answerai-colbert-small-v1")
def colbert(path):
    tokenizer = wordpiece(512)
    modules = late(path, tokenizer, bert(tokenizer, 384), 96, True)
    # The tests read the weights of the projection from the transformer's file.
    file = path / "model.safetensors"
    save_file(load_file(file) | {"linear.weight": modules[1].linear.weight.detach().clone()}, file, metadata={"format": "pt"})


@model("internlm/internlm2-1_8b-reward")
def reward(path):
    """A score for each token: here a vector of one number for each token."""
    text = {"▁The": 918, "▁chef": 29981, "▁prepared": 10166, "▁a": 395, "▁delicious": 18067, "▁meal": 15265, ".": 281}
    tokenizer = unigram(text, {"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3}, "<s> $A", 512)
    late(path, tokenizer, bert(tokenizer, 64), 1, False)


# The model of the same name, where a test asks vLLM for vectors of tokens of a model that embeds.
def token_embed(path):
    tokenizer = e5_tokenizer()
    late(path, tokenizer, bert(tokenizer, 384), None, True)


def token_classify(path):
    tokenizer, config = apeach_tokenizer(), apeach_config()
    network = Qwen2ForTokenClassification(config).eval()
    network.save_pretrained(path)
    tokenizer.save_pretrained(path)
    export(network, path, PLAIN, "logits")


# The functions that make a model where a test asks vLLM for another task than the model's own.
TASKS = {
    ("intfloat/multilingual-e5-small", "token_embed"): token_embed,
    ("jason9693/Qwen2.5-1.5B-apeach", "token_classify"): token_classify,
}


def make(hub, name, task=None):
    """The folder of a model in the hub's cache at `hub`, made where it is missing."""
    function = TASKS.get((name, task)) or MADE[name]
    repository = hub / f"models--{name.replace('/', '--')}"
    repository = repository.with_name(f"{repository.name}@{task}") if (name, task) in TASKS else repository
    path = repository / "snapshots" / "0"
    if not (repository / "refs" / "main").exists():
        shutil.rmtree(repository, ignore_errors=True)
        path.parent.mkdir(parents=True)
        torch.manual_seed(0)
        function(path)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("0")
    return path
