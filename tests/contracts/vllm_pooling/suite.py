"""vLLM's tests of its server for pooling models, against `trireme serve`: its files as they are, with one fixture replaced."""

import ast
import os
import subprocess
import xml.etree.ElementTree as xml
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUITE = "tests/entrypoints/pooling"

# Files that ask no server.
IN_PROCESS = "asks vLLM's own classes, no server"
IMAGES = "images and videos"
WEIGHTS = "needs the weights of the model that it names"
# By the names of tests, why they do not pass. A name stands for all tests that begin with it.
MISSES = {
    "embed/test_online_dimensions.py::test_matryoshka": "`dimensions` is taken of every model, not only of those that name their widths",
    "embed/test_online.py::test_padding": "`padding` to the longest row does not exist: padding is not counted as tokens",
    "token_embed/test_online.py::test_pooling_not_supported[embed": "a model with a vector for each token cannot be restarted to embed",
    "scoring/test_cross_encoder_online.py::test_rerank_api_t": WEIGHTS,
    "scoring/test_cross_encoder_online.py::test_pooling_classify": "a reranker takes pairs of texts, no single ones",
    "scoring/test_late_interaction_online.py::test_flash_late": IN_PROCESS,
}


def kind(file):
    """Why a file of tests is left out; `None`: it asks a server."""
    text = file.read_text(encoding="utf-8")
    if "RemoteOpenAIServer(" not in text:
        return IN_PROCESS
    return IMAGES if "vision" in file.name else WEIGHTS if "mteb" in file.name else None


def count(file):
    """The functions of a file that are tests."""
    functions = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return sum(isinstance(node, kinds) and node.name.startswith("test_") for node in functions)


def reason_of(name):
    return next((reason for prefix, reason in MISSES.items() if name.startswith(prefix)), None)


def run(source, python, trireme, hub, work, only=None):
    """Runs the suite in the folder `source`. Gives its figures, and the tests that did not do as `MISSES` says, with their errors."""
    files = sorted((source / SUITE).rglob("test_*.py"))
    left_out = {file: kind(file) for file in files if kind(file)}
    chosen = [str(file.relative_to(source)) for file in files if file not in left_out and (not only or only in str(file))]
    report = work / "vllm.xml"
    environment = {
        **os.environ, "TRIREME": str(trireme), "CONTRACTS_HUB": str(hub), "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub),
        "PYTHONPATH": f"{source}:{HERE}", "PYTHONDONTWRITEBYTECODE": "1", "TOKENIZERS_PARALLELISM": "false",
    }
    command = [
        str(python), "-m", "pytest", "-p", "remote_server", "-p", "no:cacheprovider", "-q", "--tb=short", "-o", "asyncio_mode=auto",
        f"--junitxml={report}", "-W", "ignore", *chosen,
    ]
    log = work / "vllm.log"
    with log.open("wb") as out:
        subprocess.run(command, cwd=source, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False)
    passed, misses, wrong = 0, {}, []
    for case in xml.parse(report).getroot().iter("testcase"):
        file = case.get("classname").removeprefix(SUITE.replace("/", ".") + ".").replace(".", "/") + ".py"
        name = f"{file}::{case.get('name')}"
        fault = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        reason = reason_of(name)
        if fault is None:
            passed += 1
        else:
            misses[reason] = misses.get(reason, 0) + 1
            if reason is None:
                wrong.append((name, (fault.text or fault.get("message") or "")[-1500:]))
    left = {}
    for file, why in left_out.items():
        tests = left.setdefault(why, 0)
        left[why] = tests + count(file)
    return {
        "passed": passed, "of": passed + sum(misses.values()),
        "misses": [{"tests": tests, "why": why} for why, tests in sorted(misses.items(), key=lambda item: str(item[0]))],
        "left_out": [{"tests": tests, "why": why} for why, tests in sorted(left.items())],
    }, wrong, log
