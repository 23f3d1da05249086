"""The scenarios and the data about them: themes, recorded answers, divergences, expected failures.

The answer expected of Trireme comes from the first of these sources that has one: `divergences.json` (a difference on
purpose), the scenario's own `expect` (a fact of Triton's sources, or an answer that cannot be recorded word for word),
the recording.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from exchange import Answer, target
from servers import DEFAULT

ROOT = Path(__file__).resolve().parent
EXPECTED_FAILURES = ROOT / "expected-failures.txt"
DIVERGENCES = ROOT / "divergences.json"
# The lines that models wrote to the log of the recorded server.
LOG = ROOT / "recorded" / "log" / "python.json"
REQUEST_FIELDS = {"get", "post", "infer", "method", "path", "headers", "json", "text", "parts", "header_length"}
REQUEST_FIELDS |= {"compress", "chunked", "during", "grpc", "message", "messages", "metadata", "cancel_after_ms", "deadline_ms"}
OTHER_FIELDS = {"id", "why", "expect", "compare", "newer", "no_recording"}


@dataclass
class Scenario:
    """One request and the data about its answer."""

    id: str
    why: str
    theme: str
    request: dict
    # The scenario's own expectation: `status` and one of `error`, `json`, `subset`, `text`, `pattern`.
    expect: dict | None = None
    # How the recording is compared with an answer: `as`, `ignore`, `tolerance`.
    compare: dict = field(default_factory=dict)
    # Why `expect` is right although the recorded, older Triton gave another answer.
    newer: str | None = None
    # Why there is no recording.
    no_recording: str | None = None
    recorded: Answer | None = None
    # The difference on purpose: `why` and `expect`.
    divergence: dict | None = None
    # Why the scenario is known to fail.
    expected_failure: str | None = None

    @property
    def protocol(self):
        """`grpc` or `http`."""
        return "grpc" if "grpc" in self.request else "http"


@dataclass
class Theme:
    """One file of scenarios."""

    name: str
    title: str
    about: str
    scenarios: list
    # The entry of servers.SERVERS that answers the scenarios, in their order.
    server: str
    # The shared memory objects that the scenarios use: names, each with the parts of its bytes.
    objects: dict
    # The version of the recorded Triton.
    triton: str | None = None


class DataError(Exception):
    """The recordings, expectations and lists contradict each other."""


def load():
    """All themes, in order of their names."""
    themes = [load_theme(path) for path in sorted((ROOT / "scenarios").glob("*.json"))]
    everything = {}
    for theme in themes:
        for scenario in theme.scenarios:
            if everything.setdefault(scenario.id, scenario) is not scenario:
                raise DataError(f"two scenarios are called {scenario.id}")
    for divergence in json.loads(DIVERGENCES.read_text()):
        for name, expect in divergence["scenarios"].items():
            known(everything, name, DIVERGENCES).divergence = {"why": divergence["why"], "expect": expect}
    for line in EXPECTED_FAILURES.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, reason = line.partition(" ")
            if not reason.strip():
                raise DataError(f"{EXPECTED_FAILURES.name}: {name} has no reason")
            known(everything, name, EXPECTED_FAILURES).expected_failure = reason.strip()
    return themes


def known(everything, name, file):
    if name not in everything:
        raise DataError(f"{file.name}: there is no scenario {name}")
    return everything[name]


def load_theme(path):
    document = json.loads(path.read_text())
    recordings = recorded_path(path.stem)
    recording = json.loads(recordings.read_text()) if recordings.exists() else {"triton": None, "answers": {}}
    recorded = recording["answers"]
    scenarios = [load_scenario(path.stem, entry, recorded.pop(entry["id"], None)) for entry in document["scenarios"]]
    if recorded:
        raise DataError(f"{recordings.name}: there is no scenario {', '.join(recorded)}")
    server, objects = document.get("server", DEFAULT), document.get("objects", {})
    return Theme(path.stem, document["title"], document["about"], scenarios, server, objects, recording["triton"])


def load_scenario(theme, entry, recorded):
    unknown = set(entry) - REQUEST_FIELDS - OTHER_FIELDS
    if unknown:
        raise DataError(f"{entry['id']}: unknown field {', '.join(sorted(unknown))}")
    if not entry["id"].startswith(f"{theme}/"):
        raise DataError(f"{entry['id']}: ids begin with the theme, {theme}/")
    request = {name: value for name, value in entry.items() if name in REQUEST_FIELDS}
    if "grpc" not in request:
        target(request)
    other = {name: value for name, value in entry.items() if name in OTHER_FIELDS}
    return Scenario(theme=theme, request=request, recorded=Answer.from_json(recorded) if recorded else None, **other)


def placed(text, repository):
    """A text in which the path of the model repository is written as `<repository>`."""
    return text.replace(str(repository), "<repository>")


def recorded_path(theme):
    """The path of a theme's recorded answers."""
    return ROOT / "recorded" / f"{theme}.json"
