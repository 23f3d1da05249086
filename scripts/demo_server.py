"""Shared by the demos: runs a server for as long as a demo runs, sends a request to it, and shows where its time went.

Needs only Python's standard library, like any client of the v2 protocol.
"""

import argparse
import json
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
LOG_TAIL_LINES = 30
# The server is on this machine, so no proxy of the environment is used.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# Trireme's default port for gRPC; the demos do not use it.
GRPC_PORT = 8001
STOP_SECONDS = 40  # the server drains within its exit timeout of 30 s


class DemoError(Exception):
    """An error that the user can fix."""


def main(description, repository, show):
    """Serves `repository` (the flags may name another), and calls `show` with the server's address."""
    # A `kill` of this script raises an exception like Ctrl-C, so that the server never outlives it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        run(options(description, repository), show)
    except DemoError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        print("\nstopped")
        sys.exit(130)


def options(description, repository):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--server", type=Path, default=ROOT / "target/release/trireme", help="the trireme binary")
    parser.add_argument("--model-repository", type=Path, default=repository)
    parser.add_argument("--http-port", type=int, default=8000, help="another one is chosen if it is taken")
    parser.add_argument("--ready-timeout", type=float, default=60, metavar="SECONDS", help="longest wait for readiness")
    parser.add_argument("--keep", action="store_true", help="keep the server in the foreground until Ctrl-C")
    parser.add_argument("server_arguments", nargs="*", metavar="-- ARGUMENT", help="further arguments for `trireme serve`")
    return parser.parse_args()


def run(arguments, show):
    port = choose_port(arguments.http_port)
    url = f"http://localhost:{port}"
    with running_server(arguments, port) as server:
        seconds = wait_until_ready(server, url, arguments.ready_timeout)
        print(f"ready after {seconds:.1f} s: {url}")
        show(url)
        if arguments.keep:
            keep(server)


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
    """Runs the server with its output in LOG, and stops it when the block is left, by killing it if necessary."""
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
        # In its own process group: Ctrl-C only interrupts this script, which then stops the server in
        # order.
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


def keep(server):
    print("The server runs until Ctrl-C.", flush=True)
    try:
        server.wait()
    except KeyboardInterrupt:
        print("\nstopping")
        return
    raise DemoError(f"the server ended with status {server.returncode}; the end of {shown(LOG)}:\n{log_tail()}")


# === A request ===


def infer(url, model, body, name):
    """Sends `body`; returns the output called `name`, the Server-Timing header and the total time in milliseconds."""
    request = urllib.request.Request(f"{url}/v2/models/{model}/infer", json.dumps(body).encode(), method="POST")
    started = time.monotonic()
    try:
        with DIRECT.open(request, timeout=60) as response:
            answer, timing = json.load(response), response.headers.get("Server-Timing", "")
    except urllib.error.HTTPError as error:
        raise DemoError(f"the server answered {error.code}: {error.read().decode(errors='replace')}") from error
    except OSError as error:
        raise DemoError(f"no answer from the server ({error}); the end of {shown(LOG)}:\n{log_tail()}") from error
    elapsed = (time.monotonic() - started) * 1e3
    for output in answer["outputs"]:
        if output["name"] == name:
            return output, timing, elapsed
    raise DemoError(f"expected an output '{name}', found {json.dumps(answer)[:300]}")


def show_timing(header, elapsed):
    print("\nWhere the time went (Server-Timing):\n")
    for name, duration, description in parse_server_timing(header):
        print(f"  {name:<24}{'' if duration is None else f'{duration:9.2f} ms'}  {description}".rstrip())
    if not header:
        print("  (the response has no Server-Timing header)")
    print(f"  {'seen by this client':<24}{elapsed:9.2f} ms")


def parse_server_timing(header):
    """Parses `name;dur=1.5;desc="...", ...` to (name, milliseconds or None, description)."""
    entries = []
    for entry in re.findall(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+', header):
        name, *parameters = (part.strip() for part in re.findall(r'(?:[^;"]|"(?:[^"\\]|\\.)*")+', entry))
        values = dict(part.partition("=")[::2] for part in parameters)
        duration = float(values["dur"]) if "dur" in values else None
        entries.append((name, duration, values.get("desc", "").strip('"')))
    return entries
