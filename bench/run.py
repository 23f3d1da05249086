#!/usr/bin/env python3
"""Measures Trireme beside raw ONNX Runtime on this machine, and prints and writes one table. What `make bench` runs.

All compared measurements are made in this one run, on the same texts and CPUs. Each part starts what it compares, which takes turns, and
stops it before the next part. The results are written after each part. Nothing else should run on the machine meanwhile. The default takes
about 22 minutes; `--go-on` adds parts that a run did not reach.
"""

import json
import subprocess
import tempfile
import time
from pathlib import Path

import options
from plan import PARTS, ROOT, Bench
from raw import read_texts
from report import Report
from servers import BenchError, run_script

PLUGIN = ROOT / ".tools/openvino/libonnxruntime_providers_openvino_plugin.so"
BUILT_IN = ROOT / ".tools/bench-openvino/bin/python"
# How a part can fail: a process of it ends or does not start, a program cannot be run, a server does not answer, an answer lacks a field.
FAILURES = (BenchError, OSError, subprocess.SubprocessError, KeyError, ValueError)
MOST_OF_AN_ERROR = 300  # characters of it in the table


def find_openvino():
    """The source of OpenVINO: the plugin on Intel's processors, the only ones that it supports; built in on others."""
    with open("/proc/cpuinfo") as info:
        found = PLUGIN if "GenuineIntel" in info.read() else BUILT_IN
    return str(found) if found.is_file() else ""


def parse():
    parser = options.parser_of_results(__doc__, seconds=2)
    parser.add_argument("--turns", type=int, help="of each part, in place of its own number")
    parser.add_argument("--batch-texts", type=int, default=256, help="texts of the one large request")
    parser.add_argument("--openvino", default=find_openvino(), help="the plugin, or a Python whose ONNX Runtime has it built in; empty leaves it out")
    parser.add_argument("--openvino-precision", default="", help="f32, f16, bf16: asked of OpenVINO, raw and served")
    parser.add_argument("--only", choices=PARTS, help="one part alone: its table is printed, nothing is written")
    parser.add_argument("--go-on", action="store_true", help="measure the parts that bench.json in --results lacks, of a run of this day with the same facts")
    return options.parse_with_sets(parser)


def main():
    chosen = parse()
    texts = read_texts(chosen.texts)
    results, took, failed = *(before(chosen, texts) if chosen.go_on else ({}, {})), {}
    for part in [chosen.only] if chosen.only else [part for part in PARTS if part not in took]:
        print(f"==> {part}: {chosen.seconds:g} s each measurement", flush=True)
        begun = time.monotonic()
        try:
            for key, rows in measure(part, chosen).items():
                results.setdefault(key, []).extend(rows)
        except FAILURES as error:
            # The rows of a part are compared with each other, so a part that fails has no rows in the table.
            failed[part] = " ".join(str(error).split())[:MOST_OF_AN_ERROR]
            print(f"    failed: {error}", flush=True)
        took[part] = time.monotonic() - begun
        print(f"    took {took[part]:.0f} s", flush=True)
        report = Report(results, options.facts(chosen, texts, **facts_of(chosen, took, failed)))
        if not chosen.only:
            report.write(chosen.results)
    print(report.markdown())
    if not chosen.only:
        print(f"==> written to {chosen.results}: bench.md, bench.json, bench.svg")
    if failed:
        raise BenchError("; ".join(f"{part}: {error}" for part, error in failed.items()))


def before(chosen, texts):
    """The rows of an earlier run and the seconds of its parts, without those that failed."""
    written = json.loads((chosen.results / "bench.json").read_text())
    facts, wanted = written["facts"], options.facts(chosen, texts)
    other = [name for name, value in wanted.items() if facts.get(name) != value]
    if other:
        raise BenchError(f"--go-on: bench.json is of another run: {', '.join(f'{name} is {facts.get(name)}, here {wanted[name]}' for name in other)}")
    took = dict(part.rsplit(" ", 1) for part in facts["took"].split(": ", 1)[1].split(", "))
    return written["turns"], {part: float(seconds) for part, seconds in took.items() if f"failed, {part}" not in facts}


def measure(part, chosen):
    """The rows of a part."""
    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as work:
        bench, begun = Bench(chosen, Path(work), part), time.monotonic()
        try:
            bench.start()
            print(f"    started in {time.monotonic() - begun:.0f} s", flush=True)
            bench.measure()
        finally:
            bench.stop()
    return bench.results


def facts_of(chosen, took, failed):
    """What the table says of this run: how long its parts took, and which have no rows because they failed."""
    parts = ", ".join(f"{part} {seconds:.0f}" for part, seconds in took.items())
    return {
        "each measurement": f"{chosen.seconds:g} s",
        "took": f"{sum(took.values()) / 60:.1f} minutes; seconds of each part: {parts}",
        **{f"failed, {part}": error for part, error in failed.items()},
    }


if __name__ == "__main__":
    run_script(main)
