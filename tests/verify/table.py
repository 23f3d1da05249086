"""The table of the kinds of folders: what their libraries compute beside what is served, and the page that is made of it."""

import json
import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "supported-models.md"
LIBRARIES = ["sentence-transformers", "transformers", "model2vec", "gliner", "gliner2", "tokenizers", "torch"]
# A line of a report of `trireme verify`: the task, how texts were asked, and the lowest likeness.
LINE = re.compile(r"^\s*(\w+)\s+(alone|batched)\s+([0-9.]+|NaN)\s", re.MULTILINE)
INTRODUCTION = """# Supported models

Each row is a kind of model folder. `make verify-test` makes one of each with the library named, with small random weights, and serves it as
it is ({ways}). Then it asks for {texts} texts, from one letter to some thousand words, and compares the answers
with those of the library. [Is it the right vector?](model-repository.md#is-it-the-right-vector) says how, and what the likeness is of each task:
of vectors a cosine. `alone` is the lowest of texts that were asked one by one, `in a batch` that of texts of one request.

`make verify-test TABLE=docs/supported-models.md` writes this page; the last run had {versions}. With
`ONLY=…` it writes those rows alone. [Model folders](model-folders.md) has the rules by which folders are read.

"""


@dataclass
class Row:
    library: str
    task: str
    alone: float | None
    batched: float | None
    verdict: str


def library(folder, known):
    """The library that made the folder, and whose answers count."""
    modules = folder / "modules.json"
    if modules.exists():
        return "PyLate's form, sentence-transformers" if "pylate." in modules.read_text(encoding="utf-8-sig") else "sentence-transformers"
    if (folder / "gliner_config.json").exists():
        return "gliner"
    config = folder / "config.json"
    if config.exists() and json.loads(config.read_text(encoding="utf-8-sig")).get("model_type") == "extractor":
        return "gliner2"
    if config.exists() and json.loads(config.read_text(encoding="utf-8-sig")).get("model_type") == "model2vec":
        return "model2vec"
    return "sentence-transformers" if known.task == "rerank" else "transformers"


def words(name):
    return name.replace("-", " ")


class Table:
    def __init__(self):
        self.rows = {}

    def read_missing(self, page, names):
        """Adds those of these kinds that this run did not have, from a page that is there."""
        lines = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
        number = lambda text: float(text) if text else None
        for line in lines:
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if len(cells) == len(self.HEADING) and cells not in (self.HEADING, ["---"] * len(cells)):
                kind, library, task, alone, batched, verdict = cells
                name = kind.replace(" ", "-")
                if name in names:
                    self.rows.setdefault(name, Row(library, task, number(alone), number(batched), verdict))

    def compared(self, name, library, report, verdict):
        """Adds the lowest likenesses in a report of `trireme verify`."""
        row = self.rows.setdefault(name, Row(library, "", None, None, verdict))
        row.verdict = verdict
        for task, way, lowest in LINE.findall(report):
            row.task = row.task if task in row.task else ", ".join(filter(None, [row.task, task]))
            before = getattr(row, way)
            setattr(row, way, float(lowest) if before is None else min(before, float(lowest)))

    def said(self, name, library, verdict):
        self.rows[name] = Row(library, "", None, None, verdict)

    def failed(self, name):
        self.rows[name] = Row("", "", None, None, "FAILED")

    def cells(self):
        number = lambda value: "" if value is None else f"{value:.7f}"
        return [[words(name), row.library, row.task, number(row.alone), number(row.batched), row.verdict] for name, row in sorted(self.rows.items())]

    HEADING = ["kind", "library", "task", "alone", "in a batch", "verdict"]

    def text(self):
        lines = [self.HEADING, *self.cells()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.HEADING))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)

    def page(self, texts, ways):
        """The page of `texts` texts, served in these ways."""
        versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
        lines = [self.HEADING, ["---"] * len(self.HEADING), *self.cells()]
        return INTRODUCTION.format(texts=texts, versions=versions, ways=", then ".join(ways)) + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def check(names):
    """Whether the page has a row for each kind."""
    page = PAGE.read_text(encoding="utf-8")
    missing = [name for name in names if f"| {words(name)} |" not in page]
    if missing:
        raise AssertionError(f"{PAGE.name} has no row for {', '.join(missing)}: make verify-test TABLE=docs/{PAGE.name}")
    return f"{len(names)} kinds, each in a row"
