#!/usr/bin/env python3
"""Installs a wheel in an empty Python environment and serves a model folder from it, without a checkout's tools."""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import tiny


def main(wheel):
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        environment = scratch / "environment"
        venv.create(environment, with_pip=True)
        pip = [environment / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, wheel], check=True)
        variables = {"PATH": f"{environment}/bin:/usr/bin:/bin", "HOME": str(scratch)}
        binary = environment / "bin/trireme"
        version = subprocess.run([binary, "--version"], env=variables, check=True, capture_output=True, text=True)
        tiny.check(f"pip installed {version.stdout.strip()}", version.stdout.startswith("trireme "))
        nats = subprocess.run([environment / "bin/nats-server", "--version"], env=variables, capture_output=True, text=True)
        tiny.check(f"and {nats.stdout.strip()}", nats.returncode == 0)
        folder = scratch / "mini"
        tiny.write(folder)
        text, expected = tiny.golden()
        with tiny.Served(binary, [folder], variables, scratch / "serve.log") as server:
            tiny.check("trireme serve FOLDER answers", tiny.close(server.embed("mini", text), expected))
            loaded = [event["path"] for event in server.events() if event.get("message") == "loaded ONNX Runtime"]
            in_wheel = len(loaded) == 1 and Path(loaded[0]).is_relative_to(environment.resolve())
            tiny.check(f"ONNX Runtime is that of the environment: {', '.join(loaded)}", in_wheel)
        subprocess.run([environment / "bin/python", "-m", "pip", "uninstall", "--quiet", "--yes", "onnxruntime"], check=True)
        without = subprocess.run([binary, "validate", folder], env=variables, cwd=scratch, capture_output=True, text=True)
        said = "no ONNX Runtime library found" in without.stdout and "Python wheel `onnxruntime`" in without.stdout
        tiny.check("without that wheel the error says how to get it", without.returncode != 0 and said)


if __name__ == "__main__":
    if os.environ.get("ORT_DYLIB_PATH"):
        del os.environ["ORT_DYLIB_PATH"]
    main(sys.argv[1])
