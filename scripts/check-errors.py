#!/usr/bin/env python3
"""Checks that each error of the gateway, of downloads and of the command `trireme` can be understood by the person who gets it.

check-errors.py [--write]

An error is well said if its text names what was expected or the cure, if docs/troubleshooting.md has a part of it between backticks in one of
its first two tables, or if scripts/plain-errors.txt has it: texts that explain themselves. A new text has to be one of them; --write adds it to
that file, where a reviewer sees it.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATES = ("server", "protocol", "dialects", "operations", "jobs", "model-source", "triton-compat")
FOLDERS = ("services/gateway/src", "cli/src", *(f"crates/{name}/src" for name in CRATES))
LISTED = ROOT / "scripts" / "plain-errors.txt"
PAGE = ROOT / "docs" / "troubleshooting.md"

TEXT = r'"((?:[^"\\]|\\.)*)"'
FORMAT = r"(?:&?format!\(\s*)?"
# Where the sources have the text of an error.
PLACES = [
    re.compile(place + TEXT, re.S)
    for place in (
        r"#\[error\(\s*",
        r"\b(?:bail|anyhow)!\(\s*",
        r"\bensure!\([^;]*?,\s*",
        r"\.(?:with_)?context\((?:\|\|\s*)?" + FORMAT,
        r"\bInferError::\w+\(\s*(?:ErrorCode::\w+,\s*)?" + FORMAT,
        r"\bErrorCode::\w+,\s*" + FORMAT,
        r"\b(?:Refusal::\w+|invalid|refused|bad|unsupported|not_found|unavailable|internal|Err)\(\s*" + FORMAT,
    )
]
# A text names the expected value, or the flag or the deed that helps.
SAYS = re.compile(
    r"\bexpect(?:s|ed|ing)?\b|should be|must |\bonly\b|--[a-z]|[:;] (?:the operator |let the server |or )?(?:accept|cancel|check|correct|declare|export|fetch|"
    r"give|install|leave|let|make|merge|move|name|raise|remove|run|say|send|set|start|use|wait)\b"
)


def texts():
    """Each error text, in which values stand as `{…}`, with the file that has it."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.rs")):
            if path.stem == "tests" or "tests" in path.parts:
                continue
            source = re.split(r"\n#\[cfg\(test\)\]\s*\nmod tests", path.read_text())[0]
            source = re.sub(r"\\\n\s*", "", source)
            for place in PLACES:
                for text in place.findall(source):
                    # A word alone is the name of a field; a text of values only is another error's.
                    if " " in re.sub(r"\{[^{}]*\}|[:;,.]", "", text).strip():
                        found.setdefault(re.sub(r"\{[^{}]+\}", "{}", text), path.relative_to(ROOT))
    return found


def main():
    """Prints the texts that are nowhere."""
    found = texts()
    page = PAGE.read_text().split("\n## ")
    rows = [line for part in page[1:3] for line in part.splitlines() if line.startswith("| ")]
    known = {code for row in rows for code in re.findall(r"`([^`]+)`", row)}
    listed = set(LISTED.read_text().splitlines()) if LISTED.exists() else set()
    unknown = {
        text: path
        for text, path in found.items()
        if not SAYS.search(text) and text not in listed and not any(part in text for part in known)
    }
    if "--write" in sys.argv:
        LISTED.write_text("\n".join(sorted({*(listed & set(found)), *unknown})) + "\n")
        return
    gone = sorted(listed - set(found))
    for text, path in unknown.items():
        print(f"{path}: '{text}' says neither what was expected nor what helps: say it, or add a row to docs/troubleshooting.md")
    for text in gone:
        print(f"scripts/plain-errors.txt: no source has '{text}' any more: remove it (--write)")
    print(f"==> {len(found)} texts of errors, {len(unknown)} of them not explained")
    if unknown or gone:
        sys.exit(1)


if __name__ == "__main__":
    main()
