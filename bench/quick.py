#!/usr/bin/env python3
"""Compares the programs of this tree with those of another revision, on this machine and in turns. What `make bench-quick` runs.

Both sides serve at the same time and are loaded one after the other, so that they meet the same drift of the machine. The first side
of a turn changes from turn to turn. Each row has the median of the turns' ratios with their quartiles. The command fails when a row
is worse by more than 5 %, and three of four turns say that it is worse.
"""

import statistics
import sys
import tempfile
from pathlib import Path

import options
from plan import MODEL, ROOT, STAGES, Bench
from servers import load, run_script

LIMIT = 0.05
SIDES = ["this tree", "the other"]
# Each row: its name, the deployment, its model, requests in flight, the field, and whether more of it is better.
ROWS = [
    ("identity, all in one, requests/s at 64", "identity", "identity_chain", 64, "requests_per_second", True),
    ("identity, services, requests/s at 64", "identity services", "identity_chain", 64, "requests_per_second", True),
    ("identity, services, p50 of a lone request", "identity services", "identity_chain", 1, "p50_ms", False),
    ("encoder, all in one, texts/s at 64", "texts", MODEL, 64, "requests_per_second", True),
    ("encoder, services, texts/s at 64", "texts services", MODEL, 64, "requests_per_second", True),
]


class Side(Bench):
    """The deployments of one side."""

    def __init__(self, options, work, name, binaries):
        super().__init__(options, work)
        self.name, self.binaries = name, Path(binaries)

    def start(self):
        identity, encoder = ROOT / "bench/repositories/identity", self.repository("plain")
        self.all_in_one("identity", ["--model-repository", identity], "identity_chain")
        self.services("identity services", identity, "identity_chain", [("model", ["trireme-model"])])
        self.all_in_one("texts", ["--model-repository", encoder], MODEL)
        self.services("texts services", encoder, MODEL, STAGES)

    def measure(self, where, model, in_flight, field, load_by):
        texts = self.options.texts if model == MODEL else None
        return load(load_by / "trireme", self.deployments[where], model, self.options.seconds, in_flight, texts)[field]


def compare(sides, options):
    """For each row, how much better this tree was in each turn: 1.1 is a tenth better."""
    found = {row[0]: [] for row in ROWS}
    for turn in range(options.turns):
        for name, where, model, in_flight, field, more in ROWS:
            # Both are loaded by one program.
            first, second = sides if turn % 2 == 0 else sides[::-1]
            measured = {side.name: side.measure(where, model, in_flight, field, sides[0].binaries) for side in (first, second)}
            ratio = measured[SIDES[0]] / measured[SIDES[1]]
            found[name].append(ratio if more else 1 / ratio)
        print(f"    turn {turn + 1} of {options.turns}", flush=True)
    return found


def table(found):
    """The table, and the rows that are worse."""
    worse = []
    lines = ["| | this tree is better by | quartiles | |", "|---|---|---|---|"]
    for name, ratios in found.items():
        low, middle, high = statistics.quantiles(ratios, n=4)
        is_worse = middle < 1 - LIMIT and high < 1
        worse += [name] if is_worse else []
        percent = lambda ratio: f"{100 * (ratio - 1):+.1f} %"
        lines.append(f"| {name} | {percent(middle)} | {percent(low)} to {percent(high)} | {'worse' if is_worse else ''} |")
    return "\n".join(lines), worse


def parse():
    parser = options.parser(__doc__, seconds=1.2)
    parser.add_argument("other", type=Path, help="folder of the other revision's programs")
    parser.add_argument("--turns", type=int, default=8)
    return parser.parse_args()


def main():
    chosen = parse()
    with tempfile.TemporaryDirectory(prefix="trireme-bench-quick-") as work:
        sides = []
        try:
            for name, binaries in zip(SIDES, (chosen.binaries, chosen.other)):
                folder = Path(work) / name.replace(" ", "-")
                folder.mkdir()
                sides.append(Side(chosen, folder, name, binaries))
                sides[-1].start()
            found = compare(sides, chosen)
        finally:
            for side in sides:
                side.stop()
    text, worse = table(found)
    print(text)
    if worse:
        sys.exit(f"bench: slower than the other revision by more than {100 * LIMIT:.0f} %: {'; '.join(worse)}")


if __name__ == "__main__":
    run_script(main)
