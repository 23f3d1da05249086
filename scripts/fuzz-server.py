#!/usr/bin/env python3
"""Sends changed HTTP requests and gRPC calls to a server: each has to be answered, and the server has to live on.

    fuzz-server.py --http HOST:PORT --grpc HOST:PORT [--count N] [--pid PID]... [--log FILE]... [--seed N]

The server may serve any models; the requests name those of tests/repositories/basic, and a model 'rows' with
max_rows_per_message. Bodies come whole or in chunks, as they are or validly compressed, calls alone or on streams, some of
which their clients leave. Begins with the examples in fuzz/corpus.
A known-good request goes along now and then, and its answer may not change. Of each --pid it watches the memory, and of each
--log that nothing panics. Exits with 1 at the first request that is not answered in time or whose connection ends without an
answer, and when the server ends, panics, grows beyond --max-growth-mib or answers the known-good request differently; the
request is written to fuzz/crashes. Needs grpcio, which .tools/python has.
"""

import argparse
import asyncio
import collections
import gzip
import random
import re
import sys
import time
import zlib
from pathlib import Path

import grpc

FUZZ = Path(__file__).resolve().parent.parent / "fuzz"
WATCH_S = 1
# After this many requests, the memory that a server needs for its work is in use.
WARM = 2000
HTTP_CORPUS = ["infer-json", "infer-binary", "generate", "control-json"]
PATHS = [
    "/v2/models/simple/infer",
    "/v2/models/rows/infer",
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
# A valid body of each route of the dialects; part of the requests are these, changed.
DIALECTS = {
    "/v1/embeddings": b'{"model":"tiny_embedding","input":["a","b"],"encoding_format":"base64","dimensions":8,"user":"u"}',
    "/openai/v1/embeddings": b'{"model":"tiny_embedding","input":[[15339,1917],[64]]}',
    "/v1/models": b"",
    "/jina/v1/embeddings": b'{"model":"tiny_embedding","input":[{"text":"a"}],"task":"retrieval.query","embedding_type":"binary"}',
    "/v1/rerank": b'{"model":"reranker","query":"q","documents":["a",{"text":"b"}],"top_n":1,"return_documents":true}',
    "/v1/multi-vector": b'{"model":"token_vectors","input":["a"],"input_type":"query"}',
    "/v2/embed": b'{"model":"tiny_embedding","texts":["a"],"input_type":"search_query","embedding_types":["float","int8"],"truncate":"END"}',
    "/v1/embed": b'{"texts":["a"]}',
    "/v2/rerank": b'{"model":"reranker","query":"q","documents":["a","b"],"top_n":1}',
    "/vllm/v2/rerank": b'{"query":"q","documents":["a"],"max_tokens_per_doc":8,"truncate_prompt_tokens":16,"truncation_side":"left"}',
    "/cohere/v1/rerank": b'{"query":"q","documents":[{"title":"a"}],"rank_fields":["title"]}',
    "/embed": b'{"inputs":["a","b"],"normalize":true,"truncate":true,"truncation_direction":"Right"}',
    "/embed_all": b'{"inputs":"a"}',
    "/embed_sparse": b'{"inputs":"a"}',
    "/rerank": b'{"query":"q","texts":["a","b"],"raw_scores":false,"return_text":true}',
    "/predict": b'{"inputs":[["a"],["a","b"]],"parameters":{"top_k":1}}',
    "/similarity": b'{"inputs":{"source_sentence":"a","sentences":["b"]},"parameters":{"truncate":true}}',
    "/tokenize": b'{"inputs":["a","b"],"add_special_tokens":false,"prompt_name":null}',
    "/tei/embedding/decode": b'{"ids":[[1,2],[3]],"skip_special_tokens":false}',
    "/tei/embedding/embed": b'{"inputs":[[1,2],[3]],"truncate":true}',
    "/vllm/tokenize": b'{"model":"embedding","prompt":"a","return_token_strs":true}',
    "/detokenize": b'{"model":"embedding","tokens":[1,2,3]}',
    "/openapi.json": b"",
    "/": b'{"inputs":"a"}',
    "/tei/tiny_embedding": b'{"inputs":["a"]}',
    "/info": b"",
    "/embeddings": b'{"input":["a"],"model":"default/not-specified","modality":"text","dimensions":0}',
    "/infinity/rerank": b'{"query":"q","documents":["a"],"return_documents":true,"top_n":1}',
    "/classify": b'{"input":["a"],"raw_scores":true}',
    "/score": b'{"text_1":"a","text_2":["b","c"],"truncate_prompt_tokens":-1,"use_activation":false}',
    "/pooling": b'{"input":["a"],"encoding_format":"base64","truncation_side":"left"}',
    "/nim/v1/embeddings": b'{"model":"embedding","input":["a"],"input_type":"query","truncate":"START","modality":"text"}',
    "/v1/ranking": b'{"model":"reranker","query":{"text":"q"},"passages":[{"text":"a"}],"truncate":"NONE"}',
    "/v1/health/ready": b"",
    "/v1/metadata": b"",
    "/vllm/load": b"",
    "/api/embed": b'{"model":"embedding:latest","input":["a"],"truncate":false,"dimensions":0,"keep_alive":"5m","options":{}}',
    "/api/embeddings": b'{"model":"embedding","prompt":"a"}',
    "/api/show": b'{"model":"embedding"}',
    "/api/tags": b"",
    "/vllm/rerank": b'{"query":"q","documents":["a"],"top_n":0}',
}
HEADERS = [
    b"Inference-Header-Content-Length: 20",
    b"Content-Encoding: gzip",
    b"Content-Encoding: deflate",
    b"Accept-Encoding: gzip;q=0.5, deflate",
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"Expect: 100-continue",
    b"Content-Type: application/x-www-form-urlencoded",
]
# Valid messages of each call: those of the corpus and these. ModelInfer is called as often as all other calls
# together.
TEXT_INFER = (
    b'\n\x0etiny_embedding\x1a\x017"\x07\n\x01x\x12\x02\x10\x01*\x10\n\x04TEXT\x12\x05BYTES\x1a\x01\x02'
    b"2\x0b\n\tembedding:\x16\x06\x00\x00\x00a boat\x08\x00\x00\x00the oars"
)
CALLS = {
    "ModelInfer": [TEXT_INFER],
    "ModelMetadata": [b"\n\x06simple\x12\x011"],
    "ModelConfig": [b"\n\x0etiny_embedding\x12\x011"],
    "ModelStatistics": [b"\n\x06simple\x12\x011"],
    "RepositoryIndex": [b"\x10\x01"],
    "RepositoryModelLoad": [b'\x12\x06simple\x1a\x18\n\x11file:1/model.onnx\x12\x03"\x01x\x1a\x1d\n\x06config\x12\x13\x1a\x11{"name":"simple"}'],
    "TraceSetting": [b"\n\x13\n\ntrace_rate\x12\x05\n\x03100\x12\x06simple"],
    "LogSettings": [b"\n\x17\n\x11log_verbose_level\x12\x02\x10\x00"],
}
EDGES = b"\x00\x01\x7f\x80\xff\"{}[]\\-09e,:"
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: fuzz\r\n\r\n"
# Many rows, many parts, and rows without data.
ROWS = [
    b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[5,1],"data":[1,2,3,4,5]}]}',
    b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[4000000000,0],"data":[]}]}',
    b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[16777216,0],"data":[]}]}',
    b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[300,1],"data":[%s]}]}' % b",".join([b"7"] * 300),
]
KNOWN = b'{"inputs":[{"name":"TEXT","datatype":"BYTES","shape":[1],"data":["the rowers pull"]}]}'
KNOWN_GOOD = b"POST /v2/models/tiny_embedding/infer HTTP/1.1\r\nHost: fuzz\r\nContent-Length: %d\r\n\r\n%s" % (len(KNOWN), KNOWN)
# Error texts of a gRPC client whose server disappeared without an answer.
LOST = re.compile("Socket closed|failed to connect|Connection re|Stream removed|RST_STREAM|GOAWAY|Broken pipe", re.IGNORECASE)


