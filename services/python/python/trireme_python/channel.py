"""Frames between the worker and this process.

A frame is the length of its header and the length of its body, 4 bytes each, little-endian; then the header, which is JSON, and the
body. Tensors' bytes lie in the body, or, where there are many, in a memory file whose descriptor comes with the frame.
"""

import array
import fcntl
import json
import mmap
import os
import select
import socket
import struct
import sys
import threading
from collections import deque

from trireme_python.errors import TritonModelException

# Above this many bytes tensors travel in a memory file.
INLINE_BYTES = 64 * 1024

# A memory file of at most this many bytes is written to again for the next answer: memory that the process has is faster than
# memory that the system has to clear.
SPARE_BYTES = 64 << 20

# Each tensor begins at a multiple of this.
ALIGNMENT = 64

# Of fcntl(2); Python's module has these names only where it was built with them. The worker maps no file that may become smaller.
F_ADD_SEALS = 1033
F_SEAL_SHRINK = 2

PREFIX = struct.Struct("<II")
# Made once: `json.dumps` makes one for each text where it is not to write blanks. JSON has no word for NaN.
ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False, ensure_ascii=False, allow_nan=False)
# The worker takes no longer header, in bytes.
LONGEST_HEADER = 64 << 20
DECODER = json.JSONDecoder()
ANCILLARY = socket.CMSG_SPACE(struct.calcsize("i"))
# Most frames are smaller. Larger ones make the buffer grow.
BUFFER_BYTES = INLINE_BYTES + 16 * 1024


class Closed(Exception):
    """The worker has closed the socket."""


class Channel:
    """The socket to the worker. Any thread may send; one at a time may receive."""

    def __init__(self, sock):
        self.socket = sock
        # Whether this is a process that the model has forked. The socket is not its own.
        self.is_forked = False
        os.register_at_fork(after_in_child=self._forked)
        self.sending = threading.Lock()
        # Bytes that were received lie in `buffer[begin:end]`; `received` counts all bytes that ever were.
        self.buffer, self.begin, self.end, self.received = bytearray(BUFFER_BYTES), 0, 0, 0
        # Descriptors, each with the number of bytes that had been received with it: it belongs to the frame with the last of those.
        self.memory = deque()
        # The memory of the last answer to `execute`: the worker has read it when it sends something to execute again.
        self.spare = None
        # The memory of the last requests that was released: the worker may send it again.
        self.released = None

    def send(self, header, buffers=()):
        """Sends a frame. `buffers` are (offset, bytes-like) of its tensors, as `Layout` has laid them out. Where a header cannot
        be encoded, nothing is sent."""
        text = encode(header)
        body, memory = fill(buffers)
        try:
            self._send(text, body, memory)
        finally:
            if memory is not None:
                os.close(memory)

    def answer(self, header, layout, inputs):
        """Sends that `execute` has returned, and what. `inputs` is what its frame's tensors lie in. Where that raises anything but
        `Closed`, nothing is sent."""
        if INLINE_BYTES < layout.end <= SPARE_BYTES:
            self.spare = Spare.for_bytes(layout.end, self.spare)
            self.spare.fill(layout.buffers)
            body, memory, made = b"", self.spare.file, None
        else:
            body, memory = fill(layout.buffers)
            made = memory
        # The outputs may lie in the inputs' memory.
        layout.buffers.clear()
        try:
            if inputs.release():
                header["released"] = True
                self.released = inputs
            self._send(encode(header), body, memory)
        finally:
            if made is not None:
                os.close(made)

    def _forked(self):
        self.is_forked = True

    def _send(self, text, body, memory):
        if self.is_forked:
            raise TritonModelException("a process that a model has forked cannot send requests or responses: only the model's own can")
        frame = b"".join((PREFIX.pack(len(text), len(body)), text, body))
        try:
            with self.sending:
                self._send_frame(frame, memory)
        except OSError as error:
            raise Closed(str(error)) from error

    def _send_frame(self, frame, memory):
        if memory is None:
            self.socket.sendall(frame)
            return
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))]
        sent = self.socket.sendmsg([frame], rights)
        if sent < len(frame):
            self.socket.sendall(memoryview(frame)[sent:])

    def is_readable(self):
        """Whether something can be received without waiting."""
        if self.end > self.begin:
            return True
        # Not select(), which knows no descriptors above 1023.
        readable = select.poll()
        readable.register(self.socket, select.POLLIN)
        return bool(readable.poll(0))

    def receive(self):
        """Waits for a frame: its header, and what its tensors lie in."""
        try:
            return self._receive()
        except OSError as error:
            raise Closed(str(error)) from error

    def _receive(self):
        while True:
            there, needed = self.end - self.begin, PREFIX.size
            if there >= needed:
                header_size, body_size = PREFIX.unpack_from(self.buffer, self.begin)
                needed += header_size + body_size
                if there >= needed:
                    break
            self._receive_more(needed)
        header_begin = self.begin + PREFIX.size
        body_begin, self.begin = header_begin + header_size, self.begin + needed
        # Not `loads`, which would find out the encoding and skip blanks first.
        header, _ = DECODER.raw_decode(self.buffer[header_begin:body_begin].decode())
        if not self.memory or self.memory[0][0] > self.received - (self.end - self.begin):
            return header, Received(memoryview(self.buffer[body_begin : self.begin]))
        _, memory = self.memory.popleft()
        try:
            status = os.fstat(memory)
            identity = (status.st_dev, status.st_ino, status.st_size)
            known, self.released = self.released, None
            if known is not None and known.identity == identity:
                return header, Received.mapped(known.mapping, identity)
            # A model may write into its inputs: the worker reads this memory never, and writes to it when it is released.
            return header, Received.mapped(mmap.mmap(memory, status.st_size), identity)
        finally:
            os.close(memory)

    def _receive_more(self, needed):
        """Receives bytes of a frame that has `needed` bytes at least, and the descriptor that comes with them."""
        there = self.end - self.begin
        if self.begin:
            self.buffer[:there] = self.buffer[self.begin : self.end]
            self.begin, self.end = 0, there
        if needed > len(self.buffer):
            self.buffer = self.buffer.ljust(needed, b"\0")
        with memoryview(self.buffer) as view, view[there:] as free:
            count, rights, _, _ = self.socket.recvmsg_into([free], ANCILLARY)
        if count == 0:
            raise Closed("the worker has closed the socket")
        self.end, self.received = there + count, self.received + count
        for level, kind, data in rights:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                # The kernel ends a message of the socket where one with a descriptor ends.
                self.memory.append((self.received, struct.unpack_from("i", data)[0]))


