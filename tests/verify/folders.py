"""Model folders as sentence-transformers, transformers and model2vec write them: small, with random weights, one of every kind.

`FOLDERS` names them all. Each function makes the folder it is given and says what has to be known of it to serve it by hand
(`Folder`); the graph of the transformer is exported beside its weights, as `onnx/model.onnx`.
"""

import contextlib
import io
import json
import os
import shutil
import string
import warnings
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.simplefilter("ignore")

import numpy as np
import torch
from safetensors.torch import load_file
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig, BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification, BertModel, BertTokenizerFast,
    DistilBertConfig, DistilBertModel, GPT2Config, GPT2Model, PreTrainedTokenizerFast, RobertaConfig,
    RobertaForTokenClassification, RobertaModel, RobertaTokenizerFast, T5Config, T5EncoderModel, XLMRobertaConfig, XLMRobertaModel,
)

transformers.utils.logging.disable_progress_bar()

CORPUS = (Path(__file__).parent.parent.parent / "bench" / "texts.txt").read_text(encoding="utf-8").splitlines()[:400] + [
    "Hello hello, world! The quick brown fox jumps over the lazy dog. What is the capital of Kenya? Nairobi.",
    "naïve café façade, Zürich, São Paulo, Łódź; 東京は日本の首都です。 Москва — столица России. 3.14159",
]
LONGEST = 64
SIZE = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
FOLDERS = {}
# Folders that are refused, and what the refusal says.
REFUSED = {
    "dense-as-older-torch-bin": ["2_Dense/pytorch_model.bin cannot be read", "no ZIP archive", "write model.safetensors"],
    "softmax-over-rows": ["the number 1 for every text", "trireme export"],
    "longformer": ["does not run for a row of 3 tokens", "trireme export", "docs/python.md"],
}
# Folders that are refused with a command, after which they serve: a pattern of the command.
REMEDIES = {
    "vocabulary-without-tokenizer-json": r'python -c ".*?"$',
    "graph-of-one-row": r"mv \S+ \S+ && trireme export \S+",
    "graph-that-gives-the-sequence-first": r'python -c ".*?"',
    "graph-that-takes-the-sequence-first": r'python -c ".*?"',
    "names-of-tensorflow": r'python -c ".*?"',
    "graph-of-a-head": r"mv \S+ \S+ && trireme export \S+ --task embed",
    "pooler-output-beside-mean-pooling": r"mv \S+ \S+ && trireme export \S+",
}


@dataclass
class Folder:
    """What serves a folder: the parameters of its models, and which outputs its graph has."""

    task: str
    inputs: list = field(default_factory=lambda: ["input_ids", "attention_mask", "token_type_ids"])
    output: str = "last_hidden_state"
    ops: str = ""
    width: int = SIZE["hidden_size"]
    labels: list = field(default_factory=list)
    tokenizer: dict = field(default_factory=dict)
    postprocess: dict = field(default_factory=dict)
    modules: list = field(default_factory=list)
    static: dict = None
    # The prompts by whose names texts are asked.
    prompt_names: list = field(default_factory=lambda: [None])
    # Further tasks of the folder.
    more_tasks: list = field(default_factory=list)
    strategies: list = field(default_factory=lambda: [None])
    # The lowest likeness that is good enough.
    bar: float = 0.9999
    # The folder that the library loads, where it cannot read this one.
    reference: Path = None


def folder(function):
    FOLDERS[function.__name__.replace("_", "-")] = function
    return function


# === Tokenizers ===


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=600, special_tokens=special))
    tokenizer.decoder = decoders.WordPiece()
    return BertTokenizerFast(vocab=tokenizer.get_vocab(), do_lower_case=True, model_max_length=LONGEST)


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def roberta_tokenizer():
    tokenizer = byte_level()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>", cls_token="<s>",
        sep_token="</s>", mask_token="<mask>", model_max_length=LONGEST,
    )


