#!/usr/bin/env python3
"""Unpacks the kit of scripts/gpu-kit.sh beside it, runs Trireme's GPU tests and benchmarks, and leaves one JSON in at most ten minutes:
`python3 gpu-kit.py [RESULT.json]`.

It needs an NVIDIA driver of release 580 or newer, the libraries of CUDA 13 and cuDNN 9 of a torch installation (or in LD_LIBRARY_PATH), and
Python 3.12 with numpy. It fetches nothing. The JSON has the steps in order, each with what it found; `ended` names the step at which the
run ended early, and why. A step that fails where the next ones can do without it is marked as failed, and the run goes on.
"""

import ctypes
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

LIMIT_SECONDS = 600
# Seconds of the limit that are kept for writing the result and stopping processes.
SPARE_SECONDS = 15
HERE = Path(__file__).resolve().parent
# The libraries that the CUDA provider of ONNX Runtime loads.
LIBRARIES = ["libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libnvrtc.so.13", "libcufft.so.12", "libcurand.so.10", "libcudnn.so.9"]
TENSORRT = "libnvinfer.so.10"
# Of services/model/src/backends/onnxruntime/tests/accelerated.rs, by the beginnings of their names.
GPU_TESTS = ["cuda_answers", "tensorrt_answers", "a_provider_that_cannot_be_had"]
RANDOM_WIDTH = 768
COSINES = {"fp32": 0.9999, "fp16": 0.999}
LAST_LINES = 12


class Ended(Exception):
    """Why the run cannot go on."""


class Run:
    """The steps so far. The result is written after each of them, so that a run that is killed leaves it, too."""

    def __init__(self, result):
        self.result, self.started = result, time.monotonic()
        self.found = {"steps": [], "ended": None}
        self.kit, self.environment = None, dict(os.environ)

    def left(self):
        return LIMIT_SECONDS - SPARE_SECONDS - (time.monotonic() - self.started)

    def step(self, name, do, needed=True):
        begun = time.monotonic()
        print(f"==> {name}", flush=True)
        entry = {"step": name, "ok": True}
        self.found["steps"].append(entry)
        try:
            if self.left() <= 0:
                raise Ended("the ten minutes are over")
            entry.update(do() or {})
        except Exception as error:
            entry.update(ok=False, why=str(error) if isinstance(error, Ended) else f"{type(error).__name__}: {error}")
            print(f"    failed: {entry['why']}", flush=True)
            if needed:
                self.found["ended"] = {"step": name, "why": entry["why"]}
        entry["seconds"] = round(time.monotonic() - begun, 1)
        self.write()
        if self.found["ended"]:
            raise SystemExit(1)

    def write(self):
        self.found["seconds"] = round(time.monotonic() - self.started, 1)
        self.result.write_text(json.dumps(self.found, indent=1) + "\n")

    def output(self, argv, limit, **more):
        """What a command prints. It is stopped, with its children, at the limit or when the ten minutes are over."""
        argv = [str(word) for word in argv]
        process = subprocess.Popen(argv, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, **more)
        try:
            said, _ = process.communicate(timeout=min(limit, max(self.left(), 1)))
        except subprocess.TimeoutExpired:
            # First in order: a benchmark stops its servers then.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                said, _ = process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                said, _ = process.communicate()
            raise Ended(f"{Path(argv[0]).name} was stopped after {limit:.0f} s: {last(said)}") from None
        if process.returncode:
            raise Ended(f"{' '.join(argv[:3])} ended with {process.returncode}: {last(said)}")
        return said


def last(text):
    return " | ".join(text.strip().splitlines()[-LAST_LINES:])


# === Steps ===


class Parts:
    """The parts as one file that is read from its beginning to its end."""

    def __init__(self, files):
        self.files, self.file = list(files), None

    def read(self, size=-1):
        while True:
            if self.file is None:
                if not self.files:
                    return b""
                self.file = open(self.files.pop(0), "rb")
            if data := self.file.read(size):
                return data
            self.file.close()
            self.file = None


