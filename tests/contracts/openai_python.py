"""openai-python's own tests of files, uploads, batches, embeddings and models, against `trireme serve`.

The tests are fetched from the library's source distribution on PyPI and run as they are. They were written for a mock that answers any
path with the examples of OpenAI's document, so they name objects that no server has (`file_id`, `batch_id`, `upload_abc123`). A proxy
between the library and the gateway puts an object that exists in the place of each such name (`PLACEHOLDERS`); everything else of a
request, and every byte of an answer, passes unchanged. Half of the tests validate the answers strictly.

Writes `openai_python.json`: how many of the tests hold, and the reason of each that does not.
"""

import argparse
import collections
import hashlib
import http.client
import http.server
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import uuid
import xml.etree.ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FILES = [
    "api_resources/test_batches.py",
    "api_resources/test_embeddings.py",
    "api_resources/test_files.py",
    "api_resources/test_models.py",
    "api_resources/test_uploads.py",
    "api_resources/uploads",
]
# Tests that do not hold, by a part of their names, and why.
MISSES = {
    r"test_models.py::.*test_(method|raw_response|streaming_response)_delete": "the tests delete a fine-tuned model; Trireme trains none, and its models are files of whoever runs it",
    r"test_embeddings.py::.*test_(method|raw_response|streaming_response)_create\[(strict|aiohttp)\]": (
        "the library asks for base64, and in strict mode it validates the answer before it decodes it: OpenAI's own answers fail, too"
    ),
}
MODEL = "sentence_embedding"
LINES = 200