def gpt_tokenizer():
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", padding_side="left", model_max_length=LONGEST
    )


def unigram(template, special_tokens):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=400, special_tokens=special, unk_token="<unk>"))
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=special_tokens)
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>", cls_token="<s>",
        sep_token="</s>", mask_token="<mask>", model_max_length=LONGEST,
    )


# === Transformers ===


class Graph(torch.nn.Module):
    """A model as a function of its inputs in order."""

    def __init__(self, model, inputs, output):
        super().__init__()
        self.model, self.inputs, self.output = model, inputs, output

    def forward(self, *tensors):
        return getattr(self.model(**dict(zip(self.inputs, tensors))), self.output)


def export(model, path, inputs, output="last_hidden_state", pooled=False):
    """Writes the graph of `model` to `path`/onnx/model.onnx."""
    (path / "onnx").mkdir(parents=True, exist_ok=True)
    names = [*inputs, output]
    axes = {name: {0: "batch", 1: "length"} for name in names}
    if pooled:
        axes[output] = {0: "batch"}
    example = tuple(torch.ones(2, 7, dtype=torch.int64) for _ in inputs)
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        torch.onnx.export(
            Graph(model, inputs, output).eval(), example, str(path / "onnx" / "model.onnx"), input_names=inputs,
            output_names=[output], dynamic_axes=axes, dynamo=False, opset_version=17,
        )


BERT = ["input_ids", "attention_mask", "token_type_ids"]
PLAIN = ["input_ids", "attention_mask"]


def export_by_torchs_default(model, path, inputs, output="last_hidden_state", longest=LONGEST):
    """The same with torch's present exporter, which writes the weights into `model.onnx.data`."""
    (path / "onnx").mkdir(parents=True, exist_ok=True)
    example = tuple(torch.ones(2, 7, dtype=torch.int64) for _ in inputs)
    shapes = tuple({0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=longest)} for _ in inputs)
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        torch.onnx.export(
            Graph(model, inputs, output).eval(), example, str(path / "onnx" / "model.onnx"), input_names=inputs, output_names=[output],
            dynamic_shapes=(shapes,), dynamo=True, external_data=True,
        )


def eager(config):
    config._attn_implementation = "eager"
    return config


def bert(tokenizer):
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=LONGEST, pad_token_id=0, **SIZE)
    return BertModel(eager(config))


