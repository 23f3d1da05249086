#!/usr/bin/env python3
"""`make compose-test`: tests the shipped Dockerfile and docker-compose.yml with a container runtime.

Builds the images around the programs of target/debug (with COMPILE=1, or where they do not run in the images: around programs
that the Dockerfile compiles), starts everything, sends requests over HTTP and gRPC with Triton's own client, scales stages, kills one
container of each stage under load, and removes everything. No request may fail. Then starts the three brokers of
docker-compose.cluster.yml, kills one of them and stops one. Ends with the duration of each phase, and the memory and image
size of each service. If no image registry can be reached, scripts/compose-base-images.sh creates stand-ins for the base
images.

Images stay, so that the next run is quick; containers, networks and volumes do not.
"""

import collections
import concurrent.futures
import contextlib
import fcntl
import json
import os
import pathlib
import re
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
PROGRAMS = ("trireme", "trireme-gateway", "trireme-tokenizer", "trireme-model", "trireme-postprocess", "trireme-python")
# The Dockerfile's stages that compile.
COMPILING = ("manifests", "build")
TEXTS = ["The rowers pull together.", "A crew rows in time.", "The quarterly report is due."]
READY_LIMIT = 240
# How long to wait for another run on this machine.
LOCK_LIMIT = 2400
COMMAND_LIMIT = 3600
# Disk space for the images and their builds.
DISK_NEEDED = 10 << 30
# Exit code of scripts/compose-base-images.sh if the machine lacks something that it needs.
UNAVAILABLE = 69
CLUSTER = ("-f", "docker-compose.yml", "-f", "docker-compose.cluster.yml")
BROKERS = ("nats", "nats-2", "nats-3")
REPLICAS = {"tokenizer": 2, "model": 3, "postprocess": 2}
CONCURRENCY = 8


def say(text):
    """Prints one line of progress."""
    print(f"==> [{time.monotonic() - STARTED:4.0f}s] {text}", flush=True)


def run(*command):
    """Runs a command and returns its output; if it fails, the test ends with all of the output."""
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
    """The reason why this machine cannot run the test."""


def compose(*arguments):
    """Runs compose."""
    return run(*COMPOSE, *arguments)


def runs(*command):
    """Whether a command exists and works."""
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


def find_compose():
    """The command in COMPOSE, else docker compose, else docker-compose; or None."""
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
    """The ids of the images that the test has built."""
    names = [BUILT, *(f"{PROJECT}-{service}" for service in ("setup", "gateway", *REPLICAS))]
    return {i for name in names for i in run("docker", "image", "ls", "--quiet", "--no-trunc", name).split()}


def without_compiling(dockerfile):
    """The text of the Dockerfile with an image of the finished programs in place of the stages that compile."""
    head, *stages = re.split(r"(?m)^(?=FROM )", dockerfile)
    kept = [stage for stage in stages if stage.split(maxsplit=4)[3] not in COMPILING]
    assert len(kept) == len(stages) - len(COMPILING), f"the Dockerfile has no longer a stage each of {COMPILING}"
    return "".join((head, f"FROM {BUILT} AS build\n\n", *kept))


