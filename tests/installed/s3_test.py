#!/usr/bin/env python3
"""Serves a model folder and a model repository from a server with S3's interface: as they are, and over a connection that is
cut in the middle of a file. Embeds files of columns from a bucket to a bucket."""

import json
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import boto3
import pyarrow
from moto.server import ThreadedMotoServer
from pyarrow import feather, parquet

import tiny

BINARY = tiny.ROOT / "target/debug/trireme"
KEYS = {"AWS_ACCESS_KEY_ID": "a-key", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_REGION": "us-east-1"}
# How much of the graph's file passes before the cut.
PASSED = 5000


class Cutter:
    """Passes connections on to a port, and cuts the one that the file of `size` bytes goes through first."""

    def __init__(self, port, size):
        self.port, self.cut, self.ranges = port, 0, []
        self.mark = f"content-length: {size}\r".encode()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.own_port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(("127.0.0.1", self.port))
            threading.Thread(target=self.up, args=(client, server), daemon=True).start()
            threading.Thread(target=self.down, args=(server, client), daemon=True).start()

    def up(self, client, server):
        try:
            while data := client.recv(65536):
                self.ranges += re.findall(rb"(?i)\r\nrange: *bytes=(\d+)-", data)
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def down(self, server, client):
        seen, passed = False, 0
        try:
            while data := server.recv(2048):
                client.sendall(data)
                seen = seen or (self.mark in data.lower() and not self.cut)
                passed += len(data) if seen else 0
                if passed > PASSED:
                    self.cut += 1
                    break
            client.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        for end in (server, client):
            end.close()


def environment(scratch, port, name):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    variables |= KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true"}
    variables.setdefault("ORT_DYLIB_PATH", str(tiny.ROOT / ".tools/onnxruntime/libonnxruntime.so"))
    return variables | {"TRIREME_DOWNLOAD_CACHE": str(scratch / name)}


def s3(port):
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name=KEYS["AWS_REGION"],
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )


def fill(port, folder, prefix):
    client = s3(port)
    client.create_bucket(Bucket="models")
    for path in folder.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "models", f"{prefix}/{path.relative_to(folder)}")


def bulk(scratch, port, folder, text, expected):
    """`trireme bulk` from a bucket to a bucket, over a file of columns that another library has written and reads."""
    count, variables = 20_000, environment(scratch, port, "bulk")
    texts = [text if n % 3 else None if n % 1000 == 0 else f"{text} {n}" for n in range(count)]
    kinds = pyarrow.array(["even" if n % 2 == 0 else "odd" for n in range(count)]).dictionary_encode()
    table = pyarrow.table({"id": range(count), "text": texts, "kind": kinds, "tags": [[n, n + 1] for n in range(count)]})
    parquet.write_table(table, scratch / "in.parquet", row_group_size=3000)
    feather.write_feather(table, scratch / "in.feather", chunksize=700)
    client = s3(port)

    def run(source, target, kill=False):
        command = [str(word) for word in [BINARY, "bulk", source, target, "--model", folder, "--log-level", "warn"]]
        with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) as process:
            give_up = time.monotonic() + 300
            while kill and process.poll() is None and time.monotonic() < give_up:
                if client.list_objects_v2(Bucket="models", Prefix="out/vectors.parquet.parts/").get("KeyCount", 0) > 1:
                    process.kill()
                time.sleep(0.02)
            return process.returncode if process.poll() is not None else process.wait(300), process.stderr.read()

    def right(found):
        vectors, errors = found["embedding"].to_pylist(), found["error"].to_pylist()
        same = all(found[name].to_pylist() == table[name].to_pylist() for name in table.column_names)
        width = found.schema.field("embedding").type == pyarrow.list_(pyarrow.float32(), 8)
        given = all((vector is None) == (word is None) == (error is not None) for vector, word, error in zip(vectors, texts, errors))
        return same and width and given and tiny.close(vectors[1], expected)

    for name in ("in.parquet", "in.feather"):
        client.upload_file(str(scratch / name), "models", f"in/{name}")
    _, said = run("s3://models/in/in.parquet", "s3://models/out/vectors.parquet", kill=True)
    there = client.list_objects_v2(Bucket="models", Prefix="out/")["Contents"]
    tiny.check("a killed bulk job has left parts and no output", all(item["Key"].startswith("out/vectors.parquet.parts/") for item in there))
    code, said = run("s3://models/in/in.parquet", "s3://models/out/vectors.parquet")
    tiny.check("started again it goes on, and says which rows have no text", code == 1 and "goes on behind line" in said)
    left = client.list_objects_v2(Bucket="models", Prefix="out/")["Contents"]
    tiny.check("its parts are gone from the bucket", [item["Key"] for item in left] == ["out/vectors.parquet"])
    client.download_file("models", "out/vectors.parquet", str(scratch / "found.parquet"))
    tiny.check("another library reads every row of the Parquet file, in order", right(parquet.read_table(scratch / "found.parquet")))
    run("s3://models/in/in.feather", scratch / "found.feather")
    tiny.check("and of the Arrow file", right(feather.read_table(scratch / "found.feather")))
    url = client.generate_presigned_url("get_object", {"Bucket": "models", "Key": "in/in.parquet"})
    run(url, "s3://models/out/lines.jsonl")
    client.download_file("models", "out/lines.jsonl", str(scratch / "found.jsonl"))
    lines = [json.loads(line) for line in (scratch / "found.jsonl").read_text().splitlines()]
    tiny.check("and of lines, from a signed URL", [line["id"] for line in lines] == list(range(count)) and tiny.close(lines[1]["embedding"], expected))
    code, said = run("s3://models/in/none.parquet", scratch / "none.parquet")
    tiny.check("a file that is not there is named", code == 1 and "s3://models/in/none.parquet" in said)


