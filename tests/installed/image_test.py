#!/usr/bin/env python3
"""`make image-test`: the stages of the Dockerfile behind the programs, with programs that this machine has built.

Builds the image `trireme` on a stand-in for the base image where no registry can be reached (scripts/compose-base-images.sh), and serves a model
folder from it: as a user without rights, with a root file system that cannot be written, healthy, without a network but the port's.

`TARGET=export` builds the image with PyTorch in place of it, which fetches gigabytes. Its Python makes a model folder without an ONNX file, and
the image serves that.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import tiny

ROOT = tiny.ROOT
IMAGE = "trireme-image-test"
# Exit code of scripts/compose-base-images.sh if the machine lacks something that it needs.
UNAVAILABLE = 69
HEALTHY_LIMIT = 300


def docker(*words, **options):
    """The output of a command of docker; the test ends if it fails."""
    done = subprocess.run(["docker", *map(str, words)], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        tiny.fail(f"docker {' '.join(map(str, words))}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


# Of each target: the argument that names its base image, and the name of the stand-in.
BASES = {"trireme": ("RUNTIME_IMAGE", "RUNTIME_IMAGE"), "export": ("MODELS_PYTHON_IMAGE", "PYTHON_IMAGE")}

# A folder as transformers saves it: a tokenizer of words, an encoder with random weights, and a mean pooling.
MAKE_FOLDER = """
import sys
from pathlib import Path
import torch
from sentence_transformers import SentenceTransformer, models
from tokenizers import Tokenizer, models as kinds, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
torch.manual_seed(1)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"a boat on the river with two oars".split()]
tokenizer = Tokenizer(kinds.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
folder = Path("/tmp/bert")
marks = dict(unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")
PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=32, **marks).save_pretrained(folder)
sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=32)
BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
encoder = models.Transformer(str(folder), max_seq_length=32)
whole = SentenceTransformer(modules=[encoder, models.Pooling(16)], device="cpu")
whole.save(sys.argv[1])
print(*whole.encode(["a boat on the river"])[0].tolist())
"""


def base_image(target):
    """The image that the target begins with: the one that is named, a pulled one, or a stand-in."""
    argument, stand_in = BASES[target]
    if os.environ.get(argument):
        return os.environ[argument]
    name = re.search(rf"^ARG {argument}=(.*)$", (ROOT / "Dockerfile").read_text(), re.M)[1]
    if subprocess.run(["docker", "pull", "--quiet", name], capture_output=True, check=False).returncode == 0:
        return name
    made = subprocess.run([ROOT / "scripts/compose-base-images.sh", "trireme-base"], stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode == UNAVAILABLE:
        print("==> skipped: this machine can neither pull nor make a base image")
        sys.exit(0)
    return re.search(rf"^{stand_in}=(.*)$", made.stdout, re.M)[1]


def dockerfile(target):
    """The shipped Dockerfile's stages of the target, with folders in place of the stages that compile and fetch."""
    text = (ROOT / "Dockerfile").read_text()
    head, *stages = re.split(r"^(?=FROM )", text, flags=re.M)
    bases = {name: base for stage in stages for base, name in re.findall(r"^FROM (\S+) AS (\S+)", stage)}
    given = {"build": "FROM scratch AS build\nCOPY out /out\n", "onnxruntime": "FROM scratch AS onnxruntime\nCOPY onnxruntime /src/.tools/onnxruntime\n"}
    tiny.check("the Dockerfile has the stages of the image", {target, *given} <= set(bases))
    # Others stay out: the classic builder runs each stage, and the base of one that is not needed may be out of reach.
    wanted, stage = {*given}, target
    while stage in bases:
        wanted.add(stage)
        stage = bases[stage]
    return head + "".join(given.get(name, stage) for name, stage in zip(bases, stages) if name in wanted)


