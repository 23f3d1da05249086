#!/usr/bin/env python3
"""`make upgrade-test`: a deployment of one revision becomes one of another, process by process, while clients use it.

Two gateways and two workers of each stage run on one broker. In the order of docs/operations.md, gateways first and workers stage by
stage, a process of the new revision starts beside an old one and becomes ready, and the old one is told to stop. Meanwhile clients send
live requests, durable requests and a batch. At the end every answer has to be there, once, and be the same as before.
"""

import argparse
import collections
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVER = os.environ.get("TRIREME_NATS_SERVER", str(ROOT / ".tools" / "nats-server" / "nats-server"))
REPOSITORY = os.environ.get("TRIREME_DEMO_REPOSITORY", str(ROOT / ".tools" / "demo-repository"))
MODEL, TEXT = "sentence_embedding", "a text that is embedded again and again"
STAGES = ("tokenizer", "model", "postprocess")
# How long a step may take on a busy machine, in seconds.
LIMIT = 120
CLIENTS = 4
LINES = 3000
STARTED = time.monotonic()


def say(text):
    print(f"==> [{time.monotonic() - STARTED:4.0f}s] {text}", flush=True)


def until(what, condition):
    started = time.monotonic()
    while not (value := condition()):
        if time.monotonic() - started > LIMIT:
            sys.exit(f"not within {LIMIT} s: {what}")
        time.sleep(0.1)
    return value


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def call(port, method, path, body=None, headers=None):
    """Status and body of a request. `OSError` or `http.client.HTTPException`: there was no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request(method, path, body, {"content-type": "application/json"} | (headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Program:
    """A process of the deployment."""

    def __init__(self, folder, name, command):
        self.name, self.port = name, None
        self.ready_path = "/v2/health/ready" if name.startswith("gateway-") else "/readyz"
        self.log = folder / f"{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def wait_until_ready(self):
        def ready():
            if self.process.poll() is not None:
                sys.exit(f"{self.name} ended with {self.process.returncode}:\n{self.log.read_text()[-3000:]}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                return call(self.port, "GET", self.ready_path)[0] == 200
            return False

        until(f"{self.name} is ready", ready)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(LIMIT) != 0:
            sys.exit(f"{self.name} ended with {self.process.returncode}:\n{self.log.read_text()[-3000:]}")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Deployment:
    """The processes on one broker, and the clients' list of gateways."""

    def __init__(self, folder):
        self.folder, self.programs, self.gateways, self.count = folder, [], [], itertools.count()
        self.broker_port = free_port()
        command = [SERVER, "--addr", "127.0.0.1", "--port", str(self.broker_port), "--jetstream", "--store_dir", str(folder / "store")]
        self.programs.append(Program(folder, "nats", command))
        time.sleep(1)

    def start(self, programs, stage):
        """A process of the folder `programs`, which is ready."""
        port = free_port()
        command = [str(programs / f"trireme-{stage}"), "--nats-url", f"nats://127.0.0.1:{self.broker_port}", "--model-repository", REPOSITORY]
        if stage == "gateway":
            command += ["--http-address", "127.0.0.1", "--http-port", str(port), "--allow-grpc=false", "--allow-metrics=false"]
        else:
            command += ["--admin-address", f"127.0.0.1:{port}"]
        program = Program(self.folder, f"{stage}-{next(self.count)}", command)
        program.port = port
        self.programs.append(program)
        return program

    def end(self):
        for program in reversed(self.programs):
            program.kill()


class Clients:
    """Clients behind a load balancer: one that finds a gateway gone tries the other one."""

    def __init__(self, deployment, expected):
        self.deployment, self.expected = deployment, expected
        self.stopped, self.found, self.durable, self.lock = threading.Event(), collections.Counter(), [], threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(number,)) for number in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        for turn in itertools.count():
            if self.stopped.is_set():
                return
            is_durable = turn % 20 == 19
            headers = {"prefer": "respond-async", "idempotency-key": f"{number}-{turn}"} if is_durable else {}
            status, body = self.send("POST", "/v1/embeddings", request(), headers)
            with self.lock:
                if is_durable:
                    self.found["durable" if status == 202 else f"durable: status {status}: {body[:200]}"] += 1
                    if status == 202:
                        self.durable.append(json.loads(body)["id"])
                else:
                    self.found[self.judge(status, body)] += 1

    def judge(self, status, body):
        if status != 200:
            return f"status {status}: {body[:200]}"
        return "right" if vector(body) == self.expected else "wrong vector"

    def send(self, method, path, body=None, headers=None):
        give_up = time.monotonic() + LIMIT
        while time.monotonic() < give_up:
            for gateway in list(self.deployment.gateways):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    return call(gateway.port, method, path, body, headers)
            time.sleep(0.05)
        return 0, b"no gateway answered"

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join()


