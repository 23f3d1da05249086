"""The model repository of a folder, written by hand from the known facts about the folder."""

import json
import shutil

TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]


def parameters(values):
    return "".join(f"parameters {{ key: {quoted(key)} value {{ string_value: {quoted(value)} }} }}\n" for key, value in values.items())


def quoted(text):
    return json.dumps(text, ensure_ascii=False)


def tensor(name, datatype, *dims):
    return f"{{ name: {quoted(name)} data_type: TYPE_{datatype} dims: [ {', '.join(map(str, dims))} ] }}"


def block(kind, tensors):
    return f"{kind} [\n  " + ",\n  ".join(tensors) + "\n]\n"


def step(model, inputs, outputs):
    maps = [f"input_map {{ key: {quoted(a)} value: {quoted(b)} }}" for a, b in inputs.items()]
    maps += [f"output_map {{ key: {quoted(a)} value: {quoted(b)} }}" for a, b in outputs.items()]
    return f"{{ model_name: {quoted(model)} model_version: -1 {' '.join(maps)} }}"


def write(repository, model, config, files=()):
    """A model with version 1 of these files: pairs of a path and the file's name there."""
    version = repository / model / "1"
    version.mkdir(parents=True)
    (repository / model / "config.pbtxt").write_text(config)
    for source, name in files:
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, version / name)


def tokenizer_files(folder):
    static = folder / "0_StaticEmbedding"
    place = static if (static / "tokenizer.json").exists() else folder
    return [(place / name, name) for name in TOKENIZER_FILES if (place / name).exists()]


OUTPUTS = {
    "embed": lambda f: [tensor("sentence_embedding", "FP32", f.width)],
    "sparse": lambda f: [tensor("sparse_indices", "INT64", -1), tensor("sparse_values", "FP32", -1)],
    "multi_vector": lambda f: [tensor("token_embeddings", "FP32", -1, f.width), tensor("token_mask", "INT64", -1)],
    "rerank": lambda f: [tensor("scores", "FP32", 1)],
    "classify": lambda f: [tensor("scores", "FP32", len(f.labels))],
    "token_classify": lambda f: [tensor("entities", "STRING", 1)],
}
OUTPUT_NAMES = {
    "embed": ["sentence_embedding"], "sparse": ["sparse_indices", "sparse_values"],
    "multi_vector": ["token_embeddings", "token_mask"], "rerank": ["scores"], "classify": ["scores"],
    "token_classify": ["entities"],
}


def of_folder(folder, known, repository, name="m"):
    """Writes the repository of `folder` into `repository`; its ensemble is called `name`."""
    spans = known.task == "token_classify"
    extra = [key for key, wanted in [("offsets", spans), ("special_tokens_mask", spans)] if wanted]
    extra += ["pooling_mask"] if known.tokenizer.pop("pooling_mask", False) else []
    tokens = [*known.inputs, *extra]
    texts = [tensor("TEXT", "STRING", 1)] + ([tensor("TEXT_PAIR", "STRING", 1)] if known.task == "rerank" else [])
    text_names = ["TEXT"] + (["TEXT_PAIR"] if known.task == "rerank" else [])
    declared = [tensor(t, "INT64", -1, 2) if t == "offsets" else tensor(t, "INT64", -1) for t in tokens]
    write(
        repository, f"{name}_tokenizer",
        'backend: "tokenizer"\nmax_batch_size: 64\n' + block("input", texts) + block("output", declared) + parameters(known.tokenizer),
        tokenizer_files(folder),
    )
    outputs = OUTPUTS[known.task](known)
    names = OUTPUT_NAMES[known.task]
    ids = [tensor(t, "INT64", -1) for t in known.inputs]
    steps = [step(f"{name}_tokenizer", {t: t for t in text_names}, {t: t for t in tokens})]
    if known.static is not None:
        weights = next(p for p in [folder / "model.safetensors", folder / "0_StaticEmbedding" / "model.safetensors"] if p.exists())
        files = [(weights, "model.safetensors")] + [(folder / "config.json", "config.json")] * (folder / "config.json").exists()
        config = 'backend: "static"\nmax_batch_size: 64\n' + block("input", ids) + block("output", outputs)
        write(repository, f"{name}_model", config + parameters(known.static), files)
        steps.append(step(f"{name}_model", {t: t for t in known.inputs}, {t: t for t in names}))
    else:
        serve_graph(folder, known, repository, name, ids, outputs, names, tokens, steps)
    config = f'platform: "ensemble"\nmax_batch_size: 64\n{block("input", texts)}{block("output", outputs)}'
    scheduling = "ensemble_scheduling {\n  step [\n    " + ",\n    ".join(steps) + "\n  ]\n}\n"
    write(repository, name, config + parameters({"task": known.task}) + scheduling)


def serve_graph(folder, known, repository, name, ids, outputs, names, tokens, steps):
    data = known.output
    scores = known.task in ("rerank", "classify")
    width = {"token_classify": len(known.labels), "sparse": known.width}.get(known.task, 32)
    hidden = tensor(data, "FP32", len(known.labels)) if scores else tensor(data, "FP32", -1, width)
    padded = parameters({"pad_inputs": ", ".join(f"{t}:0" for t in known.inputs)})
    config = 'backend: "onnxruntime"\nmax_batch_size: 64\n' + block("input", ids) + block("output", [hidden]) + padded
    write(repository, f"{name}_model", config, [(folder / "onnx" / "model.onnx", "model.onnx")])
    steps.append(step(f"{name}_model", {t: t for t in known.inputs}, {data: data}))

    spans = known.task == "token_classify"
    beside = [t for t in tokens if t in ("attention_mask", "pooling_mask") and not (spans or scores)]
    beside += ["input_ids", "offsets", "special_tokens_mask"] if spans else []
    inputs = [hidden] + [tensor(t, "INT64", -1, 2) if t == "offsets" else tensor(t, "INT64", -1) for t in beside]
    inputs += [tensor("TEXT", "STRING", 1)] if spans else []
    ops = "entities:simple" if spans else known.ops
    values = {"ops": ops, **({"labels": json.dumps(known.labels)} if known.labels else {})}
    config = 'backend: "postprocess"\nmax_batch_size: 64\n' + block("input", inputs) + block("output", outputs) + parameters(values)
    files = [(folder / module, module) for module in known.modules] + (tokenizer_files(folder) if spans else [])
    write(repository, f"{name}_postprocess", config, files)
    used = [data, *beside, *(["TEXT"] if spans else [])]
    steps.append(step(f"{name}_postprocess", {t: t for t in used}, {t: t for t in names}))