def unpack(run, work):
    for line in (HERE / "gpu-kit.sha256").read_text().splitlines():
        expected, name = line.split()
        if not (HERE / name).is_file():
            raise Ended(f"the part {name} is missing in {HERE}")
        with open(HERE / name, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise Ended(f"the part {name} is damaged: its digest is another one")
    parts = sorted(HERE.glob("gpu-kit.tar.xz.*"))
    with tarfile.open(fileobj=Parts(parts), mode="r|xz") as archive:
        archive.extractall(work, filter="data")
    run.kit = work / "kit"
    run.environment["PYTHONPATH"] = str(run.kit / "site")
    (library,) = (run.kit / "site/onnxruntime/capi").glob("libonnxruntime.so.*")
    run.environment["ORT_DYLIB_PATH"] = str(library)
    return {"parts": len(parts), **json.loads((HERE / "gpu-kit.json").read_text())}


def programs(run):
    said = run.output([run.kit / "target/programs/trireme", "--version"], 30)
    run.output([run.kit / ".tools/nats-server/nats-server", "--version"], 30)
    return {"trireme": said.strip()}


def packages(run):
    ask = "import json, numpy, onnxruntime, tokenizers; print(json.dumps([numpy.__version__, onnxruntime.__version__, onnxruntime.get_available_providers()]))"
    numpy, onnxruntime, providers = json.loads(run.output([sys.executable, "-c", ask], 60).splitlines()[-1])
    return {"python": platform.python_version(), "numpy": numpy, "onnxruntime": onnxruntime, "providers": providers}


def weights(run):
    make = "import sys; sys.path.insert(0, 'bench'); import random_encoder as r; from pathlib import Path; [r.write_weights(Path('random') / p, d) for p, d in r.PRECISIONS.items()]"
    run.output([sys.executable, "-B", "-c", make], 120, cwd=run.kit)
    return {name: (run.kit / f"random/{name}/model.onnx_data").stat().st_size for name in COSINES}


def device(run):
    """Opens the driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Ended(f"there is no NVIDIA driver: {error}") from None
    if code := driver.cuInit(0):
        raise Ended(f"the driver opens no device: cuInit gives {code}")
    count, version, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(100)
    driver.cuDeviceGetCount(ctypes.byref(count))
    driver.cuDriverGetVersion(ctypes.byref(version))
    if not count.value:
        raise Ended("the driver is there, but no GPU")
    driver.cuDeviceGetName(name, len(name), 0)
    cpus = len(os.sched_getaffinity(0))
    return {"gpu": name.value.decode(), "gpus": count.value, "cuda_of_driver": version.value, "cpus": cpus}


def libraries(run):
    """Finds CUDA's libraries, and lets all processes find them: those of a torch installation are beside it in `nvidia/`."""
    places = [Path(path) for path in sys.path if path]
    folders = sorted({library.parent for place in places for library in place.glob("nvidia/**/lib/*.so*")})
    folders += [folder for place in places for folder in (place / "tensorrt_libs", place / "torch/lib") if folder.is_dir()]
    listed = [*map(str, folders), *filter(None, run.environment.get("LD_LIBRARY_PATH", "").split(":"))]
    run.environment["LD_LIBRARY_PATH"] = ":".join(listed)
    # In a process of its own, because the loader reads the variable when a process starts.
    ask = f"import ctypes, json\nfound = {{}}\nfor name in {[*LIBRARIES, TENSORRT]!r}:\n    try:\n        ctypes.CDLL(name)\n        found[name] = ''\n    except OSError as error:\n        found[name] = str(error)\nprint(json.dumps(found))"
    found = json.loads(run.output([sys.executable, "-c", ask], 60).splitlines()[-1])
    run.has_tensorrt = not found.pop(TENSORRT)
    missing = [f"{name} ({why})" for name, why in found.items() if why]
    if missing:
        raise Ended(f"libraries of CUDA are missing: {', '.join(missing)}; looked in {run.environment['LD_LIBRARY_PATH'] or 'no folder'}")
    return {"folders": listed, "tensorrt": run.has_tensorrt}


def tests(run):
    run.environment["CARGO_MANIFEST_DIR"] = str(run.kit / "services/model")
    said = run.output([run.kit / "target/programs/gpu-tests", *GPU_TESTS, "--nocapture", "--test-threads=1"], 120)
    # The name of a test and its output may share a line.
    lines = [line for line in said.splitlines() if any(words in line for words in ("ran on a GPU", "skipped: ", "test result"))]
    if not any("ran on a GPU: CUDA" in line for line in lines):
        raise Ended(f"the tests ran, but not on the GPU: {last(said)}")
    return {"said": lines}


def bench(run, name, model, limit, *more):
    """bench/gpu.py with one model. Its table and its numbers."""
    results = run.kit / "results" / name
    argv = [
        sys.executable, "-B", "bench/gpu.py", "--model", run.kit / model, "--texts", run.kit / ".tools/bench-texts/mixed-report.txt",
        "--binaries", run.kit / "target/programs", "--nats-server", run.kit / ".tools/nats-server/nats-server", "--results", results,
        "--rounds", 1, "--seconds", 3, "--warmup", 2, *more,
    ]
    try:
        run.output(argv, limit, cwd=run.kit)
    finally:
        # A benchmark that was stopped has written the results that it had.
        if (results / "gpu.json").is_file():
            run.found.setdefault("benchmarks", {})[name] = json.loads((results / "gpu.json").read_text())
    return {"table": (results / "gpu.md").read_text()}


def cosines(run):
    """The lowest cosine of embeddings by the CUDA provider and by the plain one, of the demo's model and of the random one in both precisions."""
    def embed(model, providers):
        argv = [sys.executable, "-B", "bench/raw.py", "--model", run.kit / model, "--texts", run.kit / ".tools/bench-texts/mixed-report.txt", "--cpus", 1]
        asked = subprocess.run(
            [*map(str, argv), "--providers", json.dumps(providers)], input=json.dumps({"what": "embed", "count": 50}) + "\n", capture_output=True,
            text=True, env=run.environment, cwd=run.kit, timeout=min(120, max(run.left(), 1)),
        )
        if asked.returncode:
            raise Ended(f"embedding with {providers[0][0]} failed: {last(asked.stderr)}")
        return json.loads(asked.stdout.splitlines()[-1])["vectors"]

    plain, cuda = [["CPUExecutionProvider", {}]], [["CUDAExecutionProvider", {}]]
    found = {}
    for name, left, right, bar in (
        ("demo", ".tools/demo-model", ".tools/demo-model", COSINES["fp32"]), ("random fp32", "random/fp32", "random/fp32", COSINES["fp32"]),
        ("random fp16", "random/fp32", "random/fp16", COSINES["fp16"]),
    ):
        pairs = zip(embed(left, plain), embed(right, cuda))
        lowest = min(sum(a * b for a, b in zip(one, other)) for one, other in pairs)
        found[name] = {"lowest": lowest, "bar": bar, "holds": lowest >= bar}
    return found


def main():
    run = Run(Path(sys.argv[1] if len(sys.argv) > 1 else "gpu-kit-result.json").resolve())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("gpu-kit: stopped"))
    work = Path(tempfile.mkdtemp(prefix="trireme-gpu-kit-"))
    try:
        run.step("unpack", lambda: unpack(run, work))
        run.step("programs", lambda: programs(run))
        run.step("packages", lambda: packages(run))
        run.step("weights", lambda: weights(run))
        run.step("device", lambda: device(run))
        run.step("libraries", lambda: libraries(run))
        run.step("tests", lambda: tests(run), needed=False)
        run.step("bench demo", lambda: bench(run, "demo", ".tools/demo-model", 170, "--provider", "cuda"), needed=False)
        run.step("cosines", lambda: cosines(run), needed=False)
        width = ("--provider", "cuda", "--width", RANDOM_WIDTH)
        run.step("bench random fp32", lambda: bench(run, "random fp32", "random/fp32", 130, *width, "--count", 1), needed=False)
        run.step("bench random fp16", lambda: bench(run, "random fp16", "random/fp16", 90, *width, "--count", 1, "--where", "all in one"), needed=False)
        if run.has_tensorrt:
            last_one = ("--provider", "tensorrt", "--count", 1, "--where", "all in one")
            run.step("bench tensorrt", lambda: bench(run, "tensorrt", ".tools/demo-model", run.left(), *last_one), needed=False)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        run.write()
        print(f"==> {run.result}: {sum(step['ok'] for step in run.found['steps'])} of {len(run.found['steps'])} steps, {run.found['seconds']} s")


if __name__ == "__main__":
    main()
