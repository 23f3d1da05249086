#!/usr/bin/env python3
"""Serves the demo's model repository, asks it for three sentence embeddings, and shows how alike the sentences are.

What `make demo` runs once everything is built and fetched. Needs nothing but Python's standard library, as a client of
the v2 protocol does.
"""

import argparse
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / ".tools/onnxruntime/libonnxruntime.so"
LOG = ROOT / ".tools/demo.log"
MODEL = "sentence_embedding"
SENTENCES = [
    "The rowers pull together to the beat of a drum.",
    "A crew rows in time with the drummer.",
    "The quarterly report is due on Friday.",
]
LOG_TAIL_LINES = 30
# The server is on this machine, whatever proxy the environment names.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# Where trireme listens for gRPC by default; the demo does not use it.
GRPC_PORT = 8001
STOP_SECONDS = 40  # the server drains within its exit timeout of 30 s


class DemoError(Exception):
    """Something the reader can act on."""


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", type=Path, default=ROOT / "target/release/trireme", help="the trireme binary")
    parser.add_argument("--model-repository", type=Path, default=ROOT / ".tools/demo-repository")
    parser.add_argument("--http-port", type=int, default=8000, help="another one is chosen if it is taken")
    parser.add_argument("--ready-timeout", type=float, default=60, metavar="SECONDS", help="longest wait for readiness")
    parser.add_argument("--keep", action="store_true", help="keep the server in the foreground until Ctrl-C")
    parser.add_argument("server_arguments", nargs="*", metavar="-- ARGUMENT", help="further arguments for `trireme serve`")
    return parser.parse_args()


# === The server ===


def is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def choose_port(wanted):
    if is_free(wanted):
        return wanted
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    print(f"port {wanted} is taken: using {port}")
    return port


def log_tail():
    lines = LOG.read_text(errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-LOG_TAIL_LINES:]) or "  (it is empty)"


@contextmanager
def running_server(arguments, port):
    """Runs the server with its output in LOG; stops it, at the latest by killing it, when the block is left."""
    if not arguments.server.exists():
        raise DemoError(f"{arguments.server} is missing: run `make demo`, which builds it")
    if not arguments.model_repository.is_dir():
        raise DemoError(f"{arguments.model_repository} is missing: run scripts/fetch-demo-model.sh")
    command = [arguments.server, "serve", "--model-repository", arguments.model_repository, "--http-port", str(port)]
    if not is_free(GRPC_PORT):
        command.append("--allow-grpc=false")
    command += arguments.server_arguments
    environment = dict(os.environ)
    if LIBRARY.exists():
        environment.setdefault("ORT_DYLIB_PATH", str(LIBRARY))
    print("$", " ".join(shown(part) for part in command))
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("wb") as log:
        # In a process group of its own: Ctrl-C is for this script, which then stops the server in order.
        server = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield server
    finally:
        server.terminate()
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"the server did not stop within {STOP_SECONDS} s: killing it; its log is {shown(LOG)}")
        finally:
            server.kill()
            server.wait()


def shown(path):
    path = str(path)
    return os.path.relpath(path) if path.startswith(str(ROOT)) else path


def wait_until_ready(server, url, timeout):
    started = time.monotonic()
    while time.monotonic() - started < timeout:
        if server.poll() is not None:
            raise DemoError(f"the server ended with status {server.returncode}; the end of {shown(LOG)}:\n{log_tail()}")
        try:
            with DIRECT.open(f"{url}/v2/health/ready", timeout=2):
                return time.monotonic() - started
        except OSError:
            time.sleep(0.05)
    raise DemoError(f"the server was not ready within {timeout:g} s; the end of {shown(LOG)}:\n{log_tail()}")


# === The request ===


