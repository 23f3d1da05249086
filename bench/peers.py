#!/usr/bin/env python3
"""Measures Trireme beside other servers on this machine, each as its own documentation tunes it. What `make bench-peers` runs.

The servers run one at a time, because they share the CPUs. A round starts each of them in turn: it warms up, answers requests of one text
from 1, 16 and 64 connections, and is stopped. Servers of one table have the same clients. A peer that is not installed keeps its row,
with the reason; a row with a failed request has the failure in place of figures. Nothing else should run on the machine meanwhile.
"""

import dataclasses
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

import options
import peer_servers
from peer_folders import LeftOut
from peer_servers import PEERS, Memory, PeersBench
from plan import CONCURRENCY, MODEL, ROOT, TRITON
from raw import read_texts
from servers import BenchError, load, run_script

COMPARED_TEXTS = 20
COSINE_BAR = 0.9999
WARM_UP_IN_FLIGHT = 64
# Their own default, and a small batch, because they pad the texts of a batch to its longest.
INFINITY_BATCHES, SIE_BATCHES = [32, 4], [64, 4]
TEXTS, OPENAI, PYTHON = "texts, v2 protocol", "texts, OpenAI's route", "three steps of model.py that do nothing, v2 protocol"
CLIENTS = {
    TEXTS: "`trireme bench`, tensors in binary",
    OPENAI: "`bench/openai_load.py`, vectors in base64",
    PYTHON: "`trireme bench`, tensors in binary",
}


@dataclasses.dataclass
class Row:
    """A server in one of the tables."""
    table: str
    name: str
    start: Callable
    peer: str = ""  # its folder in .tools/peers
    path: str = "/v1/embeddings"  # of OpenAI's route
    settings: str = ""

    @property
    def key(self):
        return f"{self.table} / {self.name}"


def rows(bench):
    cores, own = bench.cores, "the demo's repository, defaults"
    services = "gateway, tokenizer, model, postprocess, and NATS, a process each"
    triton = "ensemble of tokenizer, encoder, pooling in Triton's python backend (bench/repositories/peers), dynamic batching, ragged batches"
    triton += f" of at most {bench.options.triton_batch} requests, sorted by length and cut at 512 tokens"
    infinity = "engine optimum (ONNX Runtime, with the graph that it optimizes at its start), mean pooling, log level warning"
    sie = "its settings for all-MiniLM-L6-v2 (adapter of sentence-transformers, 16384 tokens a batch, adaptive batching), fp32, "
    sie += f"{cores} threads of PyTorch, log level warning"
    found = [
        Row(TEXTS, "Trireme, one process", bench.trireme, settings=own),
        Row(TEXTS, "Trireme, services over NATS", bench.trireme_services, settings=services),
        Row(TEXTS, f"Triton, {cores} encoders of 1 thread", bench.triton_texts(cores, 1), "triton", settings=triton),
        Row(TEXTS, f"Triton, 1 encoder of {cores} threads", bench.triton_texts(1, cores), "triton", settings=triton),
        Row(OPENAI, "Trireme, one process", bench.trireme, settings=own),
        Row(OPENAI, "Trireme, services over NATS", bench.trireme_services, settings=services),
        *(Row(OPENAI, f"infinity-emb, batches of {batch}", bench.infinity(batch), "infinity", "/embeddings", infinity) for batch in INFINITY_BATCHES),
        *(Row(OPENAI, f"sie-server, batches of {batch}", bench.sie(batch), "sie", settings=sie) for batch in SIE_BATCHES),
        Row(PYTHON, "Trireme, one process", bench.trireme_python, settings="bench/repositories/python"),
        Row(PYTHON, "Trireme, services over NATS", bench.trireme_python_services, settings="bench/repositories/python; gateway, one worker for the three steps, NATS"),
        Row(PYTHON, "Triton", bench.triton_python, "triton", settings="the same files in Triton's python backend, one process for each step"),
    ]
    if cores == 1:
        found = [row for row in found if row.name != "Triton, 1 encoder of 1 threads"]
    return [row for row in found if bench.options.rows in row.key.lower()]


# === Measuring ===


