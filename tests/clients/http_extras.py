#!/usr/bin/env python3
"""tritonclient.http and raw sockets against tests/repositories/basic: the HTTP surface beside plain inference.

The checks expect a server with default flags.
"""

import gzip
import http.client
import json
import socket
import time
import zlib

import numpy as np
import tritonclient.http as triton

import checks
from checks import expect, expect_equal, expect_error, tensor, texts

A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.full((1, 16), 3, np.int32)
SUM = '{"inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"INT32","data":%s},' % A.reshape(-1).tolist()
SUM += '{"name":"INPUT1","shape":[1,16],"datatype":"INT32","data":%s}]}' % B.reshape(-1).tolist()


class Http:
    """Sends one request at a time over a bare socket, so that malformed requests are possible."""

    def __init__(self, url):
        self.host, port = url.rsplit(":", 1)
        self.port = int(port)

    def request(self, method, path, body=None, headers={}):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def json(self, method, path, body=None, status=200):
        body = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
        found, headers, text = self.request(method, path, body)
        expect_equal(f"status of {method} {path} with {text[:200]!r}", found, status)
        return json.loads(text)

    def error(self, method, path, body, status, *fragments):
        message = self.json(method, path, body, status)["error"]
        for fragment in fragments:
            expect(fragment in message, f"{method} {path}: expected a message with {fragment!r}, found {message!r}")

    def raw(self, sent, timeout=10):
        """The bytes received until the server closes the connection."""
        with socket.create_connection((self.host, self.port), timeout=timeout) as connection:
            connection.sendall(sent)
            received = b""
            try:
                while piece := connection.recv(1 << 16):
                    received += piece
            except ConnectionResetError:
                pass
            except TimeoutError:
                raise checks.Failure(f"expected an end of the connection, it is open after {received[-300:]!r}")
            return received


# === Compression ===


def check_compression(client, sent, received):
    for binary in (True, False):
        inputs = [tensor("INPUT0", A, binary), tensor("INPUT1", B, binary)]
        outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("OUTPUT0", "OUTPUT1")]
        result = client.infer(
            "simple",
            inputs,
            outputs=outputs,
            request_compression_algorithm=sent,
            response_compression_algorithm=received,
        )
        expect_equal("OUTPUT0", result.as_numpy("OUTPUT0"), A + B)
        expect_equal("OUTPUT1", result.as_numpy("OUTPUT1"), A - B)


def check_compression_rules(http):
    infer = lambda headers, body=SUM: http.request("POST", "/v2/models/simple/infer", body, headers)
    for accept, expected in (("gzip;q=0.3, deflate;q=0.4", "deflate"), ("gzip", "gzip"), ("identity, gzip;q=0.5", None)):
        status, headers, body = infer({"Accept-Encoding": accept})
        expect_equal(f"coding for {accept!r}", headers.get("Content-Encoding"), expected)
        plain = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[expected](body)
        expect_equal("outputs", len(json.loads(plain)["outputs"]), 2)
    status, headers, body = infer({"Content-Encoding": "br"})
    expect_equal("status", status, 501)
    expect_equal("error", json.loads(body), {"error": "Unsupported compression type"})
    expect_equal("codings to use", headers.get("Accept-Encoding"), "gzip, deflate")
    expect_equal("cut gzip", infer({"Content-Encoding": "gzip"}, gzip.compress(SUM.encode())[:-9])[0], 400)
    expect_equal("cut deflate", infer({"Content-Encoding": "deflate"}, zlib.compress(SUM.encode())[:-9])[0], 400)
    # 256 MiB of blanks in 256 kB.
    bomb = zlib.compressobj()
    bomb = b"".join([bomb.compress(b" " * (1 << 20)) for _ in range(256)] + [bomb.flush()])
    status, _, body = infer({"Content-Encoding": "deflate"}, bomb)
    expect_equal("status for a bomb", status, 400)
    expect(b"exceeds the maximum allowed value of" in body, f"expected the limit, found {body!r}")


# === Extensions ===


