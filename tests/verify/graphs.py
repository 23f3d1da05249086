"""Model folders whose graph has more or less than the transformer: no mask, further outputs, modules that modules.json names as well; and
folders whose files lie elsewhere or have another form."""

import json
import shutil
from types import SimpleNamespace

import torch
import transformers
from tokenizers import AddedToken

import folders
from folders import (
    BERT, LONGEST, PLAIN, SIZE, Folder, bert, classifier, eager, export, folder, late_interaction, normalize, pooling, rewrite, roberta_tokenizer,
    sentence, unigram, wordpiece, write,
)

WIDTH = SIZE["hidden_size"]


class Function(torch.nn.Module):
    """A model whose outputs are what `made` makes of the states of the tokens; it takes what the inner model takes."""

    def __init__(self, inner, made):
        super().__init__()
        self.inner, self.made = inner, made

    def forward(self, **tensors):
        return SimpleNamespace(**self.made(self.inner(**tensors), tensors))


def unit(vectors):
    return torch.nn.functional.normalize(vectors, dim=-1)


def exporter(made, output, pooled=False, inputs=None):
    """An exporter for `sentence` whose graph has the one output `output` of those that `made` gives."""
    return lambda model, path, given: export(Function(model, made), path, inputs or given, output, pooled)


# === Graphs without a mask, or of one row ===


@folder
def graph_without_attention_mask(path):
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), normalize()], inputs=["input_ids"])
    return Folder("embed", ["input_ids"])


@folder
def graph_without_attention_mask_that_pools(path):
    made = lambda found, _: {"sentence_embedding": unit(found.last_hidden_state.mean(1))}
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), normalize()], inputs=["input_ids"],
             exporter=exporter(made, "sentence_embedding", pooled=True))
    return Folder("embed", ["input_ids"])


@folder
def batch_of_one_inside(path):
    """A trace of one row that kept its batch as a constant, though the file says that its batch is open."""
    made = lambda found, _: {"last_hidden_state": found.last_hidden_state.reshape(1, -1, WIDTH)}
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), normalize()], exporter=exporter(made, "last_hidden_state"))
    return Folder("embed")


class Turned(torch.nn.Module):
    """A model that takes and gives the tokens of a row as the first dimension."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, **tensors):
        states = self.inner(**{name: tensor.transpose(0, 1) for name, tensor in tensors.items()}).last_hidden_state
        return SimpleNamespace(last_hidden_state=states.transpose(0, 1))


@folder
def graph_that_gives_the_sequence_first(path):
    made = lambda found, _: {"last_hidden_state": found.last_hidden_state.transpose(0, 1)}
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), normalize()], exporter=exporter(made, "last_hidden_state"))
    return Folder("embed")


@folder
def graph_that_takes_the_sequence_first(path):
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), normalize()],
             exporter=lambda model, path, inputs: export(Turned(model), path, inputs))
    return Folder("embed")


@folder
def softmax_over_rows(path):
    """Each text alone has the probability 1 for every label."""
    model, tokenizer = classifier(path, ["a", "b", "c"])
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    export(Function(model, lambda found, _: {"probabilities": found.logits.softmax(0)}), path, BERT, "probabilities", True)
    return Folder("classify", labels=["a", "b", "c"])


@folder
def quantized_by_run(path):
    """Activations are rounded by the largest one of a run, so that a text's vectors would depend on those of the other texts."""
    import onnx

    late_interaction(path)
    graph = path / "onnx" / "model.onnx"
    model = onnx.load(graph)
    name = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["whole" if output == name else output for output in node.output]
    model.graph.node.extend([
        onnx.helper.make_node("DynamicQuantizeLinear", ["whole"], ["rounded", "scale", "zero"]),
        onnx.helper.make_node("DequantizeLinear", ["rounded", "scale", "zero"], [name]),
    ])
    onnx.save(model, graph)
    return Folder("multi_vector", width=16, prompt_names=folders.SIDES, bar=0.99)


@folder
def names_of_tensorflow(path):
    import onnx

    known = folders.mean_normalized(path)
    graph = path / "onnx" / "model.onnx"
    model = onnx.load(graph)
    names = {given.name: f"{given.name}:0" for given in model.graph.input}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for given in model.graph.input:
        given.name = names[given.name]
    onnx.save(model, graph)
    return known


