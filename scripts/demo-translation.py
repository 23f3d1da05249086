#!/usr/bin/env python3
"""Serves the translation model of examples/translation and has it translate number words, English to Swahili and back.

The model was trained for this demo (tests/models/translation.py) and knows nothing but the numbers from 0 to 9999. Needs
nothing but Python's standard library, as a client of the v2 protocol does.
"""

import argparse
import json
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import demo
from demo import DIRECT, LOG, ROOT, DemoError, shown

MODEL = "translation"
# (source language, target language): texts and what is right.
EXAMPLES = {
    ("en", "sw"): {
        "seven": "saba",
        "forty-two": "arobaini na mbili",
        "One hundred and five": "mia moja na tano",
        "two thousand nine hundred and thirty-one": "elfu mbili mia tisa thelathini na moja",
        "nine thousand nine hundred and ninety-nine": "elfu tisa mia tisa tisini na tisa",
    },
    ("sw", "en"): {
        "kumi na moja": "eleven",
        "mia nane sitini na nne": "eight hundred and sixty-four",
        "elfu moja mia mbili thelathini na nne": "one thousand two hundred and thirty-four",
    },
}


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", type=Path, default=ROOT / "target/release/trireme", help="the trireme binary")
    parser.add_argument("--model-repository", type=Path, default=ROOT / "examples/translation")
    parser.add_argument("--http-port", type=int, default=8000, help="another one is chosen if it is taken")
    parser.add_argument("--ready-timeout", type=float, default=60, metavar="SECONDS", help="longest wait for readiness")
    parser.add_argument("--keep", action="store_true", help="keep the server in the foreground until Ctrl-C")
    parser.add_argument("server_arguments", nargs="*", metavar="-- ARGUMENT", help="further arguments for `trireme serve`")
    return parser.parse_args()


def body(texts, source, target):
    tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    return {"inputs": [tensor], "parameters": {"source_language": source, "target_language": target}}


def translate(url, texts, source, target):
    """Sends `texts`; returns their translations, the Server-Timing header and the time it all took in milliseconds."""
    request = urllib.request.Request(
        f"{url}/v2/models/{MODEL}/infer", json.dumps(body(texts, source, target)).encode(), method="POST"
    )
    started = time.monotonic()
    try:
        with DIRECT.open(request, timeout=60) as response:
            answer, timing = json.load(response), response.headers.get("Server-Timing", "")
    except urllib.error.HTTPError as error:
        raise DemoError(f"the server answered {error.code}: {error.read().decode(errors='replace')}") from error
    except OSError as error:
        raise DemoError(f"no answer from the server ({error}); the end of {shown(LOG)}:\n{demo.log_tail()}") from error
    elapsed = (time.monotonic() - started) * 1e3
    output = next((output for output in answer["outputs"] if output["name"] == "translation"), None)
    if output is None or len(output["data"]) != len(texts):
        raise DemoError(f"expected an output 'translation' of {len(texts)} texts, found {json.dumps(answer)[:300]}")
    return output["data"], timing, elapsed


def show_translations(url):
    """Prints every example; returns the timing of the first request and how many translations were wrong."""
    wrong, first = 0, None
    for (source, target), examples in EXAMPLES.items():
        translations, *timing = translate(url, list(examples), source, target)
        first = first or timing
        print(f"\nFrom {source} to {target}:\n")
        for (text, expected), translation in zip(examples.items(), translations):
            is_wrong = translation != expected
            wrong += is_wrong
            print(f"  {text:<44}{translation}{f'   (expected: {expected})' if is_wrong else ''}")
    return first, wrong


def show_call(url):
    example = json.dumps(body(["forty-two"], "en", "sw"))
    print(f"\nCall it yourself (`--keep` keeps the server):\n\n  curl -s {url}/v2/models/{MODEL}/infer -d '{example}'\n")


def run(arguments):
    port = demo.choose_port(arguments.http_port)
    url = f"http://localhost:{port}"
    with demo.running_server(arguments, port) as server:
        seconds = demo.wait_until_ready(server, url, arguments.ready_timeout)
        print(f"ready after {seconds:.1f} s: {url}")
        translate(url, ["one"], "en", "sw")  # the first run of a model also fills its memory pools
        timing, wrong = show_translations(url)
        demo.show_timing(*timing)
        show_call(url)
        if arguments.keep:
            demo.keep(server)
        if wrong:
            raise DemoError(f"{wrong} translations are not the expected ones")


def main():
    # A `kill` of this script unwinds it like Ctrl-C, so that the server never outlives it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        run(options())
    except DemoError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        print("\nstopped")
        sys.exit(130)


if __name__ == "__main__":
    main()
