#!/usr/bin/env python3
"""Checks that a program speaks docs/stage-protocol.md, as one of backend `process` has to.

    conformance.py [--datatype INT64] [--input IN] [--output OUT] -- COMMAND...

The program is started as a worker starts it, once for each scenario. Its function does not matter: it has to answer a tensor of
one dimension under the input's name with a tensor under the output's name, or with an error. Needs Python 3.9 and nothing else.
"""

import argparse
import struct
import sys
import time

from link import Ended, Program, lay_out

WIDTHS = {"BOOL": 1, "INT8": 1, "UINT8": 1, "INT16": 2, "UINT16": 2, "FP16": 2, "BF16": 2, "INT32": 4, "UINT32": 4, "FP32": 4}
WIDTHS |= {"INT64": 8, "UINT64": 8, "FP64": 8}
CODES = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()
# Messages that a process may send at any time.
ASIDE = {"log", "metrics"}
ARGS = {
    "model_config": '{"name": "conformance"}', "model_name": "conformance", "model_version": "1", "model_repository": "/nowhere",
    "model_instance_name": "conformance_0_0", "model_instance_kind": "CPU", "model_instance_device_id": "0",
}


class Suite:
    """The scenarios, each with a process of its own."""

    def __init__(self, options):
        self.options, self.next = options, 0

    def program(self):
        return Program(self.options.command, self.options.limit)

    # --- parts of scenarios ---

    def loaded(self, program):
        """Has the program load its model."""
        program.send({"type": "load", "file": "/", "args": ARGS, "decoupled": False, "complete": False})
        header, _, _ = self.said(program)
        expect(f"`loaded` after `load`, found {header}", header["type"] == "loaded")

    def said(self, program):
        """The next frame that is not aside."""
        while True:
            frame = program.receive()
            if frame[0]["type"] not in ASIDE:
                return frame

    def execute(self, program, sizes, datatype=None, name=None):
        """Sends requests with tensors of so many elements; gives their responses by id, with the bytes of each output."""
        datatype, name = datatype or self.options.datatype, name or self.options.input
        tensors = [(name, datatype, [size], element_bytes(datatype, size)) for size in sizes]
        headers, placed = lay_out(tensors)
        requests = []
        for header in headers:
            self.next += 1
            requests.append(
                {"id": self.next, "request_id": "", "inputs": [header], "outputs": [self.options.output], "parameters": {}}
            )
        program.send({"type": "execute", "requests": requests}, placed)
        return self.responses(program, [request["id"] for request in requests])

    def responses(self, program, ids):
        """The responses to these requests: one each, and `executed` once."""
        found, executed = {}, False
        while not executed or len(found) < len(ids):
            header, data, in_memory = self.said(program)
            expect(f"`responses`, found {header['type']}", header["type"] == "responses")
            for response in header["responses"]:
                expect(f"a response to one of {ids}, found {response['id']}", response["id"] in ids)
                expect(f"one response to request {response['id']}", response["id"] not in found)
                found[response["id"]] = self.checked(response, data, in_memory)
            expect("`executed` once", not (executed and header.get("executed")))
            executed = executed or bool(header.get("executed"))
        return [found[number] for number in ids]

    def checked(self, response, data, in_memory):
        """A response, with the bytes of its outputs as `data`."""
        if response.get("error"):
            error = response["error"]
            expect(f"one of {CODES}, found {error.get('code')}", error.get("code") in CODES)
            expect("an error with a message", isinstance(error.get("message"), str))
            return response
        expect("`final` in the only response", response.get("final") is True)
        for output in response["outputs"]:
            begin, size = output["offset"], output["size"]
            expect(f"offsets at multiples of 64, found {begin}", begin % 64 == 0)
            expect(f"{size} bytes from {begin} on within {len(data)}", begin + size <= len(data))
            elements = 1
            for length in output["shape"]:
                elements *= length
            width = WIDTHS.get(output["datatype"])
            expect(f"shape {output['shape']} of {output['datatype']} in {size} bytes", width is None or elements * width == size)
            output["data"], output["in_memory"] = data[begin : begin + size], in_memory
        return response

    def output(self, response):
        """The output of a response that is no error."""
        expect(f"outputs, found {response.get('error')}", response.get("outputs") is not None)
        found = [output for output in response["outputs"] if output["name"] == self.options.output]
        expect(f"one output '{self.options.output}', found {[output['name'] for output in response['outputs']]}", len(found) == 1)
        return found[0]

    def ends(self, program, why):
        """Waits until the program has ended."""
        until = time.monotonic() + self.options.limit
        while program.process.poll() is None:
            expect(f"it ends within {self.options.limit:g} s {why}", time.monotonic() < until)
            time.sleep(0.01)

    # --- scenarios ---

    def loads_and_ends(self, program):
        """it loads, and ends after `finalize`"""
        self.loaded(program)
        program.send({"type": "finalize"})
        header, _, _ = self.said(program)
        expect(f"`finalized` after `finalize`, found {header}", header["type"] == "finalized")
        self.ends(program, "after `finalized`")

    def one(self, program):
        """one request has one response, again and again"""
        self.loaded(program)
        for size in (1, 3, 3, 1000):
            (response,) = self.execute(program, [size])
            self.output(response)

    def many(self, program):
        """requests that come together have a response each, with their own tensors"""
        self.loaded(program)
        alone = [self.output(self.execute(program, [size])[0])["data"] for size in (1, 2, 3, 4)]
        together = [self.output(response)["data"] for response in self.execute(program, [1, 2, 3, 4])]
        expect("the same outputs as alone", alone == together)

    def empty(self, program):
        """a tensor without elements has a response"""
        self.loaded(program)
        self.execute(program, [0])
        self.execute(program, [2])

    def large(self, program):
        """tensors beyond 64 KiB come and go in memory files"""
        self.loaded(program)
        elements = (1 << 20) // WIDTHS[self.options.datatype]
        output = self.output(self.execute(program, [elements])[0])
        expect("a large output in a memory file", len(output["data"]) <= 64 * 1024 or output["in_memory"])
        self.output(self.execute(program, [2])[0])
        self.execute(program, [elements, 1, elements])

    def errors(self, program):
        """an input that does not fit is that request's error at most, and others are answered afterwards"""
        self.loaded(program)
        tried = [("BYTES", self.options.input), (self.options.datatype, "another name")]
        for datatype, name in tried:
            try:
                self.execute(program, [2], datatype, name)
            except Ended:
                raise AssertionError(f"it ended because of a request with {datatype} in '{name}', expected an error") from None
        self.output(self.execute(program, [2])[0])

    def cancellation(self, program):
        """cancelled requests, known and unknown, change nothing for others"""
        self.loaded(program)
        program.send({"type": "cancel", "ids": [self.next + 1, 12345]})
        self.output(self.execute(program, [2])[0])
        program.send({"type": "cancel", "ids": [self.next]})
        self.output(self.execute(program, [2])[0])

    def rubbish(self, program):
        """after bytes that are no frame it ends or goes on; it does not hang"""
        self.loaded(program)
        program.socket.sendall(struct.pack("<II", 8, 0) + b"rubbish!")
        try:
            self.execute(program, [2])
        except (Ended, BrokenPipeError, ConnectionResetError):
            self.ends(program, "after rubbish")

    def hung_up(self, program):
        """it ends when the worker is gone"""
        self.loaded(program)
        self.execute(program, [2])
        program.socket.close()
        self.ends(program, "after its socket was closed")


