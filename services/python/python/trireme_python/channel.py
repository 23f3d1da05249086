"""Frames between the worker and this process.

A frame is the length of its header and the length of its body, 4 bytes each, little-endian; then the header, which is JSON, and the
body. Tensors' bytes lie in the body, or, where there are many, in a memory file whose descriptor comes with the frame.
"""

import array
import json
import mmap
import os
import select
import socket
import struct
import threading
from collections import deque

# Above this many bytes tensors travel in a memory file.
INLINE_BYTES = 64 * 1024

# Each tensor begins at a multiple of this.
ALIGNMENT = 64

PREFIX = struct.Struct("<II")
# Made once: `json.dumps` makes one for each text where it is not to write blanks.
ENCODER = json.JSONEncoder(separators=(",", ":"))
DESCRIPTOR = struct.calcsize("i")


class Closed(Exception):
    """The worker has closed the socket."""


class Channel:
    """The socket to the worker. Any thread may send; one at a time may receive."""

    def __init__(self, sock):
        self.socket = sock
        self.sending = threading.Lock()

    def send(self, header, buffers=()):
        """Sends a frame. `buffers` are (offset, bytes-like) of its tensors, as `Layout` has laid them out."""
        last = buffers[-1] if buffers else (0, b"")
        size = last[0] + len(last[1])
        if size <= INLINE_BYTES:
            body = bytearray(size)
            for offset, data in buffers:
                body[offset : offset + len(data)] = data
            memory = None
        else:
            body, memory = b"", fill_memory(size, buffers)
        text = ENCODER.encode(header).encode()
        frame = b"".join((PREFIX.pack(len(text), len(body)), text, body))
        try:
            with self.sending:
                self._send(frame, memory)
        except OSError as error:
            raise Closed(str(error)) from error
        finally:
            if memory is not None:
                os.close(memory)

    def _send(self, frame, memory):
        if memory is None:
            self.socket.sendall(frame)
            return
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))]
        sent = self.socket.sendmsg([frame], rights)
        if sent < len(frame):
            self.socket.sendall(memoryview(frame)[sent:])

    def is_readable(self):
        """Whether something can be received without waiting."""
        # Not select(), which knows no descriptors above 1023.
        readable = select.poll()
        readable.register(self.socket, select.POLLIN)
        return bool(readable.poll(0))

    def receive(self):
        """Waits for a frame: its header, and a writable view of its tensors' bytes."""
        try:
            return self._receive()
        except OSError as error:
            raise Closed(str(error)) from error

    def _receive(self):
        prefix, memory = b"", None
        while len(prefix) < PREFIX.size:
            part, rights, _, _ = self.socket.recvmsg(PREFIX.size - len(prefix), socket.CMSG_SPACE(DESCRIPTOR))
            if not part:
                raise Closed("the worker has closed the socket")
            prefix += part
            for level, kind, data in rights:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    memory = struct.unpack_from("i", data)[0]
        header_size, body_size = PREFIX.unpack(prefix)
        frame = bytearray(header_size + body_size)
        rest = memoryview(frame)
        while rest:
            count = self.socket.recv_into(rest)
            if count == 0:
                raise Closed("the worker has closed the socket")
            rest = rest[count:]
        # As text: of bytes, `loads` would find out the encoding first.
        header = json.loads(frame[:header_size].decode())
        if memory is None:
            return header, memoryview(frame)[header_size:]
        try:
            size = os.fstat(memory).st_size
            # Private: a model may write into its inputs, and the worker does not see that.
            flags, prot = mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
            return header, memoryview(mmap.mmap(memory, size, flags=flags, prot=prot))
        finally:
            os.close(memory)


class Mailbox:
    """What has come from the worker. Whoever waits for something reads the socket for all others as well."""

    def __init__(self, channel, dispatch):
        self.channel = channel
        # Told of each frame; says whether it is work for the main thread.
        self.dispatch = dispatch
        self.work = deque()
        self.changed = threading.Condition()
        self.reading = False

    def next_work(self):
        """Waits for work."""
        return self.wait(lambda: self.work.popleft() if self.work else None)

    def wait(self, done):
        """Waits until `done` gives something, and gives that."""
        with self.changed:
            while True:
                found = done()
                if found is not None:
                    return found
                if self.reading:
                    self.changed.wait()
                else:
                    self._read()

    def poll(self):
        """Takes in what has come, without waiting."""
        with self.changed:
            while not self.reading and self.channel.is_readable():
                self._read()

    def _read(self):
        """Reads one frame, unlocked meanwhile."""
        self.reading = True
        self.changed.release()
        frame = None
        try:
            frame = self.channel.receive()
        finally:
            self.changed.acquire()
            self.reading = False
            if frame is not None and self.dispatch(*frame):
                self.work.append(frame)
            self.changed.notify_all()


def fill_memory(size, buffers):
    """A memory file with these bytes."""
    memory = os.memfd_create("trireme", os.MFD_CLOEXEC)
    try:
        os.ftruncate(memory, size)
        for offset, data in buffers:
            rest = memoryview(data)
            while rest:
                count = os.pwrite(memory, rest, offset)
                offset, rest = offset + count, rest[count:]
    except BaseException:
        os.close(memory)
        raise
    return memory


class Layout:
    """Where the tensors of a frame lie."""

    def __init__(self):
        self.end = 0
        self.buffers = []

    def add(self, data):
        """Adds a tensor's bytes, a flat bytes-like object; gives their offset."""
        offset = -(-self.end // ALIGNMENT) * ALIGNMENT
        self.buffers.append((offset, data))
        self.end = offset + len(data)
        return offset
