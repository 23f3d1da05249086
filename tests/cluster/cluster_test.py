#!/usr/bin/env python3
"""`make cluster-test`: three brokers with the shipped configuration form a cluster, and it behaves as
docs/deployment.md says.

The brokers are processes on this machine. Their configuration is deploy/nats/cluster.conf with the output of deploy/setup.sh;
only addresses differ, because three brokers on one machine cannot share their ports. No service of Trireme runs here: the
test speaks the NATS protocol itself, as the users of deploy/nats/users.conf.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVER = os.environ.get("TRIREME_NATS_SERVER", str(ROOT / ".tools" / "nats-server" / "nats-server"))
NAMES = ("nats", "nats-2", "nats-3")
# The queue of the demo's encoder: deploy/nats/users.conf lets gateways create it.
QUEUE, SUBJECT = "trireme_work_minilm_1", "trireme.work.minilm.1.0"
# How long any step that the cluster does by itself may take, on a busy machine.
LIMIT = 60
LAME_DUCK_LIMIT = 40
STARTED = time.monotonic()


def say(text):
    """Prints one line of progress."""
    print(f"==> [{time.monotonic() - STARTED:4.0f}s] {text}", flush=True)


def until(what, condition, limit=LIMIT):
    """Waits until a condition holds; returns its value and the duration in seconds."""
    started = time.monotonic()
    while not (value := condition()):
        if time.monotonic() - started > limit:
            sys.exit(f"not within {limit} s: {what}")
        time.sleep(0.05)
    return value, time.monotonic() - started


def free_port():
    """A port that is free at the moment."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


# === Configuration ===


def compose_secrets(folder):
    """The output of deploy/setup.sh for a deployment by compose: the folder that brokers mount as secrets."""
    users = ("gateway", "tokenizer", "model", "postprocess", "python", "admin")
    for path in (*(f"secrets/{user}" for user in users), "secrets/nats", "data", "data-1", "data-2", "data-3", "demo", "models"):
        (folder / path).mkdir(parents=True)

    def run():
        subprocess.run(["sh", ROOT / "deploy" / "setup.sh"], env={**os.environ, "SETUP_ROOT": str(folder)}, check=True)
        return {path.name: path.read_text() for path in (folder / "secrets" / "nats").iterdir()}

    made = run()
    assert run() == made, "deploy/setup.sh changed a password when it was run again"
    return made


def kubernetes_secrets():
    """The files of the Secret for brokers that deploy/kubernetes/secrets.sh creates."""
    text = subprocess.run([ROOT / "deploy" / "kubernetes" / "secrets.sh"], text=True, capture_output=True, check=True).stdout
    files = text.split("name: trireme-nats-passwords")[1]
    found = re.findall(r"^  (\S+\.conf): \|\n((?:    .*\n)+)", files, re.MULTILINE)
    return {name: re.sub("^    ", "", lines, flags=re.MULTILINE) for name, lines in found}


def write_configuration(folder, secrets):
    """The configuration of a broker: the shipped files, and the secrets."""
    (folder / "secrets").mkdir(parents=True)
    for name in ("nats-server.conf", "users.conf", "cluster.conf"):
        shutil.copy(ROOT / "deploy" / "nats" / name, folder)
    for name, text in secrets.items():
        (folder / "secrets" / name).write_text(text)


def check_configuration(folder):
    """Checks that the broker accepts the configuration."""
    done = subprocess.run([SERVER, "--config", folder / "cluster.conf", "-t"], env={**os.environ, "BROKER_NAME": "x"}, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"nats-server refuses the shipped configuration: {done.stdout}{done.stderr}")


# === Brokers ===


class Broker:
    """One nats-server of the cluster."""

    def __init__(self, name, folder, ports, store):
        self.name, self.folder, self.store = name, folder, store
        self.client, self.route, self.monitor = ports
        self.process = None

    def start(self, empty=False):
        """Starts it; `empty` means without data, as on a new machine."""
        if empty:
            shutil.rmtree(self.store, ignore_errors=True)
        ports = ["--addr", "127.0.0.1", "--port", str(self.client), "--http_port", str(self.monitor)]
        command = [SERVER, "--config", self.folder / "cluster.conf", "--store_dir", self.store, *ports]
        with open(self.store.with_suffix(".log"), "a", encoding="utf-8") as log:
            # A session of its own, so that ^C reaches only the test, which then ends the brokers.
            environment = {**os.environ, "BROKER_NAME": self.name}
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def kill(self):
        """Ends it with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def signal(self, number):
        """Sends it a signal."""
        self.process.send_signal(number)

    def ask(self, path):
        """The answer of its monitor, or None."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with contextlib.suppress(OSError, urllib.error.URLError, json.JSONDecodeError):
            with direct.open(f"http://127.0.0.1:{self.monitor}{path}", timeout=2) as answer:
                return json.load(answer)
        return None

    def healthy(self):
        """Whether it knows the cluster's leader and is current in all of its streams."""
        return (self.ask("/healthz") or {}).get("status") == "ok"

    def meta(self):
        """Its view of the cluster: leader, size."""
        return (self.ask("/jsz") or {}).get("meta_cluster", {})