def check_classification(client):
    outputs = [triton.InferRequestedOutput("OUTPUT0", class_count=3), triton.InferRequestedOutput("OUTPUT1")]
    result = client.infer("simple", [tensor("INPUT0", A), tensor("INPUT1", B)], outputs=outputs)
    expect_equal("classes", checks.utf8(result.as_numpy("OUTPUT0")), ["18:15", "17:14", "16:13"])
    expect_equal("shape", result.as_numpy("OUTPUT0").shape, (1, 3))
    expect_equal("OUTPUT1", result.as_numpy("OUTPUT1"), A - B)
    outputs = [triton.InferRequestedOutput("embedding", class_count=100, binary_data=False)]
    result = client.infer("tiny_embedding", [tensor("TEXT", texts(["the rower", "takes the oar"]))], outputs=outputs)
    found = result.as_numpy("embedding")
    # Its configuration has no batch dimension, so all scores are one row.
    expect_equal("shape", found.shape, (16,))
    scores = [float(text.split(":")[0]) for text in checks.utf8(found)]
    expect_equal("order", scores, sorted(scores, reverse=True))
    outputs = [triton.InferRequestedOutput("OUTPUT0", class_count=1)]
    expect_error(
        "classes of strings",
        lambda: client.infer("identity_bytes", [tensor("INPUT0", texts(["a"]))], outputs=outputs),
        400,
        "class result not available for output due to unsupported type 'BYTES'",
    )
    expect("classification" in client.get_server_metadata()["extensions"], "expected the extension to be advertised")


def check_generate(http):
    path = "/v2/models/identity_bytes/generate"
    expected = {"model_name": "identity_bytes", "model_version": "1", "OUTPUT0": "hello"}
    expect_equal("answer", http.json("POST", path, {"INPUT0": "hello", "temperature": 0.5}), expected)
    several = http.json("POST", path, {"id": "7", "INPUT0": ["a", "b\nc"]})
    expect_equal("answer to several", several, {**expected, "id": "7", "OUTPUT0": ["a", "b\nc"]})
    expect_equal("in a version", http.json("POST", "/v2/models/identity_bytes/versions/1/generate", {"INPUT0": "hello"}), expected)
    embedding = http.json("POST", "/v2/models/tiny_embedding/generate", {"TEXT": "the rower"})["embedding"]
    expect_equal("length of the embedding", len(embedding), 8)
    status, headers, body = http.request("POST", path + "_stream", json.dumps({"INPUT0": "hello"}))
    expect_equal("status of the stream", status, 200)
    expect_equal("type of the stream", headers["Content-Type"], "text/event-stream; charset=utf-8")
    expect(body.startswith(b"data: ") and body.endswith(b"\n\n"), f"expected one event, found {body!r}")
    expect_equal("event", json.loads(body[6:]), expected)
    http.error("POST", path, "", 500, "The document is empty.")
    http.error("POST", path + "_stream", {"INPUT0": 5}, 500, "attempt to access JSON non-string as string")
    http.error("POST", path, {"other": 5}, 400, "expected 1 inputs but got 0 inputs for model 'identity_bytes'")
    http.error("POST", "/v2/models/simple/generate", {"INPUT0": [1] * 15, "INPUT1": [1] * 16}, 400, "The schema can not convert")
    http.error("POST", "/v2/models/none/generate", {}, 404, "Request for unknown model: 'none' is not found")
    status, _, body = http.request("POST", path, gzip.compress(b"{}"), {"Content-Encoding": "gzip"})
    expect_equal("status of a compressed body", status, 400)
    expect(b"Unsupported content-encoding, only 'identity' is supported." in body, f"found {body!r}")
    expect_equal("GET", http.request("GET", path)[0], 405)


def check_repository(client, http):
    index = client.get_model_repository_index()
    expect({"name": "simple", "version": "1", "state": "READY"} in index, f"expected 'simple' to be ready, found {index}")
    expect_equal("ready models", http.json("POST", "/v2/repository/index", {"ready": True}), index)
    http.error("POST", "/v2/repository/index", {"ready": 1}, 400, "Invalid value for 'ready': expected a boolean")
    refusal = "explicit model load / unload is not allowed if polling is enabled"
    expect_error("load", lambda: client.load_model("simple"), 503, refusal)
    expect_error("unload", lambda: client.unload_model("simple"), 503, refusal)
    expect_equal("the index by a name that is not looked at", http.json("POST", "/v2/repository/other/index", {}), index)
    refusal = "'repository_name' specification is not supported"
    http.error("POST", "/v2/repository/other/models/simple/load", "{}", 501, refusal)
    expect_equal("GET of the index", http.request("GET", "/v2/repository/index")[0], 405)