class Fault(Exception):
    """A failure, with the request that led to it, if there is one."""

    def __init__(self, reason, sent=b""):
        super().__init__(reason)
        self.sent = sent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--http", required=True, metavar="HOST:PORT")
    parser.add_argument("--grpc", required=True, metavar="HOST:PORT")
    parser.add_argument("--count", type=int, default=10_000, help="requests over HTTP, and as many calls over gRPC")
    parser.add_argument("--connections", type=int, default=8, help="of each kind")
    parser.add_argument("--pid", type=int, action="append", default=[], help="a process of the server, to watch its memory")
    parser.add_argument("--log", type=Path, action="append", default=[], help="a log of the server, to watch for panics")
    parser.add_argument("--max-growth-mib", type=float, default=256, help="how much larger a process may become once warm")
    parser.add_argument("--patience", type=float, default=20, metavar="SECONDS", help="how long an answer may take")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    run = Run(arguments)
    fault = asyncio.run(run.all())
    for status, count in sorted(run.statuses.items()):
        print(f"{status}: {count}")
    if fault:
        print(f"FAILED: {fault}{keep(fault.sent)}")
    seconds = time.monotonic() - run.began
    print(f"{run.sent()} requests in {seconds:.0f} s, {run.sent() / seconds:.0f} a second; known-good ones: {run.known_good}")
    for pid, watched in ((pid, watched) for pid, watched in run.memory.items() if watched):
        print(f"process {pid}: {watched[0]:.0f} MiB at first, {max(watched):.0f} at most, {watched[-1]:.0f} at last")
    return 1 if fault else 0


