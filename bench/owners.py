"""What owners of keys cost: texts per second with keys, limits and shares, and without them; and the time of an owner's small job beside
another owner's large one."""

import statistics
import threading
import time

import clients
from servers import BenchError, load

SIDES = {False: "", True: ", owners"}
IN_FLIGHT = 32  # of each of the two clients
NO_LIMIT = 1_000_000_000
KEYS = {owner: f"the-key-of-{owner}" for owner in ("large", "small", "live")}
# Limits that nobody reaches, so that all of them are counted.
LIMITS = f"rpm={NO_LIMIT},tpm={NO_LIMIT},in-flight={NO_LIMIT},weight=1"
LIVE_SHARE = 0.3
# Half of the machine is the small job's share beside one other owner: alone it has all of it.
HALF = 2

TIME_BAR = 1.2
P99_BAR = 1.2


def flags(limits=True):
    """Keys of the owners, and limits of each."""
    found = []
    for owner, key in KEYS.items():
        found += ["--api-key", f"{owner}={key}", *(["--owner", f"{owner}:{LIMITS}"] if limits else [])]
    return found


def header(owner):
    return {"X-API-Key": KEYS[owner]}


# === The cost of counting and of shares ===


def start(bench, repository, model, stages):
    """One process and services, each with owners and without. Without keys requests belong to one owner, and their usage is counted as well."""
    for has_owners, side in SIDES.items():
        extra = ["--allow-metrics=false", *(flags() if has_owners else [])]
        bench.all_in_one(f"all in one{side}", ["--model-repository", repository], model, extra=extra)
        bench.services(f"services{side}", repository, model, stages, extra=extra)


def turn(bench, model):
    """Two clients at a time: with keys they are two owners, whose requests take turns."""
    for where in ("all in one", "services"):
        bench.measure_in_order(*(side(bench, where, has_owners, model) for has_owners in SIDES))


def side(bench, where, has_owners, model):
    def measure():
        name = f"{where}{SIDES[has_owners]}"
        headers = [header(owner) if has_owners else {} for owner in ("large", "small")]
        bench.keep(f"{where} / {'with' if has_owners else 'without'} owners", both(bench, name, model, headers))
    return measure


def both(bench, name, model, headers):
    """The sum of two clients that ask at the same time."""
    found, failed = [], []

    def client(headers):
        try:
            found.append(load(
                bench.binaries / "trireme", bench.deployments[name], model, bench.options.seconds, IN_FLIGHT, bench.options.texts, headers=headers,
            ))
        except BenchError as error:
            failed.append(error)

    threads = [threading.Thread(target=client, args=(one,)) for one in headers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    rates = [one["requests_per_second"] for one in found]
    return {
        "requests_per_second": sum(rates), "tokens_per_second": sum(one.get("tokens_per_second") or 0 for one in found),
        "p50_ms": max(one["p50_ms"] for one in found), "p99_ms": max(one["p99_ms"] for one in found),
    }


# === A small job beside a large one ===


def beside(bench, where, model):
    """The small job's time alone and beside the large one, then the latency of live requests with and without both."""
    deployment, options = bench.deployments[f"owners {where}"], bench.options
    if f"{where} / owners' files" not in bench.files:
        bench.files[f"{where} / owners' files"] = upload(bench, deployment, model)
    files = bench.files[f"{where} / owners' files"]
    capacity = load(bench.binaries / "trireme", deployment, model, options.seconds, 64, options.texts, headers=header("live"))
    rate = LIVE_SHARE * capacity["requests_per_second"]
    live = lambda: clients.Live(deployment, model, bench.texts, rate, header("live")).run(2 * options.seconds)

    alone = statistics.median(job_seconds(deployment, files["small"]) for _ in range(3))
    large = clients.begin_batch(deployment, files["large"], header("large"))
    wait_begun(deployment, large)
    together = job_seconds(deployment, files["small"])
    both_running(deployment, large, "the small job")
    clients.cancel_batch(deployment, large, header("large"))

    none = live()
    jobs = {owner: clients.begin_batch(deployment, files[file], header(owner)) for owner, file in (("large", "large"), ("small", "second"))}
    for owner, job in jobs.items():
        wait_begun(deployment, job, owner)
    both = live()
    for owner, job in jobs.items():
        both_running(deployment, job, "the live requests", owner)
        clients.cancel_batch(deployment, job, header(owner))
    bench.keep(f"{where} / owners", {
        "small_lines": options.small, "large_lines": options.lines, "alone_seconds": alone, "together_seconds": together,
        "time_ratio": together / (HALF * alone), "live_per_second": rate, "p99_none_ms": none["p99_ms"], "p99_both_ms": both["p99_ms"],
        "p99_ratio": both["p99_ms"] / none["p99_ms"],
    })


def upload(bench, deployment, model):
    """The files of both owners. The small owner has a second one, as large as the other owner's, for the latency of live requests."""
    found, options = {}, bench.options
    for name, owner, count in (("small", "small", options.small), ("large", "large", options.lines), ("second", "small", options.lines)):
        path = bench.work / f"{count}-lines.jsonl"
        if not path.exists():
            clients.write_lines(path, model, bench.texts, count)
        found[name] = clients.upload(deployment, path, header(owner))
    return found


def job_seconds(deployment, file):
    """From the acceptance of the small job to its end."""
    begun = time.monotonic()
    found = clients.wait_batch(deployment, clients.begin_batch(deployment, file, header("small")), header("small"))
    elapsed = time.monotonic() - begun
    if found["status"] != "completed" or found["request_counts"]["failed"]:
        raise BenchError(f"{deployment.name}: the small job ended as {found['status']}: {found['request_counts']}")
    return elapsed


def wait_begun(deployment, job, owner="large"):
    """Until the job has run its first lines."""
    until = time.monotonic() + clients.PATIENCE_SECONDS
    while not clients.batch(deployment, job, header(owner))["request_counts"]["completed"]:
        if time.monotonic() > until:
            raise BenchError(f"{deployment.name}: no line of job {job} has run after {clients.PATIENCE_SECONDS} s")
        time.sleep(0.05)


def both_running(deployment, job, what, owner="large"):
    found = clients.batch(deployment, job, header(owner))
    if found["status"] != "in_progress":
        raise BenchError(f"{deployment.name}: the large job is {found['status']} before the end of {what}; give --lines more")
