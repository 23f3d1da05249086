"""A worker's end of the socket to a program: the frames of docs/stage-protocol.md."""

import array
import json
import os
import socket
import struct
import subprocess
import tempfile

ALIGNMENT = 64
INLINE_BYTES = 64 * 1024
PREFIX = struct.Struct("<II")
LARGEST_PART = 64 << 20


class Ended(Exception):
    """The program has closed its socket."""


class Program:
    """A program that runs for the length of a `with` block, with one end of a socket as standard input."""

    def __init__(self, command, limit_s):
        self.command, self.limit_s = command, limit_s

    def __enter__(self):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(self.limit_s)
        self.output = tempfile.TemporaryFile()
        environment = {**os.environ, "TRIREME_WORKER_PID": str(os.getpid())}
        with theirs:
            self.process = subprocess.Popen(
                self.command, stdin=theirs, stdout=self.output, stderr=self.output, env=environment
            )
        return self

    def __exit__(self, *_):
        self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.output.close()

    def printed(self):
        """What it has printed."""
        self.output.seek(0)
        return self.output.read().decode(errors="replace")[-2000:]

    def send(self, header, tensors=()):
        """Sends a frame. `tensors` are (offset, bytes) as `lay_out` has made them."""
        text = json.dumps(header).encode()
        # As a worker does: the body begins at a multiple of 64, blanks fill up the header.
        text += b" " * (-(len(text)) % ALIGNMENT)
        body = bytearray(max((offset + len(data) for offset, data in tensors), default=0))
        for offset, data in tensors:
            body[offset : offset + len(data)] = data
        if len(body) <= INLINE_BYTES:
            return self.socket.sendall(PREFIX.pack(len(text), len(body)) + text + body)
        memory = os.memfd_create("conformance", os.MFD_CLOEXEC)
        try:
            # As a worker does, which leaves the position of the file at its beginning.
            written = 0
            while written < len(body):
                written += os.pwrite(memory, memoryview(body)[written:], written)
            frame = PREFIX.pack(len(text), 0) + text
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))]
            sent = self.socket.sendmsg([frame], rights)
            self.socket.sendall(frame[sent:])
        finally:
            os.close(memory)

    def receive(self):
        """The next frame: its header, the bytes of its tensors, and whether they came in a memory file."""
        prefix, memory = b"", None
        while len(prefix) < PREFIX.size:
            part, rights, _, _ = self.socket.recvmsg(PREFIX.size - len(prefix), socket.CMSG_SPACE(4))
            if not part:
                raise Ended
            prefix += part
            for _, _, data in rights:
                (memory,) = struct.unpack("i", data[:4])
        sizes = PREFIX.unpack(prefix)
        if max(sizes) > LARGEST_PART:
            raise AssertionError(f"a frame has a header of {sizes[0]} and a body of {sizes[1]} bytes, expected 64 MiB at most")
        header, body = (self.exactly(size) for size in sizes)
        if memory is not None:
            if body:
                raise AssertionError("a frame has a memory file and a body, expected one of them")
            with open(memory, "rb") as file:
                # The program may have left its position anywhere.
                file.seek(0)
                body = file.read()
        return json.loads(header), body, memory is not None

    def exactly(self, size):
        """So many bytes."""
        parts = b""
        while len(parts) < size:
            part = self.socket.recv(min(size - len(parts), 1 << 20))
            if not part:
                raise Ended
            parts += part
        return parts


def lay_out(tensors):
    """Headers of (name, datatype, shape, bytes), and where their bytes lie."""
    headers, placed, end = [], [], 0
    for name, datatype, shape, data in tensors:
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        headers.append({"name": name, "datatype": datatype, "shape": shape, "offset": offset, "size": len(data)})
        placed.append((offset, data))
        end = offset + len(data)
    return headers, placed