class Run:
    def __init__(self, bench, texts):
        self.bench, self.options = bench, bench.options
        self.results, self.failed, self.cosines, self.reference = {}, {}, {}, None
        self.texts, self.compared = texts, chosen_texts(texts)
        self.listed = bench.work / "texts.json"
        self.listed.write_text(json.dumps(texts))

    def round(self, rows):
        for row in rows:
            if row.key in self.failed:
                continue
            if missing := unavailable(row.peer):
                self.failed[row.key] = missing
                continue
            try:
                self.measure(row)
                print(f"    {row.key}", flush=True)
            except (BenchError, OSError, KeyError, ValueError) as error:
                what = "not measured" if isinstance(error, LeftOut) else "failed"
                self.failed[row.key] = f"{what}: {shortened(str(error))}"
                print(f"    {row.key}: {what}: {error}", flush=True)
                self.bench.stop()

    def measure(self, row):
        deployment = row.start(row.key.replace("/", "-").replace("'", "").replace(",", ""))
        try:
            if row.table != PYTHON and row.key not in self.cosines:
                self.cosines[row.key] = self.compare(row, deployment)
            self.load(row, deployment, self.options.warmup, WARM_UP_IN_FLIGHT)
            with Memory(deployment) as memory:
                for in_flight in CONCURRENCY:
                    self.keep(f"{row.key} / {in_flight}", self.load(row, deployment, self.options.seconds, in_flight))
                self.keep(f"{row.key} / memory", memory.figures())
        finally:
            deployment.stop()

    def keep(self, key, value):
        self.results.setdefault(key, []).append(value)

    def load(self, row, deployment, seconds, in_flight):
        """One measurement, with the CPU time of all processes of the server for a request."""
        before, begun = peer_servers.cpu_seconds(deployment), time.monotonic()
        if row.table == OPENAI:
            measured = self.openai_load(row, deployment, seconds, in_flight)
        else:
            model, texts = (MODEL, self.options.texts) if row.table == TEXTS else ("python_chain", None)
            measured = load(self.bench.binaries / "trireme", deployment, model, seconds, in_flight, texts)
        for process in deployment.processes:
            process.check()
        # The CPU time includes the warm-up's requests. `trireme bench` does not tell their number.
        requests = measured.pop("requests", measured["requests_per_second"] * (time.monotonic() - begun))
        measured["server_cpu_us"] = 1e6 * (peer_servers.cpu_seconds(deployment) - before) / max(requests, 1)
        return measured

    def openai_load(self, row, deployment, seconds, in_flight):
        argv = [
            sys.executable, ROOT / "bench/openai_load.py", "--server", deployment.address, "--path", row.path, "--model", MODEL,
            "--texts", self.listed, "--concurrency", in_flight, "--seconds", seconds, "--warmup-seconds", warm_up(seconds),
        ]
        done = subprocess.run([str(word) for word in argv], capture_output=True, text=True)
        if done.returncode:
            raise BenchError(done.stderr.strip()[-600:])
        return json.loads(done.stdout)

    def compare(self, row, deployment):
        """The lowest cosine of this server's vectors and those of Trireme's first row, or nothing where that row is left out."""
        if row.table == OPENAI:
            vectors = [peer_servers.openai_vector(deployment, row.path, text) for text in self.compared]
        else:
            vectors = [peer_servers.v2_vector(deployment, text) for text in self.compared]
        if self.reference is None and row.name.startswith("Trireme"):
            self.reference = vectors
        if self.reference is None:
            return None
        return min(cosine(*pair) for pair in zip(vectors, self.reference, strict=True))


def shortened(text):
    """The beginning and the end of a long text, in one line."""
    text = " ".join(text.split())
    return text if len(text) <= 400 else f"{text[:150]} … {text[-230:]}"


def warm_up(seconds):
    """As `load` of servers.py has it."""
    return min(1, seconds / 4)


