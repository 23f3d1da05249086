"""Simulates what KEDA does with a ScaledObject: while requests of some milliseconds arrive now and then, and while long ones queue up.

KEDA looks at each trigger every `pollingInterval`. A trigger is active while its value is above its activation threshold; after
`cooldownPeriod` without an active trigger the Deployment has no replicas. Otherwise it has as many as the greatest trigger asks for: the
trigger's value over its threshold.
"""

import bisect
import math
import random
import re

# A request is in its queue or being executed for so long.
REQUEST_SECONDS = 0.01
# How often a Prometheus looks at its targets, where nothing says otherwise.
SCRAPE_SECONDS = 15
HOURS = 24
# Requests a second.
RATES = (0.01, 0.03, 0.1, 0.3, 1, 3)
# Requests that are few and long: each takes a replica so many seconds, and so many come in a second.
LONG_SECONDS = 5
LONG_RATE = 1
# How long they may wait at a steady load.
LONG_WAIT = 30
USAGE = re.compile(r'max\(increase\((\w+)\{model="([\w-]+)"\}\[(\d+)m\]\)\)')
WORK = re.compile(r'max\((\w+)\{lane="(live|bulk)",model="([\w-]+)"\}\)')


def metric_of(metadata):
    """The metric that a Prometheus trigger asks for."""
    return (USAGE.fullmatch(metadata["query"]) or WORK.fullmatch(metadata["query"]))[1]


def model_of(metadata):
    """The model that a Prometheus trigger asks about."""
    usage = USAGE.fullmatch(metadata["query"])
    return usage[2] if usage else WORK.fullmatch(metadata["query"])[3]


def window_of(metadata):
    """The seconds over which a Prometheus trigger counts requests; None for one that asks for waiting work."""
    usage = USAGE.fullmatch(metadata["query"])
    return usage and 60 * int(usage[3])


def lane_of(metadata):
    """The lane whose waiting work a Prometheus trigger asks for; None for one that counts requests."""
    work = WORK.fullmatch(metadata["query"])
    return work and work[2]


def lag(arrivals, now):
    """The requests that the broker holds."""
    return bisect.bisect_right(arrivals, now) - bisect.bisect_right(arrivals, now - REQUEST_SECONDS)


def value(kind, metadata, arrivals, stopped, now):
    """How far a trigger's value is above its activation threshold; `stopped` are the requests that came before replicas became none, or None."""
    if kind == "nats-jetstream":
        return lag(arrivals, now) - float(metadata["activationLagThreshold"])
    seen, scraped = float(metadata["activationThreshold"]), now // SCRAPE_SECONDS * SCRAPE_SECONDS
    if window_of(metadata):
        return increase(arrivals, now, window_of(metadata)) - seen
    waiting = lag(arrivals, scraped) if stopped is None else max(0, bisect.bisect_right(arrivals, scraped) - stopped)
    return waiting * REQUEST_SECONDS - seen


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
    idle, active_at, stopped = [], 0.0, None
    for look in range(0, HOURS * 3600, spec["pollingInterval"]):
        now = look + draw.random() * 0.1
        values = [value(kind, metadata, arrivals, stopped, now) for kind, metadata in triggers]
        # A queue without workers keeps its requests, so the lag shows the next request at once.
        waiting = stopped is not None and bisect.bisect_right(arrivals, now) > stopped
        if waiting or max(values) > 0:
            active_at, stopped = now, None
        elif stopped is None and now - active_at > spec["cooldownPeriod"]:
            stopped = bisect.bisect_right(arrivals, now)
            idle.append(now - arrivals[stopped - 1] if stopped else now)
    return idle


def wait(spec, triggers):
    """The seconds that few and long requests wait after half an hour."""
    waiting, running, replicas, seen = 0.0, 0.0, 1, 0.0
    for now in range(1800):
        waiting += LONG_RATE
        running -= min(running, replicas / LONG_SECONDS)
        begun = min(waiting, replicas - running)
        waiting, running = waiting - begun, running + begun
        if now % SCRAPE_SECONDS == 0:
            seen = waiting * LONG_SECONDS
        if now % spec["pollingInterval"] == 0:
            wanted = [
                (waiting + running) / float(metadata["lagThreshold"]) if kind == "nats-jetstream" else seen / float(metadata["threshold"])
                for kind, metadata in triggers
                if kind == "nats-jetstream" or lane_of(metadata) == "live"
            ]
            # A Deployment keeps its replicas for five minutes, which hides the way down here.
            replicas = max(replicas, min(spec["maxReplicaCount"], math.ceil(max(wanted))))
    return waiting / LONG_RATE


def faults(spec):
    """What is wrong with a ScaledObject: a model in use is stopped, or one that nobody uses is not."""
    triggers = [(trigger["type"], trigger["metadata"]) for trigger in spec["triggers"]]
    # Bulk requests have a stream of their own, which is empty here.
    triggers = [(kind, metadata) for kind, metadata in triggers if not metadata.get("stream", "").endswith("-10000")]
    windows = [window_of(metadata) for kind, metadata in triggers if kind == "prometheus" and window_of(metadata)]
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
    waits = wait(spec, triggers)
    if waits > LONG_WAIT:
        found.append(f"{LONG_RATE} request of {LONG_SECONDS} s a second waits {waits:.0f} s, expected at most {LONG_WAIT}: no trigger counts seconds of work")
    return found
