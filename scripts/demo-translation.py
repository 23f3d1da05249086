#!/usr/bin/env python3
"""Serves the translation model of examples/translation and has it translate number words, English to Swahili and back.

The model was trained for this demo (tests/models/translation.py) and knows nothing but the numbers from 0 to 9999.
"""

import json

import demo_server
from demo_server import ROOT, DemoError, show_timing

MODEL = "translation"
# (source language, target language): texts and their correct translations.
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


def body(texts, source, target):
    tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    return {"inputs": [tensor], "parameters": {"source_language": source, "target_language": target}}


def translate(url, texts, source, target):
    """Sends `texts`; returns their translations, the Server-Timing header and the total time in milliseconds."""
    output, *timing = demo_server.infer(url, MODEL, body(texts, source, target), "translation")
    if len(output["data"]) != len(texts):
        raise DemoError(f"expected {len(texts)} translations, found {output['data']}")
    return output["data"], *timing


def show_translations(url):
    """Prints every example; returns the timing of the first request and the number of wrong translations."""
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


def show(url):
    translate(url, ["one"], "en", "sw")  # the first run of a model also fills its memory pools
    timing, wrong = show_translations(url)
    show_timing(*timing)
    show_call(url)
    if wrong:
        raise DemoError(f"{wrong} translations are not the expected ones")


if __name__ == "__main__":
    demo_server.main(__doc__.splitlines()[0], ROOT / "examples/translation", show)