class Objects:
    """Makes the objects that stand for the tests' names, by the gateway's own routes."""

    def __init__(self, address):
        self.address = address

    def call(self, method, path, body=b"", content_type="application/json"):
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        connection.request(method, path, body, {"content-type": content_type})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path} answered {answer.status}: {text.decode(errors='replace')}")
        return json.loads(text)

    def form(self, path, fields, file_field, content):
        boundary = uuid.uuid4().hex
        parts = [f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
        parts.append(f'--{boundary}\r\ncontent-disposition: form-data; name="{file_field}"; filename="lines.jsonl"\r\n\r\n')
        body = "".join(parts).encode() + content + f"\r\n--{boundary}--\r\n".encode()
        return self.call("POST", path, body, f"multipart/form-data; boundary={boundary}")

    def file(self):
        line = {"method": "POST", "url": "/v1/embeddings", "body": {"model": MODEL, "input": "a text"}}
        lines = "".join(json.dumps({"custom_id": str(at)} | line) + "\n" for at in range(LINES))
        return self.form("/v1/files", {"purpose": "batch"}, "file", lines.encode())["id"]

    def batch(self):
        asked = {"input_file_id": self.file(), "endpoint": "/v1/embeddings", "completion_window": "24h"}
        return self.call("POST", "/v1/batches", json.dumps(asked).encode())["id"]

    def upload(self, size):
        asked = {"bytes": size, "filename": "lines.jsonl", "mime_type": "text/jsonl", "purpose": "batch"}
        return self.call("POST", "/v1/uploads", json.dumps(asked).encode())["id"]

    def part(self, upload, content):
        return self.form(f"/v1/uploads/{upload}/parts", {}, "data", content)["id"]


def with_objects(objects, method, path, body):
    """The path and body of a request with objects that exist in the place of the tests' names."""
    changed = json.loads(body) if body.startswith(b"{") else None
    if "/files/file_id" in path:
        path = path.replace("file_id", objects.file())
    elif "/batches/batch_id" in path:
        path = path.replace("batch_id", objects.batch())
    elif path.endswith("/batches") and changed:
        changed |= {"input_file_id": objects.file(), "endpoint": "/v1/embeddings"}
    elif "/batches?" in path:
        path = path.replace("after=after", f"after={objects.batch()}")
    elif "/files?" in path:
        path = path.replace("after=after", f"after={objects.file()}")
    elif path.endswith("/upload_abc123/complete") and changed:
        content = b"Example data"
        upload = objects.upload(len(content))
        path = path.replace("upload_abc123", upload)
        changed["part_ids"] = [objects.part(upload, content)]
        if "md5" in changed:
            changed["md5"] = hashlib.md5(content).hexdigest()
    elif "/uploads/upload_abc123" in path:
        path = path.replace("upload_abc123", objects.upload(len(b"Example data")))
    elif path.endswith("/embeddings") and changed:
        changed["model"] = MODEL
    elif "/models/" in path and method == "GET":
        path = path[: path.rindex("/") + 1] + MODEL
    # The tests' files are for assistants, which Trireme has none of.
    if changed and "purpose" in changed:
        changed["purpose"] = "batch"
        # A file of no bytes is an error at OpenAI's, too.
        changed["bytes"] = 12
    body = body.replace(b"\r\n\r\nassistants\r\n", b"\r\n\r\nbatch\r\n")
    # The tests ask for lists of no entries, which OpenAI's own document does not allow (1 to 100).
    path = path.replace("limit=0", "limit=1")
    return path, body if changed is None else json.dumps(changed).encode()


def proxy(address):
    """A server between the tests and the gateway at `address`."""
    objects = Objects(address)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            path, body = with_objects(objects, self.command, self.path, body)
            hop = {"host", "content-length", "connection", "transfer-encoding"}
            headers = {name: value for name, value in self.headers.items() if name.lower() not in hop}
            connection = http.client.HTTPConnection(*address, timeout=60)
            connection.request(self.command, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in hop | {"date", "server"}:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = pass_on

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def fetch(python, folder):
    """The library's source distribution of the version that is installed, unpacked."""
    version = subprocess.check_output([python, "-c", "import openai; print(openai.__version__)"], text=True).strip()
    command = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", "openai"]
    if subprocess.run([*command, "--dest", folder, f"openai=={version}"], check=False).returncode != 0:
        sys.exit(f"the source distribution of openai {version} cannot be fetched: see pip's message above")
    with tarfile.open(next(Path(folder).glob("openai-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return version, Path(folder) / f"openai-{version}"


def free_port():
    with http.server.socketserver.TCPServer(("127.0.0.1", 0), None) as server:
        return server.server_address[1]


def serve(binary, repository, folder):
    port = free_port()
    log = (Path(folder) / "trireme.log").open("w")
    command = [binary, "serve", repository, "--http-port", str(port), "--allow-grpc=false", "--allow-metrics=false", "--data-dir", f"{folder}/data"]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up and process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return process, ("127.0.0.1", port)
        except OSError:
            pass
        time.sleep(0.2)
    process.kill()
    sys.exit(f"trireme serve ended, or was not ready within 120 s:\n{Path(log.name).read_text()[-3000:]}")


def results(report):
    """The names of the tests that held, and of those that did not with the last line of their message."""
    held, missed = [], {}
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        module, test_class = case.get("classname").removeprefix("tests.api_resources.").rsplit(".", 1)
        name = f"{module.replace('.', '/')}.py::{test_class}::{case.get('name')}"
        fault = next((child for child in case if child.tag in ("failure", "error")), None)
        if any(child.tag == "skipped" for child in case):
            continue
        if fault is None:
            held.append(name)
        else:
            missed[name] = (fault.get("message") or "").splitlines()[0][:300]
    return held, missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trireme", type=Path, default=ROOT / "target/debug/trireme")
    parser.add_argument("--repository", type=Path, default=ROOT / ".tools/demo-repository")
    parser.add_argument("--write", action="store_true", help="write openai_python.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        version, source = fetch(sys.executable, folder)
        process, address = serve(arguments.trireme, arguments.repository, folder)
        server = proxy(address)
        report = Path(folder) / "report.xml"
        try:
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-o", "addopts=", "--tb=line"]
            environment = os.environ | {"TEST_API_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1"}
            subprocess.run([*command, *(f"tests/{file}" for file in FILES)], cwd=source, env=environment, check=False)
        finally:
            process.terminate()
            process.wait(30)
        held, missed = results(report)
    faults = [f"{name}: {message}" for name, message in missed.items() if not reason(name)]
    faults += [f"{name}: it holds, but MISSES names it" for name in held if reason(name)]
    reasons = collections.Counter(reason(name) for name in missed if reason(name))
    found = {"suite": "openai-python", "version": version, "held": len(held), "of": len(held) + len(missed)}
    found["missed"] = [{"tests": count, "why": why} for why, count in reasons.items()]
    print(json.dumps(found, indent=2))
    if arguments.write:
        (HERE / "openai_python.json").write_text(json.dumps(found, indent=2) + "\n")
    if faults:
        sys.exit("\n".join(faults))


def reason(name):
    """Why a test does not hold, if that is known."""
    return next((why for pattern, why in MISSES.items() if re.search(pattern, name)), None)


if __name__ == "__main__":
    main()
