"""Simulates what KEDA does with a ScaledObject while requests of some milliseconds arrive now and then.

KEDA looks at each trigger every `pollingInterval`. A trigger is active while its value is above its activation threshold; after
`cooldownPeriod` without an active trigger the Deployment has no replicas.
"""

import bisect
import random
import re

# A request is in its queue or being executed for so long.
REQUEST_SECONDS = 0.01
# How often a Prometheus looks at its targets, where nothing says otherwise.
SCRAPE_SECONDS = 15
HOURS = 24
# Requests a second.
RATES = (0.01, 0.03, 0.1, 0.3, 1, 3)
QUERY = re.compile(r'max\(increase\((\w+)\{model="([\w-]+)"\}\[(\d+)m\]\)\)')


def metric_of(metadata):
    """The metric that a Prometheus trigger asks for."""
    return QUERY.fullmatch(metadata["query"])[1]


def model_of(metadata):
    """The model that a Prometheus trigger asks about."""
    return QUERY.fullmatch(metadata["query"])[2]


def window_of(metadata):
    """The seconds over which a Prometheus trigger counts requests."""
    return 60 * int(QUERY.fullmatch(metadata["query"])[3])


def lag(arrivals, now):
    """The requests that the broker holds."""
    return bisect.bisect_right(arrivals, now) - bisect.bisect_right(arrivals, now - REQUEST_SECONDS)


def increase(arrivals, now, window):
    """The requests between the first and the last look of Prometheus within the window."""
    last = now // SCRAPE_SECONDS * SCRAPE_SECONDS
    first = max(0, -((window - now) // SCRAPE_SECONDS) * SCRAPE_SECONDS)
    return bisect.bisect_right(arrivals, last) - bisect.bisect_right(arrivals, first)


def stops(spec, triggers, rate, seed):
    """The seconds without a request before each time at which replicas become none."""
    draw = random.Random(seed)
    arrivals, at = [], 0.0
    while at < HOURS * 3600:
        at += draw.expovariate(rate)
        arrivals.append(at)
    idle, active_at, running = [], 0.0, True
    for look in range(0, HOURS * 3600, spec["pollingInterval"]):
        now = look + draw.random() * 0.1
        values = [
            lag(arrivals, now) - int(metadata["activationLagThreshold"])
            if kind == "nats-jetstream"
            else increase(arrivals, now, window_of(metadata)) - int(metadata["activationThreshold"])
            for kind, metadata in triggers
        ]
        # A queue without workers keeps its requests, so the lag shows the next request at once.
        waiting = not running and bisect.bisect_right(arrivals, now) > stopped
        if waiting or max(values) > 0:
            active_at, running = now, True
        elif running and now - active_at > spec["cooldownPeriod"]:
            running, stopped = False, bisect.bisect_right(arrivals, now)
            idle.append(now - arrivals[stopped - 1] if stopped else now)
    return idle


def faults(spec):
    """What is wrong with a ScaledObject: a model in use is stopped, or one that nobody uses is not."""
    triggers = [(trigger["type"], trigger["metadata"]) for trigger in spec["triggers"]]
    # Bulk requests have a stream of their own, which is empty here.
    triggers = [(kind, metadata) for kind, metadata in triggers if not metadata.get("stream", "").endswith("-10000")]
    windows = [window_of(metadata) for kind, metadata in triggers if kind == "prometheus"]
    if len(windows) != 1:
        return [f"{len(windows)} triggers say whether its model is in use, expected one"]
    # A request may fall between the last look of Prometheus and the window.
    quiet = windows[0] + spec["cooldownPeriod"] - 2 * SCRAPE_SECONDS
    found = []
    for rate in RATES:
        idle = stops(spec, triggers, rate, seed=f"{rate}")
        early = [seconds for seconds in idle if seconds < quiet]
        if early:
            found.append(f"at {rate} requests a second it is stopped {len(early)} times within {quiet} s of a request, first after {early[0]:.0f} s")
    if not stops(spec, triggers, 1 / 7200, seed="seldom"):
        found.append("it is never stopped, though two hours lie between its requests")
    return found
