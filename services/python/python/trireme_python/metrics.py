"""Metrics of a model's own. Changes are kept here and sent to the worker when `execute` or `initialize` has returned."""

import enum
import math
import re
import threading

from trireme_python import values
from trireme_python.errors import TritonModelException

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
MetricKind = enum.IntEnum("MetricKind", ["COUNTER", "GAUGE", "HISTOGRAM"], start=0)
COUNTER, GAUGE, HISTOGRAM = MetricKind
KINDS = ("counter", "gauge", "histogram")

# Most changes that are kept; the worker learns of them with the next response at the latest.
MOST = 10_000

CHANGES, LOCK = [], threading.Lock()

# The values of counters and gauges, by family and labels: metrics with equal labels are one.
VALUES = {}

# The kinds of families, by their names.
FAMILIES = {}


def take():
    """The changes since the last call."""
    with LOCK:
        changes, CHANGES[:] = CHANGES[:], []
    return changes


class Metric:
    """A sample of a family: a value of its own for each combination of labels."""

    def __init__(self, family, labels=None, buckets=None):
        labels = {str(name): values.encodable("a label's value", str(value)) for name, value in (labels or {}).items()}
        for name in labels:
            if not LABEL.fullmatch(name):
                raise TritonModelException(f"metric '{family.name}': '{name}' is no name for a label")
        if (family.kind == HISTOGRAM) != (buckets is not None):
            raise TritonModelException(f"metric '{family.name}': a histogram has buckets, and nothing else has")
        self._family, self._labels, self._key = family, labels, (family.name, *sorted(labels.items()))
        self._buckets = [float(bound) for bound in buckets or ()]
        if self._buckets != sorted(set(self._buckets)) or not all(map(math.isfinite, self._buckets)):
            raise TritonModelException(f"metric '{family.name}': buckets must be finite and grow, found {self._buckets}")
        if family.kind == HISTOGRAM:
            self._change("observe", None)
        else:
            self._change("add", 0.0)

    def increment(self, value):
        """Adds to a counter or a gauge."""
        self._expect(COUNTER, GAUGE)
        if self._family.kind == COUNTER and value < 0:
            raise TritonModelException(f"metric '{self._family.name}' is a counter, which cannot grow by {value}")
        self._change("add", float(value))

    def set(self, value):
        """Sets a gauge."""
        self._expect(GAUGE)
        self._change("set", float(value))

    def observe(self, value):
        """Gives a histogram a value."""
        self._expect(HISTOGRAM)
        self._change("observe", float(value))

    def value(self):
        """What this process has made of a counter or a gauge; other instances have values of their own."""
        self._expect(COUNTER, GAUGE)
        with LOCK:
            return VALUES[self._key]

    def _expect(self, *kinds):
        if self._family.kind not in kinds:
            raise TritonModelException(f"metric '{self._family.name}' is a {KINDS[self._family.kind]}")

    def _change(self, what, value):
        if value is not None and not math.isfinite(value):
            raise TritonModelException(f"metric '{self._family.name}': {value} is no number that can be added up")
        change = {
            "name": self._family.name,
            "kind": KINDS[self._family.kind],
            "help": self._family.description,
            "labels": self._labels,
            "what": what,
            "value": value,
            "bounds": self._buckets,
        }
        with LOCK:
            if what == "add":
                VALUES[self._key] = VALUES.get(self._key, 0.0) + value
            elif what == "set":
                VALUES[self._key] = value
            if len(CHANGES) < MOST:
                CHANGES.append(change)


class MetricFamily:
    """A metric of a model's own, at the worker's metrics port; the label `model` is added."""

    COUNTER, GAUGE, HISTOGRAM = COUNTER, GAUGE, HISTOGRAM

    def __init__(self, name, description, kind):
        name = values.name("the name of a metric", name)
        if not NAME.fullmatch(name):
            raise TritonModelException(f"'{name}' is no name for a metric")
        if kind not in (COUNTER, GAUGE, HISTOGRAM):
            raise TritonModelException(f"metric '{name}' is of kind {kind}, expected COUNTER, GAUGE or HISTOGRAM")
        with LOCK:
            known = FAMILIES.setdefault(name, kind)
        if known != kind:
            raise TritonModelException(f"metric '{name}' is a {KINDS[known]} already, and cannot be a {KINDS[kind]}")
        self.name, self.description, self.kind = name, values.message(description), kind

    def Metric(self, labels=None, buckets=None):
        """The sample with these labels; `buckets` are the bounds of a histogram."""
        return Metric(self, labels, buckets)
