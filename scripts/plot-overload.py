#!/usr/bin/env python3
"""Draws what `make overload` measured: offered load against goodput and latencies, as one SVG."""

import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402 - the backend comes first


def main(measurements: str, picture: str) -> None:
    with open(measurements, encoding="utf-8") as file:
        levels = [json.loads(line) for line in file]
    load = [level["load"] for level in levels]
    figure, (rates, times) = plt.subplots(2, 1, sharex=True, figsize=(7, 6), layout="constrained")
    for name in ("offered", "goodput", "refused"):
        rates.plot(load, [level[name] for level in levels], marker="o", markersize=3, label=name)
    rates.set_ylabel("requests per second")
    rates.set_yscale("log")
    for name, text in (("latency_ms", "result"), ("refusal_ms", "refusal")):
        for index, percentile in enumerate(("p50", "p99")):
            values = [level[name][index] or None for level in levels]
            times.plot(load, values, marker="o", markersize=3, label=f"{text} {percentile}")
    times.set_ylabel("milliseconds")
    times.set_yscale("log")
    times.set_xlabel("offered load, as a multiple of what the system can do")
    for axes in (rates, times):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(picture)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} MEASUREMENTS.json PICTURE.svg")
    main(*sys.argv[1:])