@folder
def pooled_with_an_open_width(path):
    """No module, and no dimension of the graph says how wide its vectors are."""
    model, tokenizer = bert(wordpiece()).eval(), wordpiece()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)

    def mean(found, tensors):
        mask = tensors["attention_mask"].unsqueeze(-1).float()
        return {"embeddings": (found.last_hidden_state * mask).sum(1) / mask.sum(1)}

    export(Function(model, mean), path, BERT, "embeddings", True)
    return Folder("embed")


# === Graphs with more than the transformer ===


@folder
def probabilities_in_the_graph(path):
    model, tokenizer = classifier(path, ["bad", "so, so", "good"], problem_type="single_label_classification")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    made = lambda found, _: {"probabilities": found.logits.softmax(-1)}
    export(Function(model, made), path, BERT, "probabilities", True)
    return Folder("classify", labels=["bad", "so, so", "good"])


@folder
def probabilities_of_many_labels_in_the_graph(path):
    model, tokenizer = classifier(path, ["a", "b", "c", "d"], problem_type="multi_label_classification")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    export(Function(model, lambda found, _: {"logits": found.logits.sigmoid()}), path, BERT, "logits", True)
    return Folder("classify", labels=["a", "b", "c", "d"])


def dense_inside(model, linear):
    linear.requires_grad_(False)
    return Function(model, lambda found, _: {"output": unit(linear(found.last_hidden_state))})


@folder
def dense_in_the_graph_and_in_modules(path):
    late_interaction(path, exported=dense_inside)
    return Folder("multi_vector", width=16, prompt_names=folders.SIDES)


@folder
def square_dense_in_the_graph_and_in_modules(path):
    """By its width the output of the graph may be that of the transformer as well."""
    late_interaction(path, width=WIDTH, exported=dense_inside)
    return Folder("multi_vector", width=WIDTH, prompt_names=folders.SIDES)


@folder
def dense_and_colbert_vectors_of_one_graph(path):
    """The heads of a BGE-M3 export, whose names say which is the text's vector."""
    tokenizer = unigram("<s> $A </s>", [("<s>", 0), ("</s>", 2)])
    config = transformers.XLMRobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=LONGEST + 2, pad_token_id=1, **SIZE)
    model = transformers.XLMRobertaModel(eager(config), add_pooling_layer=False)
    linear = torch.nn.Linear(WIDTH, 24)

    class Heads(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.linear = inner, linear

        def forward(self, input_ids, attention_mask):
            states = self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return unit(states[:, 0]), unit(self.linear(states[:, 1:]))

    def write_heads(inner, path, inputs):
        (path / "onnx").mkdir(parents=True, exist_ok=True)
        outputs, axes = ["dense_vecs", "colbert_vecs"], {name: {0: "batch", 1: "length"} for name in [*inputs, "colbert_vecs"]}
        example = tuple(torch.ones(2, 7, dtype=torch.int64) for _ in inputs)
        with torch.no_grad():
            torch.onnx.export(
                Heads(inner).eval(), example, str(path / "onnx" / "model.onnx"), input_names=inputs, output_names=outputs,
                dynamic_axes={**axes, "dense_vecs": {0: "batch"}}, dynamo=False, opset_version=17,
            )

    sentence(path, model, tokenizer, [pooling("cls"), normalize()], inputs=PLAIN, exporter=write_heads)
    return Folder("embed", PLAIN)


@folder
def three_heads_of_one_graph(path):
    """All of BGE-M3 in one graph; the library reads the heads from their files."""
    known, layers = folders.bge_m3(path), {}
    known.reference = path.with_name(f"{path.name}-files")
    shutil.rmtree(known.reference, ignore_errors=True)
    shutil.copytree(path, known.reference)
    for name in ("sparse_linear.pt", "colbert_linear.pt"):
        layers[name] = {key: value.float() for key, value in torch.load(path / name, weights_only=True).items()}
        (path / name).unlink()
    inner = transformers.XLMRobertaModel.from_pretrained(path, attn_implementation="eager", add_pooling_layer=False)

    class Heads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, input_ids, attention_mask):
            states = self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            sparse, colbert = (states @ layer["weight"].T + layer["bias"] for layer in layers.values())
            return unit(states[:, 0]), sparse.relu(), unit(colbert)

    outputs = ["dense_vecs", "sparse_vecs", "colbert_vecs"]
    axes = {name: {0: "batch", 1: "length"} for name in [*PLAIN, *outputs[1:]]} | {outputs[0]: {0: "batch"}}
    with torch.no_grad():
        torch.onnx.export(
            Heads().eval(), tuple(torch.ones(2, 7, dtype=torch.int64) for _ in PLAIN), str(path / "onnx" / "model.onnx"), input_names=PLAIN,
            output_names=outputs, dynamic_axes=axes, dynamo=False, opset_version=17,
        )
    return known


