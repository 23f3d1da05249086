#!/usr/bin/env python3
"""tritonclient's shared memory, over HTTP and gRPC, against tests/repositories/basic with --allow-client-shm."""

import contextlib
import functools
import os
import queue

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import serialize_byte_tensor

import checks
from checks import expect, expect_equal, expect_error, texts

A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.full((1, 16), 3, np.int32)
SIZE = A.nbytes
# Larger than the gateway's limit for copies on its own thread, and than a message of a nats-server with default settings.
LARGE = 3 << 20
PATIENCE = 30


@contextlib.contextmanager
def region(client, name, byte_size):
    """A memory object of this process, registered by `name`."""
    handle = shm.create_shared_memory_region(name, f"/trireme_{name}_{os.getpid()}", byte_size)
    try:
        client.register_system_shared_memory(name, handle._shm_key, byte_size)
        yield handle
        client.unregister_system_shared_memory(name)
    finally:
        shm.destroy_shared_memory_region(handle)


def key(handle):
    return handle._shm_key


def shared_input(module, name, shape, datatype, place):
    tensor = module.InferInput(name, list(shape), datatype)
    tensor.set_shared_memory(*place)
    return tensor


def shared_output(module, name, place):
    output = module.InferRequestedOutput(name)
    output.set_shared_memory(*place)
    return output


def simple(module, a, b):
    """The inputs of `simple`; `a` and `b` are region, size and offset."""
    return [shared_input(module, "INPUT0", A.shape, "INT32", a), shared_input(module, "INPUT1", B.shape, "INT32", b)]


def names(client):
    regions = client.get_system_shared_memory_status()
    return [r["name"] for r in regions] if isinstance(regions, list) else sorted(regions.regions)