def check_logging(client, http):
    before = client.get_log_settings()
    expect_equal("fields", sorted(before), sorted(["log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"]))
    changed = client.update_log_settings({"log_verbose_level": 1, "log_format": "ISO8601"})
    expect_equal("settings", changed, {**before, "log_verbose_level": 1, "log_format": "ISO8601"})
    expect_equal("settings read again", client.get_log_settings(), changed)
    expect_equal("settings put back", client.update_log_settings(before | {"log_file": None}), before)
    expect_error("log_file", lambda: client.update_log_settings({"log_file": "x"}), 501, "log file location can not be updated")
    expect_error("log_format", lambda: client.update_log_settings({"log_format": "x"}), 503, "invalid argument for --log_format, got: x")
    expect_error("log_info", lambda: client.update_log_settings({"log_info": 1}), 500, "non-boolean as boolean")


def check_trace(client, http):
    before = client.get_trace_settings()
    for field in ("trace_level", "trace_rate", "trace_count", "trace_mode"):
        expect(field in before, f"expected {field!r}, found {before}")
    expect_equal("rate", client.update_trace_settings(settings={"trace_rate": "7"})["trace_rate"], "7")
    expect_equal("rate of a model", client.get_trace_settings("simple")["trace_rate"], "7")
    found = client.update_trace_settings("simple", {"trace_rate": "9", "trace_count": "5"})
    expect_equal("settings of a model", (found["trace_rate"], found["trace_count"]), ("9", "5"))
    expect_equal("rate of all", client.get_trace_settings()["trace_rate"], "7")
    found = client.update_trace_settings("simple", {"trace_rate": None, "trace_count": None})
    expect_equal("cleared settings of a model", found, client.get_trace_settings())
    expect_equal("cleared settings", client.update_trace_settings(settings={"trace_rate": None}), before)
    update = lambda settings: lambda: client.update_trace_settings(settings=settings)
    expect_error("trace_file", update({"trace_file": "x"}), 501, "trace file location can not be updated")
    expect_error("no trace file", update({"trace_level": ["TIMESTAMPS"]}), 400, "trace file name is not given")
    expect_error("trace_rate", update({"trace_rate": "x"}), 400, "Unable to parse 'trace_rate', got: x")
    expect_error("trace_count", update({"trace_count": "-2"}), 400, "Expecting value >= -1, got:-2")
    expect_error("unknown model", lambda: client.get_trace_settings("none"), 400, "Request for unknown model : none")
    expect_equal("settings of a version", http.request("GET", "/v2/models/simple/versions/1/trace/setting")[0], 404)


def check_shared_memory(client, http):
    expect_equal("system regions", client.get_system_shared_memory_status(), [])
    expect_equal("CUDA regions", client.get_cuda_shared_memory_status(), [])
    disabled = "Client shared memory is disabled."
    expect_error("register", lambda: client.register_system_shared_memory("r", "/k", 16), 501, disabled)
    expect_error("register CUDA", lambda: client.register_cuda_shared_memory("r", b"h", 0, 16), 501, disabled)
    expect_error("unregister", lambda: client.unregister_system_shared_memory(), 501, disabled)
    http.error("GET", "/v2/systemsharedmemory/region/r/status", None, 404, "Unable to find system shared memory region: 'r'")


# === Paths and methods ===


def check_paths(http):
    table = [
        ("GET", "/v2/", 404, "text/plain"),
        ("GET", "/v2/models/simple/", 404, "text/plain"),
        ("GET", "/v2/models/sim%70le", 404, "application/json"),
        ("GET", "/v2/models/simple?x=%zz", 200, "application/json"),
        ("GET", "/v2//models/simple", 404, "text/plain"),
        ("GET", "/v2/models/simple/versions/1x", 404, "text/plain"),
        ("GET", "/v2/models/simple/versions/x/infer", 404, "text/plain"),
        ("GET", "/v2/models/simple/infer", 405, "text/plain"),
        ("POST", "/v2/models/none/infer", 404, "text/plain"),
        ("POST", "/v2/models/simple/infer", 500, "application/json"),
        ("POST", "/v2/health/live", 405, "text/plain"),
        ("HEAD", "/v2/health/live", 200, "text/plain"),
        ("HEAD", "/v2", 200, "application/json"),
        ("DELETE", "/v2", 405, "application/json"),
    ]
    for method, path, status, kind in table:
        found, headers, _ = http.request(method, path, "{" if method == "POST" else None)
        expect_equal(f"{method} {path}", (found, headers["Content-Type"].split(";")[0]), (status, kind))
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/simple/ready"):
        status, headers, body = http.request("GET", path)
        expect_equal(path, (status, body, headers["Content-Length"]), (200, b"", "0"))


