#!/usr/bin/env python3
"""The curve of throughput and latency over how long later requests may overtake a request. What `make bench-overtake` runs, behind the curve of
the simulator, on the texts on which defaults are chosen.

One process serves for each value, a number of full runs of 512 tokens. The values take turns.
"""

import statistics
import tempfile
from pathlib import Path

import options
from plan import MODEL, Bench
from servers import run_script

USUAL_LENGTH = 32  # tokens of a text, as the batcher has it
FULL_RUNS = [0.0, 1.0, 2.0, 4.0]
IN_FLIGHT = [4, 16, 64]
BUDGET = 'parameters { key: "token_budget" value { string_value: "512" } }\n'
OVERTAKE = 'parameters {{ key: "max_overtake_microseconds" value {{ string_value: "{:.0f}" }} }}\n'


def full_run(deployment):
    """The microseconds of a full run of usual texts, by the line about costs in the log."""
    run, token, pair, budget = (deployment.logged(field) for field in ("run_us", "token_us", "pair_us", "token_budget"))
    rows = max(budget // USUAL_LENGTH, 1)
    return run + rows * USUAL_LENGTH * (token + pair * USUAL_LENGTH)


def main():
    parser = options.parser(__doc__, seconds=4)
    parser.add_argument("--turns", type=int, default=5)
    chosen = options.parse_with_sets(parser, half="choose")
    with tempfile.TemporaryDirectory(prefix="trireme-bench-overtake-") as work:
        bench = Bench(chosen, Path(work))
        try:
            kept = ("--allow-metrics=false", "--cost-model-cache", bench.work / "costs")
            plain = bench.repository("plain", BUDGET)
            bench.all_in_one("measured", ["--model-repository", plain], MODEL, extra=kept)
            micros = full_run(bench.deployments["measured"])
            bench.deployments.pop("measured").stop()
            print(f"==> a full run takes {micros / 1e3:.0f} ms, by its measured cost", flush=True)
            for runs in FULL_RUNS:
                repository = bench.repository(f"runs-{runs:g}", BUDGET + OVERTAKE.format(runs * micros))
                bench.all_in_one(f"{runs:g} runs", ["--model-repository", repository], MODEL, extra=kept)
            for bench.turn in range(chosen.turns):
                bench.measure_in_order(*(bench.load(f"{runs:g} runs", MODEL, in_flight) for in_flight in IN_FLIGHT for runs in FULL_RUNS))
                print(f"    turn {bench.turn + 1} of {chosen.turns}", flush=True)
        finally:
            bench.stop()
    print("| | in flight | full runs | texts/s | p50 ms | p99 ms |\n|---|---|---|---|---|---|")
    for in_flight in IN_FLIGHT:
        for runs in FULL_RUNS:
            measured = bench.results[f"{runs:g} runs / {in_flight}"]
            cells = (statistics.median(one[field] for one in measured) for field in ("requests_per_second", "p50_ms", "p99_ms"))
            print(f"| served | {in_flight} | {runs:g} | {' | '.join(f'{cell:,.0f}' for cell in cells)} |")


if __name__ == "__main__":
    run_script(main)
