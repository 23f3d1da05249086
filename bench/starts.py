#!/usr/bin/env python3
"""Whether first starts are a coin. What `make bench-starts` runs.

A first start measures what runs of the model cost, and chooses the tokens of a run by it. Several processes make that choice one after the
other, each with an empty cache; then all of them serve, and are loaded in turns, so that they meet the same machine. A processor that drifts
moves all rows of a turn; a choice that was wrong moves its own.
"""

import statistics
import tempfile
from pathlib import Path

import options
from plan import MODEL, Bench
from servers import run_script

IN_FLIGHT = [16, 64]


def main():
    parser = options.parser(__doc__, seconds=4)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    chosen = options.parse_with_sets(parser)
    names = [f"start {number}" for number in range(1, chosen.starts + 1)]
    with tempfile.TemporaryDirectory(prefix="trireme-bench-starts-") as work:
        bench = Bench(chosen, Path(work))
        try:
            plain, budgets = bench.repository("plain"), {}
            for name in names:
                bench.all_in_one(name, ["--model-repository", plain], MODEL, extra=("--allow-metrics=false", "--cost-model-cache", bench.work / name))
                budgets[name] = bench.deployments[name].logged("token_budget")
                print(f"    {name}: {budgets[name]:.0f} tokens", flush=True)
            for bench.turn in range(chosen.turns):
                bench.measure_in_order(*(bench.load(name, MODEL, in_flight) for in_flight in IN_FLIGHT for name in names))
                print(f"    turn {bench.turn + 1} of {chosen.turns}", flush=True)
        finally:
            bench.stop()
    median = lambda name, in_flight, field: statistics.median(one[field] for one in bench.results[f"{name} / {in_flight}"])
    fields = [(in_flight, field) for in_flight in IN_FLIGHT for field in ("requests_per_second", "p50_ms", "p99_ms")]
    units = {"requests_per_second": "texts/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms"}
    print(f"| | tokens of a run | {' | '.join(f'{units[field]} at {in_flight}' for in_flight, field in fields)} |\n|{'---|' * (len(fields) + 2)}")
    columns = [[median(name, *column) for name in names] for column in fields]
    for name, *cells in zip(names, *columns):
        print(f"| {name} | {budgets[name]:.0f} | {' | '.join(f'{cell:,.1f}' for cell in cells)} |")
    print(f"| highest / lowest | {max(budgets.values()) / min(budgets.values()):.2f} | {' | '.join(f'{max(column) / min(column):.3f}' for column in columns)} |")


if __name__ == "__main__":
    run_script(main)
