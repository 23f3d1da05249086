"""Lists the names of Triton's python modules, and their parameters, as a tritonserver of `scripts/setup-triton.sh` has them.

    .tools/python/bin/python tests/compat/surface.py > services/python/tests/model/triton-surface.json

The list has facts only: names, the names of parameters, and `=` behind those that have a default; null for what is not called. A
parameter that has no name in Triton is `_`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRITON = Path(__file__).resolve().parents[2] / ".tools" / "triton"
START_LIMIT_S = 60

MODEL = '''
import inspect, json, os, re
import c_python_backend_utils
import triton_python_backend_utils

SPECIAL = ("__init__", "__iter__", "__next__", "__dlpack__", "__dlpack_device__")

def parameters(owner, value):
    if inspect.isfunction(value):
        found = [(p.name, p.default is not p.empty) for p in inspect.signature(value).parameters.values()]
    else:
        text = re.match(r"[A-Za-z_]+\\\\((.*)\\\\) -> ", value.__doc__ or "")
        if text is None:
            return None
        # A default may have brackets with commas in them, a type too.
        flat = re.sub(r"<[^>]*>|\\\\[[^]]*\\\\]|'[^']*'", "x", text[1])
        named = [part.split(":")[0].strip() for part in flat.split(",") if part]
        found = [("_" if name.startswith("arg") else name, "=" in part) for name, part in zip(named, flat.split(","))]
    if owner is not None and found and found[0][0] == "self":
        # The first parameter of a static method has this name, too.
        is_method = inspect.isfunction(value) or "(self: c_python_backend_utils." in value.__doc__
        found = found[1:] if is_method else [("_", False), *found[1:]]
    return [name + "=" * default for name, default in found]

def names(module):
    found = {}
    for name, value in vars(module).items():
        if name.startswith("_") or inspect.ismodule(value):
            continue
        found[name] = None if isinstance(value, type) or not callable(value) else parameters(None, value)
        if isinstance(value, type) and not issubclass(value, Exception):
            for member in dir(value):
                if member.startswith("_") and member not in SPECIAL:
                    continue
                if hasattr(value, "__members__") and member not in value.__members__:
                    continue
                inside = getattr(value, member)
                is_called = callable(inside) and not isinstance(inside, type)
                found[name + "." + member] = parameters(value, inside) if is_called else None
    return found

class TritonPythonModel:
    def initialize(self, args):
        modules = (triton_python_backend_utils, c_python_backend_utils)
        text = json.dumps({module.__name__: names(module) for module in modules}, indent=1, sort_keys=True)
        with open("FOUND.part", "w") as file:
            file.write(text)
        os.rename("FOUND.part", "FOUND")
    def execute(self, requests):
        return None
'''


def main():
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found"
        model = Path(folder) / "models" / "surface"
        (model / "1").mkdir(parents=True)
        tensor = 'name: "%s" data_type: TYPE_STRING dims: [ 1 ]'
        (model / "config.pbtxt").write_text(f'backend: "python" input [{{ {tensor % "IN"} }}] output [{{ {tensor % "OUT"} }}]')
        (model / "1" / "model.py").write_text(MODEL.replace("\\\\", "\\").replace("FOUND", str(found)))
        command = [TRITON / "tritonserver/bin/tritonserver", "--model-repository", model.parent]
        command += ["--backend-directory", TRITON / "tritonserver/backends", "--allow-http=false", "--allow-grpc=false"]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(TRITON / "libraries"), "PATH": f"{TRITON}/bin:{os.environ['PATH']}"}
        log = Path(folder) / "log"
        with log.open("wb") as output:
            command += ["--allow-metrics=false"]
            server = subprocess.Popen([str(word) for word in command], env=environment, stdout=output, stderr=output)
        try:
            until = time.monotonic() + START_LIMIT_S
            while not found.exists():
                if server.poll() is not None or time.monotonic() > until:
                    sys.exit(f"tritonserver has not loaded the model:\n{log.read_text()}")
                time.sleep(0.1)
            print(found.read_text())
        finally:
            server.kill()
            server.wait()


main()
