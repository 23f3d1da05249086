"""Clients of durable work for `make bench-bulk`: batches and `trireme bulk` over files, live requests at a rate, and many durable requests at
once."""

import http.client
import json
import queue
import selectors
import socket
import subprocess
import threading
import time

from servers import DIRECT, BenchError

ENDPOINT = "/v1/embeddings"
PATIENCE_SECONDS = 600
LIVE_THREADS = 64


def ask(deployment, method, path, body=b"", headers=None):
    """One request; returns the answer's JSON. An error of the server ends the benchmark."""
    connection = http.client.HTTPConnection("127.0.0.1", deployment.port, timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status >= 300:
        raise BenchError(f"{deployment.name}: {method} {path} was answered {answer.status}: {content[:500]!r}")
    return json.loads(content)


# === Batches ===


def write_lines(path, model, texts, count):
    """A file of `count` lines for a batch, which goes through the texts again and again."""
    bodies = [json.dumps({"model": model, "input": text}) for text in texts]
    with open(path, "w") as file:
        for number in range(count):
            body = bodies[number % len(bodies)]
            file.write(f'{{"custom_id":"{number}","method":"POST","url":"{ENDPOINT}","body":{body}}}\n')


def upload(deployment, path, headers=None):
    edge = "edge-of-the-parts"
    head = f'--{edge}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{edge}\r\nContent-Disposition: '
    head += 'form-data; name="file"; filename="lines.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n'
    body = head.encode() + path.read_bytes() + f"\r\n--{edge}--\r\n".encode()
    return ask(deployment, "POST", "/v1/files", body, {"Content-Type": f"multipart/form-data; boundary={edge}", **(headers or {})})["id"]


def begin_batch(deployment, file, headers=None):
    body = json.dumps({"input_file_id": file, "endpoint": ENDPOINT, "completion_window": "24h"})
    return ask(deployment, "POST", "/v1/batches", body.encode(), headers)["id"]


def batch(deployment, id, headers=None):
    return ask(deployment, "GET", f"/v1/batches/{id}", headers=headers)


def cancel_batch(deployment, id, headers=None):
    ask(deployment, "POST", f"/v1/batches/{id}/cancel", headers=headers)
    wait_batch(deployment, id, headers)


def wait_batch(deployment, id, headers=None):
    """The record of a batch that has ended."""
    until = time.monotonic() + PATIENCE_SECONDS
    while (found := batch(deployment, id, headers))["status"] not in ("completed", "failed", "expired", "cancelled"):
        if time.monotonic() > until:
            raise BenchError(f"{deployment.name}: batch {id} has not ended after {PATIENCE_SECONDS} s: {found}")
        time.sleep(0.05)
    return found


def run_batch(deployment, path, count):
    """Lines per second from the acceptance of a batch to its end. Its file is there before."""
    file = upload(deployment, path)
    begun, cpu = time.monotonic(), deployment.cpu()
    found = wait_batch(deployment, begin_batch(deployment, file))
    elapsed, after = time.monotonic() - begun, deployment.cpu()
    if found["status"] != "completed" or found["request_counts"]["completed"] != count:
        raise BenchError(f"{deployment.name}: a batch of {count} lines ended as {found['status']}: {found['request_counts']}")
    cpu_us = 1e6 * sum(after[stage] - cpu[stage] for stage in after) / count
    return {"texts_per_second": count / elapsed, "cpu_us": cpu_us}


def embed_file(trireme, deployment, model, texts, count):
    """Seconds of `trireme bulk` over a file of so many texts, from the command to its end."""
    output = texts.with_name("vectors.jsonl")
    for left in texts.parent.glob(f"{output.name}*"):
        left.unlink()
    argv = [trireme, "bulk", texts, output, "--model", model, "--server", f"http://{deployment.address}"]
    begun = time.monotonic()
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True)
    elapsed = time.monotonic() - begun
    if done.returncode:
        raise BenchError(f"trireme bulk failed on {deployment.name}: {done.stderr.strip()[-500:]}")
    with open(output, "rb") as file:
        written = sum(1 for _ in file)
    if written != count:
        raise BenchError(f"trireme bulk wrote {written} lines for {count} texts")
    return elapsed