def sentence(path, model, tokenizer, modules, inputs=BERT, prompts=None, default=None, max_seq_length=None, exporter=export):
    """A folder of sentence-transformers: a transformer and `modules` after it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Transformer

    plain = path.with_name(f"{path.name}-transformer")
    model.eval().save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    transformer = Transformer(str(plain), max_seq_length=max_seq_length)
    whole = SentenceTransformer(modules=[transformer, *modules], prompts=prompts, default_prompt_name=default, device="cpu")
    whole.save(str(path), create_model_card=False)
    exporter(transformer.auto_model, path, inputs)
    shutil.rmtree(plain)


def pooling(mode, **options):
    from sentence_transformers.models import Pooling

    return Pooling(SIZE["hidden_size"], pooling_mode=mode, **options)


def normalize():
    from sentence_transformers.models import Normalize

    return Normalize()


def rewrite(file, change):
    """Changes a JSON file in place."""
    content = json.loads(file.read_text())
    file.write_text(json.dumps(change(content), indent=2))


def old_pooling(path, *modes):
    """The pooling file as sentence-transformers before 5.4 wrote it."""
    names = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    rewrite(path / "1_Pooling" / "config.json", lambda new: {
        "word_embedding_dimension": SIZE["hidden_size"], **{f"pooling_mode_{name}": name in modes for name in names},
        "include_prompt": new.get("include_prompt", True),
    })


def old_length(path, length=LONGEST, lower=False):
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length, "do_lower_case": lower}))


# === Sentence embeddings ===


@folder
def mean_normalized(path):
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), normalize()])
    return Folder("embed", ops="pool:mean, normalize")


def external(path, **how):
    """A folder whose graph has its weights in files beside it."""
    import onnx

    known, graph = mean_normalized(path), path / "onnx" / "model.onnx"
    model = onnx.load(graph)
    onnx.save(model, graph, save_as_external_data=True, size_threshold=128, **how)
    return known


@folder
def external_in_one_file(path):
    return external(path, location="model.onnx_data")


@folder
def external_in_a_folder(path):
    (path / "onnx" / "weights").mkdir(parents=True)
    return external(path, location="weights/model.onnx.data")


@folder
def external_in_several_files(path):
    return external(path, all_tensors_to_one_file=False)


@folder
def external_by_torchs_default(path):
    """As `torch.onnx.export` writes without being told otherwise: weights in `model.onnx.data`."""
    known, graph = mean_normalized(path), path / "onnx" / "model.onnx"
    graph.unlink()
    export_by_torchs_default(BertModel.from_pretrained(path, attn_implementation="eager"), path, BERT)
    assert graph.with_name("model.onnx.data").is_file()
    return known


@folder
def cls_old_form(path):
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("cls")])
    old_pooling(path, "cls_token")
    old_length(path)
    return Folder("embed", ops="pool:cls")


@folder
def max_pooled(path):
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("max")])
    return Folder("embed", ops="pool:max")


@folder
def mean_over_root_of_length(path):
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean_sqrt_len_tokens"), normalize()])
    return Folder("embed", ops="pool:mean_sqrt_len, normalize")


@folder
def weighted_mean(path):
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("weightedmean")])
    return Folder("embed", ops="pool:weighted_mean")


@folder
def concatenated_new_form(path):
    sentence(path, bert(wordpiece()), wordpiece(), [pooling(["cls", "mean"]), normalize()])
    return Folder("embed", ops="pool:cls+mean, normalize", width=2 * SIZE["hidden_size"])


@folder
def concatenated_old_form(path):
    # Old files list their modes in this order, whatever the order of the keys.
    sentence(path, bert(wordpiece()), wordpiece(), [pooling(["cls", "max", "mean"])])
    old_pooling(path, "cls_token", "max_tokens", "mean_tokens")
    return Folder("embed", ops="pool:cls+max+mean", width=3 * SIZE["hidden_size"])


@folder
def short_texts_only(path):
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean")], max_seq_length=16)
    return Folder("embed", ops="pool:mean", tokenizer={"max_length": "16"})


@folder
def prompts_with_a_default(path):
    prompts = {"query": "query: ", "document": "passage: "}
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean")], prompts=prompts, default="document")
    return Folder("embed", ops="pool:mean", tokenizer={"prompts": json.dumps(prompts), "default_prompt": "document"})


@folder
def prompt_by_name(path):
    prompts = {"query": "query: ", "document": "passage: "}
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean")], prompts=prompts)
    return Folder("embed", ops="pool:mean", tokenizer={"prompts": json.dumps(prompts)}, prompt_names=["query"])


@folder
def prompt_not_pooled(path):
    prompts = {"query": "find what answers this question: "}
    modules = [pooling("mean", include_prompt=False), normalize()]
    sentence(path, bert(wordpiece()), wordpiece(), modules, prompts=prompts)
    return Folder(
        "embed", ops="pool:mean, normalize", tokenizer={"prompts": json.dumps(prompts), "pooling_mask": True},
        prompt_names=["query"],
    )


@folder
def weighted_mean_without_prompt(path):
    prompts = {"query": "find what answers this question: "}
    modules = [pooling(["weightedmean", "cls"], include_prompt=False)]
    sentence(path, bert(wordpiece()), wordpiece(), modules, prompts=prompts)
    return Folder(
        "embed", ops="pool:weighted_mean+cls", tokenizer={"prompts": json.dumps(prompts), "pooling_mask": True},
        prompt_names=["query"], width=2 * SIZE["hidden_size"],
    )


@folder
def dense_tanh(path):
    from sentence_transformers.models import Dense

    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), Dense(SIZE["hidden_size"], 16), normalize()])
    return Folder("embed", ops="pool:mean, dense:2_Dense, normalize", width=16, modules=["2_Dense"])


@folder
def dense_residual_then_layer_norm(path):
    from sentence_transformers.models import Dense, LayerNorm

    dense = Dense(SIZE["hidden_size"], 24, bias=False, activation_function=torch.nn.GELU(), use_residual=True)
    norm = LayerNorm(24)
    torch.nn.init.normal_(norm.norm.weight)
    torch.nn.init.normal_(norm.norm.bias)
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), dense, norm])
    ops = "pool:mean, dense:2_Dense, layer_norm:3_LayerNorm"
    return Folder("embed", ops=ops, width=24, modules=["2_Dense", "3_LayerNorm"])


@folder
def dense_in_half_precision(path):
    from sentence_transformers.models import Dense

    dense = Dense(SIZE["hidden_size"], 16, activation_function=torch.nn.Identity())
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), dense])
    from safetensors.torch import save_file

    file = path / "2_Dense" / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(file).items()}, file)
    return Folder("embed", ops="pool:mean, dense:2_Dense", width=16, modules=["2_Dense"])


@folder
def dense_as_pytorch_bin(path):
    from sentence_transformers.models import Dense

    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), Dense(SIZE["hidden_size"], 16)])
    file = path / "2_Dense" / "model.safetensors"
    torch.save(load_file(file), path / "2_Dense" / "pytorch_model.bin")
    file.unlink()
    return Folder("embed", ops="pool:mean, dense:2_Dense", width=16, modules=["2_Dense"])


@folder
def dense_as_older_torch_bin(path):
    known = dense_as_pytorch_bin(path)
    file = path / "2_Dense" / "pytorch_model.bin"
    torch.save(torch.load(file, weights_only=True), file, _use_new_zipfile_serialization=False)
    return known


@folder
def distilbert(path):
    tokenizer = wordpiece()
    config = DistilBertConfig(vocab_size=len(tokenizer), dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=LONGEST)
    sentence(path, DistilBertModel(eager(config)), tokenizer, [pooling("mean")], inputs=PLAIN)
    return Folder("embed", PLAIN, ops="pool:mean")


@folder
def roberta(path):
    tokenizer = roberta_tokenizer()
    config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=LONGEST + 2, pad_token_id=1, **SIZE)
    sentence(path, RobertaModel(eager(config), add_pooling_layer=False), tokenizer, [pooling("cls"), normalize()], inputs=PLAIN)
    return Folder("embed", PLAIN, ops="pool:cls, normalize")


@folder
def xlm_roberta(path):
    tokenizer = unigram("<s> $A </s>", [("<s>", 0), ("</s>", 2)])
    config = XLMRobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=LONGEST + 2, pad_token_id=1, **SIZE)
    sentence(path, XLMRobertaModel(eager(config), add_pooling_layer=False), tokenizer, [pooling("mean")], inputs=PLAIN)
    return Folder("embed", PLAIN, ops="pool:mean")


@folder
def last_token_padded_left(path):
    tokenizer = gpt_tokenizer()
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=LONGEST, use_cache=False)
    sentence(path, GPT2Model(eager(config)), tokenizer, [pooling("lasttoken"), normalize()], inputs=[*PLAIN, "position_ids"])
    return Folder("embed", [*PLAIN, "position_ids"], ops="pool:last, normalize")


# === Pairs and classes ===


def classifier(path, labels, **options):
    tokenizer = wordpiece()
    config = BertConfig(
        vocab_size=len(tokenizer), max_position_embeddings=LONGEST, id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)}, **SIZE, **options,
    )
    model = BertForSequenceClassification(eager(config)).eval()
    # Random weights alone give scores that hardly differ.
    torch.nn.init.normal_(model.classifier.weight, std=3.0)
    return model, tokenizer


def write(path, model, tokenizer, inputs=BERT, pooled=True):
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    export(model, path, inputs, "logits", pooled)


@folder
def rerank_one_score(path):
    from sentence_transformers import CrossEncoder

    model, tokenizer = classifier(path, ["score"])
    write(path, model, tokenizer)
    CrossEncoder(str(path), device="cpu").save_pretrained(str(path))
    return Folder("rerank", output="logits", ops="sigmoid", labels=["score"])


@folder
def rerank_raw_old_form(path):
    model, tokenizer = classifier(path, ["score"])
    write(path, model, tokenizer)
    identity = "torch.nn.modules.linear.Identity"
    rewrite(path / "config.json", lambda config: {**config, "sbert_ce_default_activation_function": identity})
    return Folder("rerank", output="logits", ops="slice:1", labels=["score"])


@folder
def classify_one_label(path):
    model, tokenizer = classifier(path, ["bad", "so, so", "good"], problem_type="single_label_classification")
    write(path, model, tokenizer)
    return Folder("classify", output="logits", ops="softmax", labels=["bad", "so, so", "good"])


@folder
def classify_many_labels(path):
    model, tokenizer = classifier(path, ["a", "b", "c", "d"], problem_type="multi_label_classification")
    write(path, model, tokenizer)
    return Folder("classify", output="logits", ops="sigmoid", labels=["a", "b", "c", "d"])


@folder
def classify_regression(path):
    model, tokenizer = classifier(path, ["stars"], problem_type="regression")
    write(path, model, tokenizer)
    return Folder("classify", output="logits", ops="slice:1", labels=["stars"])


NER = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]


def labels_of(names):
    return dict(id2label=dict(enumerate(names)), label2id={name: index for index, name in enumerate(names)})


@folder
def token_classify_words(path):
    tokenizer = wordpiece()
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=LONGEST, **SIZE, **labels_of(NER))
    model = BertForTokenClassification(eager(config)).eval()
    torch.nn.init.normal_(model.classifier.weight, std=1.0)
    write(path, model, tokenizer, pooled=False)
    return Folder("token_classify", output="logits", labels=NER, strategies=["none", "simple", "first", "average", "max"])


@folder
def token_classify_byte_level(path):
    tokenizer = roberta_tokenizer()
    config = RobertaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=LONGEST + 2, pad_token_id=1, **SIZE, **labels_of(NER)
    )
    model = RobertaForTokenClassification(eager(config)).eval()
    torch.nn.init.normal_(model.classifier.weight, std=1.0)
    write(path, model, tokenizer, PLAIN, pooled=False)
    return Folder("token_classify", PLAIN, "logits", labels=NER, strategies=["none", "simple", "first", "average", "max"])


# === Sparse and many vectors ===


def splade_folder(path, **options):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.models import MLMTransformer, SpladePooling

    tokenizer = wordpiece()
    plain = path.with_name(f"{path.name}-transformer")
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=LONGEST, **SIZE)
    model = BertForMaskedLM(eager(config)).eval()
    torch.nn.init.normal_(model.cls.predictions.bias, mean=-1.0, std=0.5)
    torch.nn.init.normal_(model.cls.predictions.transform.dense.weight, std=1.0)
    model.save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    transformer = MLMTransformer(str(plain))
    SparseEncoder(modules=[transformer, SpladePooling(**options)], device="cpu").save(str(path), create_model_card=False)
    export(transformer.auto_model, path, BERT, "logits")
    shutil.rmtree(plain)
    return len(tokenizer)


@folder
def splade_max(path):
    return Folder("sparse", output="logits", ops="splade, sparse", width=splade_folder(path))


@folder
def splade_without_modules(path):
    """The architecture is that of any masked language model: the graph's logits say what it is for, and without a graph the model's card."""
    plain = path.with_name(f"{path.name}-whole")
    width = splade_folder(plain)
    for inner in plain.iterdir():
        if inner.name not in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json") and "Pooling" not in inner.name:
            shutil.move(inner, path / inner.name)
    shutil.rmtree(plain)
    (path / "README.md").write_text("---\ntags:\n- splade\npipeline_tag: fill-mask\n---\n")
    return Folder("sparse", output="logits", width=width)


@folder
def splade_log1p_sum(path):
    width = splade_folder(path, pooling_strategy="sum", activation_function="log1p_relu")
    return Folder("sparse", output="logits", ops="splade:log1p_relu+sum, sparse", width=width)


@folder
def router_without_inference(path):
    """Queries by weights of tokens, documents by a SPLADE."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.models import Router
    from sentence_transformers.sparse_encoder.models import MLMTransformer, SparseStaticEmbedding, SpladePooling

    tokenizer, plain = wordpiece(), path.with_name(f"{path.name}-plain")
    splade_folder(plain)
    documents = [MLMTransformer(str(plain)), SpladePooling("max")]
    queries = [SparseStaticEmbedding(tokenizer, weight=torch.randn(len(tokenizer)))]
    router = Router.for_query_document(query_modules=queries, document_modules=documents)
    SparseEncoder(modules=[router], device="cpu").save(str(path), create_model_card=False)
    shutil.move(plain / "onnx", next(path.glob("document_0_*")) / "onnx")
    shutil.rmtree(plain)
    return Folder("sparse", prompt_names=[None, "query", "document"])