def brokers(folder, secrets):
    """Three brokers, each with the shipped configuration and addresses of its own."""
    ports = {name: (free_port(), free_port(), free_port()) for name in NAMES}
    routes = secrets["routes.conf"]
    for name in NAMES:
        assert routes.count(f"@{name}:6222") == 1, f"deploy/setup.sh names no route to {name}"
        routes = routes.replace(f"@{name}:6222", f"@127.0.0.1:{ports[name][1]}")
    made = []
    for name in NAMES:
        place = folder / name
        write_configuration(place, {**secrets, "routes.conf": routes})
        shipped = (place / "cluster.conf").read_text()
        assert shipped.count("port: 6222") == 1
        (place / "cluster.conf").write_text(shipped.replace("port: 6222", f'listen: "127.0.0.1:{ports[name][1]}"'))
        made.append(Broker(name, place, ports[name], folder / f"{name}-data"))
    return made


# === NATS ===


class Client:
    """A connection to a broker as one of its users; asks one question at a time."""

    def __init__(self, port, user, password):
        self.user, self.asked = user, 0
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.reader = self.socket.makefile("rb")
        self.reader.readline()
        options = {"user": user, "pass": password, "verbose": False, "pedantic": False, "headers": True, "lang": "test", "version": "0"}
        self.send(f"CONNECT {json.dumps(options)}\r\nSUB _INBOX.{user}.test.* 1\r\nPING\r\n".encode())
        line = self.reader.readline()
        if line != b"PONG\r\n":
            raise ConnectionError(f"{user}: {line.decode()}")

    def send(self, data):
        """Sends bytes."""
        self.socket.sendall(data)

    def close(self):
        """Ends the connection."""
        self.reader.close()
        self.socket.close()

    def request(self, subject, body="", timeout=5.0, header=""):
        """The answer to a request, or None; the broker's error if it refuses the request."""
        self.asked += 1
        reply = f"_INBOX.{self.user}.test.{self.asked}"
        give_up = time.monotonic() + timeout
        sizes = f"{len(header)} {len(header) + len(body)}" if header else len(body)
        self.send(f"{'HPUB' if header else 'PUB'} {subject} {reply} {sizes}\r\n{header}{body}\r\n".encode())
        while (left := give_up - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                line = self.reader.readline().decode()
            except TimeoutError:
                return None
            words = line.split()
            if not words:
                raise ConnectionError("the broker closed the connection")
            if words[0] == "PING":
                self.send(b"PONG\r\n")
            elif words[0] == "-ERR":
                return {"refused": line}
            elif words[0] in ("MSG", "HMSG"):
                data = self.reader.read(int(words[-1]) + 2)[:-2]
                if words[1] == reply:
                    return json.loads(data) if words[0] == "MSG" else {"status": data.decode()}
        return None


class Cluster:
    """The brokers, the passwords of their users, and the requests of the test."""

    def __init__(self, brokers_of_it, passwords):
        self.brokers, self.passwords = brokers_of_it, passwords

    def broker(self, name):
        """The broker with this name."""
        return next(broker for broker in self.brokers if broker.name == name)

    def client(self, user, broker=None):
        """A connection as a user, to any broker that accepts it."""
        for choice in [broker] if broker else self.brokers:
            with contextlib.suppress(OSError):
                return Client(choice.client, user, self.passwords[user])
        return None

    def ask(self, subject, body="", user="gateway", timeout=1.0):
        """One request over a connection of its own, to the first broker that answers it; None if none does."""
        for broker in self.brokers:
            with contextlib.suppress(OSError):
                client = Client(broker.client, user, self.passwords[user])
                try:
                    answer = client.request(subject, body, timeout)
                finally:
                    client.close()
                if answer is not None and "error" not in answer and "status" not in answer:
                    return answer
        return None

    def put(self, name):
        """Publishes one message, with an id so that it counts only once; returns whether the brokers confirm it."""
        header = f"NATS/1.0\r\nNats-Msg-Id: {name}\r\n\r\n"
        for broker in self.brokers:
            with contextlib.suppress(OSError):
                client = Client(broker.client, "gateway", self.passwords["gateway"])
                try:
                    answer = client.request(SUBJECT, "work", 1.0, header)
                finally:
                    client.close()
                # A broker without a leader for the queue answers at once (status 503), and other brokers would answer
                # the same.
                if answer is not None:
                    return "seq" in answer and "error" not in answer
        return False

    def messages(self):
        """Number of messages in the queue; None if unknown."""
        answer = self.ask(f"$JS.API.STREAM.INFO.{QUEUE}")
        return answer["state"]["messages"] if answer else None

    def leader(self):
        """The broker that leads the queue; None if there is none."""
        answer = self.ask(f"$JS.API.STREAM.INFO.{QUEUE}")
        name = answer and answer["cluster"].get("leader")
        return self.broker(name) if name else None

    def whole(self):
        """Whether all brokers are up and current, and the queue has its leader and two current followers."""
        if not all(broker.healthy() for broker in self.brokers):
            return False
        answer = self.ask(f"$JS.API.STREAM.INFO.{QUEUE}")
        followers = answer["cluster"].get("replicas", []) if answer else []
        return len(followers) == 2 and all(follower["current"] and not follower.get("offline") for follower in followers)


# === Checks ===


def check_forming(cluster):
    """Three brokers form a cluster under one leader."""
    for broker in cluster.brokers:
        broker.start()
    _, seconds = until("three brokers are healthy", lambda: all(broker.healthy() for broker in cluster.brokers))
    leaders = {broker.meta().get("leader") for broker in cluster.brokers}
    assert len(leaders) == 1 and leaders <= set(NAMES), f"leaders of the cluster: {leaders}"
    sizes = {broker.meta()["cluster_size"] for broker in cluster.brokers}
    assert sizes == {3}, f"sizes of the cluster: {sizes}"
    say(f"three brokers are one cluster after {seconds:.1f} s, led by {leaders.pop()}")


def check_routes(cluster):
    """A broker without the route password cannot join the cluster."""
    broker = cluster.brokers[0]
    with socket.create_connection(("127.0.0.1", broker.route), timeout=5) as intruder:
        reader = intruder.makefile("rb")
        reader.readline()
        options = {"user": "route", "pass": "guessed", "name": "intruder", "cluster": "trireme", "verbose": False}
        intruder.sendall(f"CONNECT {json.dumps(options)}\r\nPING\r\n".encode())
        answers = reader.read().decode()
        assert "Authorization Violation" in answers, f"a route with a wrong password is answered {answers!r}"
    say("a route with a wrong password is refused")


def check_users(cluster):
    """The users of users.conf have the same permissions as on a single broker; the system's user is for the cluster
    only."""
    system = cluster.client("system")
    answer = system.request("$JS.API.SERVER.REMOVE", json.dumps({"peer": "nobody"}))
    assert answer and "error" in answer and "description" in answer["error"], f"$JS.API.SERVER.REMOVE: {answer}"
    system.close()
    gateway = cluster.client("gateway")
    answer = gateway.request("$JS.API.INFO")
    assert answer and "error" not in answer, f"a gateway asks for JetStream's limits: {answer}"
    answer = gateway.request("$JS.API.SERVER.REMOVE", json.dumps({"peer": "nobody"}))
    assert "refused" in answer, f"a gateway may remove a broker: {answer}"
    gateway.close()
    say("the system's user may remove brokers, a gateway may not")


def check_reload(cluster):
    """A broker reads its users again at a signal: a new user may connect, and no connection is closed."""
    broker = cluster.brokers[0]
    client = cluster.client("gateway", broker)
    users, log = broker.folder / "users.conf", broker.store.with_suffix(".log")
    users.write_text(users.read_text().replace("user: gateway,", 'user: newcomer, password: "new" }\n    { user: gateway,', 1))
    cluster.passwords["newcomer"] = "new"
    assert cluster.client("newcomer", broker) is None, "a user may connect before the broker was told of it"
    broker.signal(signal.SIGHUP)
    newcomer, _ = until(f"the broker knows a new user (see {log.name})", lambda: cluster.client("newcomer", broker))
    newcomer.close()
    assert client.request("$JS.API.INFO"), "a gateway's connection did not outlive the reload"
    client.close()
    say("a broker reads its users again without a restart")


def check_queue(cluster):
    """A gateway creates a queue with three replicas."""
    config = {
        "name": QUEUE, "subjects": ["trireme.work.minilm.1.*"], "retention": "workqueue", "storage": "memory", "num_replicas": 3,
        "discard": "new", "max_msgs": 10000, "duplicate_window": 15_000_000_000, "allow_msg_ttl": True,
    }  # fmt: skip
    made = cluster.ask(f"$JS.API.STREAM.CREATE.{QUEUE}", json.dumps(config), timeout=10)
    assert made and made["config"]["num_replicas"] == 3, f"a queue with three replicas: {made}"
    for number in range(100):
        until("a message is confirmed", lambda n=number: cluster.put(f"first-{n}"))
    until("the queue has three current replicas", cluster.whole)
    assert cluster.messages() == 100
    say("a gateway has made a queue with three replicas")


def check_loss(cluster, what, strike, heal):
    """Injects a fault into the queue's leader: the others take over, and no confirmed message is lost. A stop in order
    publishes one message more."""
    before, leader = cluster.messages(), cluster.leader()
    strike(leader)
    name = f"{what}-{time.monotonic()}"
    _, away = until(f"a message is confirmed, {what}", lambda: cluster.put(name))
    until("nothing is lost", lambda: (cluster.messages() or 0) > before)
    heal(leader)
    _, back = until(f"the cluster is whole again, {what}", cluster.whole)
    assert before < cluster.messages() <= before + 2, f"{what}: {cluster.messages()} messages, there were {before}"
    say(f"{what}: work is confirmed again after {away:.1f} s, whole again {back:.1f} s after it came back")


def lame_duck(cluster, leader):
    """Stops a broker as deployments do: in order, and then with a second signal, which must not shorten the stop."""
    client = cluster.client("gateway", leader)
    told = time.monotonic()
    leader.signal(signal.SIGUSR2)
    # Early, because the broker ends five seconds after the first signal, and this machine may be busy.
    time.sleep(0.3)
    leader.signal(signal.SIGTERM)
    time.sleep(0.3)
    assert leader.process.poll() is None, "a broker that was told twice to stop did not wait for its clients"
    _, confirmed = until("a message is confirmed while the leader stops", lambda: cluster.put("lame-duck"))
    until("a broker in lame duck mode ends", lambda: leader.process.poll() is not None, LAME_DUCK_LIMIT)
    assert leader.process.returncode == 0, f"the broker ended with {leader.process.returncode}"
    client.close()
    say(f"a broker that is stopped in order: work is confirmed after {confirmed:.1f} s, it ends after {time.monotonic() - told:.1f} s")


def check_two_away(cluster):
    """Without two of three brokers no message is confirmed; after their return, no confirmed message is lost."""
    before = cluster.messages()
    for broker in cluster.brokers[:2]:
        broker.kill()
    time.sleep(1)
    assert not any(cluster.put("nobody-confirms") for _ in range(3)), "one broker of three confirmed a message"
    for broker in cluster.brokers[:2]:
        broker.start()
    until("the cluster is whole after two were away", cluster.whole)
    until("work is confirmed again", lambda: cluster.put("after-two"))
    # Messages that were not confirmed may still have been stored.
    assert before < cluster.messages() <= before + 2, f"two were away: {cluster.messages()} messages, there were {before}"
    say("two of three away: nothing is confirmed, and nothing is lost when they are back")


def test(folder):
    """All checks, in order."""
    secrets = compose_secrets(folder / "compose")
    for name, files in (("compose", secrets), ("kubernetes", kubernetes_secrets())):
        assert {"passwords.conf", "routes.conf"} <= set(files), f"{name}: {sorted(files)}"
        write_configuration(folder / f"{name}-checked", files)
        check_configuration(folder / f"{name}-checked")
    text = secrets["passwords.conf"] + secrets["routes.conf"]
    passwords = {user.lower(): password for user, password in re.findall(r'^([A-Z]+)_PASSWORD: "([0-9a-f]{64})"$', text, re.MULTILINE)}
    cluster = Cluster(brokers(folder, secrets), passwords)
    try:
        check_forming(cluster)
        check_routes(cluster)
        check_users(cluster)
        check_reload(cluster)
        check_queue(cluster)
        check_loss(cluster, "the leader is killed", Broker.kill, Broker.start)
        check_loss(cluster, "the leader hangs", lambda b: b.signal(signal.SIGSTOP), lambda b: b.signal(signal.SIGCONT))
        check_loss(cluster, "the leader is replaced by an empty one", Broker.kill, lambda b: b.start(empty=True))
        check_loss(cluster, "the leader is stopped in order", lambda b: lame_duck(cluster, b), Broker.start)
        check_two_away(cluster)
    except BaseException:
        for broker in cluster.brokers:
            print(f"--- {broker.name}\n{broker.store.with_suffix('.log').read_text()[-3000:]}")
        raise
    finally:
        for broker in cluster.brokers:
            if broker.process and broker.process.poll() is None:
                broker.process.kill()
                broker.process.wait()


def main():
    """Skips the test if there is no nats-server."""
    if not shutil.which(SERVER):
        print(f"==> skipped: there is no {SERVER} (make setup fetches it, TRIREME_NATS_SERVER names another)")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    with tempfile.TemporaryDirectory(prefix="trireme-cluster-") as folder:
        test(pathlib.Path(folder))
    say("passed")


if __name__ == "__main__":
    main()
