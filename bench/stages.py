"""What each process of the services takes: memory under load, and the time from its start to the first answer."""

import json
import time
import urllib.request

from servers import DIRECT, BenchError, load

DEPLOYMENTS = ("all in one, kept models", "services, kept models")
WAIT_SECONDS = 60


def start(bench, repository, model, stages):
    """Deployments whose optimised models are kept, so that only the first start makes them."""
    kept = ["--model-cache", bench.work / "model-cache"]
    bench.all_in_one(DEPLOYMENTS[0], ["--model-repository", repository], model, extra=("--allow-metrics=false", *kept))
    with_cache = [(stage, [*argv, *kept] if stage == "model" else argv) for stage, argv in stages]
    bench.services(DEPLOYMENTS[1], repository, model, with_cache)


def measure(bench, model):
    """Memory of each process under load, then a restart of each: a request that is sent at once waits for its first answer."""
    for name in DEPLOYMENTS:
        deployment = bench.deployments[name]
        load(bench.binaries / "trireme", deployment, model, bench.options.seconds / 2, 64, bench.options.texts)
        for process in deployment.processes:
            bench.keep(f"{name}, {process.stage} / memory", {"rss_mib": process.rss() / 2**20})
        for process in deployment.processes:
            if process.stage != "nats-server":
                bench.keep(f"{name}, {process.stage} / start to first answer", {"seconds": restart(deployment, process, model)})


def restart(deployment, process, model):
    """Seconds from the start of a process that was stopped to the deployment's next answer."""
    process.stop()
    begun = time.monotonic()
    process.start()
    body = {"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["a first text"]}]}
    request = urllib.request.Request(f"http://{deployment.address}/v2/models/{model}/infer", json.dumps(body).encode())
    while time.monotonic() - begun < WAIT_SECONDS:
        try:
            with DIRECT.open(request, timeout=WAIT_SECONDS) as answer:
                answer.read()
                return time.monotonic() - begun
        except OSError as error:
            # The gateway does not listen yet, or does not know of a worker yet.
            if getattr(error, "code", 503) < 500:
                raise BenchError(f"{deployment.name} refuses a request: {error}") from error
            process.check()
            time.sleep(0.005)
    raise BenchError(f"{process.name} does not answer {WAIT_SECONDS} s after its start: see {process.log}")
