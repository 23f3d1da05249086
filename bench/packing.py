#!/usr/bin/env python3
"""What packing saves: texts per second of CPU of one thread, on raw ONNX Runtime, for the plain and the packed graph of a model folder.

    cargo build -p trireme-packing --example pack
    bench/packing.py MODEL_DIR TEXTS.jsonl [--count 400] [--rounds 3] [--groups 2,3,4,6]

Each line of TEXTS.jsonl has a `text`. "All sorted" sorts all texts by length, which only an offline run can do; "pools" sorts 64 at a time, as
many as 64 clients have in flight; "arrival" sorts nothing. Each figure is the least CPU time of so many rounds, beside the best of "all sorted".
"""

import argparse
import json
import random
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import tokenizers

PACK = Path(__file__).resolve().parent.parent / "target/debug/examples/pack"
LONGEST, POOL = 256, 64


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def padded(rows, names):
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    mask = ids.copy()
    for at, row in enumerate(rows):
        ids[at, : len(row)], mask[at, : len(row)] = row, 1
    return {name: {"input_ids": ids, "attention_mask": mask}.get(name, np.zeros_like(ids)) for name in names}


def cut(lengths, most):
    """Ascending lengths in at most so many groups with the least sum of rows × length²: begin and end of each."""
    count = len(lengths)
    best = [[0.0] + [float("inf")] * count] + [[float("inf")] * (count + 1) for _ in range(most)]
    begins = [[0] * (count + 1) for _ in range(most + 1)]
    for groups in range(1, most + 1):
        for end in range(1, count + 1):
            costs = ((best[groups - 1][begin] + (end - begin) * lengths[end - 1] ** 2, begin) for begin in range(end))
            best[groups][end], begins[groups][end] = min(costs)
    groups, found, end = min(range(1, most + 1), key=lambda groups: best[groups][count]), [], count
    while end:
        found.append((begins[groups][end], end))
        groups, end = groups - 1, begins[groups][end]
    return found[::-1]


def packed(rows, names, most):
    """The inputs of a packed graph."""
    rows, feed, places, tokens, positions = sorted(rows, key=len), {}, [], 0, 0
    groups = [rows[begin:end] for begin, end in cut([len(row) for row in rows], most)]
    for group in range(most):
        used = group < len(groups)
        own = groups[group] if used else [[1]]
        inputs = padded(own, names)
        length = len(own[-1])
        numbers = np.zeros((len(own), length), np.int64)
        for at, row in enumerate(own if used else []):
            numbers[at] = np.minimum(tokens + np.arange(length), tokens + len(row) - 1)
            places.append(positions + at * length + np.arange(len(row)))
            tokens += len(row)
        positions += len(own) * length
        feed |= {f"{name}/group{group}": value for name, value in inputs.items()}
        feed[f"packing/tokens/group{group}"] = numbers
    return feed | {"packing/places": np.concatenate(places)[np.newaxis]}


def runs(rows, budget, with_padding):
    made, run = [], []
    for row in rows:
        more = [*run, row]
        tokens = len(more) * max(map(len, more)) if with_padding else sum(map(len, more))
        if run and tokens > budget:
            made.append(run)
            more = [row]
        run = more
    return [*made, run]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--groups", default="2,3,4,6")
    options = parser.parse_args()
    tokenizer = tokenizers.Tokenizer.from_file(str(options.model / "tokenizer.json"))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.no_padding()
    lines = options.texts.read_text().splitlines()[: options.count]
    arrival = [tokenizer.encode(json.loads(line)["text"]).ids for line in lines]
    random.Random(1).shuffle(arrival)
    pools = [sorted(arrival[at : at + POOL], key=len) for at in range(0, len(arrival), POOL)]
    plain = session(options.model / "model.onnx")
    names = [given.name for given in plain.get_inputs()]
    feeds = lambda rows, budget: [padded(run, names) for run in runs(rows, budget, True)]
    plans = {f"plain, all sorted, {budget} tokens": (plain, feeds(sorted(arrival, key=len), budget)) for budget in (256, 512)}
    plans |= {f"plain, pools, {budget} tokens": (plain, [feed for pool in pools for feed in feeds(pool, budget)]) for budget in (128, 256)}
    plans |= {f"plain, arrival, {budget} tokens": (plain, feeds(arrival, budget)) for budget in (64, 128)}
    with tempfile.TemporaryDirectory() as folder:
        for groups in map(int, options.groups.split(",")):
            path = Path(folder) / f"{groups}.onnx"
            subprocess.run([PACK, options.model / "model.onnx", path, str(groups)], check=True, stdout=subprocess.DEVNULL)
            own = session(path)
            for budget in (256, 384):
                made = [packed(run, names, groups) for run in runs(arrival, budget, False)]
                plans[f"packed, arrival, {budget} tokens, {groups} groups"] = own, made
    least = dict.fromkeys(plans, float("inf"))
    for _ in range(options.rounds):
        for name, (own, made) in plans.items():
            began = time.process_time()
            for feed in made:
                own.run(None, feed)
            least[name] = min(least[name], time.process_time() - began)
    best = min(seconds for name, seconds in least.items() if name.startswith("plain, all sorted"))
    for name, seconds in least.items():
        print(f"{name:40} {len(plans[name][1]):4} runs {len(arrival) / seconds:7.1f} texts/s of CPU {best / seconds:.3f}")


if __name__ == "__main__":
    main()
