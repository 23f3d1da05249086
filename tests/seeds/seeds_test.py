#!/usr/bin/env python3
"""Serves the models of five published posts about Triton, byte for byte, and runs the posts' own clients.

    make seeds-test

The posts are not part of this project: TRIREME_REFERENCE_DIR names a folder with their texts in `seeds/`; without it nothing is
tested. Code is taken out of the texts as it is (posts.py). The models behind it are small, have random weights and are made
here (models.py), under the names that the posts' code expects.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import models
from posts import Post
from server import GRPC, HTTP, Serve

ROOT = Path(__file__).resolve().parent.parent.parent


class Seeds:
    """The posts, and a folder for what is made of them."""

    def __init__(self, reference, trireme, work):
        self.reference, self.trireme, self.work = reference, trireme, work

    def post(self, number):
        return Post(self.reference / "seeds", number)

    def repository(self, number, files):
        """A repository of these files, by their paths."""
        folder = self.work / f"models-{number}"
        for path, text in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode("utf-8"))
        return folder

    def serve(self, repository):
        return Serve(self.trireme, repository, self.work)


def expect(what, truth):
    if not truth:
        raise AssertionError(what)


def run_cells(cells):
    """Runs the cells of a notebook, one after the other; gives their names. Those that only show something show nothing."""
    names = {}
    for cell in cells:
        exec(compile(cell, "cell", "exec"), names)
    return names


def post_000(seeds):
    """A tokenizer in Python, an embedder in ONNX and an ensemble of both, in the post's configurations."""
    post = seeds.post("000")
    files = {name: post.file(name) for name in ("tokenizer/1/model.py", "tokenizer/config.pbtxt", "ensemble_model/config.pbtxt")}
    files["embedding_model/config.pbtxt"] = post.file("embedding_model_path.parent.__str__()}/config.pbtxt")
    files["ensemble_model/1/.keep"] = ""
    repository = seeds.repository("000", files)
    models.tokenizer(repository / "tokenizer/1")
    models.embedder(repository / "embedding_model/1")
    cells = post.after("### Making Request to the inference Server.")
    with seeds.serve(repository):
        names = run_cells(cells)
    output = names["inference_output"]
    expect(f"an embedding of 1024 numbers, found {output.shape}", output.shape == (1, 1024))
    from transformers import AutoTokenizer
    import onnxruntime

    tokens = AutoTokenizer.from_pretrained(repository / "tokenizer/1")(names["sentences"], return_tensors="np")
    session = onnxruntime.InferenceSession(str(repository / "embedding_model/1/bio-bert-embedder.onnx"))
    inputs = {given.name: tokens[given.name].astype("int64") for given in session.get_inputs()}
    (alone,) = session.run(["3391"], inputs)
    expect("the same embedding as ONNX Runtime alone", abs(output - alone).max() < 1e-5)


def post_001(seeds):
    """A translation model that runs ONNX Runtime by way of `optimum`, and a client that tokenizes."""
    post = seeds.post("001")
    files = {
        "m2m100_translation_model/config.pbtxt": post.block("m2m100_translation_model/config.pbtxt", "input ["),
        "m2m100_translation_model/1/model.py": post.block("class TritonPythonModel", "ORTModelForSeq2SeqLM"),
    }
    # A line of the notebook, which is no comment in a configuration's language and one in Python's: both take it.
    repository = seeds.repository("001", files)
    quantized = repository / "m2m100_translation_model/1/m2m100_418M_en_swa_rel_news_quantized"
    models.translator(quantized, seeds.work / "masakhane/m2m100_418M_en_swa_rel_news")
    cells = post.after("## Making Inference Requests")
    with seeds.serve(repository):
        names = run_cells(cells)
    output = names["inference_output"]
    expect(f"ids for two texts, found {output.shape}", output.shape[0] == 2 and output.shape[1] > 2)
    expect("each begins with the language that the model forces", all(row[1] == 128088 for row in output))
    expect("the post's own decoding takes them", len(names["decoded_output"]) == 2)