@folder
def router_of_two_pools(path):
    """Queries by a table, documents by a transformer, both to one length."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Router, StaticEmbedding, Transformer

    tokenizer, plain = wordpiece(), path.with_name(f"{path.name}-plain")
    bert(tokenizer).eval().save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    transformer = Transformer(str(plain))
    queries = [StaticEmbedding(tokenizer, embedding_weights=torch.randn(len(tokenizer), SIZE["hidden_size"]))]
    router = Router.for_query_document(query_modules=queries, document_modules=[transformer, pooling("mean")])
    prompts = {"query": "query: ", "document": "passage: "}
    SentenceTransformer(modules=[router, normalize()], prompts=prompts, device="cpu").save(str(path), create_model_card=False)
    # At the top, as tools put it that know one transformer.
    export(transformer.auto_model, path, BERT)
    shutil.rmtree(plain)
    return Folder("embed", prompt_names=[None, "query", "document"])


@folder
def router_of_one_transformer(path):
    """Queries and documents by one transformer, with poolings of their own."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Router, Transformer

    tokenizer, plain = wordpiece(), path.with_name(f"{path.name}-plain")
    bert(tokenizer).eval().save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    transformer = Transformer(str(plain))
    router = Router.for_query_document(query_modules=[transformer, pooling("cls")], document_modules=[transformer, pooling("mean")])
    prompts = {"query": "query: ", "document": "passage: "}
    SentenceTransformer(modules=[router, normalize()], prompts=prompts, device="cpu").save(str(path), create_model_card=False)
    export(transformer.auto_model, path, BERT)
    shutil.rmtree(plain)
    return Folder("embed", prompt_names=[None, "query", "document"])


