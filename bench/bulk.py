#!/usr/bin/env python3
"""Measures durable work on this machine and prints one table with bars. What `make bench-bulk` runs.

- batch: a batch of OpenAI's Batch API, and `trireme bulk`, each alone, beside the best offline run of raw ONNX Runtime on the same texts.
- beside: live traffic at 30 % of capacity, with and without a batch of short lines beside it.
- queued: durable requests (`Prefer: respond-async`) for a model that is too slow for them, so that they queue.
- owners: the small job of one owner beside the large one of another, and live traffic beside the jobs of both.

Each in one process and as services. Nothing else should run on the machine meanwhile.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

import clients
import options
import owners
from plan import BUDGETS, MODEL, ROOT, STAGES, Bench
from raw import read_texts
from servers import BenchError, free_port, load, run_script

PARTS = ["batch", "beside", "owners", "queued"]
WHERE = ["all in one", "services"]
LIVE_SHARE = 0.3
SHORT_WORDS = 8
QUEUED_MODEL = "simulated"  # 50 ms for a request, one at a time
SYNCED = "sync_interval: always"

BATCH_BAR = 0.97
P99_BAR = 1.2
USED_BAR = 0.95
ACCEPTED_BAR = 5000
BYTES_BAR = 1000  # memory of a process for each queued request


class BulkBench(Bench):
    def __init__(self, options, work):
        super().__init__(options, work)
        self.parts = {options.only} if options.only else set(PARTS)
        self.where = [options.where] if options.where else WHERE
        self.metrics, self.files = {}, {}
        self.texts = read_texts(options.texts)

    def start(self):
        if "batch" in self.parts:
            self.start_raw("raw", [])
        if {"batch", "beside"} & self.parts:
            repository = self.repository("plain")
            self.deploy("", repository, MODEL, STAGES)
        if "owners" in self.parts:
            self.deploy("owners ", self.repository("owners"), MODEL, STAGES, extra=owners.flags(limits=False))

    def deploy(self, prefix, repository, model, stages, broker="", extra=()):
        for where in self.where:
            name, port = f"{prefix}{where}", free_port()
            metrics = ["--metrics-port", port, *extra]
            self.metrics[name] = port
            if where == "all in one":
                data = ["--data-dir", self.work / f"data-{name}"]
                self.all_in_one(name, ["--model-repository", repository], model, extra=[*metrics, *data])
            else:
                self.services(name, repository, model, stages, extra=metrics, broker=broker)

    def round(self, number):
        if "batch" in self.parts:
            self.batch()
        for where in self.where if "beside" in self.parts else []:
            self.beside(where)
        for where in self.where if "owners" in self.parts else []:
            owners.beside(self, where, MODEL)
        print(f"    round {number} of {self.options.rounds}", flush=True)

    def batch(self):
        """Raw offline runs, a batch and `trireme bulk`, in turns, over the same texts."""
        seconds, best = self.options.seconds, 0
        for layout in ("narrow", "wide"):
            for budget in BUDGETS:
                measured = self.ask("raw", what="offline", budget=budget, layout=layout, seconds=seconds / 4)
                self.keep(f"raw / {layout}, {budget} tokens", measured)
                best = max(best, measured["texts_per_second"])
        # Whole passes, so that short and long texts have their share.
        passes = self.files.setdefault("passes", max(2, round(best * seconds / len(self.texts))))
        count = passes * len(self.texts)
        lines, plain = self.work / "lines.jsonl", self.work / "texts.jsonl"
        if not lines.exists():
            clients.write_lines(lines, MODEL, self.texts, count)
            plain.write_text("".join(json.dumps(text) + "\n" for text in self.texts * passes))
        for where in self.where:
            deployment = self.deployments[where]
            self.keep(f"{where} / batch", clients.run_batch(deployment, lines, count))
            self.keep(f"{where} / trireme bulk", self.bulk(deployment, plain, count))

    def bulk(self, deployment, texts, count):
        return {"texts_per_second": count / clients.embed_file(self.binaries / "trireme", deployment, MODEL, texts, count)}

    def beside(self, where):
        """Phases of live traffic alone, a job alone, and both. The rate of live traffic is a share of what the deployment can do."""
        deployment, seconds = self.deployments[where], self.options.seconds
        trireme, texts = self.binaries / "trireme", self.options.texts
        if f"{where} / capacity" not in self.results:
            measured = load(trireme, deployment, MODEL, seconds, 64, texts)
            self.keep(f"{where} / capacity", {"texts_per_second": measured["requests_per_second"]})
            short = [" ".join(text.split()[:SHORT_WORDS]) for text in self.texts]
            lines = self.work / "short.jsonl"
            if not lines.exists():
                clients.write_lines(lines, MODEL, short, self.options.lines)
            self.files[where] = clients.upload(deployment, lines)
        rate = LIVE_SHARE * self.results[f"{where} / capacity"][0]["texts_per_second"]
        live = lambda: clients.Live(deployment, MODEL, self.texts, rate)

        alone, _ = self.phase(where, lambda: live().run(2 * seconds))
        job = clients.begin_batch(deployment, self.files[where])
        while clients.batch(deployment, job)["status"] == "validating":
            time.sleep(0.05)
        time.sleep(min(5, seconds))
        _, job_alone = self.phase(where, lambda: time.sleep(seconds))
        live().run(min(3, seconds))
        both, job_both = self.phase(where, lambda: live().run(2 * seconds))
        found = clients.batch(deployment, job)
        if found["status"] != "in_progress":
            raise BenchError(f"{where}: the job of {self.options.lines} lines is {found['status']} before the end; give --lines more")
        clients.cancel_batch(deployment, job)

        live_cost = alone["cpu_seconds"] / (alone["per_second"] * alone["seconds"])
        job_cost = job_alone["cpu_seconds"] / (job_alone["per_second"] * job_alone["seconds"])
        weight = live_cost / job_cost
        self.keep(f"{where} / beside", {
            "live_per_second": rate, "p50_alone_ms": alone["p50_ms"], "p50_both_ms": both["p50_ms"],
            "p99_alone_ms": alone["p99_ms"], "p99_both_ms": both["p99_ms"], "p99_ratio": both["p99_ms"] / alone["p99_ms"],
            "job_alone": job_alone["per_second"], "job_both": job_both["per_second"], "weight": weight,
            "used": (job_both["per_second"] + weight * both["per_second"]) / job_alone["per_second"],
        })

    def phase(self, where, run):
        """Runs a phase. Returns its own result and the job's, both with the CPU time of all processes and the seconds of the phase."""
        deployment, port = self.deployments[where], self.metrics[where]
        begun, cpu, lines = time.monotonic(), sum(deployment.cpu().values()), clients.lines_done(port)
        result = run() or {}
        seconds, lines = time.monotonic() - begun, clients.lines_done(port) - lines
        common = {"seconds": seconds, "cpu_seconds": sum(deployment.cpu().values()) - cpu}
        return {**result, **common}, {"per_second": lines / seconds, **common}

    def queued(self):
        """Durable requests, faster than their model answers them. On a broker with its default, which syncs its files now and then, and on
        one that syncs each message before it confirms it."""
        repository = ROOT / "bench/repositories/simulated"
        stages = [("model", ["trireme-model"])]
        for prefix, broker in (("queued ", ""), ("queued, synced ", f", {SYNCED}")):
            wanted, self.where = self.where, [where for where in self.where if where == "services" or not broker]
            self.deploy(prefix, repository, QUEUED_MODEL, stages, broker)
            for where in self.where:
                self.keep(f"{prefix}{where}", self.queue(self.deployments[f"{prefix}{where}"]))
                self.deployments.pop(f"{prefix}{where}").stop()
            self.where = wanted

    def queue(self, deployment):
        count = self.options.queued
        body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1.0]}]})
        path = f"/v2/models/{QUEUED_MODEL}/infer"
        send = lambda number: clients.accept_many(deployment, path, body, number, self.options.connections)
        # The broker fills its pool of buffers first: some tens of MiB, however many requests follow.
        send(max(count // 2, 1000))
        time.sleep(15)
        before, cpu = memory(deployment), deployment.cpu()
        result = send(count)
        spent = {stage: 1e6 * (after - cpu[stage]) / count for stage, after in deployment.cpu().items()}
        # A broker drops its cache of file blocks after some seconds.
        time.sleep(15)
        after = memory(deployment)
        return {
            **result, "cpu_us": spent, "memory_before": before, "memory_after": after,
            "bytes_per_request": {stage: (after[stage] - before[stage]) / count for stage in before},
        }


def memory(deployment):
    """Resident bytes of each process that keeps requests: gateway, broker, or the one process."""
    def resident(process):
        with open(f"/proc/{process.process.pid}/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))
    return {p.stage: resident(p) for p in deployment.processes if p.stage in ("gateway", "nats-server", "serve")}


# === The table ===


def median(results, key, field):
    return statistics.median(one[field] for one in results[key])


def bars(results):
    """(measured, value, bar, whether it holds), from the medians of this run."""
    found = []
    raws = [key for key in results if key.startswith("raw / ")]
    best = max((median(results, key, "texts_per_second") for key in raws), default=0)
    for where in WHERE:
        for what in ("batch", "trireme bulk"):
            if f"{where} / {what}" in results:
                ratio = median(results, f"{where} / {what}", "texts_per_second") / best
                found.append((f"texts/s of {what} alone, {where} / raw best", ratio, ">=", BATCH_BAR))
        if f"{where} / beside" in results:
            value = lambda field: median(results, f"{where} / beside", field)
            found += [
                (f"p99 of live requests, {where}, with a job / without", value("p99_ratio"), "<=", P99_BAR),
                (f"job and live together, {where} / the job alone", value("used"), ">=", USED_BAR),
            ]
        if f"{where} / owners" in results:
            value = lambda field: median(results, f"{where} / owners", field)
            found += [
                (f"time of a small job beside another owner's large one, {where} / alone at half the machine", value("time_ratio"), "<=", owners.TIME_BAR),
                (f"p99 of live requests, {where}, with the jobs of two owners / without", value("p99_ratio"), "<=", owners.P99_BAR),
            ]
    for key in (key for key in results if key.startswith("queued")):
        found.append((f"accepted/s, {key}", median(results, key, "accepted_per_second"), ">=", ACCEPTED_BAR))
        for stage, each in results[key][0]["bytes_per_request"].items():
            found.append((f"bytes of memory for a queued request, {key}, {stage}", each, "<=", BYTES_BAR))
    return [(what, value, f"{how} {bar:,}", value >= bar if how == ">=" else value <= bar) for what, value, how, bar in found]


def markdown(results, facts):
    lines = ["# Durable work", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += ["Medians of the rounds. All in one run, taking turns.", "", "| against its bar | measured | bar | |", "|---|---|---|---|"]
    for what, value, bar, holds in bars(results):
        lines.append(f"| {what} | {value:,.4g} | {bar} | {'holds' if holds else 'missed'} |")
    rates = [key for key in results if "texts_per_second" in results[key][0]]
    if rates:
        lines += ["", "| | texts/s | lowest | highest |", "|---|---|---|---|"]
        for key in rates:
            values = [one["texts_per_second"] for one in results[key]]
            lines.append(f"| {key} | {statistics.median(values):,.1f} | {min(values):,.1f} | {max(values):,.1f} |")
    besides = [key for key in results if key.endswith("/ beside")]
    if besides:
        lines += ["", "| | live/s | p50 alone, ms | with a job | p99 alone | with a job | lines/s alone | beside live | lines that a live text costs |"]
        lines.append("|---|---|---|---|---|---|---|---|---|")
        fields = ["live_per_second", "p50_alone_ms", "p50_both_ms", "p99_alone_ms", "p99_both_ms", "job_alone", "job_both", "weight"]
        for key in besides:
            cells = " | ".join(f"{median(results, key, field):,.1f}" for field in fields)
            lines.append(f"| {key} | {cells} |")
    small = [key for key in results if key.endswith("/ owners")]
    if small:
        lines += ["", "| | small lines | large lines | small alone, s | beside the large, s | live/s | p99 alone, ms | with both jobs |"]
        lines.append("|---|---|---|---|---|---|---|---|")
        fields = ["small_lines", "large_lines", "alone_seconds", "together_seconds", "live_per_second", "p99_none_ms", "p99_both_ms"]
        lines += [f"| {key} | {' | '.join(f'{median(results, key, field):,.4g}' for field in fields)} |" for key in small]
    queued = [key for key in results if key.startswith("queued")]
    if queued:
        lines += ["", "| | accepted/s | process | CPU us/request | MiB before | MiB after |", "|---|---|---|---|---|---|"]
        for key in queued:
            one = results[key][0]
            for stage, before in one["memory_before"].items():
                after, cpu = one["memory_after"][stage], one["cpu_us"][stage]
                lines.append(f"| {key} | {one['accepted_per_second']:,.0f} | {stage} | {cpu:,.0f} | {before / 2**20:,.1f} | {after / 2**20:,.1f} |")
    return "\n".join(lines) + "\n"


def parse():
    parser = options.parser_of_rounds(__doc__, seconds=20)
    parser.add_argument("--lines", type=int, default=1_000_000, help="lines of the job beside live traffic, and of the large job of an owner")
    parser.add_argument("--small", type=int, default=1_000, help="lines of the small job of another owner")
    parser.add_argument("--queued", type=int, default=100_000, help="durable requests")
    parser.add_argument("--connections", type=int, default=256, help="connections that send durable requests")
    parser.add_argument("--only", choices=PARTS, help="one part alone: its table is printed, nothing is written")
    parser.add_argument("--where", choices=WHERE, help="one deployment alone, likewise")
    parser.add_argument("--work", type=Path, help="folder for stores and logs, on the disk to be measured; a temporary one without")
    return parser.parse_args()


def main():
    chosen = parse()
    with tempfile.TemporaryDirectory(prefix="trireme-bench-bulk-", dir=chosen.work) as work:
        bench = BulkBench(chosen, Path(work))
        try:
            bench.start()
            print(f"==> measuring: {chosen.rounds} rounds, {chosen.seconds:g} s each measurement", flush=True)
            for number in range(1, chosen.rounds + 1 if {"batch", "beside", "owners"} & bench.parts else 1):
                bench.round(number)
            if "queued" in bench.parts:
                for name in list(bench.deployments):
                    bench.deployments.pop(name).stop()
                print(f"==> measuring: {chosen.queued} durable requests", flush=True)
                bench.queued()
        finally:
            bench.stop()
    facts = options.facts(chosen, bench.texts)
    print(markdown(bench.results, facts))
    if not chosen.only and not chosen.where:
        chosen.results.mkdir(parents=True, exist_ok=True)
        listed = [{"what": what, "value": value, "bar": bar, "holds": holds} for what, value, bar, holds in bars(bench.results)]
        everything = {"facts": facts, "bars": listed, "rounds": bench.results}
        (chosen.results / "bulk.json").write_text(json.dumps(everything, indent=1) + "\n")
        (chosen.results / "bulk.md").write_text(markdown(bench.results, facts))
        print(f"==> written to {chosen.results}: bulk.md, bulk.json")


if __name__ == "__main__":
    run_script(main)
