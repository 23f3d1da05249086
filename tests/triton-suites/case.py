"""A suite of Triton's, as it is run here: its test files, the models and flags of each start of the server, and why cases fail."""

from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

PLUGIN = "TRITON_SUITES_RUN"
"""The variable for plugin.py. It has a JSON object: `results`, a file; `label`; `left_out`, reasons by patterns of names."""


@dataclass(frozen=True)
class Run:
    """One start of the server, and what pytest runs against it."""

    tests: tuple
    """pytest's arguments: files of the suite's folder, or file::Class::test."""
    models: Callable
    """Fills the model repository, a `Repository`."""
    flags: tuple = ()
    """Further flags of the server."""
    env: dict = field(default_factory=dict)
    """Variables for the tests, the server and its models."""
    label: str = ""
    """Tells the cases of this run from those of another run of the same file."""
    turns: tuple = ({},)
    """Further variables of the tests alone: pytest runs once with each, against the same server. `LABEL` among them is a label."""
    log: str = "server.log"
    """Where some tests look for the server's log."""
    ready: bool = True
    """Whether the server has to become ready before the tests."""


@dataclass(frozen=True)
class Suite:
    """One row of the table."""

    folder: str
    """The folder below qa/."""
    runs: tuple
    misses: dict = field(default_factory=dict)
    """Why cases fail, by a pattern of their names: `label: file::Class::test`. A case that begins to pass has to go from here."""
    left_out: dict = field(default_factory=dict)
    """Why cases are not run at all, by a pattern; they count as misses."""
    note: str = ""
    """Where models are not the suite's own."""


def reason(patterns, name):
    """The reason that goes with a case, or None."""
    return next((why for pattern, why in patterns.items() if fnmatchcase(name, pattern)), None)
