#!/usr/bin/env python3
"""Measures the encoder on an NVIDIA GPU beside raw ONNX Runtime on the same GPU, and writes one table. What `make bench-gpu` runs.

The raw runs know all texts and leave the hidden states on the GPU. A round starts raw runs and servers one after the other, because they
share the GPU's memory. A provider that the library cannot load is left out, with the reason; a server that fails keeps its row,
with the failure. `--device cpu` runs the same with CPU providers and KIND_CPU and writes nothing: a dry run without a GPU.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import onnxruntime
import options
from plan import MODEL, STAGES, Bench, library_of
from raw import read_texts
from report import show
from servers import BenchError, load, run_script

BUDGETS = [1024, 4096, 16384, 65536]
CONCURRENCY = [1, 64, 256]
COUNTS = [1, 2]  # instances of the model, and sessions of raw runs
WHERE = ["all in one", "services"]
KINDS = {"cpu": "KIND_CPU", "gpu": "KIND_GPU"}
CPU_PROVIDER, CUDA, TENSORRT = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt"))
DEMO_GROUP = "instance_group [ { kind: KIND_CPU } ]"
DEMO_WIDTH = 384  # of the demo's model, in its configurations
ACCELERATOR = """
optimization {{ execution_accelerators {{ gpu_execution_accelerator: [ {{ name: "{name}" }} ] }} }}
"""


class GpuBench(Bench):
    """Starts one deployment at a time."""

    def __init__(self, options, work):
        super().__init__(options, work)
        engines = {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(work / "engines")}
        self.providers = {"tensorrt": [(TENSORRT, engines), (CUDA, {})], "cuda": [(CUDA, {})]}
        if options.device == "cpu":
            self.providers = {"cpu": [(CPU_PROVIDER, {})]}
        elif options.provider:
            self.providers = {name: self.providers[name] for name in options.provider}
        self.counts, self.where = options.count or COUNTS, options.where or WHERE
        # Models and their measured costs are kept, so that only the first round makes them.
        self.kept = ["--model-cache", work / "models", "--cost-model-cache", work / "costs"]
        self.repositories, self.failed = {}, {}

    def repository_of(self, provider, count):
        """The demo's repository, with `count` instances of the model on the device."""
        if (provider, count) not in self.repositories:
            extra = ACCELERATOR.format(name=provider) if provider == "tensorrt" else ""
            target = self.repository(f"{provider}-{count}", extra)
            for config in target.glob("*/config.pbtxt"):
                config.write_text(config.read_text().replace(str(DEMO_WIDTH), str(self.options.width)))
            config = target / "minilm/config.pbtxt"
            text = config.read_text()
            if DEMO_GROUP not in text:
                raise BenchError(f"{config} has no '{DEMO_GROUP}' to replace")
            group = f"instance_group [ {{ count: {count} kind: {KINDS[self.options.device]} }} ]"
            lines = text.replace(DEMO_GROUP, group).splitlines()
            # Layouts are for CPUs alone, where they decide the number of instances.
            config.write_text("\n".join(line for line in lines if '"layouts"' not in line) + "\n")
            self.repositories[provider, count] = target
        return self.repositories[provider, count]

    def round(self, number):
        for provider in list(self.providers):
            try:
                self.measure_raw(provider)
            except BenchError as error:
                self.providers.pop(provider)
                print(f"    {provider} is left out: {error}", flush=True)
        if not self.providers:
            raise BenchError("ONNX Runtime loads no provider for this device: see the reasons above")
        for provider in self.providers:
            for where in self.where:
                for count in self.counts:
                    self.measure(f"{provider}, {where}, count {count}", provider, where, count)
        print(f"    round {number} of {self.options.rounds}", flush=True)

    def measure_raw(self, provider):
        """Offline runs, and one text at a time, with one session and with as many as there are instances at most."""
        name = f"raw {provider}"
        try:
            self.start_raw(name, ["--providers", json.dumps(self.providers[provider]), "--cpus", max(self.counts)])
            self.offline(name, BUDGETS)
            self.keep(f"{name}, lone", self.ask(name, what="lone", seconds=self.options.seconds / 2))
        finally:
            self.stop_raw(name)

    def measure(self, name, provider, where, count):
        if name in self.failed:
            return
        repository, trireme = self.repository_of(provider, count), self.binaries / "trireme"
        seconds, texts, many = self.options.seconds, self.options.texts, self.options.batch_texts
        try:
            if where == "services":
                stages = [(stage, [*argv, *self.kept] if stage == "model" else argv) for stage, argv in STAGES]
                shutil.rmtree(self.work / f"nats-{name}", ignore_errors=True)
                self.services(name, repository, MODEL, stages)
            else:
                self.all_in_one(name, ["--model-repository", repository], MODEL, extra=("--allow-metrics=false", *self.kept))
            deployment = self.deployments[name]
            load(trireme, deployment, MODEL, self.options.warmup, max(CONCURRENCY), texts)
            for in_flight in CONCURRENCY:
                self.keep(f"{name} / {in_flight}", load(trireme, deployment, MODEL, seconds, in_flight, texts))
            self.keep(f"{name} / 1 request of {many}", load(trireme, deployment, MODEL, seconds, 1, texts, many))
        except BenchError as error:
            self.failed[name] = " ".join(str(error).split())[-300:].replace("|", "/")
            print(f"    {name} failed: {error}", flush=True)
        finally:
            if name in self.deployments:
                self.deployments.pop(name).stop()