def build(binary, base, target):
    """Builds the image."""
    with tempfile.TemporaryDirectory() as context:
        context = Path(context)
        (context / "Dockerfile").write_text(dockerfile(target))
        (context / "out").mkdir()
        shutil.copy(binary, context / "out/trireme")
        subprocess.run(["strip", context / "out/trireme"], check=True)
        library = Path(os.environ["ORT_DYLIB_PATH"])
        shutil.copytree(library.parent, context / "onnxruntime")
        (context / "cli").mkdir()
        shutil.copy(ROOT / "cli/pyproject.toml", context / "cli/pyproject.toml")
        values = {BASES[target][0]: base, "VERSION": "1.2.3"}
        if target == "export" and "TORCH_INDEX" in os.environ:
            values["TORCH_INDEX"] = os.environ["TORCH_INDEX"]
        arguments = [word for name, value in values.items() for word in ("--build-arg", f"{name}={value}")]
        arguments += ["--target", target, "--tag", IMAGE]
        docker("build", "--quiet", *arguments, context)


def small_folder(folder):
    """Writes the tiny encoder. Its text and the text's vector."""
    tiny.write(folder)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return tiny.golden()


def folder_without_graph(folder):
    """Has the image's Python write a folder. Its text and the vector that sentence-transformers makes of it."""
    folder.mkdir()
    folder.chmod(0o777)
    command = ["--network=none", f"--volume={folder}:/made", "--env=HOME=/tmp", "--entrypoint=python3", IMAGE, "-c", MAKE_FOLDER, "/made"]
    said = docker("run", "--rm", *command)
    tiny.check("the folder has no ONNX file", not list(folder.rglob("*.onnx")))
    return "a boat on the river", [float(number) for number in said.splitlines()[-1].split()]


def main(binary, target="trireme"):
    """Builds and runs the image."""
    if not shutil.which("docker"):
        print("==> skipped: docker is not installed")
        return
    build(binary, base_image(target), target)
    config = json.loads(docker("image", "inspect", IMAGE))[0]["Config"]
    tiny.check("its user has no rights", config["User"] == "65532:65532")
    tiny.check("its labels say what it is", config["Labels"]["org.opencontainers.image.version"] == "1.2.3")
    for stage in ("gateway", "tokenizer", "model", "postprocess", "worker", "serve"):
        help_text = docker("run", "--rm", "--network=none", IMAGE, stage, "--help")
        tiny.check(f"it has the stage '{stage}'", "Usage: trireme" in help_text)
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)
        folder = Path(scratch) / "mini"
        text, expected = folder_without_graph(folder) if target == "export" else small_folder(folder)
        words = ["serve", "/mini", *(["--export"] if target == "export" else [])]
        rights = ["--read-only", "--tmpfs=/tmp", "--tmpfs=/cache:uid=65532,gid=65532", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
        starting = time.monotonic()
        started = docker("run", "--detach", *rights, "--publish=127.0.0.1::8000", f"--volume={folder}:/mini:ro", IMAGE, *words)
        try:
            give_up = time.monotonic() + HEALTHY_LIMIT
            while (state := json.loads(docker("inspect", started))[0]["State"])["Running"] and time.monotonic() < give_up:
                if state["Health"]["Status"] == "healthy":
                    break
                time.sleep(0.5)
            logs = subprocess.run(["docker", "logs", started], capture_output=True, text=True, check=True).stderr
            tiny.check(f"it is healthy: {state['Health']['Status'] if state['Running'] else logs}", state["Running"] and state["Health"]["Status"] == "healthy")
            body = json.dumps({"model": "mini", "input": [text]}).encode()
            place = docker("port", started, "8000").splitlines()[0]
            request = urllib.request.Request(f"http://{place}/v1/embeddings", body, {"Content-Type": "application/json"})
            with tiny.DIRECT.open(request, timeout=60) as response:
                found = json.load(response)["data"][0]["embedding"]
            seconds = time.monotonic() - starting
            tiny.check(f"docker run IMAGE {' '.join(words)} answers {seconds:.1f} s after its start", tiny.close(found, expected))
            docker("stop", started)
            code = json.loads(docker("inspect", started))[0]["State"]["ExitCode"]
            tiny.check(f"it ends in order: {code}", code == 0)
        finally:
            docker("rm", "--force", "--volumes", started)


if __name__ == "__main__":
    main(*sys.argv[1:])
