"""Folders that contradict themselves: a sound folder with one planted fault, and the places that the refusal has to name."""

import json
import shutil

import folders

PLANTED = {}


def planted(base, *places):
    """A fault in a copy of the folder `base`; the error names all of `places`."""
    def register(function):
        PLANTED[function.__name__.replace("_", "-")] = (base, places, function)
        return function
    return register


def change(path, name, **fields):
    """Sets fields of a JSON file, which is made where there is none."""
    file = path / name
    file.parent.mkdir(exist_ok=True)
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **fields}))


@planted("mean-normalized", "1_Pooling/config.json: embedding_dimension is 48", "last_hidden_state")
def pooling_of_another_width(path):
    change(path, "1_Pooling/config.json", embedding_dimension=48)


@planted("mean-normalized", "pooling_mode is mean", "pooling_mode_cls_token is true")
def pooling_by_two_modes(path):
    change(path, "1_Pooling/config.json", pooling_mode="mean", pooling_mode_cls_token=True)


@planted("mean-normalized", "embedding_dimension is 32", "word_embedding_dimension is 16")
def pooling_with_two_widths(path):
    change(path, "1_Pooling/config.json", embedding_dimension=32, word_embedding_dimension=16)


@planted("mean-normalized", "sentence_bert_config.json: max_seq_length is 4096", "max_position_embeddings allows 64")
def longer_than_the_positions(path):
    change(path, "sentence_bert_config.json", max_seq_length=4096)


@planted("mean-normalized", "sentence_bert_config.json: max_seq_length is 32", "sentence_roberta_config.json: max_seq_length is 16")
def two_lengths(path):
    change(path, "sentence_bert_config.json", max_seq_length=32)
    change(path, "sentence_roberta_config.json", max_seq_length=16)


@planted("prompt-by-name", "default_prompt_name is 'passage'", "prompts has")
def default_prompt_without_text(path):
    change(path, "config_sentence_transformers.json", default_prompt_name="passage", prompts={"query": "query: "})


@planted("dense-tanh", "2_Dense/config.json: in_features is 64", "2_Dense/model.safetensors")
def dense_of_another_width(path):
    change(path, "2_Dense/config.json", in_features=64)


@planted("dense-tanh", "modules.json", "1_Pooling/config.json is missing")
def module_without_its_folder(path):
    shutil.rmtree(path / "1_Pooling")


@planted("classify-one-label", "num_labels is 5", "id2label has 3 labels")
def another_number_of_labels(path):
    change(path, "config.json", num_labels=5)


@planted("classify-one-label", "logits gives 3 scores", "id2label has 2 labels")
def fewer_labels_than_scores(path):
    change(path, "config.json", id2label={"0": "no", "1": "yes"}, label2id={"no": 0, "yes": 1})


@planted("roberta", "do_lower_case is true", "tokenizer.json")
def lower_case_against_the_tokenizer(path):
    change(path, "sentence_bert_config.json", do_lower_case=True)


@planted("mean-normalized", "modules.json: [2].type is 'sentence_transformers.models.LSTM'", "not supported")
def module_that_is_not_served(path):
    modules = json.loads((path / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.LSTM"
    (path / "modules.json").write_text(json.dumps(modules))


@planted("splade-max", "gives no logits over the vocabulary", "export it again with --task fill-mask")
def graph_of_another_task(path):
    plain = path.with_name(f"{path.name}-plain")
    folders.make("mean-normalized", plain)
    shutil.copy(plain / "onnx" / "model.onnx", path / "onnx" / "model.onnx")
    shutil.rmtree(plain)


@planted("roberta", "add_eos_token is false", "tokenizer.json: post_processor adds '</s>'", "--accept add_eos_token")
def end_token_by_one_file_only(path):
    change(path, "tokenizer_config.json", eos_token="</s>", add_eos_token=False)


@planted("mean-normalized", "modules.json: [0].type is 'custom_st.Transformer'", "--accept custom-module")
def module_of_the_folders_own_code(path):
    modules = json.loads((path / "modules.json").read_text())
    modules[0]["type"] = "custom_st.Transformer"
    (path / "modules.json").write_text(json.dumps(modules))


@planted("mean-normalized", "processing_kwargs.text.stride is 4", "remove it")
def argument_that_is_not_supported(path):
    change(path, "sentence_bert_config.json", processing_kwargs={"text": {"stride": 4}})


def make(name, path, sound):
    """Plants the fault `name` in a copy of the folder that `sound` gives for a name, and gives the places to be named."""
    base, places, function = PLANTED[name]
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(sound(base), path)
    function(path)
    return places
