"""Objects that exist in the place of those that openai-python's tests name.

The tests were written for a mock that answers any path with the examples of OpenAI's document, so they name objects that no server has
(`file_id`, `batch_id`, `upload_abc123`). A proxy between the library and the gateway puts an object that exists in the place of each such
name (`with_objects`); everything else of a request, and every byte of an answer, passes unchanged.
"""

import contextlib
import hashlib
import http.client
import http.server
import json
import threading
import urllib.parse
import uuid

MODEL = "text-embedding-3-small"
LINES = 200


class Objects:
    """Makes the objects that stand for the tests' names, by the gateway's own routes."""

    def __init__(self, address):
        self.address = address

    def call(self, method, path, body=b"", content_type="application/json"):
        connection = http.client.HTTPConnection(self.address, timeout=30)
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
    # The tests' files have the purpose of assistants, which Trireme does not have.
    if changed and "purpose" in changed:
        changed["purpose"] = "batch"
        # A file of no bytes is an error at OpenAI's, too.
        changed["bytes"] = 12
    body = body.replace(b"\r\n\r\nassistants\r\n", b"\r\n\r\nbatch\r\n")
    # The tests ask for lists of no entries, which OpenAI's own document does not allow (1 to 100).
    path = path.replace("limit=0", "limit=1")
    return path, body if changed is None else json.dumps(changed).encode()


@contextlib.contextmanager
def proxy(url):
    """A server between the tests and the gateway at `url`, until the block ends."""
    address = urllib.parse.urlsplit(url).netloc
    objects = Objects(address)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            path, body = with_objects(objects, self.command, self.path, body)
            hop = {"host", "content-length", "connection", "transfer-encoding"}
            headers = {name: value for name, value in self.headers.items() if name.lower() not in hop}
            connection = http.client.HTTPConnection(address, timeout=60)
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
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
