#!/usr/bin/env python3
"""A closed-loop load generator for servers with OpenAI's route for embeddings: the same for Trireme and its peers.

Each of N connections sends a request of one text, waits for the answer, and sends the next, for a fixed time. The requests are made
before the clock starts, and an answer is only looked at as far as its status and its length. The generator prints one JSON object, with
its own CPU time per request, because on a shared machine that time affects the result. A failed request ends it with an error.
"""

import argparse
import json
import selectors
import socket
import sys
import time
from pathlib import Path

PATIENCE_SECONDS = 120


def requests(options, texts):
    """A whole HTTP request for each text, with the vector asked for in base64, as OpenAI's own client does."""
    made = []
    for text in texts:
        body = json.dumps({"model": options.model, "input": text, "encoding_format": "base64"}).encode()
        head = f"POST {options.path} HTTP/1.1\r\nHost: {options.server}\r\nContent-Type: application/json\r\n"
        made.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return made


class Client:
    """One connection with one request in flight."""

    def __init__(self, options, made, first):
        host, port = options.server.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.made, self.next = made, first
        self.received, self.wanted = bytearray(), None

    def send(self):
        self.received.clear()
        self.wanted = None
        self.sent = time.perf_counter()
        self.socket.sendall(self.made[self.next % len(self.made)])
        self.next += 1

    def read(self):
        """Reads what has come; returns whether the answer is complete."""
        part = self.socket.recv(65536)
        if not part:
            sys.exit(f"openai_load: the server closed a connection after {bytes(self.received[:300])!r}")
        self.received += part
        if self.wanted is None:
            end = self.received.find(b"\r\n\r\n")
            if end < 0:
                return False
            self.wanted = end + 4 + content_length(bytes(self.received[:end]))
        if len(self.received) < self.wanted:
            return False
        if not self.received.startswith(b"HTTP/1.1 200") or b'"embedding"' not in self.received:
            sys.exit(f"openai_load: a request was answered {bytes(self.received[:800])!r}")
        return True


def content_length(head):
    for line in head.split(b"\r\n"):
        if line[:15].lower() == b"content-length:":
            return int(line[15:])
    sys.exit(f"openai_load: an answer has no Content-Length: {head[:300]!r}")


def load(options, made, seconds):
    """Loads the server for so long; returns the latencies in seconds and the time that all took."""
    waiting, latencies = selectors.DefaultSelector(), []
    count = options.concurrency
    # Clients start at different texts, so that they do not all send the same at once.
    clients = [Client(options, made, number * len(made) // count) for number in range(count)]
    begun = time.perf_counter()
    until = begun + seconds
    for client in clients:
        waiting.register(client.socket, selectors.EVENT_READ, client)
        client.send()
    running = count
    while running:
        ready = waiting.select(PATIENCE_SECONDS)
        if not ready:
            sys.exit(f"openai_load: {running} requests had no answer for {PATIENCE_SECONDS} s")
        for key, _ in ready:
            client = key.data
            if not client.read():
                continue
            now = time.perf_counter()
            latencies.append(now - client.sent)
            if now < until:
                client.send()
                continue
            waiting.unregister(client.socket)
            client.socket.close()
            running -= 1
    return latencies, time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="HOST:PORT")
    parser.add_argument("--path", default="/v1/embeddings")
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", required=True, help="file of a JSON list of texts")
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warmup-seconds", type=float, default=1)
    options = parser.parse_args()
    made = requests(options, json.loads(Path(options.texts).read_text()))
    before, _ = load(options, made, options.warmup_seconds)
    cpu = time.process_time()
    latencies, elapsed = load(options, made, options.seconds)
    cpu = time.process_time() - cpu
    latencies.sort()
    at = lambda share: 1e3 * latencies[min(int(len(latencies) * share), len(latencies) - 1)]
    print(json.dumps({
        "concurrency": options.concurrency, "requests_per_second": len(latencies) / elapsed, "p50_ms": at(0.5), "p99_ms": at(0.99),
        "max_ms": at(1), "client_cpu_us": 1e6 * cpu / len(latencies), "requests": len(before) + len(latencies),
    }))


if __name__ == "__main__":
    main()