def check_tensors(module, client):
    """Both ways in shared memory, each part at its offset; the answer has their shapes and no data."""
    with region(client, "in", 2 * SIZE) as source, region(client, "out", 3 * SIZE) as target:
        shm.set_shared_memory_region(source, [A, B])
        inputs = simple(module, ("in", SIZE), ("in", SIZE, SIZE))
        places = {"OUTPUT0": ("out", SIZE, SIZE), "OUTPUT1": ("out", SIZE, 2 * SIZE)}
        outputs = [shared_output(module, name, place) for name, place in places.items()]
        result = client.infer("simple", inputs, outputs=outputs)
        if module is triton_http:
            described = {"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 16]}
            expect_equal("OUTPUT0 in the answer", result.get_output("OUTPUT0"), described)
        else:
            expect_equal("raw outputs", list(result.get_response().raw_output_contents), [b"", b""])
        expect_equal("what was not asked for", shm.get_contents_as_numpy(target, np.int32, A.shape), np.zeros_like(A))
        expect_equal("OUTPUT0", shm.get_contents_as_numpy(target, np.int32, A.shape, SIZE), A + B)
        expect_equal("OUTPUT1", shm.get_contents_as_numpy(target, np.int32, A.shape, 2 * SIZE), A - B)


def check_mixed(module, client):
    """One input and one output in shared memory, the others in the message."""
    with region(client, "part", SIZE) as memory:
        shm.set_shared_memory_region(memory, [A])
        travelling = module.InferInput("INPUT1", list(B.shape), "INT32").set_data_from_numpy(B)
        inputs = [shared_input(module, "INPUT0", A.shape, "INT32", ("part", SIZE)), travelling]
        outputs = [shared_output(module, "OUTPUT0", ("part", SIZE)), module.InferRequestedOutput("OUTPUT1")]
        result = client.infer("simple", inputs, outputs=outputs)
        expect_equal("OUTPUT1", result.as_numpy("OUTPUT1"), A - B)
        expect_equal("OUTPUT0", shm.get_contents_as_numpy(memory, np.int32, A.shape), A + B)


def check_texts(module, client):
    """Strings, whose size does not follow from their shape."""
    values = texts(["oar".encode(), b"", "漢字".encode(), b"x" * LARGE])
    packed = serialize_byte_tensor(values)
    size = len(packed.item())
    with region(client, "texts", 2 * size) as memory:
        shm.set_shared_memory_region(memory, [packed])
        inputs = [shared_input(module, "INPUT0", values.shape, "BYTES", ("texts", size))]
        client.infer("identity_bytes", inputs, outputs=[shared_output(module, "OUTPUT0", ("texts", size, size))])
        found = shm.get_contents_as_numpy(memory, np.object_, values.shape, size)
        expect_equal("OUTPUT0", list(found), list(values))


def check_embedding(module, client):
    """Through an ensemble: the outputs are the same as without shared memory."""
    values = texts([b"the rower", b"takes the oar"])
    travelling = [module.InferInput("TEXT", [2], "BYTES").set_data_from_numpy(values)]
    expected = client.infer("tiny_embedding", travelling).as_numpy("embedding")
    packed = serialize_byte_tensor(values)
    with region(client, "in", len(packed.item())) as source, region(client, "out", expected.nbytes) as target:
        shm.set_shared_memory_region(source, [packed])
        inputs = [shared_input(module, "TEXT", [2], "BYTES", ("in", len(packed.item())))]
        client.infer("tiny_embedding", inputs, outputs=[shared_output(module, "embedding", ("out", expected.nbytes))])
        found = shm.get_contents_as_numpy(target, np.float32, expected.shape)
        expect(np.allclose(found, expected, atol=1e-6), f"expected {expected}, found {found}")


def check_stream(_, client):
    """Each request of a stream has its own part."""
    replies = queue.Queue()
    count = 8
    with region(client, "stream", (count + 1) * SIZE) as memory:
        shm.set_shared_memory_region(memory, [A])
        client.start_stream(lambda result, error: replies.put((result, error)))
        try:
            for number in range(1, count + 1):
                b = np.full((1, 16), number, np.int32)
                travelling = triton_grpc.InferInput("INPUT1", list(b.shape), "INT32").set_data_from_numpy(b)
                inputs = [shared_input(triton_grpc, "INPUT0", A.shape, "INT32", ("stream", SIZE)), travelling]
                client.async_stream_infer("simple", inputs, outputs=[shared_output(triton_grpc, "OUTPUT0", ("stream", SIZE, number * SIZE))])
            for number in range(1, count + 1):
                result, error = replies.get(timeout=PATIENCE)
                expect(error is None, f"expected no error, found {error}")
                found = shm.get_contents_as_numpy(memory, np.int32, A.shape, number * SIZE)
                expect_equal(f"OUTPUT0 of {number}", found, A + number)
        finally:
            client.stop_stream()


def check_control(module, client):
    """Registering, listing, unregistering."""
    exists, invalid, internal = {
        triton_http: ("400", "400", "500"),
        triton_grpc: ("StatusCode.ALREADY_EXISTS", "StatusCode.INVALID_ARGUMENT", "StatusCode.INTERNAL"),
    }[module]
    register = lambda *arguments: lambda: client.register_system_shared_memory(*arguments)
    expect_equal("regions", names(client), [])
    with region(client, "b", SIZE) as memory:
        client.register_system_shared_memory("a", key(memory), SIZE - 4, offset=4)
        expect_equal("regions", names(client), ["a", "b"])
        found = client.get_system_shared_memory_status("a")
        found = found[0] if module is triton_http else {f.name: v for f, v in found.regions["a"].ListFields()}
        expect_equal("region a", found, {"name": "a", "key": key(memory), "offset": 4, "byte_size": SIZE - 4})
        expect_error("again", register("a", key(memory), 4), exists, "shared memory region 'a' already in manager")
        message = "failed to register shared memory region 'c': invalid args"
        expect_error("past the end", register("c", key(memory), SIZE + 1), invalid, message)
        for name in ("/no_such_object", "/../etc/passwd", "..", ""):
            expect_error(repr(name), register("c", name, 4), internal, f"Unable to open shared memory region: '{name}'")
        client.unregister_system_shared_memory()
        expect_equal("regions after all were given back", names(client), [])


def check_faults(module, client):
    """Parts outside a region, of the wrong size, or of no region."""
    missing, invalid, internal = {
        triton_http: ("404", "400", "500"),
        triton_grpc: ("StatusCode.NOT_FOUND", "StatusCode.INVALID_ARGUMENT", "StatusCode.INTERNAL"),
    }[module]

    def infer(place, output=None):
        outputs = [shared_output(module, "OUTPUT0", output)] if output else None
        return lambda: client.infer("simple", simple(module, place, ("part", SIZE)), outputs=outputs)

    with region(client, "part", SIZE) as memory:
        shm.set_shared_memory_region(memory, [A])
        expect_error("no region", infer(("none", SIZE)), missing, "Unable to find shared memory region: 'none'")
        expect_error("offset", infer(("part", SIZE, SIZE)), invalid, "Invalid offset for shared memory region: 'part'")
        message = "Invalid offset + byte size for shared memory region: 'part'"
        expect_error("size", infer(("part", SIZE, 4)), invalid, message)
        expect_error("input too short", infer(("part", SIZE - 4)), invalid, "input byte size mismatch for input 'INPUT0'")
        expect_error("no region for the output", infer(("part", SIZE), ("none", SIZE)), missing, "Unable to find")
        message = f"for output 'OUTPUT0' ({SIZE - 4} bytes) should be at least {SIZE} bytes to hold the results"
        expect_error("output too long", infer(("part", SIZE), ("part", SIZE - 4)), internal, message)
        expect_equal("memory after errors", shm.get_contents_as_numpy(memory, np.int32, A.shape), A)
        # Unregistered while the object still exists: the name is free again.
        client.unregister_system_shared_memory("part")
        expect_error("given back", infer(("part", SIZE)), missing, "Unable to find shared memory region: 'part'")


def check_cut_short(module, client):
    """The object of a region is truncated while it is registered; the server reports that and goes on."""
    with region(client, "short", 2 * SIZE) as memory:
        os.truncate(f"/dev/shm{key(memory)}", SIZE)
        inputs = simple(module, ("short", SIZE), ("short", SIZE, SIZE))
        status = "400" if module is triton_http else "StatusCode.INVALID_ARGUMENT"
        expect_error("cut short", lambda: client.infer("simple", inputs), status, "of shared memory region 'short'")
        expect(client.is_server_live(), "expected the server to be live")
        os.truncate(f"/dev/shm{key(memory)}", 2 * SIZE)


def check_cuda(module, client):
    status = "400" if module is triton_http else "StatusCode.INVALID_ARGUMENT"
    message = "failed to register CUDA shared memory region: 'c', GPUs not supported"
    expect_error("register", lambda: client.register_cuda_shared_memory("c", b"AAAA", 0, 4), status, message)
    client.unregister_cuda_shared_memory("c")


def check_metadata(module, client):
    metadata = client.get_server_metadata()
    extensions = metadata["extensions"] if module is triton_http else metadata.extensions
    expect("system_shared_memory" in extensions, f"expected system_shared_memory to be advertised, found {extensions}")
    expect("cuda_shared_memory" not in extensions, f"expected cuda_shared_memory not to be advertised, found {extensions}")


def main():
    add = lambda parser: parser.add_argument("--grpc-url", required=True, metavar="HOST:PORT")
    arguments = checks.arguments(__doc__, add)
    table = [
        ("regions", check_control),
        ("tensors", check_tensors),
        ("one of two tensors", check_mixed),
        ("texts", check_texts),
        ("tiny_embedding", check_embedding),
        ("faults", check_faults),
        ("an object cut short", check_cut_short),
        ("CUDA", check_cuda),
        ("extensions", check_metadata),
    ]
    with triton_http.InferenceServerClient(arguments.url) as http, triton_grpc.InferenceServerClient(arguments.grpc_url) as grpc:
        clients = {"HTTP": (triton_http, http), "gRPC": (triton_grpc, grpc)}
        checks.run([
            *((f"{name} over {way}", functools.partial(check, *client)) for way, client in clients.items() for name, check in table),
            ("stream", functools.partial(check_stream, *clients["gRPC"])),
        ])


if __name__ == "__main__":
    main()