def lines_done(metrics_port):
    """Lines that the gateway's batches have run so far."""
    with DIRECT.open(f"http://127.0.0.1:{metrics_port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("trireme_jobs_lines_total{"))


# === Live requests ===


class Live:
    """Live requests of one text each, sent at a rate whatever the answers do. A latency counts from the time at which its request was due."""

    def __init__(self, deployment, model, texts, rate, headers=None):
        self.deployment, self.rate = deployment, rate
        self.headers = {"Content-Type": "application/json", **(headers or {})}
        self.bodies = [json.dumps({"model": model, "input": text, "encoding_format": "base64"}).encode() for text in texts]
        self.due, self.latencies, self.failed = queue.SimpleQueue(), [], []

    def run(self, seconds):
        threads = [threading.Thread(target=self.client) for _ in range(LIVE_THREADS)]
        for thread in threads:
            thread.start()
        begun = time.perf_counter()
        for number in range(int(self.rate * seconds)):
            due = begun + number / self.rate
            time.sleep(max(0, due - time.perf_counter()))
            self.due.put((due, self.bodies[number * 7 % len(self.bodies)]))
        for _ in threads:
            self.due.put(None)
        for thread in threads:
            thread.join()
        if self.failed:
            raise BenchError(f"{self.deployment.name}: {len(self.failed)} live requests failed, such as: {self.failed[0]}")
        ordered = sorted(self.latencies)
        at = lambda share: 1e3 * ordered[min(int(len(ordered) * share), len(ordered) - 1)]
        return {"per_second": len(ordered) / (time.perf_counter() - begun), "p50_ms": at(0.5), "p99_ms": at(0.99)}

    def client(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.deployment.port, timeout=60)
        while (item := self.due.get()) is not None:
            due, body = item
            try:
                connection.request("POST", ENDPOINT, body, self.headers)
                answer = connection.getresponse()
                content = answer.read()
                if answer.status != 200:
                    self.failed.append(f"{answer.status} {content[:300]!r}")
            except OSError as error:
                self.failed.append(repr(error))
                connection.close()
            self.latencies.append(time.perf_counter() - due)
        connection.close()


# === Durable requests ===


def accept_many(deployment, path, body, count, connections, seen=lambda done: None):
    """Sends durable requests, one in flight on each connection, until `count` are accepted. Returns how many were accepted per
    second. `seen` hears of each thousand."""
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nPrefer: respond-async\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    waiting = selectors.DefaultSelector()
    for _ in range(connections):
        connection = socket.create_connection(("127.0.0.1", deployment.port), timeout=60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waiting.register(connection, selectors.EVENT_READ, bytearray())
    begun, sent, done = time.perf_counter(), 0, 0
    for key in list(waiting.get_map().values()):
        key.fileobj.sendall(request)
        sent += 1
    while done < count:
        ready = waiting.select(timeout=60)
        if not ready:
            raise BenchError(f"{deployment.name}: {sent - done} durable requests had no answer for 60 s")
        for key, _ in ready:
            if not read_accepted(deployment, key.fileobj, key.data):
                continue
            done += 1
            if done % 1000 == 0:
                seen(done)
            if sent < count:
                key.fileobj.sendall(request)
                sent += 1
            else:
                waiting.unregister(key.fileobj)
                key.fileobj.close()
    return {"accepted_per_second": count / (time.perf_counter() - begun)}


def read_accepted(deployment, connection, received):
    """Reads from a connection; returns whether an answer is complete. Anything but 202 ends the benchmark."""
    received += connection.recv(65536)
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = bytes(received[:end]).decode().lower()
    length = next((int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
    if len(received) < end + 4 + length:
        return False
    if not head.startswith("http/1.1 202"):
        raise BenchError(f"{deployment.name}: a durable request was answered {bytes(received[:800])!r}")
    received.clear()
    return True