def post_002(seeds):
    """A `model.py` that cannot work anywhere: it uses a tokenizer that it never makes. The client gets Python's own error."""
    import numpy as np
    import tritonclient.http as httpclient

    post = seeds.post("002")
    name = "multilingual-e5-large"
    head = post.block(f'name: "{name}"', 'backend: "python"')
    config = head + post.block('name: "output_vector"')
    code = post.block("class TritonPythonModel")
    models.feature_extractor(seeds.work / "intfloat" / name)
    # As printed, a text is one element, of which the first byte is taken; with batches the post's file gets further.
    expected = {
        "": ([1], "AttributeError: 'int' object has no attribute 'decode'", "<listcomp>"),
        "max_batch_size: 8\n": ([1, 1], "AttributeError: 'TritonPythonModel' object has no attribute 'tokenizer'", "execute"),
    }
    for batches, (shape, error, place) in expected.items():
        number = f"002-{len(batches)}"
        repository = seeds.repository(number, {f"{name}/config.pbtxt": batches + config, f"{name}/1/model.py": code})
        with seeds.serve(repository) as server:
            text = httpclient.InferInput("text", shape, "BYTES")
            text.set_data_from_numpy(np.full(shape, "a text", dtype=object))
            try:
                httpclient.InferenceServerClient(HTTP).infer(name, [text])
                raise AssertionError("it cannot answer, and has")
            except httpclient.InferenceServerException as refused:
                said = str(refused)
            expect(f"the client reads {error}, found: {said}", error in said and f"model.py({line_of(code, place)}): {place}" in said)
            traced = [event for event in server.events() if "Traceback" in event and error in event]
            expect("the log has the traceback", traced)


def line_of(code, place):
    """The line of the post's file that fails."""
    wanted = 'i[0].decode("utf-8")' if place == "<listcomp>" else "self.tokenizer("
    return next(number for number, line in enumerate(code.splitlines(), 1) if wanted in line)


def post_003(seeds):
    """No Python model: a classifier in TorchScript for backend `pytorch`, and a client over gRPC. As it is the model is refused with the
    command that makes its ONNX file; after that command the post's own configuration and client get what torch computes."""
    import numpy as np
    import torch
    import tritonclient.http as httpclient
    from transformers import AutoTokenizer

    post = seeds.post("003")
    config = post.block('name: "sentiment_classifier"', 'backend: "pytorch"')
    repository = seeds.repository("003", {"sentiment_classifier/config.pbtxt": config})
    model, backbone = repository / "sentiment_classifier", seeds.work / "cardiffnlp/twitter-roberta-base-sentiment"
    classifier = models.classifier(model / "1/model.pt")
    models.tokenizer(backbone)
    refused = subprocess.run([seeds.trireme, "validate", repository], capture_output=True, text=True)
    expect(f"the refusal has the command: {refused.stdout}", refused.returncode != 0 and f"trireme export {model}" in refused.stdout)
    exported = subprocess.run([seeds.trireme, "export", model, "--python", sys.executable], capture_output=True, text=True)
    expect(f"the command makes the file: {exported.stdout} {exported.stderr}", exported.returncode == 0 and "serves what torch" in exported.stdout)
    client = seeds.work / "client.py"
    client.write_bytes(post.block("def parse():", "class_index").encode("utf-8"))
    text = "I love you"
    arguments = [f"--triton_adress={GRPC}", f"--input_text={text}", "--model_name=cardiffnlp/twitter-roberta-base-sentiment"]
    tokens = AutoTokenizer.from_pretrained(backbone)(text, return_tensors="pt")
    with torch.no_grad():
        expected = classifier(tokens["input_ids"], tokens["attention_mask"]).numpy()
    with seeds.serve(repository) as server:
        ran = subprocess.run([sys.executable, client, *arguments], capture_output=True, text=True, cwd=seeds.work)
        inputs = []
        for name, values in (("INPUT__0", tokens["input_ids"]), ("INPUT__1", tokens["attention_mask"])):
            inputs.append(httpclient.InferInput(name, list(values.shape), "INT64"))
            inputs[-1].set_data_from_numpy(values.numpy())
        served = httpclient.InferenceServerClient(HTTP).infer("sentiment_classifier", inputs).as_numpy("OUTPUT__0")
        said_once = [event for event in server.events() if "serves this file in place of" in event]
    label = ("negative", "neutral", "positive")[int(np.argmax(expected[0]))]
    said = ran.stdout.splitlines()[-1:]
    expect(f"the post's client prints torch's class '{label}', found {said} {ran.stderr[-500:]}", said == [f"Predict: {label}"])
    expect(f"the logits of torch {expected}, found {served}", served.shape == (1, 3) and abs(served - expected).max() < 1e-5)
    expect("the log says once what is served", len(said_once) == 1)


