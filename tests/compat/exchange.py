"""Sends one HTTP request of a scenario and returns the answer.

Requests are sent as a scenario has them, byte for byte, on a connection of their own. An answer is kept in a form that
can be recorded: status, the headers that clients act on, the JSON or text, and the bytes after it.
"""

import base64
import gzip
import hashlib
import http.client
import json
import struct
import threading
import time
import urllib.parse
import zlib
from dataclasses import dataclass, field

HEADER_LENGTH = "inference-header-content-length"
# The headers that clients act on.
KEPT_HEADERS = ("content-type", HEADER_LENGTH, "content-encoding", "accept-encoding")
# Larger pieces of answers are kept as digests.
LARGEST_KEPT = 65536
# How long one answer may take.
TIMEOUT_S = 30
# How long the requests in `during` have to arrive.
HEAD_START_S = 0.1
INTEGERS = {"int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q"}
NUMBERS = {**INTEGERS, "fp16": "e", "fp32": "f", "fp64": "d"}


@dataclass
class Answer:
    """An HTTP answer. `text` is the body, or the JSON in front of `binary`."""

    status: int
    headers: dict = field(default_factory=dict)
    text: str = ""
    binary: bytes = b""

    def to_json(self):
        """The form in which the answer is recorded."""
        recorded = {"status": self.status, "headers": self.headers, "text": self.text}
        if self.binary:
            recorded["binary"] = base64.b64encode(self.binary).decode()
        return recorded

    @staticmethod
    def from_json(recorded):
        binary = base64.b64decode(recorded.get("binary", ""))
        return Answer(recorded["status"], recorded["headers"], recorded["text"], binary)


# --- requests ---


def part(value):
    """The bytes of one part of a body."""
    (kind, value), = value.items()
    if kind == "json":
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    if kind == "text":
        return value.encode()
    if kind == "hex":
        return bytes.fromhex(value)
    if kind == "base64":
        return base64.b64decode(value)
    if kind == "repeat":
        return part(value["part"]) * value["times"]
    if kind == "bytes":
        return b"".join(struct.pack("<I", len(item.encode())) + item.encode() for item in value)
    if kind in NUMBERS:
        return struct.pack(f"<{len(value)}{NUMBERS[kind]}", *value)
    raise ValueError(f"'{kind}' is no kind of body part")


def target(request):
    """Method and path."""
    if "get" in request:
        return "GET", request["get"]
    if "post" in request:
        return "POST", request["post"]
    if "infer" in request:
        return "POST", f"/v2/models/{request['infer']}/infer"
    return request["method"], request["path"]


def body_of(request):
    """The body and its headers."""
    headers = dict(request.get("headers", {}))
    parts = request.get("parts")
    if parts is None:
        parts = [{kind: request[kind]} for kind in ("json", "text") if kind in request]
    pieces = [part(piece) for piece in parts]
    if request.get("header_length"):
        headers["Inference-Header-Content-Length"] = str(len(pieces[0]))
    body = b"".join(pieces)
    compress = request.get("compress")
    if compress:
        body = gzip.compress(body, mtime=0) if compress == "gzip" else zlib.compress(body)
        headers.setdefault("Content-Encoding", compress)
    return body, headers


# --- answers ---


def exchange(url, request):
    """Sends the request of a scenario while the requests in `during` are in flight; returns the answer. With `again`, each of these is sent
    again once it is answered, until the request has its answer."""
    during = request.get("during")
    threads, answered = [], threading.Event()

    def keep_busy():
        send(url, during)
        while during.get("again") and not answered.is_set():
            send(url, during)

    for _ in range(during.get("times", 1) if during else 0):
        threads.append(threading.Thread(target=keep_busy, daemon=True))
        threads[-1].start()
    if threads:
        time.sleep(HEAD_START_S)
    answer = send(url, request)
    answered.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
    return answer


def send(url, request):
    """Sends one request and reads its answer."""
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=TIMEOUT_S)
    try:
        method, path = target(request)
        body, headers = body_of(request)
        if request.get("chunked"):
            size = request["chunked"]
            chunks = (body[at : at + size] for at in range(0, len(body), size))
            connection.request(method, path, body=chunks, headers=headers, encode_chunked=True)
        else:
            connection.request(method, path, body=body if method != "GET" or body else None, headers=headers)
        return read(connection.getresponse())
    finally:
        connection.close()


def read(response):
    body = response.read()
    headers = {name: response.headers[name] for name in KEPT_HEADERS if response.headers[name] is not None}
    match headers.get("content-encoding"):
        case "gzip" | "deflate":
            body = zlib.decompress(body, wbits=zlib.MAX_WBITS | 32)
    length = int(headers.get(HEADER_LENGTH, len(body)))
    text, binary = (shortened(piece) for piece in (body[:length], body[length:]))
    return Answer(response.status, headers, text.decode(errors="surrogateescape"), binary)


def shortened(piece):
    """The recorded form of a piece of an answer: the piece itself, or a digest if it is large."""
    if len(piece) <= LARGEST_KEPT:
        return piece
    return f"{len(piece)} bytes, sha256 {hashlib.sha256(piece).hexdigest()}".encode()