def keep(sent):
    """Writes a request to a file for later inspection."""
    if not sent:
        return ""
    (FUZZ / "crashes").mkdir(exist_ok=True)
    path = FUZZ / "crashes" / f"server-{len(sent)}"
    path.write_bytes(sent)
    return f"; the request is in {path}"


class Run:
    """One run: its clients, and the checks of the server in the meantime."""

    def __init__(self, arguments):
        self.arguments = arguments
        host, port = arguments.http.rsplit(":", 1)
        self.http = (host, int(port))
        self.statuses = collections.Counter()
        self.known_good = 0
        self.expected = None
        self.memory = {pid: [] for pid in arguments.pid}
        self.warm = {}
        self.logs = {log: 0 for log in arguments.log}
        self.began = time.monotonic()

    def sent(self):
        return sum(self.statuses.values())

    async def all(self):
        """Runs until all requests are sent or there is a fault; returns the fault, if there is one."""
        try:
            await self.look()
            watch = asyncio.create_task(self.watch())
            share = [self.arguments.count // self.arguments.connections] * self.arguments.connections
            share[0] += self.arguments.count % self.arguments.connections
            clients = [asyncio.create_task(client(number, count)) for number, count in enumerate(share) for client in (self.over_http, self.over_grpc)]
            done, left = set(), set(clients)
            while left and not any(task.exception() for task in done):
                done, left = await asyncio.wait({watch, *left}, return_when=asyncio.FIRST_COMPLETED)
                left.discard(watch)
            for task in {watch, *left}:
                task.cancel()
            await asyncio.gather(watch, *left, return_exceptions=True)
            for task in done:
                await task
            await self.look()
        except Fault as fault:
            return fault
        except OSError as error:
            return Fault(f"the server cannot be reached: {error}")
        return None

    async def over_http(self, number, count):
        chance, bodies = random.Random(self.arguments.seed * 1000 + number), [KNOWN, *ROWS, *examples(HTTP_CORPUS)]
        connection = Http(self.http, self.arguments.patience)
        for _ in range(count):
            request = http_request(chance, bodies)
            self.statuses[f"HTTP {(await connection.ask(request))[0]}"] += 1
        connection.close()

    async def over_grpc(self, number, count):
        chance = random.Random(self.arguments.seed * 1000 + number + 500)
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self.arguments.grpc, options=options) as channel:
            calls = [(channel.unary_unary(f"/inference.GRPCInferenceService/{name}"), messages) for name, messages in CALLS.items()]
            # The corpus uses a model 'm', which does not exist on any server.
            infer = [message.replace(b"\n\x01m", b"\n\x06simple", 1) for message in examples(["infer-grpc"])]
            calls += [(calls[0][0], calls[0][1] + infer)] * (len(calls) - 2)
            stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            for _ in range(count):
                call, messages = chance.choice(calls)
                if chance.random() < 0.2:
                    sent = [change(chance, chance.choice(calls[0][1] + infer)) for _ in range(chance.randint(0, 5))]
                    leaves = chance.random() < 0.3
                    status = await stream_status(stream, sent, leaves, self.arguments.patience)
                    self.statuses[f"gRPC stream {status}"] += 1
                    continue
                message = change(chance, chance.choice(messages))
                self.statuses[f"gRPC {await grpc_status(call, message, self.arguments.patience)}"] += 1

    async def watch(self):
        told = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_S)
            await self.look()
            if time.monotonic() - told > 30:
                told = time.monotonic()
                print(f"{self.sent()} requests, {self.sent() / (told - self.began):.0f} a second", flush=True)

    async def look(self):
        """Checks that the server lives, answers, keeps within its memory and has not panicked."""
        connection = Http(self.http, self.arguments.patience)
        if (await connection.ask(LIVE))[0] != 200:
            raise Fault("the server is no longer live")
        status, body = await connection.ask(KNOWN_GOOD)
        connection.close()
        self.expected = self.expected or (status, body)
        if status != 200 or (status, body) != self.expected:
            raise Fault(f"the known-good request was answered with {status} {body[:200]}, before with {self.expected[0]}")
        self.known_good += 1
        for pid, watched in self.memory.items():
            watched.append(resident_mib(pid))
            if self.sent() >= WARM:
                grown = watched[-1] - self.warm.setdefault(pid, watched[-1])
                if grown > self.arguments.max_growth_mib:
                    raise Fault(f"process {pid} has grown by {grown:.0f} MiB to {watched[-1]:.0f} MiB")
        for log, read in self.logs.items():
            with log.open("rb") as file:
                file.seek(read)
                text = file.read()
            self.logs[log] += len(text)
            if panic := re.search(rb".*panicked.*", text):
                raise Fault(f"{log}: {panic.group().decode(errors='replace')}")


