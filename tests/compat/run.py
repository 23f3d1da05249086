#!/usr/bin/env python3
"""Sends every scenario to a server and lists the answers that differ from Triton's.

    run.py --url http://127.0.0.1:8000 --grpc 127.0.0.1:8001
                 the server has to serve tests/compat/models/repository; without --grpc its scenarios are left out.
                 With --server NAME it is set up as SERVERS in servers.py says, and gets the scenarios for that
    run.py --check
                 checks the recordings, expectations and docs/compatibility.md for consistency; no server
    run.py --docs
                 writes docs/compatibility.md

Prints the differences of each scenario that failed, then `N passed, N failed`, and exits with 1 if any failed. A scenario
listed in expected-failures.txt has to fail: when it passes, that is a failure, and its line has to go. Those that fail as
listed are counted apart.
"""

import argparse
import http.client
import sys

import docs
import memory
import scenarios
from compare import against_expectation, differences
from servers import DEFAULT, SERVERS, servers_at


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--url", help="the server's HTTP address")
    parser.add_argument("--grpc", metavar="ADDRESS", help="the server's gRPC address; needs grpcio and tritonclient")
    what.add_argument("--check", action="store_true", help="check the data and the documentation")
    what.add_argument("--docs", action="store_true", help="write the documentation")
    parser.add_argument("--repository", default="", metavar="FOLDER", help="the folder that it serves, whose path may be in its errors")
    parser.add_argument("--server", default=DEFAULT, choices=SERVERS, help="how the server is set up")
    parser.add_argument("--only", default="", metavar="TEXT", help="scenarios whose id contains this")
    arguments = parser.parse_args()
    themes = scenarios.load()
    if arguments.docs:
        docs.PATH.write_text(docs.render(themes))
        return 0
    if arguments.check:
        return report(check(themes), "consistent")
    servers = servers_at(arguments.url, arguments.grpc)
    themes = [theme for theme in themes if theme.server == arguments.server]
    chosen = [s for theme in themes for s in theme.scenarios if arguments.only in s.id and s.protocol in servers]
    with memory.objects(themes):
        results = [(scenario.id, verdict(servers, scenario, arguments.repository)) for scenario in chosen]
    return report(results, "passed", {scenario.id for scenario in chosen if scenario.expected_failure})


def verdict(servers, scenario, repository):
    """The differences, as lines; empty if there are none."""
    try:
        answer = servers[scenario.protocol](scenario.request)
        if repository:
            answer.text = scenarios.placed(answer.text, repository)
        found = differences(scenario, answer)
    except (OSError, http.client.HTTPException) as error:
        found = [f"no answer: {type(error).__name__}: {error}"]
    if scenario.expected_failure is None:
        return found
    return [] if found else [f"passes, so its line in {scenarios.EXPECTED_FAILURES.name} has to go"]


def check(themes):
    """Checks that each scenario has an expectation, and that recordings and expectations agree or say why not."""
    results = []
    for scenario in (s for theme in themes for s in theme.scenarios):
        found = []
        if scenario.recorded is None and not scenario.no_recording:
            found.append("is not recorded and does not say why (`no_recording`); run record.py")
        if scenario.recorded is None and not scenario.expect:
            found.append("has neither a recording nor an expectation")
        if scenario.recorded and scenario.expect:
            differs = bool(against_expectation(scenario.expect, scenario.recorded))
            if differs and not scenario.newer:
                found += ["the recorded answer is not the expected one and `newer` does not say why"]
                found += against_expectation(scenario.expect, scenario.recorded)
            if not differs and scenario.newer:
                found.append("`newer` is there, but the recorded answer is the expected one")
        if scenario.divergence and scenario.expected_failure:
            found.append("is a divergence and an expected failure")
        results.append((scenario.id, found))
    stale = docs.PATH.read_text() != docs.render(themes) if docs.PATH.exists() else True
    results.append((docs.PATH.name, ["is stale: run tests/compat/run.py --docs"] if stale else []))
    return results


def report(results, word, listed=()):
    """Prints the outcome. The ids in `listed` are known to fail."""
    failed = [(name, found) for name, found in results if found]
    for name, found in failed:
        print(f"FAILED {name}")
        for difference in found:
            print(f"  {difference}")
    apart = sum(not found and name in listed for name, found in results)
    print(f"{len(results) - len(failed) - apart} {word}, {len(failed)} failed", end="")
    print(f"; {apart} fail as {scenarios.EXPECTED_FAILURES.name} says" if apart else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
