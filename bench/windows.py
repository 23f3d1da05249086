"""Long texts in windows, beside the texts of these windows sent as texts of their own: the windows of a text are plain rows for a model, and should cost
no more than these."""

import json
import subprocess
import urllib.request
from collections import Counter
from pathlib import Path

import folders
from raw import read_texts
from servers import DIRECT, BenchError

WORDS = 1200  # of a long text: about ten windows of 256 tokens
IN_FLIGHT = 16
DEPLOYMENTS = ("all in one", "services")
LONG, PLAIN = "windows of long texts", "the same rows sent plainly"


def start(bench, stages):
    """Serves a model that reads long texts in windows, and writes such texts and those of their windows."""
    folder = folders.make(Path(bench.options.model), bench.work / folders.NAME)
    repository = bench.work / "windows-repository"
    argv = [bench.binaries / "trireme", "init", folder, repository, "--long-texts", "windows"]
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"trireme init failed on {folder}: {done.stderr.strip()}")
    bench.all_in_one(name_of("all in one"), ["--model-repository", repository], folders.NAME)
    bench.services(name_of("services"), repository, folders.NAME, stages)
    words = " ".join(read_texts(bench.options.texts)).split()
    texts = [" ".join(words[begin : begin + WORDS]) for begin in range(0, len(words), WORDS)]
    windows = {text: windows_of(bench.deployments[name_of("all in one")], text) for text in texts}
    # Requests of both sides have as many rows.
    bench.windows, _ = Counter(map(len, windows.values())).most_common(1)[0]
    chosen = {text: own for text, own in windows.items() if len(own) == bench.windows}
    folders.write_texts(bench.work / "long.txt", list(chosen))
    folders.write_texts(bench.work / "windows.txt", [window for own in chosen.values() for window in own])


def name_of(deployment):
    return f"{deployment}, windows"


def windows_of(deployment, text):
    """The characters of each window of a text."""
    inputs = [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [text]}]
    body = json.dumps({"parameters": {"fold": "keep"}, "inputs": inputs}).encode()
    ask = urllib.request.Request(f"http://{deployment.address}/v2/models/{folders.NAME}/infer", body, {"Content-Type": "application/json"})
    with DIRECT.open(ask, timeout=60) as answer:
        numbers = next(output["data"] for output in json.load(answer)["outputs"] if output["name"] == "windows")
    return [text[begin:end] for begin, end in zip(numbers[1::6], numbers[2::6])]


def row(deployment, side):
    return f"{deployment}, {side} / {IN_FLIGHT}"


def turn(bench):
    """Windows per second: of long texts, and sent plainly."""
    sides = ((LONG, "long.txt", 1), (PLAIN, "windows.txt", bench.windows))
    bench.measure_in_order(*(side(bench, name, *what) for name in DEPLOYMENTS for what in sides))


def side(bench, name, what, texts, many):
    """Requests of so many texts each, all of which have the windows of one long text."""
    def measure():
        bench.load(name_of(name), folders.NAME, IN_FLIGHT, many, key=row(name, what), texts=bench.work / texts)()
        measured = bench.results[row(name, what)][-1]
        measured["requests_per_second"] *= bench.windows
        measured["texts_per_second"] = measured["requests_per_second"]
        measured.pop("tokens_per_second", None)
    return measure


def ratios(report, deployment):
    return report.ratio(row(deployment, LONG), row(deployment, PLAIN))
