#!/usr/bin/env python3
"""Draws the measurements of `make scale` as one SVG: costs over the size of the deployment, and the restart of the broker."""

import json
import math
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402 - the backend comes first

# For each panel: its title, its unit, and the figures in it.
COSTS = [
    ("CPU at rest", "percent of one core", ["broker, CPU", "gateway, CPU", "worker, CPU"]),
    ("messages at rest", "messages per second", ["messages into the broker", "messages out of the broker"]),
    ("memory", "MiB", ["broker, memory", "gateway, memory", "worker, memory"]),
]

# The names of scenes at rest, with their line styles.
AT_REST = {"idle": "-", "idle, three brokers": "--"}

READING = ["GET /metrics", "GET /v2/models/stats"]

RESTART = [
    ("messages into the broker in a second after, peak", "messages into the broker"),
    ("work published in a second after, peak", "work published"),
    ("all are answered after the kill", "answers"),
]


def main(measurements: str, picture: str) -> None:
    with open(measurements, encoding="utf-8") as file:
        findings = [json.loads(line) for line in file if line.strip()]
    figure, axes = plt.subplots(1, 5, figsize=(19, 3.8), layout="constrained")
    for (title, unit, figures), panel in zip(COSTS, axes):
        draw_costs(findings, figures, panel)
        finish(panel, title, "workers and gateways", unit)
    draw_reading(findings, axes[3])
    finish(axes[3], "a gateway tells of all models", "workers and gateways", "milliseconds")
    draw_restart(findings, axes[4])
    finish(axes[4], "the broker restarts", "seconds since it was killed", "per second")
    figure.savefig(picture)


def parts(finding: dict) -> int:
    return finding["workers"] + finding["gateways"]


def draw_costs(findings: list[dict], figures: list[str], panel) -> None:
    """Lines over sizes, and a reference line that grows from the first point in proportion to the number of parts."""
    for scene, style in AT_REST.items():
        for name in figures:
            points = [f for f in findings if f["scene"] == scene and f["figure"] == name and "workers" in f]
            # A logarithmic axis has no zero.
            points = [(parts(f), f["value"]) for f in points if f["value"] > 0]
            if not points:
                continue
            label = name.split(",")[0] + (", three" if scene != "idle" else "")
            panel.plot(*zip(*points), style, marker="o", markersize=3, label=label)
            bar = next((f["at_most"] for f in findings if f["scene"] == scene and f["figure"] == name), None)
            if bar:
                panel.axhline(bar, color="grey", linewidth=0.6, linestyle=":")
            if name == figures[0] and scene == "idle" and len(points) > 1:
                start, end = points[0], points[-1]
                for power, text in ((1, "with the sum"), (2, "with the product")):
                    grown = start[1] * math.pow(end[0] / start[0], power)
                    panel.plot([start[0], end[0]], [start[1], grown], color="lightgrey", linewidth=0.8, zorder=0)
                    panel.annotate(text, (end[0], grown), fontsize="xx-small", color="grey", ha="right", va="bottom")
    panel.set_xscale("log")
    panel.set_yscale("log")


def draw_reading(findings: list[dict], panel) -> None:
    """The median and the worst of the answers, over sizes."""
    size = {f["at"]: parts(f) for f in findings if "workers" in f}
    for name in READING:
        for figure, style in (("median", "-"), ("worst of 10", ":")):
            of_figure = [f for f in findings if f["scene"] == name and f["figure"] == figure and f["at"] in size]
            if of_figure:
                points = [(size[f["at"]], f["value"]) for f in of_figure]
                panel.plot(*zip(*points), style, marker="o", markersize=3, label=f"{name.split('/')[-1]}, {figure}")
                panel.axhline(of_figure[0]["at_most"], color="grey", linewidth=0.6, linestyle=":")
    panel.set_xscale("log")


def draw_restart(findings: list[dict], panel) -> None:
    """Rates over time; the broker is killed at 0."""
    for name, label in RESTART:
        for finding in findings:
            if finding["scene"] == "broker restart" and finding["figure"] == name and finding.get("series"):
                panel.plot(*zip(*finding["series"]), label=label, linewidth=1)
    panel.axvline(0, color="grey", linewidth=0.6, linestyle=":")


def finish(panel, title: str, x: str, y: str) -> None:
    panel.set_title(title, fontsize="small")
    panel.set_xlabel(x, fontsize="x-small")
    panel.set_ylabel(y, fontsize="x-small")
    panel.tick_params(labelsize="x-small")
    panel.grid(alpha=0.3)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize="xx-small")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} MEASUREMENTS.json PICTURE.svg")
    main(*sys.argv[1:])
