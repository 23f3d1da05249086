#!/usr/bin/env python3
"""Builds and runs the tests of the workspace: `cargo test --workspace --no-fail-fast`, with programs side by side; with `--all` also
those marked `#[ignore]`. The examples in docstrings are one of the programs: `cargo test --workspace --doc`.

Most tests wait for processes and clocks more than they work, so several programs run at the same time, each with several threads.
Programs named `alone` measure, or load the whole machine: they run at the end, one after the other, with a thread for each CPU. A test
that failed is repeated once on the idle machine; if it passes there, it counts, and the last lines name it.

Prints a line for each program: seconds, seconds of CPU, and number of tests. At the end it prints the slowest tests, each with what the
tests' own helpers noted about it: servers that it started, the wait for them, and their seconds of CPU. Outputs are in target/test-logs.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

WORKSPACE = Path(__file__).resolve().parent.parent
LOGS = WORKSPACE / "target" / "test-logs"

# More failures than this under load are a fault of the tests, whatever they do on an idle machine.
MOST_REPEATED = 3

# How many of the slowest tests are printed.
SLOWEST = 10

# The crate whose tests run the whole product.
END_TO_END = "trireme-e2e"

# A program that takes longer hangs.
LIMIT = 45 * 60

ENDED = re.compile(rb"^test (\S+)(?: - should panic)? \.\.\. (?!ignored)")
FAILED = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. .*FAILED$", re.MULTILINE)
SUMMARY = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)


class Program:
    """A program of tests, and what its last run gave."""

    def __init__(self, package: str, target: dict, path: str, folder: Path):
        self.package, self.target, self.path, self.folder = package, target["name"], path, folder
        self.is_integration = "test" in target["kind"]
        self.name = f"{package} {self.target}" if self.is_integration else f"{package} ({target['kind'][0]} {self.target})"
        self.log = LOGS / (re.sub(r"\W+", "-", self.name).strip("-") + ".log")
        self.alone, self.all = self.is_integration and self.target == "alone", False
        # trireme_testkit::note writes to this file beside the log.
        self.notes = self.log.with_suffix(".notes")
        self.environment = {"CARGO_MANIFEST_DIR": str(folder), "CARGO_PKG_NAME": package, "TRIREME_TEST_NOTES": str(self.notes)}
        self.output, self.took, self.cpu, self.status = "", 0.0, 0.0, 0
        # When each test of the first run ended, in seconds since its begin.
        self.ended: list[tuple[float, str]] = []

    def run(self, threads: int, tests: list[str] = (), again: bool = False) -> None:
        """Runs it with its package's folder as working directory, as cargo does; only `tests` if there are any. The log has all runs,
        `output` the last one."""
        command, environment = self.command(threads, tests), os.environ | self.environment
        if not again:
            self.log.write_bytes(b"")
            self.notes.unlink(missing_ok=True)
        before = self.log.stat().st_size
        began = time.monotonic()

        def follow(output: BinaryIO) -> None:
            for line in output:
                if not again and (test := ENDED.match(line)):
                    self.ended.append((time.monotonic() - began, test[1].decode()))
                log.write(line)

        with self.log.open("ab", buffering=0) as log:
            child = subprocess.Popen(command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
            limit = threading.Timer(LIMIT, child.kill)
            limit.start()
            follower = threading.Thread(target=follow, args=[child.stdout], daemon=True)
            follower.start()
            _, status, usage = os.wait4(child.pid, 0)
            limit.cancel()
            # A process that a test left behind may keep the pipe open.
            follower.join(10)
            child.returncode = self.status = os.waitstatus_to_exitcode(status)
        self.took, self.cpu = time.monotonic() - began, usage.ru_utime + usage.ru_stime
        self.output = self.log.read_bytes()[before:].decode(errors="replace")

    def command(self, threads: int, tests: list[str]) -> list[str]:
        chosen = ["--include-ignored"] if self.all else []
        return [self.path, *chosen, *(["--exact", *tests] if tests else []), "--test-threads", str(threads)]

    def counts(self) -> tuple[int, int] | None:
        """How many tests passed and failed in the last run; `None` if it did not come to an end."""
        found = SUMMARY.findall(self.output)
        return (int(found[-1][0]), int(found[-1][1])) if found else None

    def failed(self) -> list[str]:
        return sorted(set(FAILED.findall(self.output)))

    def slowest(self, threads: int) -> list[tuple[float, str]]:
        """The tests with their seconds, the slowest first. The harness starts tests in the order of their names, each when an earlier one
        ends, so the times at which tests ended tell when each began."""
        begins = [0.0] * threads + [moment for moment, _ in self.ended]
        began = dict(zip(sorted(test for _, test in self.ended), begins))
        return sorted(((moment - began[test], test) for moment, test in self.ended), reverse=True)[:SLOWEST]

    def noted(self, test: str) -> str:
        """What the tests' helpers noted about a test: lines of a test's name, a kind and seconds."""
        lines = (line.split("\t") for line in self.notes.read_text().splitlines()) if self.notes.exists() else ()
        noted = [(kind, float(seconds)) for name, kind, seconds in lines if name == test]
        seconds = lambda wanted: sum(seconds for kind, seconds in noted if kind == wanted)
        started = sum(kind == "process" for kind, _ in noted)
        return f"{started} processes, {seconds('ready'):.1f} s until they were ready, {seconds('cpu'):.1f} s of CPU in them" if noted else "no processes"

    def __str__(self) -> str:
        found = self.counts()
        count = f"{found[0]} passed, {found[1]} failed" if found else f"ended with {self.status}"
        return f"{self.took:7.1f} s {self.cpu:7.1f} s of CPU  {self.name}: {count}"


class Examples(Program):
    """The examples in docstrings. rustdoc builds those of a crate as one program and runs it. `--workspace`, also where only some
    crates have examples: with other packages cargo would choose other features and build the dependencies again."""

    def __init__(self, arguments: list[str]):
        self.name, self.folder, self.log = "examples in docstrings", WORKSPACE, LOGS / "examples-in-docstrings.log"
        self.alone, self.environment, self.arguments = False, {}, arguments
        self.notes, self.ended = self.log.with_suffix(".notes"), []
        self.output, self.took, self.cpu, self.status = "", 0.0, 0.0, 0

    def command(self, threads: int, tests: list[str]) -> list[str]:
        arguments = ["--workspace", "--doc", "--no-fail-fast", *self.arguments]
        return ["cargo", "test", *arguments, "--", "--test-threads", str(threads)]

    def counts(self) -> tuple[int, int] | None:
        found = SUMMARY.findall(self.output)
        return (sum(int(crate[0]) for crate in found), sum(int(crate[1]) for crate in found)) if found else None

    def slowest(self, threads: int) -> list[tuple[float, str]]:
        # The examples of each crate are a program of their own, one after the other.
        return []

    def failed(self) -> list[str]:
        # Single examples of several crates cannot be chosen, so all are repeated.
        return []


def build(arguments: list[str]) -> list[Program]:
    """Builds the programs of tests and lists them, the largest ones first."""
    command = ["cargo", "test", "--workspace", "--no-run", "--message-format=json-render-diagnostics", *arguments]
    built = subprocess.run(command, cwd=WORKSPACE, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    programs = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            folder = Path(message["manifest_path"]).parent
            package = re.search(r"([\w-]+)@[^@]*$|/([\w-]+)#[^@]*$", message["package_id"])
            programs.append(Program(package[1] or package[2], message["target"], message["executable"], folder))
    return sorted(programs, key=lambda program: -os.path.getsize(program.path))


def changed_since(revision: str) -> set[str]:
    """The packages with files that differ from a revision, and those that depend on them; without the end-to-end tests, unless their
    own files differ."""
    git = lambda *arguments: subprocess.run(["git", *arguments], cwd=WORKSPACE, stdout=subprocess.PIPE, text=True, check=True).stdout
    base = git("merge-base", revision, "HEAD").strip()
    files = git("diff", "--name-only", base).splitlines() + git("ls-files", "--others", "--exclude-standard").splitlines()
    metadata = subprocess.run(
        ["cargo", "metadata", "--format-version=1", "--no-deps", "--offline"], cwd=WORKSPACE, stdout=subprocess.PIPE, text=True, check=True
    )
    packages = json.loads(metadata.stdout)["packages"]
    folders = {Path(package["manifest_path"]).parent.relative_to(WORKSPACE): package["name"] for package in packages}
    owners = (folders.get(folder) for file in files for folder in Path(file).parents)
    changed = {owner for owner in owners if owner}
    own = END_TO_END in changed
    while True:
        dependents = {package["name"] for package in packages if changed & {needed["name"] for needed in package["dependencies"]}}
        if dependents <= changed:
            return changed if own else changed - {END_TO_END}
        changed |= dependents


def run_side_by_side(programs: list[Program], jobs: int, threads: int) -> None:
    """Runs programs, `jobs` at a time."""
    waiting, lock = list(programs), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                program = waiting.pop(0)
            program.run(threads)
            with lock:
                print(program, flush=True)

    workers = [threading.Thread(target=work) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cpus = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=cpus + 1, help="programs at a time (default: one more than there are CPUs)")
    parser.add_argument("--threads", type=int, default=3 * cpus, help="tests of a program at a time (default: three for each CPU)")
    parser.add_argument("--all", action="store_true", help="ignored tests, too: those that take long, and the other mode of many")
    parser.add_argument("--load", action="store_true", help="a busy process for each CPU, until failed tests are repeated")
    parser.add_argument("--changed-since", metavar="REVISION", help="programs of packages that have changed, and of those that depend on them")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("cargo", nargs="*", help="arguments of cargo, behind --")
    options = parser.parse_args()
    began = time.monotonic()
    LOGS.mkdir(parents=True, exist_ok=True)
    programs = build(options.cargo)
    for program in programs:
        program.all = options.all
    if options.changed_since:
        changed = changed_since(options.changed_since)
        programs = [program for program in programs if program.package in changed]
    if programs:
        programs.insert(0, Examples(options.cargo))
    programs = [program for program in programs if options.only in program.name]
    print(f"==> {len(programs)} programs of tests, built in {time.monotonic() - began:.0f} s", flush=True)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cpus if options.load else 0)]
    try:
        run_side_by_side([program for program in programs if not program.alone], options.jobs, options.threads)
        run_side_by_side([program for program in programs if program.alone], 1, cpus)
    finally:
        for process in busy:
            process.kill()
            process.wait()

    repeated, failures = [], []
    for program in programs:
        if program.status == 0:
            continue
        failed = program.failed()
        print(f"==> {program.name}: once more, alone: {' '.join(failed) or 'all of it'}", flush=True)
        program.run(1 if failed else cpus, failed, again=True)
        print(program, flush=True)
        if program.status:
            failures.append(program)
            print(f"==> {program.log}\n{program.output[-20_000:]}", flush=True)
        else:
            repeated += [f"{program.name}: {test}" for test in failed or ["(all)"]]
    print("==> the slowest tests:")
    times = [(took, program, test) for program in programs for took, test in program.slowest(cpus if program.alone else options.threads)]
    for took, program, test in sorted(times, key=lambda time: -time[0])[:SLOWEST]:
        print(f"{took:7.1f} s  {program.name}: {test}: {program.noted(test)}")
    for test in repeated:
        print(f"==> passed only alone: {test}")
    print(f"==> tests: {time.monotonic() - began:.0f} s")
    for program in failures:
        print(f"==> FAILED: {program.name}: {' '.join(program.failed())}")
    if len(repeated) > MOST_REPEATED:
        print(f"==> {len(repeated)} tests passed only alone; at most {MOST_REPEATED} may")
    return int(bool(failures) or len(repeated) > MOST_REPEATED)


if __name__ == "__main__":
    sys.exit(main())
