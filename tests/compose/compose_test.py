#!/usr/bin/env python3
"""`make compose-test`: the Dockerfile and docker-compose.yml, as a user has them, under a container runtime.

Builds the images, brings everything up, asks it over HTTP and gRPC with Triton's own client, scales stages, kills one
container of each stage under load, and takes everything down. Not one request may fail. Where no image registry can be
reached, scripts/compose-base-images.sh makes stand-ins for the base images.
"""

import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import numpy
import tritonclient.grpc
import tritonclient.http

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = "trireme-compose-test"
STAND_INS = "trireme-base"
BASES = {"RUST_IMAGE": "rust", "RUNTIME_IMAGE": "debian", "PYTHON_IMAGE": "python", "NATS_IMAGE": "nats"}
TEXTS = ["The rowers pull together.", "A crew rows in time.", "The quarterly report is due."]
READY_LIMIT = 180
REPLICAS = {"tokenizer": 2, "model": 3, "postprocess": 2}
CONCURRENCY = 8


def say(text):
    """One line of progress."""
    print(f"==> [{time.monotonic() - STARTED:4.0f}s] {text}", flush=True)


def run(*command, **options):
    """Runs a command and returns what it prints; one that fails ends the test with all of it."""
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, text=True, capture_output=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
    return done.stdout


def compose(*arguments):
    """Runs docker compose, or docker-compose where there is no such plugin."""
    return run(*COMPOSE, *arguments)


def find_compose():
    """The command, or None."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0:
            return command
    return None


def base_images():
    """The base images that the Dockerfile and the compose file name, or stand-ins for them, as variables."""
    for variable in BASES:
        if variable in os.environ:
            return {}
    try:
        reached = subprocess.run(["docker", "pull", "-q", "debian:bookworm-slim"], capture_output=True, timeout=60, check=False)
        if reached.returncode == 0:
            return {}
    except subprocess.TimeoutExpired:
        pass
    say("no image registry can be reached: stand-ins for the base images")
    run("scripts/compose-base-images.sh", STAND_INS)
    return {variable: f"{STAND_INS}/{name}" for variable, name in BASES.items()} | {"BUILD_NETWORK": "host"}


def containers(service):
    """Ids of a service's running containers."""
    ids = compose("ps", "-q", service).split()
    return [i for i in ids if json.loads(run("docker", "inspect", i))[0]["State"]["Running"]]


def until_healthy(expected):
    """Waits until so many containers of each service are healthy."""
    give_up = time.monotonic() + READY_LIMIT
    while True:
        found = {}
        for service in expected:
            states = [json.loads(run("docker", "inspect", i))[0]["State"] for i in containers(service)]
            found[service] = sum(state.get("Health", {}).get("Status") == "healthy" for state in states)
        if found == expected:
            return
        if time.monotonic() > give_up:
            print(compose("ps"), compose("logs", "--tail", "20"))
            sys.exit(f"healthy containers: {found}, expected {expected}")
        time.sleep(0.5)


def port(inside):
    """Where a port of the gateway is published."""
    return "127.0.0.1:" + compose("port", "gateway", str(inside)).strip().rsplit(":", 1)[1]


class Client:
    """Asks for embeddings over both protocols, each thread with clients of its own."""

    def __init__(self, http, grpc):
        self.addresses = (http, grpc)
        self.local = threading.local()

    def embed(self, text, number):
        """The embedding of one text; even numbers go over HTTP, odd ones over gRPC."""
        if not hasattr(self.local, "clients"):
            http, grpc = self.addresses
            self.local.clients = (
                (tritonclient.http, tritonclient.http.InferenceServerClient(http, network_timeout=60, connection_timeout=60)),
                (tritonclient.grpc, tritonclient.grpc.InferenceServerClient(grpc)),
            )
        module, client = self.local.clients[number % 2]
        tensor = module.InferInput("TEXT", [1], "BYTES")
        tensor.set_data_from_numpy(numpy.array([text], dtype=object))
        return client.infer("sentence_embedding", [tensor]).as_numpy("embedding")[0]


class Load:
    """Requests without a pause until told to stop; every answer is compared."""

    def __init__(self, client, expected):
        self.client, self.expected = client, expected
        self.stop = threading.Event()
        self.right, self.wrong, self.slowest = 0, [], 0.0
        self.lock = threading.Lock()
        self.pool = concurrent.futures.ThreadPoolExecutor(CONCURRENCY)
        self.running = [self.pool.submit(self.work, worker) for worker in range(CONCURRENCY)]

    def work(self, number):
        """One thread's requests."""
        while not self.stop.is_set():
            which, started = number % len(TEXTS), time.monotonic()
            problem = None
            try:
                answer = self.client.embed(TEXTS[which], number)
                if numpy.dot(answer, self.expected[which]) < 0.99:
                    problem = f"a wrong answer to {TEXTS[which]!r}"
            except Exception as error:  # whatever a client may raise is a failed request
                problem = repr(error)
            with self.lock:
                self.slowest = max(self.slowest, time.monotonic() - started)
                if problem:
                    self.wrong.append(problem)
                else:
                    self.right += 1
            number += 1

    def end(self):
        """Stops, and fails the test if one request did."""
        self.stop.set()
        for running in self.running:
            running.result()
        self.pool.shutdown()
        if self.wrong:
            sys.exit(f"{len(self.wrong)} of {self.right + len(self.wrong)} requests failed, such as: {self.wrong[:3]}")
        return f"{self.right} requests, none failed, the slowest took {self.slowest:.1f} s"


