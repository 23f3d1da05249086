#!/usr/bin/env python3
"""Counts sentences of more than 30 words in README.md, ARCHITECTURE.md, CONTRIBUTING.md, SECURITY.md, docs/*.md and the texts of `--help`.

check-sentences.py [--list]    fails above the limit; --list prints each of them

Code blocks and headings do not count, and each cell of a table stands by itself. Texts of `--help` are the docstrings of Rust files that use
clap. A link counts as its text.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORDS = 30
# How many longer ones may be there.
LIMIT = 14


def sentences(text):
    """The sentences of a text in Markdown."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M)
    for block in re.split(r"\n\s*\n|\n(?=\s*[-*|#\d])", text):
        if block.lstrip().startswith("#"):
            continue
        for cell in block.split("|") if block.lstrip().startswith("|") else [block]:
            cell = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell)
            cell = re.sub(r"\s+", " ", cell).strip(" -*")
            yield from re.split(r"(?<=[.!?:;])\s+(?=[A-Z`\"\d])", cell)


def help_texts():
    """The docstrings of Rust files that use clap, each with its file."""
    for folder in ("cli/src", "crates", "services"):
        for path in sorted((ROOT / folder).rglob("*.rs")):
            source = path.read_text()
            if "clap::" in source:
                for block in re.findall(r"(?:^ *///.*\n)+", source, re.M):
                    yield path, re.sub(r"^ */// ?", "", block, flags=re.M)


def pages():
    """Each page with its file."""
    for path in [*(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY")), *sorted((ROOT / "docs").glob("*.md"))]:
        yield path, path.read_text()


def main():
    """Prints how many there are, and fails if they are too many."""
    found = []
    for path, text in [*pages(), *help_texts()]:
        long = [sentence for sentence in sentences(text) if len(sentence.split()) > WORDS]
        found += [f"{path.relative_to(ROOT)}: {len(sentence.split())} words: {sentence}" for sentence in long]
    if "--list" in sys.argv:
        print("\n".join(found))
    print(f"==> sentences over {WORDS} words: {len(found)}, at most {LIMIT} may be there")
    if len(found) > LIMIT:
        sys.exit("split some of them: one thought a sentence; scripts/check-sentences.py --list prints them")


if __name__ == "__main__":
    main()
