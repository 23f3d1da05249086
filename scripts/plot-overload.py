#!/usr/bin/env python3
"""Draws the measurements of `make overload` as one SVG: for each scene, offered load against goodput and latencies."""

import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402 - the backend comes first

# Number of scenes side by side.
COLUMNS = 4


def main(measurements: str, picture: str) -> None:
    scenes: dict[str, list[dict]] = {}
    with open(measurements, encoding="utf-8") as file:
        for level in map(json.loads, file):
            scenes.setdefault(level["scene"], []).append(level)
    bands = -(-len(scenes) // COLUMNS)
    grid = (2 * bands, min(COLUMNS, len(scenes)))
    size = (3.6 * grid[1], 3 * grid[0])
    figure, axes = plt.subplots(*grid, sharex=True, squeeze=False, figsize=size, layout="constrained")
    for number, (scene, levels) in enumerate(scenes.items()):
        band, column = divmod(number, COLUMNS)
        rates, times = axes[2 * band, column], axes[2 * band + 1, column]
        draw(levels, rates, times)
        rates.set_title(scene, fontsize="small")
        if column == 0:
            rates.set_ylabel("requests per second")
            times.set_ylabel("milliseconds")
    figure.supxlabel("offered load, as a multiple of what the system can do", fontsize="small")
    figure.savefig(picture)


def draw(levels: list[dict], rates, times) -> None:
    """Draws one scene: its rates, and its times below them."""
    load = [level["load"] for level in levels]
    for name in ("offered", "goodput", "refused", "expired"):
        values = [level[name] or None for level in levels]
        if any(values):
            rates.plot(load, values, marker="o", markersize=3, label=name)
    for name, text in (("latency_ms", "result"), ("refusal_ms", "refusal")):
        for index, percentile in enumerate(("p50", "p99")):
            values = [level[name][index] or None for level in levels]
            if any(values):
                times.plot(load, values, marker="o", markersize=3, label=f"{text} {percentile}")
    for axes in (rates, times):
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} MEASUREMENTS.json PICTURE.svg")
    main(*sys.argv[1:])