# === The table ===


def median(results, key, field):
    return statistics.median(one[field] for one in results[key])


def markdown(bench, facts):
    results = bench.results
    lines = ["# On a GPU", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += ["Medians of the rounds, rates with the lowest and the highest. One server at a time. `narrow`: raw runs in two sessions; `wide`: in one.", ""]
    lines += ["| | texts/s | of raw best | p50 ms | p99 ms |", "|---|---|---|---|---|"]
    for provider in bench.providers:
        raws = [key for key in results if key.startswith(f"raw {provider} / ")]
        best = max(raws, key=lambda key: median(results, key, "texts_per_second"))
        top = median(results, best, "texts_per_second")
        for key in raws:
            rates = [one["texts_per_second"] for one in results[key]]
            lines.append(f"| {key}{' **best**' if key == best else ''} | {show(rates)} | {statistics.median(rates) / top:.2f} | | |")
        lines.append(f"| raw {provider}, lone | | | {median(results, f'raw {provider}, lone', 'p50_ms'):.2f} | |")
        for key in (key for key in results if key.startswith(f"{provider}, ")):
            texts = int(key.rsplit(" of ", 1)[1]) if "1 request of " in key else 1
            rates = [texts * one["requests_per_second"] for one in results[key]]
            times = [f"{median(results, key, field):.2f}" for field in ("p50_ms", "p99_ms")]
            lines.append(f"| {key} | {show(rates)} | {statistics.median(rates) / top:.2f} | {' | '.join(times)} |")
        lines += [f"| {name} | failed: {why} | | | |" for name, why in bench.failed.items() if name.startswith(f"{provider}, ")]
    return "\n".join(lines) + "\n"


def parse():
    parser = options.parser_of_rounds(__doc__)
    parser.add_argument("--device", choices=KINDS, default="gpu", help="cpu: a dry run, whose table is printed and not written")
    parser.add_argument("--warmup", type=float, default=5, help="seconds of load before a server's first measurement in a round")
    parser.add_argument("--batch-texts", type=int, default=256, help="texts of the one large request")
    parser.add_argument("--provider", action="append", choices=["cuda", "tensorrt"], help="this one alone; may be given several times")
    parser.add_argument("--count", type=int, action="append", help=f"instances of the model instead of {COUNTS}; may be given several times")
    parser.add_argument("--where", action="append", choices=WHERE, help="these deployments alone; may be given several times")
    parser.add_argument("--width", type=int, default=DEMO_WIDTH, help="numbers of a hidden state of the model")
    return parser.parse_args()


def use_gpu():
    """Lets all processes find the library of this Python and NVIDIA's beside it. Returns the GPU's name and its driver."""
    folders = sorted(Path(onnxruntime.__file__).parent.parent.glob("nvidia/*/lib"))
    os.environ["LD_LIBRARY_PATH"] = ":".join([*map(str, folders), os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(":")
    os.environ["ORT_DYLIB_PATH"] = library_of(sys.executable)
    ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip().replace("\n", "; ")
    except (OSError, subprocess.CalledProcessError) as error:
        if Path("/dev/nvidia0").exists():
            return f"unknown, because nvidia-smi does not say ({error})"
        raise BenchError(f"there is no NVIDIA GPU ({error}); --device cpu is a dry run") from error


def main():
    chosen = parse()
    device = {"GPU, driver": use_gpu()} if chosen.device == "gpu" else {}
    facts = options.facts(chosen, read_texts(chosen.texts), **device, **{"ONNX Runtime": onnxruntime.__version__})
    with tempfile.TemporaryDirectory(prefix="trireme-bench-gpu-") as work:
        bench = GpuBench(chosen, Path(work))
        try:
            for number in range(1, chosen.rounds + 1):
                bench.round(number)
        finally:
            bench.stop()
            # A run that was stopped also writes the results that it has.
            if chosen.device == "gpu" and bench.results:
                chosen.results.mkdir(parents=True, exist_ok=True)
                found = {"facts": facts, "failed": bench.failed, "rounds": bench.results}
                (chosen.results / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
    print(markdown(bench, facts))
    if chosen.device == "gpu":
        (chosen.results / "gpu.md").write_text(markdown(bench, facts))
        print(f"==> written to {chosen.results}: gpu.md, gpu.json")


if __name__ == "__main__":
    run_script(main)
