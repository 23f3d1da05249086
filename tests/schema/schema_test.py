#!/usr/bin/env python3
"""schemathesis against every route of /openapi.json: no answer outside the document, and no fault of the server.

Routes of the v2 protocol, of control and of pages may answer with a status from 500 on: Triton has 500 for bodies that are no JSON
object and 501 for functions that are turned off, and these are its statuses. Routes that load and unload models are left out."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/console"))
from console_test import Server  # noqa: E402

CONFORMANCE = "response_schema_conformance,status_code_conformance,content_type_conformance"


def run(program, server, seconds, checks, *arguments):
    command = [program, "run", f"{server.url}/openapi.json", "--checks", checks, "--phases", "coverage,fuzzing"]
    command += ["--max-time", str(seconds), "--seed", "1", "--warnings", "off", "--continue-on-failure", "--no-color"]
    command += ["--suppress-health-check", "all", "--exclude-path-regex", "/(load|unload)$", *arguments]
    # Its cache is left where it runs.
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run([str(word) for word in command], check=False, cwd=folder).returncode != 0:
            raise SystemExit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/debug/trireme")
    parser.add_argument("--schemathesis", type=Path, default=ROOT / ".cache/schemathesis/bin/schemathesis")
    parser.add_argument("--seconds", type=int, default=60, help="for all routes together")
    args = parser.parse_args()
    program = args.schemathesis.absolute()
    repositories = [ROOT / "tests/repositories/texts"]
    with tempfile.TemporaryDirectory() as jobs, Server(args.binary, repositories, "--data-dir", jobs) as server:
        half = max(1, args.seconds // 2)
        tritons = ["v2", "control", "pages"]
        without = [word for tag in tritons for word in ("--exclude-tag", tag)]
        run(program, server, half, f"not_a_server_error,{CONFORMANCE}", *without)
        run(program, server, half, CONFORMANCE, *[word for tag in tritons for word in ("--include-tag", tag)])


if __name__ == "__main__":
    main()
