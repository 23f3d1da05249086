#!/usr/bin/env python3
"""Sends changed HTTP requests and gRPC calls to a gateway: each has to be answered, and the server has to live on.

    fuzz-server.py --http HOST:PORT --grpc HOST:PORT [--count N] [--threads N] [--seed N]

The server may serve any models; the requests name those of tests/repositories/basic. Begins with the examples in fuzz/corpus.
Exits with 1 at the first request that is not answered in time, or whose connection ends without an answer; the request is
written to fuzz/crashes. Needs grpcio, which .tools/python has.
"""

import argparse
import random
import socket
import sys
import threading
import time
from pathlib import Path

import grpc

FUZZ = Path(__file__).resolve().parent.parent / "fuzz"
PATIENCE_S = 20
HTTP_CORPUS = ["infer-json", "infer-binary", "generate", "control-json"]
PATHS = [
    "/v2/models/simple/infer",
    "/v2/models/identity_bytes/infer",
    "/v2/models/identity_bytes/generate",
    "/v2/models/identity_bytes/generate_stream",
    "/v2/models/simple/versions/1/infer",
    "/v2/models/tiny_embedding/infer",
    "/v2/repository/index",
    "/v2/repository/models/simple/load",
    "/v2/logging",
    "/v2/models/simple/trace/setting",
    "/v2/systemsharedmemory/region/x/register",
    "/v2/models/simple/config",
    "/v2/health/ready",
]
HEADERS = [
    b"Inference-Header-Content-Length: 20",
    b"Content-Encoding: gzip",
    b"Content-Encoding: deflate",
    b"Accept-Encoding: gzip;q=0.5, deflate",
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"Expect: 100-continue",
    b"Content-Type: application/x-www-form-urlencoded",
]
CALLS = ["ModelInfer", "ModelMetadata", "ModelConfig", "RepositoryIndex", "RepositoryModelLoad", "TraceSetting", "LogSettings"]
EDGES = b"\x00\x01\x7f\x80\xff\"{}[]\\-09e,:"


class Unanswered(Exception):
    """A request without an answer."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--http", required=True, metavar="HOST:PORT")
    parser.add_argument("--grpc", required=True, metavar="HOST:PORT")
    parser.add_argument("--count", type=int, default=10_000, help="requests over HTTP, and as many calls over gRPC")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    host, port = arguments.http.rsplit(":", 1)
    http = examples(HTTP_CORPUS)
    protobuf = examples(["infer-grpc"])
    statuses, failures, lock = {}, [], threading.Lock()

    def work(number):
        chance = random.Random(arguments.seed * 1000 + number)
        channel = grpc.insecure_channel(arguments.grpc)
        calls = [channel.unary_unary(f"/inference.GRPCInferenceService/{name}") for name in CALLS]
        share = arguments.count // arguments.threads
        for _ in range(share):
            if failures:
                return
            request = http_request(chance, http)
            call, message = chance.choice(calls), change(chance, chance.choice(protobuf))
            for ask, sent in ((lambda: over_http((host, int(port)), request), request), (lambda: over_grpc(call, message), message)):
                try:
                    status = ask()
                except (Unanswered, OSError) as error:
                    failures.append((str(error) or type(error).__name__, sent))
                    return
                with lock:
                    statuses[status] = statuses.get(status, 0) + 1
        channel.close()

    began = time.monotonic()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(arguments.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for status, count in sorted(statuses.items(), key=lambda item: str(item[0])):
        print(f"{status}: {count}")
    if not failures and "200" not in over_http((host, int(port)), b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
        failures.append(("the server is no longer live", b""))
    for reason, sent in failures[:1]:
        (FUZZ / "crashes").mkdir(exist_ok=True)
        path = FUZZ / "crashes" / f"server-{len(sent)}"
        path.write_bytes(sent)
        print(f"FAILED: {reason}; the request is in {path}")
    print(f"{sum(statuses.values())} requests in {time.monotonic() - began:.0f} s")
    return 1 if failures else 0


def examples(targets):
    return [path.read_bytes() for target in targets for path in sorted((FUZZ / "corpus" / target).iterdir())]


def change(chance, example):
    """Some bytes changed, left out, put in, or repeated."""
    data = bytearray(example)
    for _ in range(chance.randint(0, 6)):
        at = chance.randint(0, len(data))
        match chance.randint(0, 4):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randint(0, 7)
            case 1 if at < len(data):
                data[at] = chance.choice(EDGES)
            case 2:
                del data[at : at + chance.randint(1, 16)]
            case 3:
                data[at:at] = bytes(chance.choice(EDGES) for _ in range(chance.randint(1, 8)))
            case _:
                data[at:at] = data[at : at + 16] * chance.randint(1, 64)
    return bytes(data)


def http_request(chance, bodies):
    """A request whose body is as long as it says; its head is changed now and then."""
    body = change(chance, chance.choice(bodies))
    method = chance.choice(["POST"] * 8 + ["GET", "PUT", "HEAD", "OPTIONS"])
    lines = [f"{method} {chance.choice(PATHS)} HTTP/1.1".encode(), b"Host: fuzz", b"Connection: close"]
    lines += chance.sample(HEADERS, chance.randint(0, 2))
    if chance.random() < 0.1:
        number = chance.randrange(len(lines))
        lines[number] = change(chance, lines[number]).replace(b"\n", b"").replace(b"\r", b"")
    lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def over_http(address, request):
    """The status line of the last answer."""
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        try:
            connection.sendall(request)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was answered before it was read
        answer = b""
        while b"\r\n" not in answer or answer.startswith(b"HTTP/1.1 100"):
            try:
                piece = connection.recv(65536)
            except TimeoutError:
                raise Unanswered(f"no answer within {PATIENCE_S} s") from None
            if not piece:
                raise Unanswered("the connection ended without an answer")
            answer += piece
            if answer.startswith(b"HTTP/1.1 100") and b"\r\n\r\n" in answer:
                answer = answer.split(b"\r\n\r\n", 1)[1]
        return " ".join(answer.split(b"\r\n", 1)[0].decode("latin-1").split()[:2])


def over_grpc(call, message):
    try:
        call(message, timeout=PATIENCE_S)
        return "gRPC OK"
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN):
            raise Unanswered(f"gRPC {error.code()}: {error.details()}") from None
        return f"gRPC {error.code().name}"


if __name__ == "__main__":
    sys.exit(main())