def infer(url, texts):
    """Sends `texts`; returns their embeddings, the Server-Timing header and the time it all took in milliseconds."""
    body = {"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [len(texts)], "data": texts}]}
    request = urllib.request.Request(f"{url}/v2/models/{MODEL}/infer", json.dumps(body).encode(), method="POST")
    started = time.monotonic()
    try:
        with DIRECT.open(request, timeout=60) as response:
            answer, timing = json.load(response), response.headers.get("Server-Timing", "")
    except urllib.error.HTTPError as error:
        raise DemoError(f"the server answered {error.code}: {error.read().decode(errors='replace')}") from error
    except OSError as error:
        raise DemoError(f"no answer from the server ({error}); the end of {shown(LOG)}:\n{log_tail()}") from error
    elapsed = (time.monotonic() - started) * 1e3
    output = next((output for output in answer["outputs"] if output["name"] == "embedding"), None)
    if output is None or output["shape"] != [len(texts), 384] or len(output["data"]) != len(texts) * 384:
        raise DemoError(f"expected an output 'embedding' of shape [{len(texts)}, 384], found {json.dumps(answer)[:300]}")
    rows = [output["data"][start : start + 384] for start in range(0, len(output["data"]), 384)]
    return rows, timing, elapsed


def parse_server_timing(header):
    """`name;dur=1.5;desc="...", ...` as (name, milliseconds or None, description)."""
    entries = []
    for entry in re.findall(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+', header):
        name, *parameters = (part.strip() for part in re.findall(r'(?:[^;"]|"(?:[^"\\]|\\.)*")+', entry))
        values = dict(part.partition("=")[::2] for part in parameters)
        duration = float(values["dur"]) if "dur" in values else None
        entries.append((name, duration, values.get("desc", "").strip('"')))
    return entries


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


# === What the reader sees ===


def show_similarity(rows):
    print("\nHow alike are they (cosine)?\n")
    for number, sentence in enumerate(SENTENCES, 1):
        print(f"  [{number}] {sentence}")
    print("\n       " + "".join(f"{f'[{number}]':>8}" for number in range(1, len(rows) + 1)))
    for number, row in enumerate(rows, 1):
        print(f"  {f'[{number}]':<5}" + "".join(f"{cosine(row, other):8.3f}" for other in rows))


def show_timing(header, elapsed):
    print("\nWhere the time went (Server-Timing):\n")
    for name, duration, description in parse_server_timing(header):
        print(f"  {name:<24}{'' if duration is None else f'{duration:9.2f} ms'}  {description}".rstrip())
    if not header:
        print("  (the response has no Server-Timing header)")
    print(f"  {'seen by this client':<24}{elapsed:9.2f} ms")


def show_calls(url):
    example = json.dumps({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["hello"]}]})
    print(
        f"""
Call it yourself (`make demo KEEP=1` keeps the server):

  curl -s {url}/v2/models/{MODEL}/infer -d '{example}'

  # pip install tritonclient[http]
  import numpy as np, tritonclient.http as triton
  client = triton.InferenceServerClient("{url.removeprefix('http://')}")
  text = triton.InferInput("TEXT", [1], "BYTES")
  text.set_data_from_numpy(np.array(["hello"], dtype=object))
  print(client.infer("{MODEL}", [text]).as_numpy("embedding").shape)
"""
    )


def keep(server):
    print("The server runs until Ctrl-C.", flush=True)
    try:
        server.wait()
    except KeyboardInterrupt:
        print("\nstopping")
        return
    raise DemoError(f"the server ended with status {server.returncode}; the end of {shown(LOG)}:\n{log_tail()}")


def demo(arguments):
    port = choose_port(arguments.http_port)
    url = f"http://localhost:{port}"
    with running_server(arguments, port) as server:
        seconds = wait_until_ready(server, url, arguments.ready_timeout)
        print(f"ready after {seconds:.1f} s: {url}")
        infer(url, SENTENCES)  # the first run of a model also fills its memory pools: not what a second request sees
        rows, timing, elapsed = infer(url, SENTENCES)
        show_similarity(rows)
        show_timing(timing, elapsed)
        show_calls(url)
        if arguments.keep:
            keep(server)


def main():
    # A `kill` of this script unwinds it like Ctrl-C, so that the server never outlives it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        demo(options())
    except DemoError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        print("\nstopped")
        sys.exit(130)


if __name__ == "__main__":
    main()
