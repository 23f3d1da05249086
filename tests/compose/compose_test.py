#!/usr/bin/env python3
"""`make compose-test`: the Dockerfile and docker-compose.yml, as a user has them, under a container runtime.

Builds the images, brings everything up, asks it over HTTP and gRPC with Triton's own client, scales stages, kills one
container of each stage under load, and takes everything down. Not one request may fail. Ends with how long each phase took
and what each service weighs. Where no image registry can be reached, scripts/compose-base-images.sh makes stand-ins for the
base images.

Images stay, so that the next run is quick; containers, networks and volumes do not.
"""

import collections
import concurrent.futures
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

import numpy
import tritonclient.grpc
import tritonclient.http

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = "trireme-compose-test"
STAND_INS = "trireme-base"
BASES = ("RUST_IMAGE", "RUNTIME_IMAGE", "PYTHON_IMAGE", "NATS_IMAGE")
BUILT = f"{PROJECT}-build"
TEXTS = ["The rowers pull together.", "A crew rows in time.", "The quarterly report is due."]
READY_LIMIT = 240
# How long another run on this machine may take before this one gives up.
LOCK_LIMIT = 2400
COMMAND_LIMIT = 3600
# What images and what they are built from take.
DISK_NEEDED = 10 << 30
# scripts/compose-base-images.sh ends with it where the machine lacks something.
UNAVAILABLE = 69
REPLICAS = {"tokenizer": 2, "model": 3, "postprocess": 2}
CONCURRENCY = 8


def say(text):
    """One line of progress."""
    print(f"==> [{time.monotonic() - STARTED:4.0f}s] {text}", flush=True)


def run(*command):
    """Runs a command and returns what it prints; one that fails ends the test with all of it."""
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, text=True, capture_output=True, check=False, timeout=COMMAND_LIMIT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
    return done.stdout


@contextlib.contextmanager
def phase(name):
    """A part of the test whose time the report shows."""
    say(name)
    started = time.monotonic()
    yield
    PHASES.append((name, time.monotonic() - started))


class Skipped(Exception):
    """This machine cannot run the test, and says why."""


def compose(*arguments):
    """Runs compose."""
    return run(*COMPOSE, *arguments)


def runs(*command):
    """Whether there is such a command, and it works."""
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


def find_compose():
    """The command that COMPOSE names, else docker compose, else docker-compose; or None."""
    if named := os.environ.get("COMPOSE", "").split():
        if not runs(*named, "version"):
            sys.exit(f"COMPOSE={' '.join(named)}: there is no such command, or `version` fails")
        return named
    return next((command for command in (["docker", "compose"], ["docker-compose"]) if runs(*command, "version")), None)


def base_images():
    """The base images that the Dockerfile and the compose file name, or stand-ins for them, as variables."""
    if any(variable in os.environ for variable in BASES):
        return {}
    with contextlib.suppress(subprocess.TimeoutExpired):
        reached = subprocess.run(["docker", "pull", "-q", "debian:bookworm-slim"], capture_output=True, timeout=60, check=False)
        if reached.returncode == 0:
            return {}
    with phase("stand-ins for the base images: no image registry can be reached"):
        made = subprocess.run(["scripts/compose-base-images.sh", STAND_INS], cwd=ROOT, text=True, capture_output=True, check=False, timeout=COMMAND_LIMIT)
        if made.returncode == UNAVAILABLE:
            raise Skipped(f"no image registry can be reached, and {made.stderr.strip().splitlines()[-1]}")
        if made.returncode != 0:
            sys.exit(f"scripts/compose-base-images.sh: exit code {made.returncode}\n{made.stderr}")
    return dict(line.split("=", 1) for line in made.stdout.split()) | {"BUILD_NETWORK": "host"}


def image_ids():
    """The ids of the images that the test builds."""
    names = [BUILT, *(f"{PROJECT}-{service}" for service in ("setup", "gateway", *REPLICAS))]
    return {i for name in names for i in run("docker", "image", "ls", "--quiet", "--no-trunc", name).split()}


def build():
    """Builds every image; those that they replace go, or each change of the sources would leave some gigabytes behind."""
    before = image_ids()
    names = {*BASES, "CARGO_PROFILE"} - {"NATS_IMAGE"}
    arguments = [f"--build-arg={name}={ENVIRONMENT[name]}" for name in sorted(names) if name in ENVIRONMENT]
    with phase(f"programs (cargo's {ENVIRONMENT['CARGO_PROFILE']} profile)"):
        network = ENVIRONMENT.get("BUILD_NETWORK", "default")
        run("docker", "build", "--force-rm", "--target", "build", "--network", network, "--tag", BUILT, *arguments, ".")
    with phase("images"):
        compose("build")
    for replaced in before - image_ids():
        subprocess.run(["docker", "rmi", replaced], capture_output=True, check=False)


