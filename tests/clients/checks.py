"""Shared by the client scripts: their arguments, one line for each check, and an end at the first failure.

Each script runs the official tritonclient against a server that is up: `SCRIPT --url HOST:PORT`. It exits 0 when every
check holds, and 1 with the reason when one does not.
"""

import argparse
import sys

import numpy as np
import tritonclient.http as triton


class Failure(Exception):
    """A check that failed; the text has the expected and the found value."""


def arguments(description, add=lambda parser: None):
    parser = argparse.ArgumentParser(description=description.strip().splitlines()[0])
    parser.add_argument("--url", required=True, metavar="HOST:PORT", help="the server's HTTP address")
    add(parser)
    return parser.parse_args()


def expect(holds, message):
    if not holds:
        raise Failure(message)


def expect_equal(what, found, expected):
    same = np.array_equal(found, expected) if isinstance(expected, np.ndarray) else found == expected
    expect(same, f"{what}: expected {expected!r}, found {found!r}")


def expect_error(what, call, status, *texts):
    """`call` raises InferenceServerException with this status and a message that contains each of `texts`."""
    try:
        found = call()
    except triton.InferenceServerException as error:
        expect_equal(f"{what}: status of {error.message()!r}", error.status(), str(status))
        for text in texts:
            expect(text in error.message(), f"{what}: expected a message with {text!r}, found {error.message()!r}")
        return
    raise Failure(f"{what}: expected an error with status {status}, found the answer {found!r}")


def run(checks):
    """Runs named checks in order, one line each; ends the process with 0 or 1."""
    for name, check in checks:
        try:
            note = check()
        except Failure as failure:
            print(f"FAILED {name}: {failure}", flush=True)
            sys.exit(1)
        except triton.InferenceServerException as error:
            print(f"FAILED {name}: the server answered {error.status()}: {error.message()}", flush=True)
            sys.exit(1)
        except (ConnectionError, OSError) as error:
            print(f"FAILED {name}: no answer from the server: {error}", flush=True)
            sys.exit(1)
        print(f"ok {name}{f': {note}' if note else ''}", flush=True)
    print(f"{len(checks)} checks passed")


# === Tensors ===


def tensor(name, array, binary=True):
    """An input that holds `array`; object arrays are BYTES."""
    array = np.asarray(array)
    kind = "BYTES" if array.dtype == np.object_ else triton.np_to_triton_dtype(array.dtype)
    return triton.InferInput(name, list(array.shape), kind).set_data_from_numpy(array, binary_data=binary)


def texts(values):
    return np.array(values, dtype=object)


def utf8(array):
    """A BYTES output as strings: tritonclient returns bytes from binary outputs and str from JSON ones."""
    decode = lambda item: item.decode() if isinstance(item, bytes) else item
    return [decode(item) for item in array.reshape(-1)]


def normalized(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def cosines(found, expected):
    """Row by row."""
    return (normalized(found.astype(np.float64)) * normalized(expected.astype(np.float64))).sum(axis=-1)
