#!/usr/bin/env python3
"""Runs Triton's own suites, the Python files below qa/ of its repository, as they are against `trireme serve`.

    make triton-suites

The checkout is TRITON_SERVER_SOURCE, or .tools/triton-server, which scripts/setup-triton-suites.sh clones; nothing of it is part of
this project. suites/ says for each suite which files run with which models and flags. The suites' shell scripts do not run: what they
look for in the server's log, and what C++ programs ask, is not asked here. The ports 8000 to 8002 have to be free.

Writes results.json, from which tests/compat/run.py --docs makes the table in docs/compatibility.md; with --only, the rows of those suites.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from case import PLUGIN, reason
from repository import Repository, generate
from serve import NotReady, Serve
from suites import NOT_TRIED, SUITES

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
RUN_LIMIT_S, CASE_LIMIT_S = 2400, 300
NO_REASON = "no reason is written down"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trireme", help="the program")
    parser.add_argument("--source", required=True, type=Path, metavar="FOLDER", help="a checkout of Triton's server, with qa/")
    parser.add_argument("--backend", required=True, type=Path, metavar="FOLDER", help="one of its python_backend, whose example suites copy")
    parser.add_argument("--only", default="", metavar="TEXT", help="suites whose folder contains this")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where to leave models and logs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.keep or Path(temporary)
        suites = Suites(Path(arguments.trireme).resolve(), arguments.source, arguments.backend, work.resolve())
        version = (arguments.source / "TRITON_VERSION").read_text().strip()
        rows = [suites.suite(suite) for suite in SUITES if arguments.only in suite.folder]
    for row in rows:
        print(f"{row['suite']}: {row['passed']} of {row['cases']}")
        for miss in row["misses"]:
            print(f"  {miss['case']}: {miss['why']}")
    stale = [case for row in rows for case in row["stale"]]
    for case in stale:
        print(f"{case} passes, so its reason has to go")
    write(rows, version)
    unexplained = any(miss["why"].startswith(NO_REASON) for row in rows for miss in row["misses"])
    return 1 if stale or unexplained else 0


def write(rows, version):
    """Puts these rows in the place of older ones."""
    found = {row["suite"]: row for row in json.loads(RESULTS.read_text())["suites"]} if RESULTS.exists() else {}
    for row in rows:
        found[row["suite"]] = {key: value for key, value in row.items() if key != "stale"}
    ordered = [found[suite.folder] for suite in SUITES if suite.folder in found]
    RESULTS.write_text(json.dumps({"version": version, "untried": NOT_TRIED, "suites": ordered}, indent=1) + "\n")


class Suites:
    """A copy of the checkout, in which the suites run, and the models that its generators make."""

    def __init__(self, trireme, source, backend, work):
        if not (source / "qa/L0_infer").is_dir():
            raise SystemExit(f"{source} has no qa/L0_infer: name a checkout of Triton's server with TRITON_SERVER_SOURCE, or none to clone one")
        self.trireme, self.work = trireme, work
        self.qa, self.data, self.logs = work / "qa", work / "data", work / "logs"
        for folder in (self.qa, self.data, self.logs):
            shutil.rmtree(folder, ignore_errors=True)
        self.logs.mkdir(parents=True)
        shutil.copytree(source / "qa", self.qa)
        shutil.copytree(source / "docs/examples", work / "docs/examples", dirs_exist_ok=True)
        shutil.copytree(backend / "examples", self.data / "python_backend")
        generate(sys.executable, self.qa, self.data)

    def suite(self, suite):
        """Runs a suite; gives its row. Cases that the suite itself skips do not count."""
        outcomes = []
        for number, run in enumerate(suite.runs):
            outcomes += self.run(suite, run, f"{suite.folder.replace('/', '-')}-{number}")
        misses, stale, passed, cases = [], [], 0, 0
        for case, outcome in outcomes:
            why = reason({**suite.left_out, **suite.misses}, case)
            if outcome["outcome"] == "skipped" and not reason(suite.left_out, case):
                continue
            cases += 1
            if outcome["outcome"] == "passed":
                passed += 1
                stale += [case] if why else []
            else:
                lines = [line for line in outcome["message"].splitlines() if line.startswith("E ")] or outcome["message"].splitlines()
                misses.append({"case": case, "why": why or f"{NO_REASON}: {' '.join(lines)[:300]}"})
        print(f"==> {suite.folder}: {passed} of {cases}", flush=True)
        return {"suite": suite.folder, "passed": passed, "cases": cases, "misses": misses, "note": suite.note, "stale": stale}

    def run(self, suite, run, name):
        """One start of the server; gives the outcomes of its cases by their names."""
        folder, results = self.qa / suite.folder, self.logs / f"{name}.jsonl"
        repository = Repository(self.qa, self.data, folder)
        run.models(repository)
        run = replace(run, env={"TRITON_DIR": str(self.work), **run.env})
        path = os.pathsep.join(map(str, (HERE, self.qa / "common")))
        environment = {**os.environ, "PYTHONPATH": path, "TRITON_SERVER_CPU_ONLY": "1", "SERVER_LOG": run.log, **run.env}
        command = [sys.executable, "-m", "pytest", "-p", "plugin", "-q", "--rootdir", ".", "--timeout", str(CASE_LIMIT_S), *run.tests]
        try:
            with Serve(self.trireme, sys.executable, folder, repository.root, run) as server, (self.logs / f"{name}.log").open("wb") as log:
                environment["SERVER_PID"] = str(server.process.pid)
                for turn in run.turns:
                    told = {"results": str(results), "label": turn.get("LABEL", run.label), "left_out": suite.left_out}
                    told = {**environment, **turn, PLUGIN: json.dumps(told)}
                    subprocess.run(command, cwd=folder, env=told, stdout=log, stderr=log, timeout=RUN_LIMIT_S)
            shutil.copy(folder / run.log, self.logs / f"{name}.server.log")
        except (NotReady, subprocess.TimeoutExpired) as failure:
            failed = {"outcome": "failed", "message": str(failure)}
            return [(f"{run.label}: {test}" if run.label else test, failed) for test in run.tests]
        lines = results.read_text().splitlines() if results.exists() else []
        return [(outcome["case"], outcome) for outcome in map(json.loads, lines)]


if __name__ == "__main__":
    sys.exit(main())