def resident_mib(pid):
    """The memory of a process in MiB."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        raise Fault(f"process {pid} has ended") from None
    found = re.search(r"VmRSS:\s*(\d+) kB", status)
    if not found:
        raise Fault(f"process {pid} has ended")
    return int(found[1]) / 1024


def examples(targets):
    return [path.read_bytes() for target in targets for path in sorted((FUZZ / "corpus" / target).iterdir())]


def change(chance, example):
    """Changes, removes, inserts or repeats some bytes."""
    data = bytearray(example)
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3, 6])):
        at = chance.randint(0, len(data))
        # Most changes keep lengths consistent: contradictory messages are refused at once.
        match chance.choice([0, 0, 0, 1, 1, 1, 2, 3, 4]):
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
    """A request with a body of the declared length or in chunks. Sometimes its head is changed; it is then the connection's last."""
    if chance.random() < 0.3:
        path, body = chance.choice(list(DIALECTS.items()))
    else:
        path, body = chance.choice(PATHS), chance.choice(bodies)
    body = change(chance, body)
    coding = chance.choice([None] * 6 + [b"gzip", b"deflate"])
    if coding:
        body = gzip.compress(body, 1) if coding == b"gzip" else zlib.compress(body, 1)
    chunked = chance.random() < 0.1
    method = chance.choice(["POST"] * 12 + ["GET", "GET", "PUT", "HEAD", "OPTIONS"])
    lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: fuzz"]
    lines += chance.sample(HEADERS, chance.randint(0, 2))
    if coding:
        lines.append(b"Content-Encoding: " + coding)
    if chance.random() < 0.1:
        lines.append(b"Connection: close")
        number = chance.randrange(len(lines))
        lines[number] = change(chance, lines[number]).replace(b"\n", b"").replace(b"\r", b"")
    if chunked:
        lines.append(b"Transfer-Encoding: chunked")
        size = chance.randint(1, 64) if len(body) < 4096 else 1024
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Http:
    """A connection that stays in use until one side closes it."""

    def __init__(self, address, patience):
        self.address, self.patience, self.reader, self.writer = address, patience, None, None

    async def ask(self, request):
        """Sends a request; returns the status and body of the answer."""
        used = self.writer is not None
        try:
            async with asyncio.timeout(self.patience):
                return await self.exchange(request)
        except TimeoutError:
            raise Fault(f"no answer within {self.patience:g} s", request) from None
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self.close()
            # A server may close an unused connection. A request that arrives too late for it is sent on a new one.
            if used and not getattr(error, "partial", b""):
                return await self.ask(request)
            raise Fault("the connection ended without an answer", request) from None
        except (ValueError, IndexError, asyncio.LimitOverrunError) as error:
            raise Fault(f"the answer cannot be read: {error}", request) from None

    async def exchange(self, request):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(*self.address)
        self.writer.write(request)
        status, headers = await self.head()
        bodiless = request.startswith(b"HEAD ") or status in (204, 304)
        body = b"" if bodiless else await self.body(headers)
        if b"\r\nconnection: close" in headers or b"\r\nConnection: close\r\n" in request:
            self.close()
        return status, body

    async def head(self):
        """The status and the headers of the answer, in lower case. Interim answers before the last one are skipped."""
        while True:
            head = await self.reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            if status >= 200:
                return status, head.lower()

    async def body(self, headers):
        if length := re.search(rb"\r\ncontent-length: *(\d+)", headers):
            return await self.reader.readexactly(int(length[1]))
        if b"\r\ntransfer-encoding: chunked" not in headers:
            return await self.reader.read(-1)
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readuntil(b"\r\n")
        return body

    def close(self):
        if self.writer:
            self.writer.close()
        self.reader = self.writer = None


async def grpc_status(call, message, patience):
    """Makes a call; returns the status of the answer."""
    try:
        await call(message, timeout=patience)
        return "OK"
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN) or LOST.search(error.details() or ""):
            raise Fault(f"gRPC {error.code().name}: {error.details()}", message) from None
        return error.code().name


async def stream_status(stream, messages, leaves, patience):
    """How a stream of these messages ended: by itself, or by its client, which leaves after at most one answer."""

    async def requests():
        for message in messages:
            yield message

    try:
        call = stream(requests(), timeout=patience)
        async for _ in call:
            if leaves:
                call.cancel()
                return "left"
        return "OK"
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN) or LOST.search(error.details() or ""):
            raise Fault(f"gRPC stream {error.code().name}: {error.details()}", b"".join(messages)) from None
        return error.code().name


if __name__ == "__main__":
    sys.exit(main())
