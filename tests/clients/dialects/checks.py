"""What the scripts here share: the server's address, one line for each check, and an end at the first failure."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

#: Texts and the vectors that the model `embedding` of tests/repositories/texts gives for them, computed without the product.
GOLDEN = [
    golden
    for golden in json.loads((Path(__file__).resolve().parents[2] / "models/golden.json").read_text())
    if golden["text"]
]
TEXTS = [golden["text"] for golden in GOLDEN]
VECTORS = np.array([golden["tiny_embedding"] for golden in GOLDEN], np.float32)

QUERY = "what cause covid"

#: A text that makes a body larger than the servers of the tests take.
TOO_LARGE = "a " * 40_000

#: The states in which servers are, with the status that a good request gets in each.
STATES = {"serving": 200, "full": 429, "unready": 503}


class Failure(Exception):
    """A check that does not hold; the text names the expected and the found value."""


def expect(holds, message):
    if not holds:
        raise Failure(message)


def expect_equal(what, found, expected):
    expect(found == expected, f"{what}: expected {expected!r}, found {found!r}")


def expect_close(what, found, expected):
    found, expected = np.asarray(found, np.float32), np.asarray(expected, np.float32)
    expect_equal(f"{what}: shape", found.shape, expected.shape)
    expect(np.allclose(found, expected, atol=1e-5), f"{what}: expected {expected}, found {found}")


def expect_raised(what, error, call, *texts):
    """`call` raises `error` with a message that contains each of `texts`; gives the error."""
    try:
        found = call()
    except error as raised:
        for text in texts:
            expect(text in str(raised), f"{what}: expected a message with {text!r}, found {raised}")
        return raised
    except Exception as raised:  # noqa: BLE001
        raise Failure(f"{what}: expected {error}, found {type(raised).__name__}: {raised}") from raised
    raise Failure(f"{what}: expected {error}, found the answer {found!r}")


def expect_status(what, status, error, call):
    """`call` raises `error`, which carries this status; gives the error."""
    raised = expect_raised(what, error, call)
    response = getattr(raised, "response", None)
    expect_equal(f"{what}: its status", getattr(raised, "status_code", None) or response.status_code, status)
    return raised


def expect_retry_after(what, headers):
    expect_equal(f"{what}: seconds to wait", {name.lower(): headers[name] for name in headers}.get("retry-after"), "1")


def run(**checks):
    """Runs the checks of the server's state, functions of its URL and its API key, and ends the process with 0 or 1.

    Those called `misses` run on a server that serves, and fail: what the client asks for is not there.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True, metavar="HOST:PORT", help="the server's HTTP address")
    parser.add_argument("--key", default="none", help="an API key of the server")
    parser.add_argument("--state", choices=STATES, default="serving", help="the state of the server")
    arguments = parser.parse_args()
    for check in checks[arguments.state]:
        try:
            check(f"http://{arguments.url}", arguments.key)
        except Failure as failure:
            print(f"FAILED {check.__name__}: {failure}", flush=True)
            sys.exit(1)
        print(f"ok {check.__name__}", flush=True)
    for check in checks.get("misses", []) if arguments.state == "serving" else []:
        try:
            check(f"http://{arguments.url}", arguments.key)
        except Exception as error:  # noqa: BLE001
            print(f"missed {check.__name__}: {error}", flush=True)
        else:
            print(f"FAILED {check.__name__}: it passes, and is among the misses", flush=True)
            sys.exit(1)