def main(scratch):
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    folder, repository = scratch / "mini", scratch / "repository"
    tiny.write(folder)
    subprocess.run([BINARY, "init", "--copy", "--name", "mine", folder, repository], check=True, capture_output=True)
    # An object store holds no empty folders: version 1 of the ensemble is one, and of the postprocessing.
    fill(port, folder, "a folder/mini")
    fill(port, repository, "repository")
    text, expected = tiny.golden()

    variables = environment(scratch, port, "plain")
    with tiny.Served(BINARY, ["s3://models/a%20folder/mini"], variables, scratch / "folder.log") as served:
        tiny.check("a model folder in a bucket answers", tiny.close(served.embed("mini", text), expected))
    with tiny.Served(BINARY, ["--model-repository", "s3://models/repository"], variables, scratch / "repository.log") as served:
        tiny.check("a model repository in a bucket answers", tiny.close(served.embed("mine", text), expected))

    cutter = Cutter(port, (folder / "onnx/model.onnx").stat().st_size)
    variables = environment(scratch, cutter.own_port, "cut")
    with tiny.Served(BINARY, ["s3://models/a%20folder/mini"], variables, scratch / "cut.log") as served:
        tiny.check("so it does over a connection that was cut", tiny.close(served.embed("mini", text), expected))
        tiny.check(f"which was continued at byte {b', '.join(cutter.ranges).decode()}", cutter.cut == 1 and cutter.ranges)

    bulk(scratch, port, folder, text, expected)

    server.stop()
    with tiny.Served(BINARY, ["s3://models/a%20folder/mini"], environment(scratch, port, "plain"), scratch / "away.log") as served:
        tiny.check("a server that is away is no reason not to serve", tiny.close(served.embed("mini", text), expected))
        said = [event for event in served.events() if "as it was downloaded before" in event.get("message", "")]
        tiny.check("and the log says so", len(said) == 1)
    missing = subprocess.run(
        [BINARY, "validate", "s3://models/other"], env=environment(scratch, port, "none"), capture_output=True, text=True
    )
    tiny.check("without a copy the error names the variables", missing.returncode != 0 and "AWS_ENDPOINT_URL" in missing.stdout)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
    sys.exit(0)