def take_programs(scratch):
    """Makes an image of the programs in target/debug, and lets compose use it; returns whether they run in the images."""
    out = scratch / "root" / "out"
    out.mkdir(parents=True)
    for program in PROGRAMS:
        run("strip", "-o", str(out / program), str(ROOT / "target" / "debug" / program))
    image = ENVIRONMENT.get("RUNTIME_IMAGE", "debian:bookworm-slim")
    tried = subprocess.run(["docker", "run", "--rm", f"--volume={out}:/out:ro", image, f"/out/{PROGRAMS[0]}", "--version"], capture_output=True, text=True, check=False, timeout=300)
    if tried.returncode != 0:
        say(f"target/debug/{PROGRAMS[0]} does not run in {image} ({tried.stderr.strip()[-200:]}): the Dockerfile compiles")
        return False
    packed = subprocess.Popen(["tar", f"--directory={scratch / 'root'}", "--create", "out"], stdout=subprocess.PIPE)
    subprocess.run(["docker", "import", "-", BUILT], stdin=packed.stdout, check=True, capture_output=True, timeout=COMMAND_LIMIT)
    if packed.wait() != 0:
        sys.exit(f"tar {out}: exit code {packed.returncode}")
    dockerfile, override = scratch / "Dockerfile", scratch / "docker-compose.yml"
    dockerfile.write_text(without_compiling((ROOT / "Dockerfile").read_text(encoding="utf-8")), encoding="utf-8")
    version = re.search(r"(?m)^version:.*\n", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    services = {service: {"build": {"dockerfile": str(dockerfile)}} for service in ("setup", "gateway", *REPLICAS)}
    override.write_text((version.group() if version else "") + json.dumps({"services": services}), encoding="utf-8")
    ENVIRONMENT["COMPOSE_FILE"] = f"{ROOT / 'docker-compose.yml'}:{override}"
    return True


def build(scratch):
    """Builds every image. Removes the replaced ones; otherwise each change of the sources would leave gigabytes
    behind."""
    before = image_ids()
    if os.environ.get("COMPILE") or not take_programs(scratch):
        compile_programs()
    with phase("images"):
        compose("build")
    for replaced in before - image_ids():
        subprocess.run(["docker", "rmi", replaced], capture_output=True, check=False)


def compile_programs():
    """The Dockerfile's stages that compile."""
    names = {*BASES, "CARGO_PROFILE"} - {"NATS_IMAGE"}
    arguments = [f"--build-arg={name}={ENVIRONMENT[name]}" for name in sorted(names) if name in ENVIRONMENT]
    with phase(f"programs (cargo's {ENVIRONMENT['CARGO_PROFILE']} profile)"):
        network = ENVIRONMENT.get("BUILD_NETWORK", "default")
        run("docker", "build", "--force-rm", "--target", "build", "--network", network, "--tag", BUILT, *arguments, ".")


def containers(service):
    """Ids of a service's running containers."""
    labels = {"project": PROJECT, "service": service}
    return run("docker", "ps", "--quiet", *(f"--filter=label=com.docker.compose.{key}={value}" for key, value in labels.items())).split()


def healthy():
    """Number of running and healthy containers of each service."""
    shown = '{{.Label "com.docker.compose.service"}}'
    filters = [f"--filter=label=com.docker.compose.project={PROJECT}", "--filter=health=healthy"]
    return collections.Counter(run("docker", "ps", *filters, "--format", shown).split())


def until_healthy(expected):
    """Waits until each service has this many healthy containers."""
    give_up = time.monotonic() + READY_LIMIT
    while (found := healthy()) != expected:
        if time.monotonic() > give_up:
            print(compose("ps"), compose("logs", "--tail", "20"))
            sys.exit(f"healthy containers: {dict(found)}, expected {expected}")
        time.sleep(0.5)


def port(inside):
    """The published address of a port of the gateway."""
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
    """Requests embeddings over both protocols; each thread has clients of its own."""

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
    """Sends requests without a pause until it is stopped; compares every answer."""

    def __init__(self, client, expected):
        self.client, self.expected = client, expected
        self.stop = threading.Event()
        self.right, self.wrong, self.slowest = 0, [], 0.0
        self.lock = threading.Lock()
        self.pool = concurrent.futures.ThreadPoolExecutor(CONCURRENCY)
        self.running = [self.pool.submit(self.work, worker) for worker in range(CONCURRENCY)]

    def work(self, number):
        """The requests of one thread."""
        while not self.stop.is_set():
            which, started = number % len(TEXTS), time.monotonic()
            problem = None
            try:
                answer = self.client.embed(TEXTS[which], number)
                if numpy.dot(answer, self.expected[which]) < 0.99:
                    problem = f"a wrong answer to {TEXTS[which]!r}"
            except Exception as error:  # any exception of a client is a failed request
                problem = repr(error)
            with self.lock:
                self.slowest = max(self.slowest, time.monotonic() - started)
                if problem:
                    self.wrong.append(problem)
                else:
                    self.right += 1
            number += 1

    def end(self):
        """Stops, and fails the test if a request failed."""
        self.stop.set()
        for running in self.running:
            running.result()
        self.pool.shutdown()
        if self.wrong:
            sys.exit(f"{len(self.wrong)} of {self.right + len(self.wrong)} requests failed, such as: {self.wrong[:3]}")
        return f"{self.right} requests, none failed, the slowest took {self.slowest:.1f} s"


def check_containers():
    """Checks that no container runs as root, has a writable root file system, or has a capability."""
    for service in ("gateway", *REPLICAS, "nats"):
        about = json.loads(run("docker", "inspect", containers(service)[0]))[0]
        host = about["HostConfig"]
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"], service
        assert about["Config"]["User"] not in ("", "0", "root", "0:0"), service
    for service in ("gateway", *REPLICAS):
        size = json.loads(run("docker", "image", "inspect", f"{PROJECT}-{service}"))[0]["Size"] / 1e6
        # Programs are twice as large here as with the release profile; the gateway has the libraries of Parquet and Arrow.
        limit = {"model": 200, "gateway": 190}.get(service, 150)
        assert size < limit, f"image {service}: {size:.0f} MB, expected less than {limit}"
        IMAGE_SIZES[service] = f"{size:.0f} MB"


def memory():
    """The resource use of each service's first container, from the container runtime."""
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
    """Kills a container of each stage; requests still succeed."""
    for service in REPLICAS:
        before = load.right
        run("docker", "kill", containers(service)[0])
        give_up = time.monotonic() + 60
        while load.right < before + 20 and not load.wrong and time.monotonic() < give_up:
            time.sleep(0.1)
        assert load.right >= before + 20 or load.wrong, f"no answers after a {service} was killed"
        say(f"killed a container of {service} under load")


def check_ends():
    """Checks that each service was stopped in order, and that NATS refused it no command."""
    for service in ("gateway", *REPLICAS):
        for container in compose("ps", "-a", "-q", service).split():
            code = json.loads(run("docker", "inspect", container))[0]["State"]["ExitCode"]
            assert code in (0, 137), f"{service} ended with code {code}"
        logs = compose("logs", service)
        assert "NATS reported an error" not in logs, f"NATS refused something to {service}:\n{logs[-3000:]}"
        assert '"stopped"' in logs, f"{service} was not stopped in order:\n{logs[-3000:]}"


def cluster_leader(broker):
    """The leader of the cluster of brokers, according to one of them."""
    told = run("docker", "exec", containers(broker)[0], "wget", "-q", "-O", "-", "http://127.0.0.1:8222/jsz")
    return json.loads(told)["meta_cluster"].get("leader")


def check_merged():
    """The combination of the two compose files: every service knows all brokers, and brokers differ only in their
    data."""
    urls = ",".join(f"nats://{broker}:4222" for broker in BROKERS)
    compose(*CLUSTER, "up", "--no-start", "--no-build")
    for service in ("gateway", *REPLICAS):
        about = json.loads(run("docker", "inspect", compose(*CLUSTER, "ps", "-a", "-q", service).split()[0]))[0]
        assert f"TRIREME_NATS_URL={urls}" in about["Config"]["Env"], service
    first, *others = [json.loads(run("docker", "inspect", containers(broker)[0]))[0] for broker in BROKERS]
    for other in others:
        for field in ("Image", "User", "Healthcheck", "StopSignal"):
            assert other["Config"][field] == first["Config"][field], f"{other['Name']}: {field}"
        differ = {entry.split("=")[0] for entry in set(other["Config"]["Env"]) ^ set(first["Config"]["Env"])}
        assert differ == {"BROKER_NAME"}, f"{other['Name']}: {differ}"
        for field in ("ReadonlyRootfs", "CapDrop", "SecurityOpt", "Memory", "PidsLimit", "RestartPolicy"):
            assert other["HostConfig"][field] == first["HostConfig"][field], f"{other['Name']}: {field}"
    mounts = [mount for about in (first, *others) for mount in about["Mounts"] if mount["Destination"] == "/data"]
    assert len({mount["Name"] for mount in mounts}) == len(BROKERS), mounts


def check_cluster():
    """The three brokers of docker-compose.cluster.yml form a cluster; when one is killed or stopped, the others go
    on."""
    compose(*CLUSTER, "up", "-d", "--no-build", *BROKERS)
    until_healthy(dict.fromkeys(BROKERS, 1))
    check_merged()
    leader = cluster_leader("nats")
    assert leader in BROKERS, leader
    rest = [broker for broker in BROKERS if broker != leader]
    run("docker", "kill", containers(leader)[0])
    give_up = time.monotonic() + 60
    while (found := cluster_leader(rest[0])) not in rest:
        assert time.monotonic() < give_up, f"{leader} was killed, and the cluster's leader is {found}"
        time.sleep(0.5)
    say(f"{leader} led the cluster and was killed; {found} leads it now")
    compose(*CLUSTER, "up", "-d", "--no-build", *BROKERS)
    until_healthy(dict.fromkeys(BROKERS, 1))
    stopped = containers(found)[0]
    compose(*CLUSTER, "stop", found)
    code = json.loads(run("docker", "inspect", stopped))[0]["State"]["ExitCode"]
    assert code == 0, f"a broker that was stopped in order ended with code {code}"
    until_healthy({broker: 1 for broker in BROKERS if broker != found})


def test():
    """All checks, in order."""
    with tempfile.TemporaryDirectory(prefix=f"{PROJECT}-") as scratch:
        build(pathlib.Path(scratch))
        check()


def check():
    """All checks of the built images, in order."""
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
    down()
    with phase("three brokers: together, one killed, one stopped"):
        check_cluster()
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
    """Allows one run at a time on a machine, because runs use the same names of containers and images."""
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
    """Checks that a docker daemon answers and has enough disk space."""
    info = subprocess.run(["docker", "info", "--format", "{{.DockerRootDir}}"], text=True, capture_output=True, check=False, timeout=60)
    if info.returncode != 0:
        raise Skipped("no docker daemon answers (`docker info`)")
    folder = pathlib.Path(info.stdout.strip())
    if folder.is_dir() and (free := shutil.disk_usage(folder).free) < DISK_NEEDED:
        raise Skipped(f"{folder} has {free >> 30} GB left, the images need {DISK_NEEDED >> 30}")


def check_containers_run():
    """Checks that the daemon may start containers; on some machines it may not."""
    image = ENVIRONMENT.get("RUNTIME_IMAGE", "debian:bookworm-slim")
    tried = subprocess.run(["docker", "run", "--rm", image, "true"], text=True, capture_output=True, check=False, timeout=300)
    if tried.returncode != 0:
        raise Skipped(f"docker cannot run {image} here: {tried.stderr.strip()}")


def down():
    """Removes the containers, networks and volumes of a run: this one, or one that was killed."""
    compose(*CLUSTER, "down", "--volumes", "--remove-orphans", "--timeout", "5")


def main():
    """Skips the test if there is no docker; leaves no container running."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    try:
        if shutil.which("docker") is None or COMPOSE is None:
            raise Skipped("docker, with its compose plugin or docker-compose, is not installed")
        check_docker()
        # Free ports, and names that differ from those of the user's own images and containers.
        ENVIRONMENT.update({f"TRIREME_{name}_PORT": "0" for name in ("HTTP", "GRPC", "METRICS")})
        ENVIRONMENT.update({"COMPOSE_PROJECT_NAME": PROJECT, "TRIREME_IMAGE_PREFIX": PROJECT})
        ENVIRONMENT.setdefault("CARGO_PROFILE", "unoptimized")
        # On a busy machine docker-compose needs longer than its default of 60 s; hints are for interactive use.
        ENVIRONMENT.update({"COMPOSE_HTTP_TIMEOUT": "600", "DOCKER_CLI_HINTS": "false"})
        # Docker compose has BuildKit even if docker does not: with two builders everything would be built twice.
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
