#!/usr/bin/env python3
"""`make image-test`: the stages of the Dockerfile behind the programs, with programs that this machine has built.

Builds the image `trireme` on a stand-in for the base image where no registry can be reached (scripts/compose-base-images.sh), and serves a model
folder from it: as a user without rights, with a root file system that cannot be written, healthy, without a network but the port's.
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
HEALTHY_LIMIT = 120


def docker(*words, **options):
    """The output of a command of docker; the test ends if it fails."""
    done = subprocess.run(["docker", *map(str, words)], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        tiny.fail(f"docker {' '.join(map(str, words))}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def base_image():
    """The image in which programs run: the one that is named, a pulled one, or a stand-in."""
    if os.environ.get("RUNTIME_IMAGE"):
        return os.environ["RUNTIME_IMAGE"]
    name = re.search(r"^ARG RUNTIME_IMAGE=(.*)$", (ROOT / "Dockerfile").read_text(), re.M)[1]
    if subprocess.run(["docker", "pull", "--quiet", name], capture_output=True, check=False).returncode == 0:
        return name
    made = subprocess.run([ROOT / "scripts/compose-base-images.sh", "trireme-base"], stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode == UNAVAILABLE:
        print("==> skipped: this machine can neither pull nor make a base image")
        sys.exit(0)
    return re.search(r"^RUNTIME_IMAGE=(.*)$", made.stdout, re.M)[1]


def dockerfile():
    """The shipped Dockerfile up to the image `trireme`, with folders in place of the stages that compile and fetch."""
    text = (ROOT / "Dockerfile").read_text()
    head, *stages = re.split(r"^(?=FROM )", text, flags=re.M)
    names = [re.match(r"FROM \S+ AS (\S+)", stage)[1] for stage in stages]
    given = {"build": "FROM scratch AS build\nCOPY out /out\n", "onnxruntime": "FROM scratch AS onnxruntime\nCOPY onnxruntime /src/.tools/onnxruntime\n"}
    wanted = {"runtime", "executor", "trireme", *given}
    tiny.check("the Dockerfile has the stages of the image", wanted <= set(names))
    return head + "".join(given.get(name, stage) for name, stage in zip(names, stages) if name in wanted)


def build(binary, base):
    """Builds the image."""
    with tempfile.TemporaryDirectory() as context:
        context = Path(context)
        (context / "Dockerfile").write_text(dockerfile())
        (context / "out").mkdir()
        shutil.copy(binary, context / "out/trireme")
        subprocess.run(["strip", context / "out/trireme"], check=True)
        library = Path(os.environ["ORT_DYLIB_PATH"])
        shutil.copytree(library.parent, context / "onnxruntime")
        arguments = ["--build-arg", f"RUNTIME_IMAGE={base}", "--build-arg", "VERSION=1.2.3", "--target", "trireme", "--tag", IMAGE]
        docker("build", "--quiet", *arguments, context)


def main(binary):
    """Builds and runs the image."""
    if not shutil.which("docker"):
        print("==> skipped: docker is not installed")
        return
    build(binary, base_image())
    config = json.loads(docker("image", "inspect", IMAGE))[0]["Config"]
    tiny.check("its user has no rights", config["User"] == "65532:65532")
    tiny.check("its labels say what it is", config["Labels"]["org.opencontainers.image.version"] == "1.2.3")
    for stage in ("gateway", "tokenizer", "model", "postprocess", "worker", "serve"):
        help_text = docker("run", "--rm", "--network=none", IMAGE, stage, "--help")
        tiny.check(f"it has the stage '{stage}'", "Usage: trireme" in help_text)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "mini"
        tiny.write(folder)
        for path in [Path(scratch), folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        rights = ["--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
        started = docker("run", "--detach", *rights, "--publish=127.0.0.1::8000", f"--volume={folder}:/mini:ro", IMAGE, "serve", "/mini")
        try:
            give_up = time.monotonic() + HEALTHY_LIMIT
            while (state := json.loads(docker("inspect", started))[0]["State"])["Running"] and time.monotonic() < give_up:
                if state["Health"]["Status"] == "healthy":
                    break
                time.sleep(0.5)
            logs = subprocess.run(["docker", "logs", started], capture_output=True, text=True, check=True).stderr
            tiny.check(f"it is healthy: {state['Health']['Status'] if state['Running'] else logs}", state["Running"] and state["Health"]["Status"] == "healthy")
            text, expected = tiny.golden()
            body = json.dumps({"model": "mini", "input": [text]}).encode()
            place = docker("port", started, "8000").splitlines()[0]
            request = urllib.request.Request(f"http://{place}/v1/embeddings", body, {"Content-Type": "application/json"})
            with tiny.DIRECT.open(request, timeout=60) as response:
                found = json.load(response)["data"][0]["embedding"]
            tiny.check("docker run IMAGE serve FOLDER answers", tiny.close(found, expected))
            docker("stop", started)
            code = json.loads(docker("inspect", started))[0]["State"]["ExitCode"]
            tiny.check(f"it ends in order: {code}", code == 0)
        finally:
            docker("rm", "--force", "--volumes", started)


if __name__ == "__main__":
    main(sys.argv[1])