@folder
def colbert(path):
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.models import Transformer
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.base.modules.normalize import Normalize
    from sentence_transformers.multi_vector_encoder.modules.multi_vector_mask import MultiVectorMask

    tokenizer = wordpiece()
    plain = path.with_name(f"{path.name}-transformer")
    bert(tokenizer).eval().save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    transformer = Transformer(str(plain))
    tokens = dict(module_input_name="token_embeddings", module_output_name="token_embeddings")
    dense = Dense(SIZE["hidden_size"], 16, bias=False, activation_function=torch.nn.Identity(), **tokens)
    modules = [transformer, dense, Normalize(**tokens), MultiVectorMask()]
    MultiVectorEncoder(modules=modules, device="cpu").save(str(path), create_model_card=False)
    export(transformer.auto_model, path, BERT)
    shutil.rmtree(plain)
    return Folder("multi_vector", ops="dense:1_Dense, normalize, mask", width=16, modules=["1_Dense"])


def late_interaction(path, tokenizer=None, prompts=None, transformer_options=None, mask_options=None, width=16, exported=None):
    """A folder of a model with a vector for each token. Its graph is that of the transformer, or of `exported`: what that makes of the transformer
    and the Dense."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.models import Transformer
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.base.modules.normalize import Normalize
    from sentence_transformers.multi_vector_encoder.modules.multi_vector_mask import MultiVectorMask

    tokenizer = tokenizer or wordpiece()
    plain = path.with_name(f"{path.name}-transformer")
    bert(tokenizer).eval().save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    transformer = Transformer(str(plain), **(transformer_options or {}))
    tokens = dict(module_input_name="token_embeddings", module_output_name="token_embeddings")
    dense = Dense(SIZE["hidden_size"], width, bias=False, activation_function=torch.nn.Identity(), **tokens)
    modules = [transformer, dense, MultiVectorMask(**(mask_options or {})), Normalize(**tokens)]
    MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu").save(str(path), create_model_card=False)
    if exported:
        export(exported(transformer.auto_model, dense.linear), path, BERT, "output")
    else:
        export(transformer.auto_model, path, BERT)
    shutil.rmtree(plain)


SIDES = ["query", "document", None]


@folder
def colbert_expanded(path):
    expansion = {"strategy": "fixed", "attend": False, "length": 24}
    late_interaction(
        path, prompts={"query": "find: ", "document": ""},
        transformer_options={"query_expansion": expansion, "document_length": 40},
        mask_options={"skiplist_words": list(string.punctuation)},
    )
    return Folder("multi_vector", width=16, prompt_names=SIDES)


@folder
def colbert_expanded_and_attended(path):
    expansion = {"strategy": "min", "attend": True, "length": 12, "token": "[UNK]"}
    late_interaction(
        path, transformer_options={"query_expansion": expansion, "query_length": 30},
        mask_options={"skiplist_words": ["the", ".", "notaword"], "skiplist_tasks": ["query", "document"]},
    )
    return Folder("multi_vector", width=16, prompt_names=SIDES)


def pylate(path, prefixes, **fields):
    """Turns a folder of `late_interaction` into one of PyLate: the mask is no module, and its own file says all."""
    rewrite(path / "modules.json", lambda modules: [
        modules[0], {**modules[1], "type": "pylate.models.Dense.Dense"}
    ])
    for module in ("2_MultiVectorMask", "3_Normalize"):
        shutil.rmtree(path / module, ignore_errors=True)
    dense = next(path.glob("1_*")) / "config.json"
    rewrite(dense, lambda new: {key: new[key] for key in ("in_features", "out_features", "bias", "activation_function")})
    own = {"model_type": "ColBERT", "embedding_dim": 16, "query_prefix": prefixes[0], "document_prefix": prefixes[1], "similarity_fn_name": "MaxSim", **fields}
    (path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {}, "default_prompt_name": None, **own}))


@folder
def colbert_of_pylate(path):
    # PyLate puts its prefixes into the vocabulary, as tokens that a lower-casing tokenizer does not find in a text.
    tokenizer = wordpiece()
    tokenizer.add_tokens(["[Q] ", "[D] "])
    late_interaction(path, tokenizer)
    pylate(
        path, ["[Q] ", "[D] "], query_length=20, document_length=48, do_query_expansion=True, attend_to_expansion_tokens=False,
        skiplist_words=list(string.punctuation),
    )
    return Folder("multi_vector", width=16, prompt_names=SIDES)


@folder
def colbert_of_pylate_by_defaults(path):
    late_interaction(path)
    pylate(path, ["[unused0]", "doc: "], attend_to_expansion_tokens=True)
    return Folder("multi_vector", width=16, prompt_names=SIDES)


@folder
def bge_m3(path):
    tokenizer = unigram("<s> $A </s>", [("<s>", 0), ("</s>", 2)])
    config = XLMRobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=LONGEST + 2, pad_token_id=1, **SIZE)
    model = XLMRobertaModel(eager(config), add_pooling_layer=False)
    sentence(path, model, tokenizer, [pooling("cls"), normalize()], inputs=PLAIN)
    # As its library saves them: the state of one linear layer each, in half precision.
    for name, width in (("sparse_linear.pt", 1), ("colbert_linear.pt", 24)):
        torch.save(torch.nn.Linear(SIZE["hidden_size"], width).half().state_dict(), path / name)
    return Folder("embed", PLAIN, ops="pool:cls, normalize", more_tasks=["sparse", "multi_vector"])


# === Without a graph ===


def static_tokenizer():
    return wordpiece()._tokenizer


def model2vec_folder(path, dtype=np.float32, **options):
    from model2vec import StaticModel

    tokenizer = static_tokenizer()
    generator = np.random.default_rng(3)
    rows = options.pop("rows", tokenizer.get_vocab_size())
    vectors = generator.normal(size=(rows, 24)) * (40 if dtype == np.int8 else 1)
    config = {"model_type": "model2vec", "architectures": ["StaticModel"]}
    model = StaticModel(vectors.astype(dtype), tokenizer, config=config, **options)
    model.save_pretrained(path)
    # Texts are cut by characters before they are tokenized.
    parameters = {"add_special_tokens": "false", "max_length": "512", "max_characters": str(512 * model.median_token_length)}
    return Folder("embed", PLAIN, width=24, tokenizer=parameters, static={"unknown_token_id": str(model.unk_token_id)})


@folder
def model2vec(path):
    return model2vec_folder(path, normalize=True)


@folder
def model2vec_half_precision(path):
    known = model2vec_folder(path, np.float16, normalize=False)
    # The library rounds its result to half precision, unlike the server.
    known.bar = 0.9995
    return known


@folder
def model2vec_int8(path):
    return model2vec_folder(path, np.int8, normalize=True)


@folder
def model2vec_mapped_and_weighted(path):
    tokens, generator = static_tokenizer().get_vocab_size(), np.random.default_rng(4)
    return model2vec_folder(
        path, normalize=True, rows=100, token_mapping=generator.integers(100, size=tokens), weights=generator.random(tokens)
    )


@folder
def static_embedding(path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import StaticEmbedding

    static = StaticEmbedding(static_tokenizer(), embedding_dim=24)
    SentenceTransformer(modules=[static, normalize()], device="cpu").save(str(path), create_model_card=False)
    return Folder("embed", PLAIN, width=24, tokenizer={"add_special_tokens": "false"}, static={"normalize": "true"})


# === Served wrong on purpose, by a repository: the comparison has to notice ===


@folder
def wrong_pooling(path):
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), normalize()])
    return Folder("embed", ops="pool:max, normalize")


@folder
def wrong_length(path):
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), normalize()])
    return Folder("embed", ops="pool:mean")


@folder
def wrong_prompt(path):
    prompts = {"query": "query: "}
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean")], prompts=prompts, default="query")
    return Folder("embed", ops="pool:mean")


@folder
def wrong_activation(path):
    model, tokenizer = classifier(path, ["a", "b", "c"], problem_type="multi_label_classification")
    write(path, model, tokenizer)
    return Folder("classify", output="logits", ops="softmax", labels=["a", "b", "c"])


def make(name, path):
    """Makes the folder `name` at `path`."""
    torch.manual_seed(sum(name.encode()))
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return FOLDERS[name](path)


# Registers its folders, too.
import architectures  # noqa: E402,F401
import chats  # noqa: E402,F401
import generators  # noqa: E402,F401
import graphs  # noqa: E402,F401
import settings_of_folders  # noqa: E402,F401
import spans  # noqa: E402,F401