def post_004(seeds):
    """A tokenizer in Python that reads its settings from a file; the post has neither a configuration nor a client."""
    import numpy as np
    import tritonclient.http as httpclient
    from transformers import AutoTokenizer

    post = seeds.post("004")
    code = post.between("# preprocessing/1/model.py", "Classifier Model")
    tokenizer, recipe = seeds.work / "backbone", seeds.work / "recipe.yaml"
    models.tokenizer(tokenizer)
    recipe.write_text(f"backbone_model_name: {tokenizer}\n")
    config = f"""backend: "python"
input [ {{ name: "QUERY" data_type: TYPE_STRING dims: [ -1 ] }} ]
output [
  {{ name: "INPUT_IDS" data_type: TYPE_INT64 dims: [ -1, -1 ] }},
  {{ name: "ATTENTION_MASK" data_type: TYPE_INT64 dims: [ -1, -1 ] }}
]
parameters {{ key: "recipe_file" value {{ string_value: "{recipe}" }} }}
"""
    repository = seeds.repository("004", {"preprocessing/config.pbtxt": config, "preprocessing/1/model.py": code})
    texts = ["what a day", "no"]
    with seeds.serve(repository) as server:
        query = httpclient.InferInput("QUERY", [2], "BYTES")
        query.set_data_from_numpy(np.array(texts, dtype=object))
        result = httpclient.InferenceServerClient(HTTP).infer("preprocessing", [query])
        ids, mask = result.as_numpy("INPUT_IDS"), result.as_numpy("ATTENTION_MASK")
        logged = [event for event in server.events() if event.startswith("Input query : ")]
    expected = AutoTokenizer.from_pretrained(tokenizer)(
        [f"classification: {text}" for text in texts], padding="max_length", max_length=8128, truncation=True,
        pad_to_multiple_of=8, return_tensors="np",
    )
    expect(f"ids of 8128 tokens, found {ids.shape}", ids.shape == (2, 8128))
    expect("the ids of transformers alone", (ids == expected["input_ids"]).all() and (mask == expected["attention_mask"]).all())
    expect("its Logger writes into the log", len(logged) == 1)
    expect("it is finalized", any(event == "Cleaning up..." for event in server.events()))


POSTS = {name.removeprefix("post_"): function for name, function in list(globals().items()) if name.startswith("post_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trireme", type=Path, help="the program")
    parser.add_argument("--only", choices=POSTS, help="one post")
    chosen = parser.parse_args()
    reference, trireme = Path(os.environ.get("TRIREME_REFERENCE_DIR", "/nowhere")).resolve(), chosen.trireme.resolve()
    if not (reference / "seeds").is_dir():
        print(f"skipped: the posts are not here: TRIREME_REFERENCE_DIR names no folder with `seeds`, found '{reference}'")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    failed = []
    names = [chosen.only] if chosen.only else sorted(POSTS)
    with tempfile.TemporaryDirectory(prefix="trireme-seeds-") as work:
        os.chdir(work)
        os.environ["HF_HUB_OFFLINE"] = "1"
        seeds = Seeds(reference, trireme, Path(work))
        for name in names:
            try:
                POSTS[name](seeds)
                print(f"post {name}: {' '.join(POSTS[name].__doc__.split())}", flush=True)
            except Exception as error:
                failed.append(name)
                print(f"FAILED post {name}: {type(error).__name__}: {error}", flush=True)
    print(f"{len(names) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
