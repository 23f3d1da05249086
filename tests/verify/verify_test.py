#!/usr/bin/env python3
"""Makes a model folder of every kind, serves each, and compares the answers with those of the folder's own library.

    make verify-test [ONLY=dense,splade]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "cli" / "src" / "verify"))

import folders
import reference
import repositories



TEXTS = json.loads((ROOT / "cli" / "src" / "verify" / "texts.json").read_text(encoding="utf-8"))
TEXTS += [" ".join([TEXTS[-1]] * times) for times in (3, 12, 80)]
# These are compared by the Python that `trireme verify` starts itself, which takes long to import its libraries each time.
BY_PYTHON = ["mean-normalized", "rerank-one-score"]


def expect(folder, known, strategy, file):
    """Writes the answers of the folder's own library."""
    pairs = TEXTS[-1:] + TEXTS[:-1] if known.task == "rerank" else None
    ask = {
        "folder": str(folder), "tasks": [known.task], "texts": TEXTS, "pairs": pairs, "prompt_name": known.prompt_name,
        "aggregation": strategy or "simple",
    }
    file.write_text("".join(json.dumps(line) + "\n" for line in reference.lines_of(ask)), encoding="utf-8")


def verify(trireme, folder, repository, known, strategy, by_python):
    """Runs `trireme verify`; its exit code and its output."""
    command = [trireme, "verify", repository, "m", "--log-level", "warning", "--min-cosine", known.bar]
    if by_python:
        command += ["--folder", folder, "--python", sys.executable]
    else:
        vectors = repository / f"{strategy or 'expected'}.jsonl"
        expect(folder, known, strategy, vectors)
        command += ["--vectors", vectors]
    command += ["--prompt-name", known.prompt_name] if known.prompt_name else []
    command += ["--aggregation-strategy", strategy] if strategy else []
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    return ran.returncode, ran.stdout + ran.stderr


def check(trireme, name, work):
    """The lowest likeness of the folder `name`; an error names the fault."""
    folder, repository = work / name, work / f"{name}-repository"
    known = folders.make(name, folder)
    shutil.rmtree(repository, ignore_errors=True)
    repositories.of_folder(folder, known, repository)
    lowest = []
    for strategy in known.strategies:
        code, text = verify(trireme, folder, repository, known, strategy, name in BY_PYTHON or known.refused)
        if known.refused:
            if code == 2 and known.refused in text:
                return "refused, as it has to be"
            raise AssertionError(f"expected to be refused with '{known.refused}', exit code {code}:\n{text}")
        if known.wrong:
            if code == 1 and "does not serve what" in text:
                return "noticed to be wrong, as it has to be"
            raise AssertionError(f"is served wrong and exit code {code} says nothing of it:\n{text}")
        if code != 0:
            raise AssertionError(f"exit code {code}{f', {strategy}' if strategy else ''}:\n{text}")
        lowest += [line.split("lowest")[1].split("over")[0].strip() for line in text.splitlines() if "computes: lowest" in line]
    return min(lowest)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trireme", default=ROOT / "target" / "debug" / "trireme")
    parser.add_argument("--only", default="", help="parts of names, comma separated")
    parser.add_argument("--keep", type=Path, help="a folder to leave folders and repositories in")
    args = parser.parse_args()
    wanted = [part for part in args.only.split(",") if part]
    names = [name for name in folders.FOLDERS if not wanted or any(part in name for part in wanted)]
    # The exporter writes to standard output itself: that goes where warnings go.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        work = args.keep or Path(temporary)
        for name in names:
            started = time.monotonic()
            try:
                word = check(args.trireme, name, work)
            except Exception as error:
                failed.append(name)
                word = f"FAILED: {error}"
            print(f"{name:32} {time.monotonic() - started:6.1f} s  {word}", file=out, flush=True)
    if failed:
        print(f"{len(failed)} of {len(names)} folders failed: {', '.join(failed)}", file=out, flush=True)
        return 1
    print(f"all {len(names)} folders: the server's answers are those of their libraries", file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