@folder
def pooler_output_beside_mean_pooling(path):
    """Of the pooler's output no mean of tokens can be had."""
    made = lambda found, _: {"pooler_output": found.pooler_output}
    sentence(path, bert(wordpiece()), wordpiece(), [pooling("mean"), normalize()], exporter=exporter(made, "pooler_output", pooled=True))
    return Folder("embed")


# === Activations, widths and lengths ===


@folder
def rerank_by_tanh(path):
    from sentence_transformers import CrossEncoder

    model, tokenizer = classifier(path, ["score"])
    write(path, model, tokenizer)
    CrossEncoder(str(path), activation_fn=torch.nn.Tanh(), device="cpu").save_pretrained(str(path))
    return Folder("rerank", output="logits", labels=["score"])


@folder
def one_label_for_texts_and_pairs(path):
    """Nothing says whether it scores texts or pairs: both libraries make the same score."""
    model, tokenizer = classifier(path, ["toxic"])
    write(path, model, tokenizer)
    return Folder("rerank", output="logits", labels=["toxic"], more_tasks=["classify"])


@folder
def opt_with_a_projection(path):
    """The graph's states are as wide as the projection, and not as config.json: hidden_size says."""
    from sentence_transformers.models import Pooling

    tokenizer = roberta_tokenizer()
    config = transformers.OPTConfig(
        vocab_size=len(tokenizer), hidden_size=WIDTH, word_embed_proj_dim=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=64,
        max_position_embeddings=LONGEST, pad_token_id=1, bos_token_id=0, eos_token_id=2, use_cache=False, do_layer_norm_before=False,
    )
    sentence(path, transformers.OPTModel(eager(config)), tokenizer, [Pooling(16, pooling_mode="mean")], inputs=PLAIN)
    return Folder("embed", PLAIN, width=16)


@folder
def t5_without_a_length(path):
    """Positions are relative, and no file has a length: the library cuts no text."""
    tokenizer = unigram("$A </s>", [("</s>", 2)])
    tokenizer.model_max_length = transformers.tokenization_utils_base.VERY_LARGE_INTEGER
    config = transformers.T5Config(vocab_size=len(tokenizer), d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, pad_token_id=1)
    sentence(path, transformers.T5EncoderModel(eager(config)), tokenizer, [pooling("mean"), normalize()], inputs=PLAIN)
    for name in ("sentence_bert_config.json", "tokenizer_config.json"):
        rewrite(path / name, lambda told: {key: value for key, value in told.items() if key not in ("max_seq_length", "model_max_length")})
    return Folder("embed", PLAIN)


# === Files elsewhere, or of another form ===


@folder
def graph_in_another_folder(path):
    known = folders.mean_normalized(path)
    (path / "onnx").rename(path / "onnx_cpu")
    return known


@folder
def tokens_in_added_tokens_json_alone(path):
    tokenizer = wordpiece()
    words, first = ["kenya", "nairobi", "fox"], len(tokenizer)
    longer = wordpiece()
    longer.add_tokens([AddedToken(word, normalized=True) for word in words])
    sentence(path, bert(longer), tokenizer, [pooling("mean"), normalize()])
    added = {word: first + number for number, word in enumerate(words)}
    (path / "added_tokens.json").write_text(json.dumps(added))
    read = transformers.AutoTokenizer.from_pretrained(path)("the fox")["input_ids"]
    assert added["fox"] in read, f"the library does not read added_tokens.json: {read}"
    return Folder("embed")


@folder
def byte_order_marks(path):
    """Editors on Windows put a mark before the first character of a JSON file. The library is asked for the folder without them."""
    known = folders.prompt_by_name(path)
    known.reference = path.with_name(f"{path.name}-without")
    shutil.rmtree(known.reference, ignore_errors=True)
    shutil.copytree(path, known.reference)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "modules.json", "config_sentence_transformers.json"):
        (path / name).write_bytes(b"\xef\xbb\xbf" + (path / name).read_bytes())
    return known
