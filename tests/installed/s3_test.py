#!/usr/bin/env python3
"""Serves a model folder and a model repository from a server with S3's interface: as they are, and over a connection that is
cut in the middle of a file."""

import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

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


def fill(port, folder, prefix):
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name=KEYS["AWS_REGION"],
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )
    client.create_bucket(Bucket="models")
    for path in folder.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "models", f"{prefix}/{path.relative_to(folder)}")


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