def chosen_texts(texts):
    """Texts of all lengths, the longest included."""
    ordered = sorted(dict.fromkeys(texts), key=len)
    count = min(COMPARED_TEXTS, len(ordered))
    return [ordered[(number + 1) * len(ordered) // count - 1] for number in range(count)]


def cosine(left, right):
    dot = sum(l * r for l, r in zip(left, right, strict=True))
    return dot / math.sqrt(sum(l * l for l in left) * sum(r * r for r in right))


def unavailable(peer):
    """Why a peer cannot run here, in a sentence, or nothing."""
    if not peer:
        return ""
    reason = PEERS / peer / "unavailable"
    if reason.exists():
        return f"not measured: {reason.read_text().strip()}"
    if not (PEERS / peer / "bin/python").exists() or peer == "triton" and not (TRITON / "tritonserver").exists():
        return f"not measured: .tools/peers/{peer} is not there (scripts/setup-peers.sh makes it)"
    return ""


# === The table ===


class Table:
    def __init__(self, run, rows, facts):
        self.run, self.rows, self.facts = run, rows, facts

    def values(self, row, what, field):
        return [one[field] for one in self.run.results[f"{row.key} / {what}"]]

    def show(self, row, what, field, digits):
        return f"{statistics.median(self.values(row, what, field)):,.{digits}f}"

    def spread(self, row, what, field, digits):
        values = self.values(row, what, field)
        return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"

    def markdown(self):
        lines = ["# Trireme beside its peers", "", *(f"- {name}: {value}" for name, value in self.facts.items()), ""]
        lines += [
            "Medians of the rounds, rates and latencies with the lowest and the highest. One server at a time, in one run. Each request has one text. The",
            "memory is that of all processes of a server, the broker included, after the load; pages that processes share count for each of",
            f"them in RSS, and once in PSS. The cosine is the lowest of {COMPARED_TEXTS} texts with Trireme's vectors. The CPU time is that of",
            "a request.", "",
        ]
        for table in dict.fromkeys(row.table for row in self.rows):
            lines += self.of(table)
        lines += ["## Settings", ""]
        lines += [f"- {row.key}: {row.settings}" for row in self.rows]
        return "\n".join(lines) + "\n"

    def of(self, table):
        """One table: a line for each server and number of requests in flight."""
        unit = "requests" if table == PYTHON else "texts"
        lines = [f"## {table[0].upper()}{table[1:]}", "", f"The clients are {CLIENTS[table]}.", ""]
        lines.append(f"| | in flight | {unit}/s | p50 ms | p99 ms | server CPU us | client CPU us | RSS MiB | highest RSS | PSS | cosine |")
        lines.append("|---|---|---|---|---|---|---|---|---|---|---|")
        for row in (row for row in self.rows if row.table == table):
            if row.key in self.run.failed:
                lines.append(f"| {row.name} | {self.run.failed[row.key].replace('|', '/')} |" + " |" * 9)
                continue
            for in_flight in CONCURRENCY:
                lines.append(self.line(row, in_flight))
        return [*lines, ""]

    def line(self, row, in_flight):
        spreads = [("requests_per_second", 1), ("p50_ms", 2), ("p99_ms", 2)]
        cells = [row.name, str(in_flight), *(self.spread(row, in_flight, *field) for field in spreads)]
        cells += [self.show(row, in_flight, field, 0) for field in ("server_cpu_us", "client_cpu_us")]
        if in_flight == CONCURRENCY[-1]:
            cells += [self.show(row, "memory", field, 0) for field in ("rss_mib", "peak_mib", "pss_mib")]
            cells.append(self.similarity(row))
        return f"| {' | '.join(cells)} |" + " |" * (11 - len(cells))

    def similarity(self, row):
        value = self.run.cosines.get(row.key)
        if value is None:
            return ""
        return f"{value:.6f}" if value >= COSINE_BAR else f"{value:.6f} **answers something else**"

    def write(self, directory):
        directory.mkdir(parents=True, exist_ok=True)
        settings = {row.key: row.settings for row in self.rows}
        everything = {
            "facts": self.facts, "settings": settings, "failed": self.run.failed, "cosines": self.run.cosines, "rounds": self.run.results,
        }
        (directory / "peers.json").write_text(json.dumps(everything, indent=1) + "\n")
        (directory / "peers.md").write_text(self.markdown())


def versions(bench):
    """The versions of the servers that are there."""
    trireme = subprocess.run([bench.binaries / "trireme", "--version"], capture_output=True, text=True).stdout.split()
    found = [f"Trireme {trireme[-1] if trireme else 'of unknown version'}"]
    shown = [
        ("triton", "Triton of nvidia-pytriton", TRITON, "nvidia-pytriton", "onnxruntime"),
        ("infinity", "infinity-emb", PEERS / "infinity", "infinity-emb", "onnxruntime"),
        ("sie", "sie-server", PEERS / "sie", "sie-server", "torch"),
    ]
    for peer, name, environment, package, engine in shown:
        if not unavailable(peer):
            own, below = peer_servers.version(environment, package), peer_servers.version(PEERS / peer, engine)
            found.append(f"{name} {own} ({engine} {below})")
    return ", ".join(found)


def parse():
    parser = options.parser_of_rounds(__doc__)
    parser.add_argument("--warmup", type=float, default=5, help="seconds of load before a server's first measurement in a round")
    parser.add_argument("--triton-batch", type=int, default=64, help="requests that Triton's batchers put together at most")
    parser.add_argument("--rows", default="", help="only rows whose table and name have this text, in small letters: the table is printed, nothing is written")
    return options.parse_with_sets(parser)


def main():
    chosen = parse()
    texts = read_texts(chosen.texts)
    with tempfile.TemporaryDirectory(prefix="trireme-bench-peers-") as work:
        bench = PeersBench(chosen, Path(work))
        listed = rows(bench)
        run = Run(bench, texts)
        try:
            for number in range(1, chosen.rounds + 1):
                print(f"==> round {number} of {chosen.rounds}: {len(listed)} servers, {chosen.seconds:g} s each measurement", flush=True)
                run.round(listed)
        finally:
            bench.stop()
        facts = options.facts(chosen, texts, servers=versions(bench))
    table = Table(run, listed, facts)
    print(table.markdown())
    if not chosen.rows:
        table.write(chosen.results)
        print(f"==> written to {chosen.results}: peers.md, peers.json")
    failures = [f"{key}: {why}" for key, why in run.failed.items() if why.startswith("failed")]
    if failures:
        sys.exit("bench: " + "; ".join(failures))


if __name__ == "__main__":
    run_script(main)