def request():
    return json.dumps({"model": MODEL, "input": TEXT})


def vector(body):
    return json.loads(body)["data"][0]["embedding"]


def upload(clients):
    """Begins a batch; its id."""
    line = {"method": "POST", "url": "/v1/embeddings", "body": {"model": MODEL, "input": TEXT}}
    lines = "".join(json.dumps({"custom_id": str(at)} | line) + "\n" for at in range(LINES))
    form = (
        '--edge\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--edge\r\ncontent-disposition: form-data; '
        f'name="file"; filename="lines.jsonl"\r\n\r\n{lines}\r\n--edge--\r\n'
    )
    status, file = clients.send("POST", "/v1/files", form, {"content-type": "multipart/form-data; boundary=edge"})
    assert status == 200, file
    batch = {"input_file_id": json.loads(file)["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
    status, batch = clients.send("POST", "/v1/batches", json.dumps(batch))
    assert status == 200, batch
    return json.loads(batch)["id"]


def roll(deployment, old, new):
    """Replaces every process, in the order of docs/operations.md."""
    for stage in ("gateway", *STAGES):
        for program in [program for program in deployment.programs if program.name.startswith(f"{stage}-")]:
            successor = deployment.start(new, stage)
            successor.wait_until_ready()
            if stage == "gateway":
                deployment.gateways.append(successor)
                deployment.gateways.remove(program)
            time.sleep(1)
            program.stop()
            deployment.programs.remove(program)
            say(f"{program.name} of {old} is replaced by {successor.name} of {new}")


def check(clients, batch):
    """The faults that clients have found."""
    faults = [f"{count} times {what}" for what, count in clients.found.items() if what not in ("right", "durable")]
    for identifier in clients.durable:
        path = f"/v1/requests/{identifier}/response"
        answer = until(f"the answer of {identifier}", lambda path=path: answered(clients.send("GET", path)))
        if clients.judge(*answer) != "right":
            faults.append(f"durable request {identifier}: {clients.judge(*answer)}")
    ended = until("the batch ends", lambda: ended_batch(clients.send("GET", f"/v1/batches/{batch}")))
    if ended["status"] != "completed" or ended["request_counts"]["completed"] != LINES:
        faults.append(f"the batch is {ended['status']}: {ended['request_counts']}")
    else:
        _, lines = clients.send("GET", f"/v1/files/{ended['output_file_id']}/content")
        lines = [json.loads(line) for line in lines.splitlines()]
        if [line["custom_id"] for line in lines] != [str(at) for at in range(LINES)]:
            faults.append("the batch's output has not each line once and in order")
        wrong = sum(line["response"]["body"]["data"][0]["embedding"] != clients.expected for line in lines)
        if wrong:
            faults.append(f"{wrong} lines of the batch have another vector")
    return faults


def answered(answer):
    return answer if answer[0] != 202 else None


def ended_batch(answer):
    batch = json.loads(answer[1])
    return batch if batch["status"] in ("completed", "failed", "expired", "cancelled") else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path, help="folder with the programs that run first")
    parser.add_argument("new", type=pathlib.Path, help="folder with the programs that replace them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        deployment = Deployment(pathlib.Path(folder))
        try:
            for stage in ("gateway", *STAGES) * 2:
                program = deployment.start(arguments.old, stage)
                if stage == "gateway":
                    deployment.gateways.append(program)
            for program in deployment.programs[1:]:
                program.wait_until_ready()
            status, body = call(deployment.gateways[0].port, "POST", "/v1/embeddings", request())
            assert status == 200, body
            clients = Clients(deployment, vector(body))
            try:
                batch = upload(clients)
                say("clients send requests, a batch runs")
                roll(deployment, arguments.old, arguments.new)
                time.sleep(3)
            finally:
                clients.stop()
            faults = check(clients, batch)
            say(f"{clients.found['right']} live and {len(clients.durable)} durable requests, {LINES} lines of a batch")
            if faults:
                sys.exit("\n".join(faults))
        finally:
            deployment.end()


if __name__ == "__main__":
    main()
