#!/usr/bin/env python3
"""The suites of other servers and clients against this server: n of m for each dialect, with the reason of each miss.

    make contracts-test [ONLY=vllm] [FILE=embed/test_online.py]

Figures go to tests/contracts/results.json and from there to docs/dialects.md (UPDATE_DOCS=1). Without that a figure that differs is an error.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CACHE = ROOT / ".cache/contracts"
RESULTS = HERE / "results.json"
PAGE = ROOT / "docs/dialects.md"
START, END = "<!-- contracts -->\n", "<!-- end of contracts -->"

sys.path.insert(0, str(HERE))

import documents
import openai_python
from vllm_pooling import suite as vllm_pooling


def suites(args, work):
    """By name: the dialect, the suite in words, and what runs it."""
    python, trireme = ROOT / ".cache/contracts-python/bin/python", args.binary.absolute()
    return {
        "openai": ("OpenAI", "openai-python 3.57.0: batches, embeddings, files, models, uploads",
                   lambda: openai_python.run(CACHE / "openai", python, trireme, work)),
        "tei": ("TEI", "schemathesis with TEI's own OpenAPI document", lambda: documents.run("tei", CACHE, trireme, work)),
        "infinity": ("Infinity", "schemathesis with Infinity's own OpenAPI document", lambda: documents.run("infinity", CACHE, trireme, work)),
        "vllm": ("vLLM", "vLLM 0.33.0: entrypoints of pooling models",
                 lambda: vllm_pooling.run(CACHE / "vllm", python, trireme, CACHE / "hub", work, args.file)),
    }


def table(results):
    """The figures as the page has them."""
    page = "| dialect | suite | passes | misses |\n|---|---|---|---|\n"
    for entry in results.values():
        misses = "; ".join(f"{miss['tests']}: {miss['why']}" for miss in entry["misses"]) or "—"
        page += f"| {entry['dialect']} | {entry['suite']} | {entry['passed']} of {entry['of']} | {misses} |\n"
    left = [(entry["dialect"], out) for entry in results.values() for out in entry.get("left_out", [])]
    if left:
        words = "; ".join(f"{dialect}: {out['tests']} ({out['why']})" for dialect, out in left)
        page += f"\nNot counted, because they ask no server or need one of another kind: {words}.\n"
    return page


def shown(update, results):
    """An error where the page has other figures; with `update` the page gets them."""
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    now, after = rest.split(END)
    if update:
        PAGE.write_text(f"{before}{START}{table(results)}{END}{after}", encoding="utf-8")
    elif now != table(results):
        sys.exit("docs/dialects.md has other figures than tests/contracts/results.json: UPDATE_DOCS=1 renews them")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/debug/trireme")
    parser.add_argument("--only", help="one of the suites")
    parser.add_argument("--file", help="of vLLM's tests only the files whose paths contain this; keeps no figures")
    args = parser.parse_args()
    update = "UPDATE_DOCS" in os.environ
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results, failed = dict(known), []
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        for name, (dialect, words, run) in suites(args, Path(work)).items():
            if args.only not in (None, name):
                continue
            print(f"==> {words}", flush=True)
            found = run()
            if found is None:
                continue
            figures, wrong, log = found
            print(f"{figures['passed']} of {figures['of']} pass")
            for test, error in wrong:
                print(f"--- {test}\n{error}")
            failed += [test for test, _ in wrong]
            if figures["of"] == 0:
                sys.exit(f"no test ran:\n{log.read_text(errors='replace')[-4000:]}")
            results[name] = {"dialect": dialect, "suite": words, **figures}
    if failed:
        sys.exit(f"{len(failed)} tests fail without a reason of their own")
    if args.file:
        return
    if update:
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    elif results != known:
        sys.exit(f"other figures than in tests/contracts/results.json: {json.dumps(results, indent=1)}\nUPDATE_DOCS=1 renews them")
    shown(update, results)


if __name__ == "__main__":
    main()