# === Raw sockets ===


def check_pipelining(http):
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    post = f"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(SUM)}\r\n\r\n{SUM}".encode()
    received = http.raw(live + post + live + live.replace(b"Host: x", b"Host: x\r\nConnection: close"))
    expect_equal("answers", received.count(b"HTTP/1.1 200 OK"), 4)


def check_malformed(http):
    """Every malformed request is answered, or its connection is closed; the server goes on."""
    head = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\n"
    table = [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS to a plain port\r\n\r\n", b"400"),
        (b"FOO\r\n\r\n", b"400"),
        (b"GET /v2 HTTP/9.9\r\n\r\n", b"400"),
        (b"GET /v2 HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"40"),
        (b"GET /v2 HTTP/1.1\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", b"431"),
        (b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\n\r\n", b"4"),
        (b"GET /v2 HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n", b"431"),
        (head + b"Content-Length: -5\r\n\r\n", b"400"),
        (head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345", b"400"),
        (head + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n", b"400"),
        (head + b"Transfer-Encoding: gzip\r\n\r\n", b"400"),
    ]
    for sent, status in table:
        received = http.raw(sent)
        expect(received.startswith(b"HTTP/1.1 " + status), f"{sent[:60]!r}: expected {status!r}, found {received[:80]!r}")
    expect_equal("status afterwards", http.request("GET", "/v2/health/ready")[0], 200)


def check_early_answers(http):
    """A request that is refused by its head is answered before its body has arrived, also if the client then sends it
    all."""
    head = b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n"
    with socket.create_connection((http.host, http.port), timeout=5) as connection:
        connection.sendall(head % (b"none", 1 << 30, b""))
        expect(connection.recv(1000).startswith(b"HTTP/1.1 404"), "expected 404 before the body")
    for model, size, status in ((b"none", 20 << 20, b"404"), (b"simple", 80 << 20, b"400")):
        received = http.raw(head % (model, size, b"Connection: close\r\n") + b" " * size)
        expect(received.startswith(b"HTTP/1.1 " + status), f"expected {status!r} after the body, found {received[:80]!r}")
    with socket.create_connection((http.host, http.port), timeout=5) as connection:
        connection.sendall(head % (b"simple", len(SUM), b"Expect: 100-continue\r\n"))
        expect_equal("go-ahead", connection.recv(1000), b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.sendall(SUM.encode())
        expect(connection.recv(1 << 16).startswith(b"HTTP/1.1 200"), "expected an answer after the go-ahead")
        connection.sendall(head % (b"none", len(SUM), b"Expect: 100-continue\r\n"))
        expect(connection.recv(1000).startswith(b"HTTP/1.1 404"), "expected a refusal instead of the go-ahead")


def check_slow_client(http):
    """The server waits for pieces of head and body that come late, and serves other clients meanwhile."""
    request = f"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(SUM)}\r\n\r\n{SUM}".encode()
    with socket.create_connection((http.host, http.port), timeout=10) as connection:
        for piece in (request[:10], request[10:60], request[60:200], request[200:]):
            connection.sendall(piece)
            time.sleep(0.2)
            expect_equal("status of another request", http.request("GET", "/v2/health/live")[0], 200)
        expect(connection.recv(1 << 16).startswith(b"HTTP/1.1 200"), "expected an answer")


def main():
    url = checks.arguments(__doc__).url
    client, http = triton.InferenceServerClient(url), Http(url)
    table = []
    for sent in ("gzip", "deflate", None):
        for received in ("gzip", "deflate", None):
            name = f"{sent or 'nothing'} in, {received or 'nothing'} out"
            table.append((name, lambda sent=sent, received=received: check_compression(client, sent, received)))
    table += [
        ("compression rules", lambda: check_compression_rules(http)),
        ("classification", lambda: check_classification(client)),
        ("generate", lambda: check_generate(http)),
        ("repository", lambda: check_repository(client, http)),
        ("logging", lambda: check_logging(client, http)),
        ("trace settings", lambda: check_trace(client, http)),
        ("shared memory", lambda: check_shared_memory(client, http)),
        ("paths and methods", lambda: check_paths(http)),
        ("pipelined requests", lambda: check_pipelining(http)),
        ("malformed requests", lambda: check_malformed(http)),
        ("early answers", lambda: check_early_answers(http)),
        ("slow client", lambda: check_slow_client(http)),
    ]
    checks.run(table)


if __name__ == "__main__":
    main()