class Received:
    """What the tensors of a frame lie in: `view` is a writable memoryview of their bytes."""

    __slots__ = ("view", "mapping", "identity")

    def __init__(self, view, mapping=None, identity=None):
        self.view, self.mapping, self.identity = view, mapping, identity

    @classmethod
    def mapped(cls, mapping, identity):
        """The bytes of a mapped memory file, which is known by its device, number and size."""
        return cls(memoryview(mapping), mapping, identity)

    def release(self):
        """Gives memory back. Says whether it is a memory file that no tensor uses any more: then the worker may write to it."""
        if self.mapping is None or self.identity[2] > SPARE_BYTES:
            return False
        self.view.release()
        # More references where the model keeps an input: an array refers to the mapping that it lies in.
        return self.references() <= UNUSED

    def references(self):
        """The number of references to the mapping."""
        return sys.getrefcount(self.mapping)


# The references to a mapping that no tensor lies in.
UNUSED = Received(None, mmap.mmap(-1, 1)).references()


class Spare:
    """A memory file that is written to again, mapped."""

    def __init__(self, size):
        self.file = os.memfd_create("trireme", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.file, size)
        fcntl.fcntl(self.file, F_ADD_SEALS, F_SEAL_SHRINK)
        self.mapping, self.size = mmap.mmap(self.file, size), size

    @classmethod
    def for_bytes(cls, size, spare):
        """`spare` where it has this size, else a new one in its place."""
        if spare is not None and spare.size == size:
            return spare
        if spare is not None:
            spare.close()
        return cls(size)

    def fill(self, buffers):
        """Writes tensors."""
        for offset, data in buffers:
            self.mapping[offset : offset + len(data)] = data

    def close(self):
        """Gives the memory back."""
        self.mapping.close()
        os.close(self.file)


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
        if self.channel.is_forked:
            return
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


def encode(header):
    """A header's bytes. Texts that clients or the log read may have half a character, which UTF-8 cannot say."""
    text = ENCODER.encode(header).encode(errors="replace")
    if len(text) > LONGEST_HEADER:
        raise ValueError(f"names, parameters and messages have {len(text)} bytes together, expected {LONGEST_HEADER} at most")
    return text


def fill(buffers):
    """The bytes of tensors as a frame has them: its body, and a new memory file where they are too many for that."""
    last = buffers[-1] if buffers else (0, b"")
    size = last[0] + len(last[1])
    if size <= INLINE_BYTES:
        body = bytearray(size)
        for offset, data in buffers:
            body[offset : offset + len(data)] = data
        return body, None
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
    return b"", memory


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
