"""A plugin of pytest: leaves cases out, and writes the outcome of each as a line of JSON. The variable `PLUGIN` says where and which."""

import json
import os
import sys
from types import ModuleType

import pytest
from _pytest.unittest import TestCaseFunction
from case import PLUGIN, reason



class NothingWatched:
    """In the place of a module that Triton is built with: suites watch the regions of its python backend in /dev/shm with it, and
    Trireme has no such regions."""

    def __init__(self, region):
        pass

    def free_memory(self):
        return 0


# The suites' class of tests counts by these members of unittest's result, in whose place pytest puts this class.
TestCaseFunction.testsRun, TestCaseFunction.errors, TestCaseFunction.failures = 0, (), ()

sys.modules["triton_shm_monitor"] = ModuleType("triton_shm_monitor")
sys.modules["triton_shm_monitor"].SharedMemoryManager = NothingWatched

run = json.loads(os.environ[PLUGIN])
outcomes = {}


def name_of(nodeid):
    return f"{run['label']}: {nodeid}" if run["label"] else nodeid


def pytest_collection_modifyitems(items):
    for item in items:
        why = reason(run["left_out"], name_of(item.nodeid))
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=why))


def write(nodeid, outcome, message):
    with open(run["results"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"case": name_of(nodeid), "outcome": outcome, "message": message}) + "\n")


def pytest_collectreport(report):
    if report.failed:
        write(report.nodeid, "failed", report.longreprtext)


def pytest_runtest_logreport(report):
    """A case has failed when one of its three phases has; it is written after the last one."""
    worst, message = outcomes.get(report.nodeid, ("passed", ""))
    if report.failed or (report.skipped and worst == "passed"):
        message = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else report.longreprtext
        worst = report.outcome
    outcomes[report.nodeid] = (worst, message)
    if report.when == "teardown":
        write(report.nodeid, worst, message)