SCENARIOS = [
    Suite.loads_and_ends, Suite.one, Suite.many, Suite.empty, Suite.large, Suite.errors, Suite.cancellation, Suite.rubbish,
    Suite.hung_up,
]


def element_bytes(datatype, elements):
    """The bytes of so many elements, each another one."""
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", 1) + b"x" for _ in range(elements))
    width = WIDTHS[datatype]
    letter = {"FP32": "f", "FP64": "d", "FP16": "e"}.get(datatype)
    if letter:
        return struct.pack(f"<{elements}{letter}", *(index % 100 for index in range(elements)))
    return b"".join((index % 2).to_bytes(width, "little") for index in range(elements))


def expect(what, truth):
    if not truth:
        raise AssertionError(f"expected {what}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datatype", default="INT64", choices=WIDTHS, help="of the input")
    parser.add_argument("--input", default="IN", help="the input's name")
    parser.add_argument("--output", default="OUT", help="the output's name")
    parser.add_argument("--limit", type=float, default=30, help="seconds that one answer may take")
    parser.add_argument("command", nargs="+", help="the program and its arguments, after --")
    suite, failed = Suite(parser.parse_args()), 0
    for scenario in SCENARIOS:
        with suite.program() as program:
            try:
                scenario(suite, program)
                print(f"ok: {scenario.__doc__}", flush=True)
            except (AssertionError, Ended, OSError, ValueError, KeyError) as error:
                failed += 1
                said = "it has closed its socket" if isinstance(error, Ended) else f"{type(error).__name__}: {error}"
                print(f"FAILED: {scenario.__doc__}: {said}\n  it printed: {program.printed()}", flush=True)
    print(f"{len(SCENARIOS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
