#!/usr/bin/env python3
"""Measures Trireme beside raw ONNX Runtime on this machine, and prints and writes one table. What `make bench` runs.

All compared measurements are made in this one run, on the same texts and CPUs: everything is started once and takes turns in
rounds. Nothing else should run on the machine meanwhile.
"""

import argparse
import datetime
import os
import platform
import tempfile
from pathlib import Path

from plan import PARTS, ROOT, Bench
from raw import read_texts
from report import Report
from servers import run_script

PLUGIN = ROOT / ".tools/openvino/libonnxruntime_providers_openvino_plugin.so"
BUILT_IN = ROOT / ".tools/bench-openvino/bin/python"


def find_openvino():
    """The source of OpenVINO: the plugin on Intel's processors, the only ones that it supports; built in on others."""
    with open("/proc/cpuinfo") as info:
        found = PLUGIN if "GenuineIntel" in info.read() else BUILT_IN
    return str(found) if found.is_file() else ""


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=ROOT / ".tools/demo-model", help="folder of model.onnx and tokenizer files")
    parser.add_argument("--texts", default=ROOT / "bench/texts.txt", help="texts, one a line, or JSON objects with a text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement in a round")
    parser.add_argument("--batch-texts", type=int, default=256, help="texts of the one large request")
    parser.add_argument("--binaries", default=ROOT / "target/release")
    parser.add_argument("--nats-server", default=os.environ.get("TRIREME_NATS_SERVER", ROOT / ".tools/nats-server/nats-server"))
    parser.add_argument("--openvino", default=find_openvino(), help="the plugin, or a Python whose ONNX Runtime has it built in; empty leaves it out")
    parser.add_argument("--openvino-precision", default="", help="f32, f16, bf16: asked of OpenVINO, raw and served")
    parser.add_argument("--only", choices=PARTS, help="one part alone: its table is printed, nothing is written")
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results")
    return parser.parse_args()


def processor():
    with open("/proc/cpuinfo") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main():
    chosen = options()
    texts = read_texts(chosen.texts)
    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as work:
        bench = Bench(chosen, Path(work))
        try:
            print("==> starting what is compared", flush=True)
            bench.start()
            print(f"==> measuring: {chosen.rounds} rounds, {chosen.seconds:g} s each measurement", flush=True)
            for number in range(1, chosen.rounds + 1):
                bench.round(number)
            if "raw openvino" in bench.raw:
                bench.cosine()
            if "simulated" in bench.parts:
                print("==> measuring a simulated model with more and more workers", flush=True)
                bench.simulated()
        finally:
            bench.stop()
    facts = {
        "date": datetime.date.today().isoformat(),
        "processor": f"{processor()}, {len(os.sched_getaffinity(0))} CPUs",
        "model": Path(chosen.model).name,
        "texts": f"{len(texts)} of {Path(chosen.texts).name}",
        "rounds": f"{chosen.rounds} of {chosen.seconds:g} s",
    }
    report = Report(bench.results, facts)
    print(report.markdown())
    if not chosen.only:
        report.write(chosen.results)
        print(f"==> written to {chosen.results}: bench.md, bench.json, bench.svg")


if __name__ == "__main__":
    run_script(main)
