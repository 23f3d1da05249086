"""Makes the ONNX file of a model folder, for `trireme export`: by optimum-onnx where this Python has it, else by torch alone.

Standard input is a JSON object: `folder` (of the transformer's files), `task` (as optimum-cli names it), `output` (a folder that is
there and empty). Standard output is a JSON object: `by`, the exporter and its version.
"""

import importlib.util
import inspect
import json
import os
import shutil
import sys
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.simplefilter("ignore")

# The task: the class of transformers, the output, and whether it has one vector for each token.
HEADS = {
    "feature-extraction": ("AutoModel", "last_hidden_state", True),
    "fill-mask": ("AutoModelForMaskedLM", "logits", True),
    "text-classification": ("AutoModelForSequenceClassification", "logits", False),
    "text-generation": ("AutoModelForCausalLM", "logits", True),
    "token-classification": ("AutoModelForTokenClassification", "logits", True),
}
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


class Refused(Exception):
    """Why there is no export, in words for the person who asked for it."""


def has(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def encoder_class(ask):
    """The class of transformers for the encoder of a model that also has a decoder; `None` for other models and tasks."""
    import transformers

    if ask["task"] != "feature-extraction":
        return None
    try:
        config = transformers.AutoConfig.from_pretrained(ask["folder"])
    except ValueError:
        # A configuration of the folder's own code.
        return None
    # As sentence-transformers does, which embeds with the encoder alone where there is such a class.
    name = type(config).__name__.removesuffix("Config") + "EncoderModel"
    return getattr(transformers, name, None)


def by_optimum(ask):
    import optimum.version
    from optimum.exporters.onnx import main_export

    with tempfile.TemporaryDirectory(dir=ask["output"]) as work:
        # The modules after the transformer are served as they lie in the folder, so its graph alone is wanted.
        main_export(ask["folder"], work, task=ask["task"], device="cpu", library_name="transformers", do_validation=False)
        for name in os.listdir(work):
            if ".onnx" in name:
                shutil.move(os.path.join(work, name), os.path.join(ask["output"], name))
    return f"optimum {optimum.version.__version__}"


def tokenizer_of(folder):
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(folder)
    except ValueError:
        # A class of a later transformers. Only some example ids are wanted.
        if not os.path.exists(os.path.join(folder, "tokenizer.json")):
            raise
        return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def by_torch(ask):
    import torch
    import transformers

    if ask["task"] not in HEADS:
        raise Refused(f"torch alone exports no {ask['task']}: install optimum-onnx into this Python")
    transformers.utils.logging.disable_progress_bar()
    kind, output, of_tokens = HEADS[ask["task"]]
    load = (encoder_class(ask) or getattr(transformers, kind)).from_pretrained
    # Other implementations of attention branch by the shapes of their inputs, which a trace does not record.
    model = load(ask["folder"], attn_implementation="eager", torch_dtype=torch.float32).eval()
    tokenizer = tokenizer_of(ask["folder"])
    taken = inspect.signature(model.forward).parameters
    inputs = ["input_ids"] + [name for name in tokenizer.model_input_names if name != "input_ids" and name in taken]
    if "attention_mask" not in inputs and "attention_mask" in taken:
        inputs.append("attention_mask")
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False

    # Scores are read at the last position, so that the logits of a vocabulary for each other one would be made for nothing.
    fixed = {"logits_to_keep": 1} if ask["task"] == "text-generation" and "logits_to_keep" in taken else {}

    class Graph(torch.nn.Module):
        """The model as a function of its inputs in order."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *tensors):
            found = getattr(self.model(**dict(zip(inputs, tensors)), **fixed), output)
            # So that the graph says that it gives one position.
            return found[:, -1].unsqueeze(1) if fixed else found

    axes = {name: {0: "batch", 1: "length"} for name in inputs}
    axes[output] = {0: "batch", 1: "length"} if of_tokens and not fixed else {0: "batch"}
    texts = ["Two texts, of which this is the longer one.", "Short."]
    encoded = tokenizer(texts, padding=tokenizer.pad_token is not None, truncation=True, max_length=12, return_tensors=None)
    # A tokenizer without a padding token gives rows of different length.
    shortest = min(map(len, encoded["input_ids"]))
    example = tuple(torch.tensor([row[:shortest] for row in encoded[name]]) if name in encoded else
                    torch.ones(len(texts), shortest, dtype=torch.int64) for name in inputs)
    named = dict(input_names=inputs, output_names=[output])
    path = os.path.join(ask["output"], "model.onnx")
    with torch.no_grad():
        try:
            torch.onnx.export(Graph().eval(), example, path, dynamic_axes=axes, dynamo=False, opset_version=17, **named)
        except Exception as fault:
            # A trace does not take every way of making a mask (Gemma 3). The other exporter is slower, and takes fewer models.
            if not has("onnxscript"):
                raise Refused(f"torch cannot trace this model ({fault}), and its other exporter wants onnxscript: pip install onnxscript") from fault
            longest = getattr(model.config, "max_position_embeddings", None)
            sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=longest)}
            torch.onnx.export(Graph().eval(), example, path, dynamic_shapes=(tuple(sizes for _ in inputs),), dynamo=True, external_data=True, **named)
    return f"torch {torch.__version__}"


def by_gliner(ask):
    if not has("gliner"):
        raise Refused(f"{sys.executable} has no gliner, which makes the graph of its models: pip install gliner onnx")
    from importlib.metadata import version

    from gliner import GLiNER

    model = GLiNER.from_pretrained(ask["folder"], local_files_only=True)
    with tempfile.TemporaryDirectory(dir=ask["output"]) as work:
        try:
            made = model.export_to_onnx(work)["onnx_path"]
        except Exception as error:
            raise Refused(f"gliner {version('gliner')} does not export this model with {versions()}: {last_line(error)}") from error
        shutil.move(made, os.path.join(ask["output"], "model.onnx"))
    return f"gliner {version('gliner')}"


def by_gliner2(ask):
    if not has("gliner2"):
        raise Refused(f"{sys.executable} has no gliner2, which makes the graph of its models: pip install 'gliner2[local]' onnx")
    from importlib.metadata import version

    import torch
    from gliner2 import GLiNER2

    model = GLiNER2.from_pretrained(ask["folder"]).eval()
    # Fused attention branches by the shapes of its inputs, which a trace does not record.
    model.encoder.config._attn_implementation = "eager"
    token = model.processor.tokenizer.convert_tokens_to_ids

    class Steps(torch.nn.Module):
        """The library's own loop of a GRU as torch's, which becomes one node of the graph: the number of steps stays open."""

        def __init__(self, loop):
            super().__init__()
            width = loop.weight_hh_l0.shape[1]
            self.gru = torch.nn.GRU(width, width)
            self.gru.load_state_dict(loop.state_dict())

        def forward(self, steps, first):
            return self.gru(steps, first.unsqueeze(0))[0]

    counting = model.count_embed
    counting.gru = Steps(counting.gru)

    class Graph(torch.nn.Module):
        """The scores of spans of words for the entities of a schema, [rows, words, widths, labels], those of the labels of its classes, [rows, labels], and
        those of spans for the fields of each record of its structures and relations, [rows, records, words, widths, fields]. All rows have the same schema."""

        def __init__(self):
            super().__init__()
            self.model = model

        def queries(self, fields, schemas, records):
            """What spans are compared with, [records, rows, fields, width], from the vectors of the fields of schemas with these numbers."""
            rows, count, width = fields.shape
            flat = fields.reshape(-1, width)
            if not hasattr(counting, "transformer"):
                return counting(flat, records).reshape(-1, rows, count, width)
            steps = counting.pos_embedding(torch.arange(records)).unsqueeze(1).expand(-1, rows * count, -1)
            state = (counting.gru(steps, flat) + flat).reshape(-1, count, width)
            mixing, mixed = counting.transformer, counting.transformer.in_projector(state)
            # Attention is among the fields of a schema.
            apart = (schemas.unsqueeze(0) != schemas.unsqueeze(1)).float() * -1e9
            for layer in mixing.transformer.layers:
                mixed = self.among_fields(layer, mixed, apart)
            return mixing.out_projector(torch.cat([mixed, state], dim=-1)).reshape(-1, rows, count, width)

        def among_fields(self, layer, vectors, apart):
            """A TransformerEncoderLayer as single ops: a trace of torch's own keeps the number of fields of the example."""
            rows, count, width = vectors.shape
            attention = layer.self_attn
            by_head = lambda part: part.reshape(rows, count, attention.num_heads, attention.head_dim).transpose(1, 2)
            query, key, value = map(by_head, torch.nn.functional.linear(vectors, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1))
            weights = (query @ key.transpose(2, 3) * attention.head_dim**-0.5 + apart).softmax(-1)
            vectors = layer.norm1(vectors + attention.out_proj((weights @ value).transpose(1, 2).reshape(rows, count, width)))
            return layer.norm2(vectors + layer.linear2(layer.activation(layer.linear1(vectors))))

        def places(self, ids, *words):
            """Where these tokens are in a row, and one place more: graphs compute with nothing as little as possible."""
            found = sum((ids == token(word)).long() for word in words)
            return torch.cat([found.nonzero()[:, 0], torch.zeros(1, dtype=torch.int64)])

        def forward(self, input_ids, attention_mask, words_mask, text_lengths, span_idx, span_mask):
            hidden = self.model.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            rows, length, width = hidden.shape
            # By token, how many schemas begin up to it. By schema, how many records it has; tokens before the first schema count as schema 0, without records.
            is_schema = input_ids[0] == token("[P]")
            schema_of = is_schema.long().cumsum(0)
            counts = self.model.count_pred(hidden[:, is_schema.nonzero()[:, 0]]).argmax(-1)
            counts = torch.cat([torch.zeros(rows, 1, dtype=torch.int64), counts], 1)
            labels, fields = self.places(input_ids[0], "[E]"), self.places(input_ids[0], "[C]", "[R]")
            # The place of each word's first token. Place 0 of the scattered ones is that of all other tokens.
            first = torch.zeros(rows, words_mask.max() + 1, dtype=torch.int64)
            first = first.scatter(1, words_mask, torch.arange(length).expand(rows, -1))[:, 1:]
            words = hidden.gather(1, first.unsqueeze(-1).expand(-1, -1, width))
            # A span that ends behind the words has no vector.
            spans = self.model.span_rep(words, span_idx * span_mask.unsqueeze(-1))
            is_word = torch.arange(words.shape[1]) < text_lengths
            is_span = (span_mask.view(rows, -1, self.model.max_width) & is_word.unsqueeze(-1)).unsqueeze(-1)

            # Entities are those of the first record, where there is one.
            queries = self.queries(hidden[:, labels], schema_of[labels], torch.tensor(1))[0]
            scores = torch.einsum("nwkd,nld->nwkl", spans, queries)
            finds = (counts[:, schema_of[labels]] > 0)[:, None, None]
            scores = scores.masked_fill(~(is_span & finds), -1e4)[..., :-1]

            of_field = counts[:, schema_of[fields]]
            most = of_field.max().clamp(min=1)
            queries = self.queries(hidden[:, fields], schema_of[fields], most)
            records = torch.einsum("nwkd,cnfd->ncwkf", spans, queries)
            is_record = torch.arange(most).reshape(1, -1, 1) < of_field.unsqueeze(1)
            records = records.masked_fill(~(is_span.unsqueeze(1) & is_record[:, :, None, None]), -1e4)[..., :-1]

            classes = (input_ids[0] == token("[L]")).nonzero()[:, 0]
            return scores, self.model.classifier(hidden[:, classes]).squeeze(-1), records

    schema = lambda name, mark, *labels: ["(", "[P]", name, "(", *(word for label in labels for word in (mark, label)), ")", ")", "[SEP_STRUCT]"]
    entities, classes = schema("entities", "[E]", "a", "b"), schema("c", "[L]", "a", "b", "c")[:-1]
    structure, relation = schema("s", "[C]", "a", "b"), schema("r", "[R]", "head", "tail")
    tokens = [token(word) for word in (*structure, *entities, *relation, *classes, "[SEP_TEXT]", "a", "b", "c")]
    words, widths = 3, model.max_width
    first = torch.arange(words).repeat_interleave(widths)
    last = first + torch.arange(widths).repeat(words)
    mask = (last < words).expand(2, -1)
    idx = torch.stack([first, last], -1).expand(2, -1, -1)
    ids = torch.tensor([tokens] * 2)
    numbers = torch.tensor([[0] * (len(tokens) - words) + list(range(1, words + 1))] * 2)
    example = (ids, torch.ones_like(ids), numbers, torch.full((2, 1), words), idx, mask)
    row, length, spans = {0: "batch"}, {0: "batch", 1: "length"}, {0: "batch", 1: "spans"}
    axes = dict(input_ids=length, attention_mask=length, words_mask=length, text_lengths=row, span_idx=spans, span_mask=spans)
    names, path = list(axes), os.path.join(ask["output"], "model.onnx")
    axes |= {"logits": {0: "batch", 1: "words", 3: "labels"}, "class_logits": {0: "batch", 1: "classes"}}
    axes |= {"record_logits": {0: "batch", 1: "records", 2: "words", 4: "fields"}}
    outputs = ["logits", "class_logits", "record_logits"]
    with torch.no_grad():
        torch.onnx.export(Graph().eval(), example, path, input_names=names, output_names=outputs, dynamic_axes=axes, dynamo=False, opset_version=17)
    return f"gliner2 {version('gliner2')}"


def export(ask):
    if ask["task"] == "gliner":
        return by_gliner(ask)
    if ask["task"] == "gliner2":
        return by_gliner2(ask)
    names = os.listdir(ask["folder"])
    if not any(name in WEIGHTS for name in names):
        traced = [name for name in names if name.endswith(".pt")]
        there = f"only {', '.join(traced)}, a TorchScript file, whose inputs a model folder does not say (trireme export takes it in a model repository)" if traced else "no weights"
        raise Refused(f"{ask['folder']} holds {there}: expected {WEIGHTS[0]} or {WEIGHTS[2]} of the model, beside its config.json")
    can_torch = has("torch") and has("transformers")
    fault = None
    # optimum-onnx exports a model with a decoder in two parts, and does not know every such model.
    if has("optimum.exporters.onnx") and not (can_torch and encoder_class(ask)):
        try:
            return by_optimum(ask)
        except ImportError as error:
            # An optimum that does not fit the transformers beside it.
            fault = f"optimum-onnx cannot be imported: {last_line(error)}; it wants other versions than {versions()}: pip install --upgrade optimum-onnx, \
or install it into an environment of its own"
        except Exception as error:
            # A model that it does not know, or one that the transformers beside it has changed.
            fault = f"optimum-onnx, with {versions()}, does not export this model: {last_line(error)}"
        for name in os.listdir(ask["output"]):
            os.unlink(os.path.join(ask["output"], name))
    if not can_torch:
        raise Refused(fault or f"{sys.executable} has neither optimum-onnx nor torch with transformers: pip install optimum-onnx")
    try:
        return by_torch(ask)
    except Refused as refused:
        raise Refused(f"{refused} ({fault})" if fault else str(refused)) from None
    except Exception as error:
        more = f"; before that, {fault}" if fault else ""
        raise Refused(f"torch does not export this model with {versions()}: {type(error).__name__}: {last_line(error)}{more}") from error


def last_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def versions():
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in ("transformers", "optimum", "torch"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def main():
    ask = json.load(sys.stdin)
    # Exporters write to standard output, too: their lines go to standard error, and the answer has standard output for itself.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        found = {"by": export(ask)}
    except Refused as refused:
        found = {"refused": str(refused)}
    answer.write(json.dumps(found))
    answer.close()


if __name__ == "__main__":
    main()