def check_containers():
    """Nobody is root, nothing is writable, no capability is left."""
    for service in ("gateway", *REPLICAS, "nats"):
        about = json.loads(run("docker", "inspect", containers(service)[0]))[0]
        host = about["HostConfig"]
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"], service
        assert about["Config"]["User"] not in ("", "0", "root", "0:0"), service
    for service in ("gateway", *REPLICAS):
        size = json.loads(run("docker", "image", "inspect", f"trireme-{service}"))[0]["Size"]
        limit = 200 if service == "model" else 150
        assert size < limit * 1e6, f"image trireme-{service}: {size / 1e6:.0f} MB, expected less than {limit}"
        say(f"image trireme-{service}: {size / 1e6:.0f} MB")


def test():
    """Everything, in order."""
    say(f"building the images ({ENVIRONMENT['CARGO_PROFILE']} profile) with {' '.join(COMPOSE)}")
    compose("build")
    say("up")
    up = time.monotonic()
    compose("up", "-d", "--no-build")
    until_healthy({"nats": 1, "gateway": 1, **dict.fromkeys(REPLICAS, 1)})
    say(f"everything is healthy {time.monotonic() - up:.1f} s after up")
    check_containers()

    client = Client(port(8000), port(8001))
    expected = [client.embed(text, 0) for text in TEXTS]
    for text, embedding in zip(TEXTS, expected):
        assert embedding.shape == (384,) and abs(numpy.linalg.norm(embedding) - 1) < 1e-3
        assert numpy.allclose(client.embed(text, 1), embedding, atol=1e-2), "HTTP and gRPC answer alike"
    likeness = [float(numpy.dot(expected[0], other)) for other in expected[1:]]
    assert likeness[0] > likeness[1] + 0.2, likeness
    say("answers over HTTP and gRPC are right")

    load = Load(client, expected)
    scale = [word for service, count in REPLICAS.items() for word in ("--scale", f"{service}={count}")]
    compose("up", "-d", "--no-build", "--no-recreate", *scale)
    until_healthy({"nats": 1, "gateway": 1, **REPLICAS})
    say("scaled under load: " + ", ".join(f"{service}={count}" for service, count in REPLICAS.items()))
    for service in REPLICAS:
        before = load.right
        run("docker", "kill", containers(service)[0])
        give_up = time.monotonic() + 60
        while load.right < before + 20 and not load.wrong and time.monotonic() < give_up:
            time.sleep(0.1)
        assert load.right >= before + 20 or load.wrong, f"no answers after a {service} was killed"
        say(f"killed a container of {service} under load")
    say(load.end())

    stopping = time.monotonic()
    compose("stop")
    say(f"stopped in {time.monotonic() - stopping:.1f} s")
    for service in ("gateway", *REPLICAS):
        for container in compose("ps", "-a", "-q", service).split():
            code = json.loads(run("docker", "inspect", container))[0]["State"]["ExitCode"]
            assert code in (0, 137), f"{service} ended with code {code}"
        logs = compose("logs", service)
        assert "NATS reported an error" not in logs, f"NATS refused something to {service}:\n{logs[-3000:]}"
        assert '"stopped"' in logs, f"{service} was not stopped in order:\n{logs[-3000:]}"


STARTED = time.monotonic()
COMPOSE = find_compose()
ENVIRONMENT = dict(os.environ)


def main():
    """Skips where there is no docker; leaves nothing running."""
    if shutil.which("docker") is None or COMPOSE is None:
        say("skipped: docker, with its compose plugin or docker-compose, is not installed")
        return
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        say("skipped: no docker daemon answers (`docker info`)")
        return
    ENVIRONMENT.update({"CARGO_PROFILE": "dev", "COMPOSE_PROJECT_NAME": PROJECT, "DOCKER_CLI_HINTS": "false"})
    ENVIRONMENT.update({f"TRIREME_{name}_PORT": "0" for name in ("HTTP", "GRPC", "METRICS")})
    ENVIRONMENT.update(base_images())
    try:
        test()
    finally:
        compose("down", "--volumes", "--timeout", "5")
    say("passed")


if __name__ == "__main__":
    main()
