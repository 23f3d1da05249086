#!/usr/bin/env python3
"""Writes the rows of README.md that have figures of bench/results: one run of `make bench`, and one of `make bench-peers`.

    bench/readme.py           writes them
    bench/readme.py --check   fails if README.md has other ones; what `make lint` runs
"""

import json
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
NOT_MEASURED = "not measured"
IN_FLIGHT = 64
# The columns of the table of servers, and what the names of their rows in peers.json begin with. The fastest row counts.
SERVERS = {
    "Trireme": "texts, v2 protocol / Trireme, one process", "Triton": "texts, v2 protocol / Triton", "TEI": "", "Infinity": "texts, OpenAI's route / infinity-emb",
    "vLLM pooling": "", "SIE": "texts, OpenAI's route / sie-server",
}


def median(rows, field):
    return statistics.median(row[field] for row in rows)


def number(value):
    """With a space between thousands."""
    return f"{value:,.0f}".replace(",", " ")


def row(*cells):
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def bench_rows(results):
    """The rows of the table of our own figures, by the first words of each."""
    facts, turns = results["facts"], results["turns"]
    pair = lambda show, *names: [show(turns[name]) if name in turns else "" for name in names]
    best = turns["raw / best"]
    rate = lambda rows: number(median(rows, "requests_per_second"))
    latency = lambda rows: f"{rate(rows)}; {number(median(rows, 'p50_ms'))}, {number(median(rows, 'p99_ms'))} ms"
    bars = {bar["what"]: bar["value"] for bar in results["bars"]}
    ratios = [f"{bars[f'texts/s at {IN_FLIGHT}, {name} / raw best']:.2f}" for name in ("all in one", "services")]
    texts = [f"{name} / {IN_FLIGHT}" for name in ("all in one", "services")]
    openvino, plain = (median(turns.get(name) or turns[texts[0]], "requests_per_second") for name in (f"openvino / {IN_FLIGHT}", texts[0]))
    chosen = "chooses it there" if openvino > plain else "chooses ONNX Runtime's own provider there"
    return {
        f"| {IN_FLIGHT} requests in flight": row(f"{IN_FLIGHT} requests in flight, {facts['processor']}, {facts['date']}", "all in one", "as services over NATS"),
        "| texts per second; ": row("texts per second; 50th and 99th percentile of their time", *pair(latency, *texts)),
        "| against the best": row(
            f"against the best offline run of raw ONNX Runtime, texts sorted by length ({number(median(best, 'texts_per_second'))})", *ratios
        ),
        "| texts per second with": row(f"texts per second with OpenVINO; `trireme serve FOLDER` {chosen}", *pair(rate, f"openvino / {IN_FLIGHT}"), ""),
        "| an ensemble of": row(
            "an ensemble of three steps without work, requests per second over HTTP", *pair(rate, f"identity / {IN_FLIGHT}", f"identity services / {IN_FLIGHT}")
        ),
        "| three steps of": row("three steps of `model.py`", *pair(rate, f"python / {IN_FLIGHT}", f"python services / {IN_FLIGHT}")),
    }


def peer_rows(results):
    """The row of the table of servers."""
    facts, rounds = results["facts"], results["rounds"]
    cells = []
    for begins in SERVERS.values():
        measured = [rows for key, rows in rounds.items() if begins and key.startswith(begins) and key.endswith(f" / {IN_FLIGHT}")]
        fastest = max(measured, key=lambda rows: median(rows, "requests_per_second"), default=None)
        cells.append(f"{median(fastest, 'requests_per_second'):.0f}; {number(median(fastest, 'p99_ms'))} ms" if fastest else NOT_MEASURED)
    what = f"texts a second and their 99th percentile beside each other, [{IN_FLIGHT} in flight, {facts['processor']}, {facts['date']}](bench/results/peers.md)"
    return {"| texts a second and": row(what, *cells)}


def renewed(page, rows):
    """The page with these rows in place of those that begin alike."""
    lines = page.splitlines()
    for begins, line in rows.items():
        places = [place for place, old in enumerate(lines) if old.startswith(begins)]
        if len(places) != 1:
            sys.exit(f"readme: README.md has {len(places)} lines that begin with '{begins}', and one is expected")
        lines[places[0]] = line
    return "\n".join(lines) + "\n"


def main():
    read = lambda name: json.loads((ROOT / "bench/results" / name).read_text())
    page = README.read_text()
    wanted = renewed(page, {**bench_rows(read("bench.json")), **peer_rows(read("peers.json"))})
    if sys.argv[1:] == ["--check"]:
        if wanted != page:
            sys.exit("readme: README.md has other figures than bench/results: run bench/readme.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        README.write_text(wanted)


if __name__ == "__main__":
    main()