def containers(service):
    """Ids of a service's running containers."""
    labels = {"project": PROJECT, "service": service}
    return run("docker", "ps", "--quiet", *(f"--filter=label=com.docker.compose.{key}={value}" for key, value in labels.items())).split()


def healthy():
    """How many containers of each service are running and healthy."""
    shown = '{{.Label "com.docker.compose.service"}}'
    filters = [f"--filter=label=com.docker.compose.project={PROJECT}", "--filter=health=healthy"]
    return collections.Counter(run("docker", "ps", *filters, "--format", shown).split())


def until_healthy(expected):
    """Waits until so many containers of each service are healthy."""
    give_up = time.monotonic() + READY_LIMIT
    while (found := healthy()) != expected:
        if time.monotonic() > give_up:
            print(compose("ps"), compose("logs", "--tail", "20"))
            sys.exit(f"healthy containers: {dict(found)}, expected {expected}")
        time.sleep(0.5)


def port(inside):
    """Where a port of the gateway is published."""
    return "127.0.0.1:" + run("docker", "port", containers("gateway")[0], str(inside)).split()[0].rsplit(":", 1)[1]


def until_first_answer(address):
    """Waits until an inference over HTTP succeeds."""
    body = json.dumps({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": TEXTS[:1]}]}).encode()
    request = urllib.request.Request(f"http://{address}/v2/models/sentence_embedding/infer", data=body)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    give_up = time.monotonic() + READY_LIMIT
    while True:
        try:
            with direct.open(request, timeout=10) as answer:
                assert answer.status == 200
                return
        except urllib.error.HTTPError as error:
            problem = f"{error} {error.read()}"
        except OSError as error:
            problem = repr(error)
        if time.monotonic() > give_up:
            print(compose("ps"), compose("logs", "--tail", "20"))
            sys.exit(f"no answer within {READY_LIMIT} s: {problem}")
        time.sleep(0.1)


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
        size = json.loads(run("docker", "image", "inspect", f"{PROJECT}-{service}"))[0]["Size"] / 1e6
        limit = 200 if service == "model" else 150
        assert size < limit, f"image {service}: {size:.0f} MB, expected less than {limit}"
        IMAGE_SIZES[service] = f"{size:.0f} MB"


def memory():
    """What each service's first container uses, as the container runtime counts it."""
    first = {containers(service)[0]: service for service in ("nats", "gateway", *REPLICAS)}
    used = run("docker", "stats", "--no-stream", "--format", "{{.ID}} {{.MemUsage}}", *first)
    return {first[line.split()[0]]: line.split()[1] for line in used.splitlines()}


def check_answers(client):
    """Both protocols give the same, sensible embeddings; returns them."""
    expected = [client.embed(text, 0) for text in TEXTS]
    for text, embedding in zip(TEXTS, expected):
        assert embedding.shape == (384,) and abs(numpy.linalg.norm(embedding) - 1) < 1e-3
        assert numpy.allclose(client.embed(text, 1), embedding, atol=1e-2), "HTTP and gRPC answer alike"
    likeness = [float(numpy.dot(expected[0], other)) for other in expected[1:]]
    assert likeness[0] > likeness[1] + 0.2, likeness
    return expected


def kill_under_load(load):
    """Kills a container of each stage; answers go on."""
    for service in REPLICAS:
        before = load.right
        run("docker", "kill", containers(service)[0])
        give_up = time.monotonic() + 60
        while load.right < before + 20 and not load.wrong and time.monotonic() < give_up:
            time.sleep(0.1)
        assert load.right >= before + 20 or load.wrong, f"no answers after a {service} was killed"
        say(f"killed a container of {service} under load")


def check_ends():
    """Each service was stopped in order, and NATS refused nothing to it."""
    for service in ("gateway", *REPLICAS):
        for container in compose("ps", "-a", "-q", service).split():
            code = json.loads(run("docker", "inspect", container))[0]["State"]["ExitCode"]
            assert code in (0, 137), f"{service} ended with code {code}"
        logs = compose("logs", service)
        assert "NATS reported an error" not in logs, f"NATS refused something to {service}:\n{logs[-3000:]}"
        assert '"stopped"' in logs, f"{service} was not stopped in order:\n{logs[-3000:]}"


def test():
    """Everything, in order."""
    build()
    with phase("cold start: from up to the first answer"):
        compose("up", "-d", "--no-build")
        until_first_answer(port(8000))
    with phase("answers over HTTP and gRPC"):
        until_healthy({"nats": 1, "gateway": 1, **dict.fromkeys(REPLICAS, 1)})
        check_containers()
        client = Client(port(8000), port(8001))
        expected = check_answers(client)
    load = Load(client, expected)
    try:
        with phase("scaled under load: " + ", ".join(f"{service}={count}" for service, count in REPLICAS.items())):
            scale = [word for service, count in REPLICAS.items() for word in ("--scale", f"{service}={count}")]
            compose("up", "-d", "--no-build", "--no-recreate", *scale)
            until_healthy({"nats": 1, "gateway": 1, **REPLICAS})
        used = memory()
        with phase("a container of each stage killed under load"):
            kill_under_load(load)
    finally:
        load.stop.set()
    say(load.end())
    with phase("stop"):
        compose("stop")
    check_ends()
    for name, seconds in PHASES:
        say(f"{seconds:6.1f} s  {name}")
    for service, amount in used.items():
        say(f"{service}: {amount} of memory under load, image {IMAGE_SIZES.get(service, 'not ours')}")


STARTED = time.monotonic()
COMPOSE = find_compose()
ENVIRONMENT = dict(os.environ)
PHASES, IMAGE_SIZES = [], {}


@contextlib.contextmanager
def alone():
    """One run at a time on a machine: runs share names of containers and images."""
    with open(pathlib.Path(tempfile.gettempdir()) / f"{PROJECT}-{os.getuid()}.lock", "w", encoding="utf-8") as lock:
        give_up = time.monotonic() + LOCK_LIMIT
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise Skipped(f"another run on this machine has not ended within {LOCK_LIMIT} s") from None
                time.sleep(1)
        yield


def check_docker():
    """That a daemon answers and has room."""
    info = subprocess.run(["docker", "info", "--format", "{{.DockerRootDir}}"], text=True, capture_output=True, check=False, timeout=60)
    if info.returncode != 0:
        raise Skipped("no docker daemon answers (`docker info`)")
    folder = pathlib.Path(info.stdout.strip())
    if folder.is_dir() and (free := shutil.disk_usage(folder).free) < DISK_NEEDED:
        raise Skipped(f"{folder} has {free >> 30} GB left, the images need {DISK_NEEDED >> 30}")


def check_containers_run():
    """That the daemon may start a container at all; some machines have one that may not."""
    image = ENVIRONMENT.get("RUNTIME_IMAGE", "debian:bookworm-slim")
    tried = subprocess.run(["docker", "run", "--rm", image, "true"], text=True, capture_output=True, check=False, timeout=300)
    if tried.returncode != 0:
        raise Skipped(f"docker cannot run {image} here: {tried.stderr.strip()}")


def down():
    """Takes away what a run leaves, this one or one that was killed."""
    compose("down", "--volumes", "--remove-orphans", "--timeout", "5")


def main():
    """Skips where there is no docker; leaves nothing running."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    try:
        if shutil.which("docker") is None or COMPOSE is None:
            raise Skipped("docker, with its compose plugin or docker-compose, is not installed")
        check_docker()
        # Ports are free ones, and names are not those of the images that a user of this machine runs.
        ENVIRONMENT.update({f"TRIREME_{name}_PORT": "0" for name in ("HTTP", "GRPC", "METRICS")})
        ENVIRONMENT.update({"COMPOSE_PROJECT_NAME": PROJECT, "TRIREME_IMAGE_PREFIX": PROJECT})
        ENVIRONMENT.setdefault("CARGO_PROFILE", "unoptimized")
        # A busy machine makes docker-compose wait longer than its 60 s; hints are for people.
        ENVIRONMENT.update({"COMPOSE_HTTP_TIMEOUT": "600", "DOCKER_CLI_HINTS": "false"})
        # Docker compose brings BuildKit along where docker has none: two builders would build everything twice.
        if not runs("docker", "buildx", "version"):
            ENVIRONMENT.setdefault("DOCKER_BUILDKIT", "0")
        say(f"{' '.join(COMPOSE)} {run(*COMPOSE, 'version', '--short').strip()}")
        with alone():
            ENVIRONMENT.update(base_images())
            check_containers_run()
            down()
            try:
                test()
            finally:
                down()
    except Skipped as reason:
        say(f"skipped: {reason}")
        return
    say("passed")


if __name__ == "__main__":
    main()
