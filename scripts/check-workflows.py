#!/usr/bin/env python3
"""Checks .github/workflows: each action is named by its commit, and no job publishes anything before the tests have passed."""

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".github" / "workflows"

# A tag may be moved to other code; a commit may not. The tag stands behind it for readers.
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v[\d.]+")

# Steps that others see.
PUBLISHES = re.compile(r"push: true|imagetools create|gh release create|helm push|gh-action-pypi-publish")


def main():
    """Prints all faults."""
    faults = []
    for path in sorted(FOLDER.glob("*.yml")):
        text = path.read_text()
        for action in re.findall(r"^ *(?:- )?uses: *(.*)$", text, re.M):
            if not PINNED.fullmatch(action):
                faults.append(f"{path.name}: '{action}', expected OWNER/NAME@COMMIT # vVERSION")
        for job in re.split(r"^  (?=[\w-]+:$)", text.split("\njobs:\n")[1], flags=re.M):
            needs = re.search(r"^    needs: (.*)$", job, re.M)
            if PUBLISHES.search(job) and not (needs and re.search(r"\btest\b", needs[1])):
                faults.append(f"{path.name}: job '{job.split(':')[0].strip()}' publishes something and does not need 'test'")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
