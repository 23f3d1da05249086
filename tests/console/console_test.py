#!/usr/bin/env python3
"""The console in a real browser: it shows the running system, its last minutes and its batches, draws the pipeline, a model answers,
keyboard alone will do, a phone's width is enough, and hostile names and answers stay text. With --screenshot it also makes the picture
that the README shows, in light and, with -dark in its name, in dark."""

import argparse
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from browser import Browser, installed

ROOT = Path(__file__).resolve().parent.parent.parent
READY_LIMIT = 90
# Without a proxy, because the server is on this machine.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
PHONE = 420
SHOWN_SECONDS = 60
HOSTILE_NAME = "<img src=x onerror='document.title=1'>"
HOSTILE_TEXT = "<script>document.title=2</script>"
CONFIG = """
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """`trireme serve` of some repositories, killed at the end."""

    def __init__(self, binary, repositories, *arguments):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [binary, "serve", "--http-port", self.port, "--http-address", "127.0.0.1", "--allow-grpc=false", "--allow-metrics=false"]
        for repository in repositories:
            command += ["--model-repository", repository]
        self.process = subprocess.Popen([str(word) for word in [*command, *arguments]], stderr=subprocess.DEVNULL)

    def __enter__(self):
        give_up = time.monotonic() + READY_LIMIT
        while time.monotonic() < give_up:
            if self.process.poll() is not None:
                raise SystemExit(f"the server has ended with code {self.process.returncode}")
            try:
                if DIRECT.open(f"{self.url}/v2/health/ready", timeout=5).status == 200:
                    return self
            except OSError:
                time.sleep(0.2)
        raise SystemExit(f"the server is not ready after {READY_LIMIT} s")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=40)


def check(name, holds):
    print(f"{'ok    ' if holds else 'FAILED'}  {name}", flush=True)
    if not holds:
        raise SystemExit(1)


def text_of(element):
    return f"document.getElementById('{element}').textContent"


def has(element, text):
    return f"{text_of(element)}.includes({text!r})"


def choose(browser, element, value):
    browser.evaluate(f"(() => {{ const s = document.getElementById('{element}'); s.value = {value!r}; s.dispatchEvent(new Event('change')); }})()")


def the_page_is_locked_up(server):
    answer = DIRECT.open(f"{server.url}/ui")
    policy = answer.headers["content-security-policy"]
    check("the policy allows nothing from elsewhere and nothing inline", "default-src 'none'" in policy and "unsafe" not in policy)
    page = answer.read().decode()
    check("the page names no other host", "http:" not in page and "https:" not in page and "//" not in page)


def it_shows_what_runs(browser, server):
    browser.open(f"{server.url}/ui")
    browser.wait("readiness", f"{text_of('state')} === 'ready'")
    for model in ("tiny_embedding:1", "tiny_encoder:1", "tiny_pool:1"):
        browser.wait(f"the model {model}", has("models", model))
    browser.wait("the gateway", has("workers", "gateway"))
    browser.wait("the worker", has("workers", "tiny_tokenizer:1"))
    check("models, the gateway and the worker are shown", True)
    browser.wait("the pipelines", "document.getElementById('pipeline').options.length > 1")
    choose(browser, "pipeline", "tiny_embedding:1")
    boxes = browser.evaluate("[...document.querySelectorAll('#graph text.name')].map((name) => name.textContent)")
    check("the pipeline is drawn in order", boxes == ["request", "tiny_tokenizer", "tiny_encoder", "tiny_pool", "answer"])
    edges = browser.evaluate("document.querySelectorAll('#graph path.edge').length")
    check("with an edge for every way that tensors take", edges == 5)
    lines = browser.evaluate("[...document.querySelectorAll('#models tbody tr')].map((line) => [line.className, line.cells[0].textContent])")
    beneath = lines[lines.index(["", "tiny_embedding:1"]) + 1 :]
    parts = [["part", f"{name}:1"] for name in ("tiny_tokenizer", "tiny_encoder", "tiny_pool")]
    check("an ensemble has its parts beneath it", beneath[:3] == parts and "part" not in [kind for kind, _ in beneath[3:4]])
    check("and nowhere else in the table", ["", "tiny_encoder:1"] not in lines)
    button = "document.querySelector('#models button.fold[aria-label=\"parts of tiny_embedding:1\"]')"
    count = "document.querySelectorAll('#models tr.part').length"
    there = browser.evaluate(count)
    browser.evaluate(f"{button}.click()")
    browser.wait("the parts are folded", f"{count} < {there} && {button}.getAttribute('aria-expanded') === 'false'")
    readings = "performance.getEntriesByType('resource').filter((entry) => entry.name.endsWith('/v2/trireme/status')).length"
    browser.wait("another reading of the server", f"{readings} > {browser.evaluate(readings) + 1}")
    check("a pipeline folds, and stays folded", browser.evaluate(f"{count} < {there}"))
    browser.evaluate(f"{button}.click()")
    browser.wait("the parts are back", f"{count} === {there}")
    check("and opens again", True)
    right = "getComputedStyle([...document.querySelectorAll('#models tbody tr')][0].cells[3]).textAlign"
    check("numbers are right-aligned", browser.evaluate(right) == "right")
    check("a server without a place for batches shows none", browser.evaluate("document.getElementById('batches-section').hidden"))
    check("the root leads to the console", DIRECT.open(f"{server.url}/").geturl() == f"{server.url}/ui")


def it_asks_by_keyboard(browser):
    choose(browser, "model", "tiny_embedding:1")
    browser.evaluate("document.getElementById('model').focus()")
    browser.press("Tab", "Tab", 9)
    check("Tab leads from the model to its input", browser.evaluate("document.activeElement.id") == "input-0")
    browser.type("a boat")
    browser.press("Enter", "Enter", 13, modifiers=2)
    browser.wait("the answer", has("answer", "embedding  FP32[1, 8]"))
    check("the answer is right, with the time of each step", browser.evaluate(has("answer", "-0.42925")) and browser.evaluate(has("answer", "tiny_pool")))


def it_writes_code_for_clients(browser, server):
    choose(browser, "model", "tiny_embedding:1")
    browser.wait("the dialects", "document.getElementById('dialect').options.length > 3")
    check("v2 comes first", browser.evaluate(has("code", "/v2/models/tiny_embedding/infer")))
    choose(browser, "dialect", "openai")
    check("with a curl line", browser.evaluate(has("code", f"curl '{server.url}/v1/embeddings'")))
    check("and Python", browser.evaluate(has("code", 'client.embeddings.create(model="tiny_embedding"')))
    choose(browser, "model", "simple:1")
    browser.wait("a model that does nothing with texts", "document.getElementById('dialect').options.length === 1")
    check("has v2 alone", browser.evaluate(has("code", "/v2/models/simple/infer")))


def the_code_works(browser, server):
    """Runs the curl line of each dialect for each model of texts, and the Python where its libraries are installed."""
    browser.open(f"{server.url}/ui")
    python = ROOT / ".cache/clients-python/bin/python"
    ran = {"curl": 0, "python": 0}
    for model, least in (("embedding", 7), ("reranker", 6), ("classifier", 4), ("token_vectors", 4)):
        browser.wait(f"the model {model}", has("models", f"{model}:1"))
        choose(browser, "model", f"{model}:1")
        browser.wait("its dialects", f"document.getElementById('dialect').options.length >= {least}")
        for dialect in browser.evaluate("[...document.getElementById('dialect').options].map((option) => option.value)"):
            choose(browser, "dialect", dialect)
            curl, code = browser.evaluate(text_of("code")).split("\n\n", 1)
            if shutil.which("curl"):
                answer = subprocess.run(["bash", "-c", f"{curl} --silent --show-error --fail-with-body"], capture_output=True, text=True)
                if answer.returncode != 0:
                    raise SystemExit(f"FAILED  {model} in {dialect}: {curl}: {answer.stdout}{answer.stderr}")
                ran["curl"] += 1
            if python.exists() and dialect != "v2":
                answer = subprocess.run([python, "-c", code], capture_output=True, text=True)
                if answer.returncode != 0 or not answer.stdout.strip():
                    raise SystemExit(f"FAILED  {model} in {dialect}:\n{code}\n{answer.stdout}{answer.stderr}")
                ran["python"] += 1
    check(f"the code for clients works: {ran['curl']} curl lines, {ran['python']} Python programs", True)


def the_routes_are_shown(browser, server):
    browser.open(f"{server.url}/docs")
    browser.wait("the routes", "document.querySelectorAll('details').length > 100")
    browser.evaluate("document.querySelector('details[data-path=\"/v1/embeddings\"]').open = true")
    browser.wait("a body", "document.querySelector('details[data-path=\"/v1/embeddings\"] pre')?.textContent.includes('input:')")
    check("/docs shows a route's body", True)


def it_is_light_or_dark(browser):
    colours = []
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        colours.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    browser.scheme("light")
    check("it is light or dark as its user likes", colours[0] != colours[1])


def hostile_names_stay_text(browser):
    browser.wait("the hostile model", has("models", HOSTILE_NAME))
    check("a model's name is no markup", browser.evaluate("document.images.length") == 0)
    choose(browser, "model", "identity_bytes:1")
    browser.wait("its input", "document.getElementById('input-0') !== null")
    browser.evaluate("document.getElementById('input-0').focus()")
    browser.type(HOSTILE_TEXT)
    browser.press("Enter", "Enter", 13, modifiers=2)
    browser.wait("the echo", has("answer", HOSTILE_TEXT))
    check("nor is an answer", browser.evaluate("document.querySelectorAll('script').length") == 2)
    check("nothing of it ran", browser.evaluate("document.title") == "Trireme")
    choose(browser, "model", "simple:1")
    browser.wait("its inputs", "document.getElementById('input-1') !== null")
    browser.evaluate("document.getElementById('input-0').focus()")
    browser.type("[1, 2")
    browser.press("Enter", "Enter", 13, modifiers=2)
    browser.wait("the reason", has("answer", "INPUT0: "))
    check("input that is no JSON is explained", True)


def rates_move(browser, server, stop):
    body = b'{"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["the oars"]}]}'

    def load():
        while not stop.is_set():
            DIRECT.open(f"{server.url}/v2/models/tiny_embedding/infer", data=body).read()
            time.sleep(0.02 + 0.018 * math.sin(time.time() / 5))

    thread = threading.Thread(target=load)
    thread.start()
    rate = "[...document.querySelectorAll('#models tr')].find((line) => line.cells[0].textContent === 'tiny_embedding:1').cells[3].textContent"
    browser.wait("a rate", f"parseFloat({rate}) > 1")
    check("rates are live", True)
    sparks = "[...document.querySelectorAll('#models tr')].find((line) => line.cells[0].textContent === 'tiny_embedding:1')"
    browser.wait("its bars", f"{sparks}.querySelector('svg.rate path').getAttribute('d').includes('v-')")
    title = browser.evaluate(f"{sparks}.querySelector('svg.rate title').textContent")
    check("the last minutes are drawn, and said in words", title.startswith("requests per second, last 5 minutes: at most "))
    same = f"(window.kept ??= {sparks}) === {sparks}"
    browser.evaluate(same)
    time.sleep(2.5)
    check("a line's elements stay while its numbers change", browser.evaluate(same))
    return thread


def a_phone_is_wide_enough(browser, server):
    browser.resize(PHONE, 900)
    browser.open(f"{server.url}/ui")
    browser.wait("a model", has("models", "tiny_embedding:1"))
    choose(browser, "pipeline", "tiny_embedding:1")
    browser.wait("the pipeline", "document.querySelectorAll('#graph text.name').length === 5")
    check("nothing is wider than a phone", browser.evaluate("document.documentElement.scrollWidth") <= PHONE)
    wide = "[...document.querySelectorAll('.wide')].filter((place) => place.scrollWidth > place.clientWidth + 1).length"
    check("nor has to be pushed aside", browser.evaluate(wide) == 0)
    tops = browser.evaluate("[...document.querySelectorAll('#graph text.name')].map((name) => name.getBoundingClientRect().top)")
    check("the pipeline goes down the page", tops == sorted(set(tops)))
    browser.resize(1280, 940)
    browser.wait("the pipeline across the page", "document.getElementById('graph').clientWidth > 640")
    check("nor on a laptop's screen", browser.evaluate(wide) == 0)
    browser.resize(1200, 940)


def begin_batch(server, model):
    """Begins a batch that takes a while; returns its id."""
    line = {"method": "POST", "url": "/v1/embeddings", "body": {"model": model, "input": "a text " * 20}}
    lines = "".join(json.dumps({"custom_id": str(number), **line}) + "\n" for number in range(100_000))
    form = 'Content-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--edge\r\n'
    form = f'--edge\r\n{form}Content-Disposition: form-data; name="file"; filename="lines.jsonl"\r\n\r\n{lines}\r\n--edge--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=edge"}
    file = json.load(DIRECT.open(urllib.request.Request(f"{server.url}/v1/files", form.encode(), headers)))["id"]
    new = {"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    return json.load(DIRECT.open(f"{server.url}/v1/batches", json.dumps(new).encode()))["id"]


def batches_are_shown(browser, server):
    """A batch of many lines: its progress, and its end by the button."""
    browser.open(f"{server.url}/ui")
    browser.wait("that there is no batch", has("batches-note", "None yet"))
    batch = begin_batch(server, "embedding")
    row = f"[...document.querySelectorAll('#batches tbody tr')].find((line) => line.cells[0].textContent === {batch!r})"
    browser.wait("the batch", f"{row} !== undefined")
    browser.wait("its progress", f"{row}.querySelector('progress').value > 0 && parseFloat({row}.cells[5].textContent) > 0", limit=120)
    check("a batch has its progress, rate and time left", browser.evaluate(f"{row}.cells[6].textContent !== '–'"))
    browser.evaluate(f"{row}.querySelector('button').click()")
    check("one click cancels nothing", browser.evaluate(f"{row}.querySelector('button').textContent") == "really cancel?")
    browser.evaluate(f"{row}.querySelector('button').click()")
    browser.wait("its end", f"{row}.cells[1].textContent === 'cancelled' && {row}.querySelector('button') === null")
    check("a second one cancels the batch", True)


def an_empty_repository_is_said_to_be_empty(browser, server):
    browser.open(f"{server.url}/ui")
    browser.wait("that there are no models", has("state", "no models: the model repository is empty"))
    check("an empty repository is said to be empty", browser.evaluate(has("models", "the model repository is empty")))
    check("and no pipeline is drawn", browser.evaluate("document.getElementById('pipeline-section').hidden"))


def screenshot(browser, server, path):
    browser.open(f"{server.url}/ui")
    browser.wait("rates", "/[1-9][0-9.]* per s/.test(document.getElementById('graph').textContent)")
    choose(browser, "model", "tiny_embedding:1")
    browser.wait("its input", f"document.querySelectorAll('#inputs textarea').length === 1")
    browser.evaluate("document.getElementById('input-0').focus()")
    browser.type("a boat")
    browser.press("Enter", "Enter", 13, modifiers=2)
    browser.wait("the answer", has("answer", "embedding  FP32"))
    browser.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    browser.wait("latencies", "/run [0-9]/.test(document.getElementById('graph').textContent)")
    # So long until the bars show something.
    time.sleep(SHOWN_SECONDS)
    for scheme, picture in (("light", path), ("dark", path.with_stem(f"{path.stem}-dark"))):
        browser.scheme(scheme)
        browser.screenshot(picture)
        print(f"        {picture}: {picture.stat().st_size} bytes")
    browser.scheme("light")


def keys_are_asked_for(browser, server):
    browser.open(f"{server.url}/ui")
    browser.wait("the question for a key", "!document.getElementById('access').hidden")
    check("without a key nothing is shown", browser.evaluate("document.querySelectorAll('tbody tr').length") == 0)
    browser.evaluate("document.getElementById('key').focus()")
    browser.type("open sesame")
    browser.press("Enter", "Enter", 13, text="\r")
    browser.wait("the models", has("models", "tiny_encoder:1"))
    check("with it everything is", True)
    browser.wait("the question to go", "document.getElementById('access').hidden")
    choose(browser, "model", "tiny_embedding:1")
    choose(browser, "dialect", "openai")
    code = browser.evaluate(text_of("code"))
    check("code has the place of the key, and not the key", code.count("TRIREME_API_KEY") == 2 and "open sesame" not in code)
    browser.open(f"{server.url}/ui")
    browser.wait("the models after a reload", has("models", "tiny_encoder:1"))
    check("a reload asks for no key", browser.evaluate("document.getElementById('access').hidden"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/trireme")
    parser.add_argument("--screenshot", type=Path)
    args = parser.parse_args()
    path = installed()
    if path is None:
        print("==> skipped: no chromium is installed (Debian: apt-get install chromium)")
        return
    basic = ROOT / "tests/repositories/basic"
    folder = Path(tempfile.mkdtemp(prefix="trireme-console-"))
    browser = Browser(path, height=940)
    stop = threading.Event()
    try:
        (folder / "hostile" / HOSTILE_NAME / "1").mkdir(parents=True)
        (folder / "hostile" / HOSTILE_NAME / "config.pbtxt").write_text(CONFIG)
        with Server(args.binary, [basic]) as server:
            the_page_is_locked_up(server)
            it_shows_what_runs(browser, server)
            it_asks_by_keyboard(browser)
            it_writes_code_for_clients(browser, server)
            it_is_light_or_dark(browser)
            thread = rates_move(browser, server, stop)
            stop.set()
            thread.join()
            a_phone_is_wide_enough(browser, server)
            the_routes_are_shown(browser, server)
        with Server(args.binary, [ROOT / "tests/repositories/texts"]) as server:
            the_code_works(browser, server)
        with Server(args.binary, [ROOT / "tests/repositories/texts"], "--data-dir", folder / "data") as server:
            batches_are_shown(browser, server)
        (folder / "empty").mkdir()
        with Server(args.binary, [folder / "empty"], "--model-control-mode=explicit") as server:
            an_empty_repository_is_said_to_be_empty(browser, server)
        if args.screenshot:
            for model in ("tiny_tokenizer", "tiny_encoder", "tiny_pool", "tiny_embedding"):
                shutil.copytree(basic / model, folder / "few" / model)
            stop.clear()
            with Server(args.binary, [folder / "few"], "--data-dir", folder / "shown") as server:
                browser.resize(1320, 980)
                browser.open(f"{server.url}/ui")
                thread = rates_move(browser, server, stop)
                begin_batch(server, "tiny_embedding")
                try:
                    screenshot(browser, server, args.screenshot)
                finally:
                    stop.set()
                    thread.join()
        with Server(args.binary, [basic, folder / "hostile"]) as server:
            browser.open(f"{server.url}/ui")
            hostile_names_stay_text(browser)
        with Server(args.binary, [basic], "--api-key", "open sesame") as server:
            keys_are_asked_for(browser, server)
        with Server(args.binary, [basic], "--ui=false") as server:
            try:
                status = DIRECT.open(f"{server.url}/ui").status
            except urllib.error.HTTPError as error:
                status = error.code
            check("--ui=false leaves no page", status == 404)
        check(f"the page broke no rule and threw nothing {browser.errors or ''}", not browser.errors)
    finally:
        browser.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
