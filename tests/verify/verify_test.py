#!/usr/bin/env python3
"""Makes a model folder of every kind, serves them as they are, and compares the answers with those of the folder's own library:
in one process and over NATS, each text alone and batched. Folders that contradict themselves have to be refused.

    make verify-test [ONLY=dense,splade] [TABLE=docs/supported-models.md]

At the end it prints a table of the kinds; TABLE writes that as a page.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "cli" / "src" / "verify"))

import contradictions
import fields
import folders
import reference
import repositories
import table
from deployments import OneProcess, OverNats

TEXTS = json.loads((ROOT / "cli" / "src" / "verify" / "texts.json").read_text(encoding="utf-8"))
TEXTS += [" ".join([TEXTS[-1]] * times) for times in (3, 12, 80)]
# These are compared by the Python that `trireme verify` starts itself, which takes long to import its libraries each time.
BY_PYTHON = ["mean-normalized", "rerank-one-score"]
# One of each task; the graph is taken away and made again by `trireme export`.
EXPORTED = [
    "mean-normalized", "roberta", "rerank-one-score", "classify-many-labels", "token-classify-words", "splade-max", "rerank-by-yes-and-no", "gemma-with-two-dense", "sentence-t5", "umt5-encoder", "splade-without-modules",
]
# Their graphs, as torch exports them, do not run for texts of other lengths.
NOT_EXPORTED = ["funnel"]
BY_THEIR_LIBRARY = ["longformer"]
NOT_COMPARED = ["generate-by-sampling"]
# Every field of their files, and every guess, that changes no answer is no warning.
QUIET = [
    "mean-normalized", "deberta", "static-embedding", "model2vec", "colbert-of-pylate", "colbert-expanded", "generate-marian-by-two-vocabularies",
]


# How the folders are served.
WAYS = {"one process": OneProcess, "over NATS": OverNats}


def expect(folder, known, strategy, prompt, file):
    """Writes the answers of the folder's own library."""
    pairs = TEXTS[-1:] + TEXTS[:-1] if known.task == "rerank" else None
    ask = {
        "folder": str(known.reference or folder), "tasks": [known.task, *known.more_tasks], "texts": TEXTS, "pairs": pairs, "prompt_name": prompt,
        "aggregation": strategy or "simple",
    }
    file.write_text("".join(json.dumps(line) + "\n" for line in reference.lines_of(ask)), encoding="utf-8")


def compare(trireme, target, name, known, strategy, prompt, work, by_python=None):
    """Runs `trireme verify` on the model `name` of a server, or on a folder; its exit code and its output."""
    model = [name, "--server", target] if name else [target]
    command = [trireme, "verify", *model, "--log-level", "warning", "--min-cosine", known.bar]
    if by_python:
        command += ["--python", by_python]
    else:
        vectors = work / f"{name}-{strategy or 'expected'}-{prompt or 'plain'}.jsonl"
        if not vectors.exists():
            expect(work / name, known, strategy, prompt, vectors)
        command += ["--vectors", vectors]
    command += ["--prompt-name", prompt] if prompt else []
    command += ["--aggregation-strategy", strategy] if strategy else []
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    return ran.returncode, ran.stdout + ran.stderr


def lowest_of(text):
    return re.search(r"computes: .*?([0-9.]+|NaN|[0-9]+ of [0-9]+)(?: over| generated texts are equal)", text)[1]


class Run:
    """The folders that were asked for, and the results so far."""

    def __init__(self, binaries, work, out, ways):
        self.ways = ways
        self.trireme, self.binaries, self.work, self.out = binaries / "trireme", binaries, work, out
        self.known, self.failed, self.count, self.table = {}, [], 0, table.Table()

    def attempt(self, name, check):
        """Prints what `check` gives. An error names the fault."""
        started = time.monotonic()
        try:
            word = check()
        except Exception as error:
            self.failed.append(name)
            word = f"FAILED: {error}"
            self.table.failed(name.split(",")[0])
        self.count += 1
        print(f"{name:44} {time.monotonic() - started:6.1f} s  {word}", file=self.out, flush=True)

    def make(self, name):
        if name not in self.known:
            self.known[name] = folders.make(name, self.work / name)
        return self.work / name

    # === Folders as they are ===

    def served(self, names):
        """All folders on one deployment, asked alone and batched; first in one process, then over NATS."""
        models = {}
        for name in names:
            self.attempt(f"{name}, made", lambda: f"{len(list(self.make(name).rglob('*')))} files")
            if name in self.known:
                models[name] = self.work / name
        for way in self.ways:
            kind = WAYS[way]
            try:
                with kind(way, self.binaries, self.work, models) as deployment:
                    for name in models:
                        self.attempt(f"{name}, {way}", lambda: self.alike(deployment.url, name))
            except AssertionError as error:
                self.failed.append(way)
                print(f"FAILED: {error}", file=self.out, flush=True)

    def alike(self, url, name, verdict="right"):
        known, lowest = self.known[name], []
        for strategy, prompt in itertools.product(known.strategies, known.prompt_names):
            code, text = compare(self.trireme, url, name, known, strategy, prompt, self.work)
            if code != 0:
                how = "".join(f", {word}" for word in (strategy, prompt) if word)
                raise AssertionError(f"exit code {code}{how}:\n{text}")
            lowest.append(lowest_of(text))
            self.table.compared(name, table.library(self.work / name, known), text, verdict)
        return min(lowest)

    def by_python(self, name):
        """`trireme verify FOLDER --python`: this Python computes the reference itself."""
        folder = self.make(name)
        code, text = compare(self.trireme, folder, None, self.known[name], None, None, self.work, sys.executable)
        if code != 0:
            raise AssertionError(f"exit code {code}:\n{text}")
        return lowest_of(text)

    # === Folders that must not be served ===

    def refused(self, folder, places):
        ran = subprocess.run([self.trireme, "serve", folder, "--http-port=0"], capture_output=True, text=True, timeout=120)
        said = ran.stdout + ran.stderr
        missing = [place for place in places if place not in said]
        if ran.returncode != 1 or missing:
            raise AssertionError(f"exit code {ran.returncode}, and the refusal does not name {missing}:\n{said[-2000:]}")
        return "refused, as it has to be"

    def refused_kind(self, name):
        found = self.refused(self.make(name), folders.REFUSED[name])
        self.table.said(name, table.library(self.work / name, self.known[name]), "refused with a remedy")
        return found

    def remedied(self, name):
        """Runs the command that the refusal names, with the programs of this environment, and serves the folder."""
        folder = self.make(name)
        ran = subprocess.run([self.trireme, "serve", folder, "--http-port=0"], capture_output=True, text=True, timeout=120)
        command = re.search(folders.REMEDIES[name], ran.stdout + ran.stderr, re.MULTILINE)
        if ran.returncode != 1 or not command:
            raise AssertionError(f"exit code {ran.returncode}, and no command in the refusal:\n{ran.stdout}{ran.stderr}")
        path = os.pathsep.join([str(self.binaries.resolve()), str(Path(sys.executable).parent), os.environ["PATH"]])
        ran = subprocess.run(command[0], shell=True, capture_output=True, text=True, timeout=600, env={**os.environ, "PATH": path})
        if ran.returncode != 0:
            raise AssertionError(f"{command[0]}\nexit code {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        with OneProcess(f"{name} remedied", self.binaries, self.work, {name: folder}) as deployment:
            verdict = "refused with a command, after which it is right"
            return f"refused, and after the command of the refusal {self.alike(deployment.url, name, verdict)}"

    def by_its_library(self, name):
        """The model.py of docs/python.md serves a folder that no graph serves."""
        folder, repository = self.make(name), self.work / f"{name}-repository"
        page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8").split("## A model folder by its own library")[1]
        config, code = re.findall(r"```\w+\n(.*?)```", page, re.DOTALL)[:2]
        (repository / name / "1").mkdir(parents=True, exist_ok=True)
        (repository / name / "config.pbtxt").write_text(config.replace("/models/longformer", str(folder)))
        (repository / name / "1" / "model.py").write_text(code)
        flags = ["--model-repository", repository, "--python", sys.executable]
        with OneProcess(f"{name} by its library", self.binaries, self.work, {}, flags) as deployment:
            return self.alike(deployment.url, name, "refused; right by a [model.py](python.md#a-model-folder-by-its-own-library)")

    def noticed(self, name):
        """A repository that serves the folder wrong: `trireme verify` has to say so."""
        repository = self.work / f"{name}-repository"
        folder = self.make(name)
        shutil.rmtree(repository, ignore_errors=True)
        repositories.of_folder(folder, self.known[name], repository)
        vectors = repository / "expected.jsonl"
        expect(folder, self.known[name], None, None, vectors)
        command = [self.trireme, "verify", repository, "m", "--log-level", "warning", "--vectors", vectors]
        ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
        if ran.returncode != 1 or "does not serve what" not in ran.stdout:
            raise AssertionError(f"is served wrong and exit code {ran.returncode} says nothing of it:\n{ran.stdout}{ran.stderr}")
        return "noticed to be wrong, as it has to be"

    def not_cut_silently(self, name):
        """A folder without a length: no text is cut, or a warning says so."""
        repository = self.work / f"{name}-derived"
        shutil.rmtree(repository, ignore_errors=True)
        command = [str(word) for word in (self.trireme, "init", self.make(name), repository)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if "longer texts are cut" in ran.stdout + ran.stderr:
            return "a warning says that longer texts are cut"
        vectors = self.work / f"{name}-whole.jsonl"
        expect(self.work / name, self.known[name], None, None, vectors)
        command = [self.trireme, "verify", self.work / name, "--vectors", vectors, "--min-cosine", "0.999999", "--log-level", "warning"]
        ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
        if ran.returncode != 0:
            raise AssertionError(f"longer texts are cut, and nothing says so:\n{ran.stdout}{ran.stderr}")
        return "no text is cut"

    def not_compared(self, name):
        """`trireme verify` says why there is nothing to compare with."""
        command = [self.trireme, "verify", self.make(name), "--python", sys.executable, "--log-level", "warning"]
        ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
        if ran.returncode != 2 or "do_sample is true" not in ran.stderr:
            raise AssertionError(f"exit code {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        self.table.said(name, "transformers", "served; answers are drawn by chance")
        return "not compared, as it has to be"

    def quiet(self, name):
        """`trireme init` has nothing to warn of."""
        repository = self.work / f"{name}-derived"
        shutil.rmtree(repository, ignore_errors=True)
        command = [str(word) for word in (self.trireme, "init", self.make(name), repository)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
        warnings = [line for line in (ran.stdout + ran.stderr).splitlines() if line.startswith("warning:")]
        if ran.returncode != 0 or warnings:
            raise AssertionError(f"exit code {ran.returncode}:\n" + "\n".join(warnings or [ran.stderr]))
        return "without a warning"

    def noticed_text(self, name):
        """A server whose answers are shorter than the library's: the first place where a text differs is shown."""
        folder, other = self.make(name), self.work / f"{name}-shorter"
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(folder, other)
        folders.rewrite(other / "generation_config.json", lambda told: {**told, "max_new_tokens": 5})
        command = [self.trireme, "verify", other, "--folder", folder, "--python", sys.executable, "--log-level", "warning"]
        ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
        if ran.returncode != 1 or "; the first that differs, alone, is the answer for 'a', at character " not in ran.stdout:
            raise AssertionError(f"exit code {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        return "noticed to be wrong, as it has to be"

    def all_of_a_folder(self, name):
        """`trireme verify --all`: one folder is right, one has the graph of other weights, one has no graph."""
        folder, root = self.make(name), self.work / "all"
        shutil.rmtree(root, ignore_errors=True)
        for inner in ("right", "team/other", "bare"):
            shutil.copytree(folder, root / inner)
        shutil.rmtree(root / "bare" / "onnx")
        weights = root / "team" / "other"
        model = folders.BertModel.from_pretrained(weights, attn_implementation="eager")
        folders.torch.nn.init.normal_(model.embeddings.word_embeddings.weight)
        folders.export(model, weights, folders.BERT)
        command = [self.trireme, "verify", "--all", root, "--python", sys.executable, "--log-level", "error"]
        ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=900)
        wanted = [r"^ *right .* the library's answers", r"^ *team/other .* differs: ", r"^ *bare .* not compared: .*holds no ONNX file",
                  r"1 are served as their libraries compute, 1 differ, 1 could not be compared"]
        missing = [words for words in wanted if not re.search(words, ran.stdout, re.MULTILINE)]
        if ran.returncode != 1 or missing:
            raise AssertionError(f"exit code {ran.returncode}, without {missing}:\n{ran.stdout}{ran.stderr}")
        return "one right, one wrong, one without a graph"

    # === Folders without a graph ===

    def exported(self, name):
        """`trireme export` makes the graph that was taken away, and verifies it."""
        folder = self.work / f"{name}-exported"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.make(name), folder)
        shutil.rmtree(folder / "onnx")
        command = [self.trireme, "export", folder, "--python", sys.executable, "--log-level", "warning"]
        ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
        if ran.returncode != 0 or not (folder / "onnx" / "model.onnx").is_file():
            raise AssertionError(f"exit code {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        return f"exported, {lowest_of(ran.stdout)}"

    def asked(self, name):
        """A masked language model whose card says nothing: `trireme export` asks for the task, and takes it."""
        folder = self.work / f"{name}-asked"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.make(name), folder)
        shutil.rmtree(folder / "onnx")
        (folder / "README.md").unlink()
        command = [self.trireme, "export", folder, "--python", sys.executable, "--log-level", "warning"]
        command = [str(word) for word in command]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if ran.returncode != 1 or "--task sparse" not in ran.stderr or (folder / "onnx").exists():
            raise AssertionError(f"exit code {ran.returncode}, and nobody is asked:\n{ran.stdout}{ran.stderr}")
        ran = subprocess.run([*command, "--task", "sparse"], capture_output=True, text=True, timeout=600)
        if ran.returncode != 0:
            raise AssertionError(f"exit code {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        return f"asked, then exported, {lowest_of(ran.stdout)}"

    def not_exported(self, name):
        """`trireme export` puts a graph aside that does not answer."""
        folder = self.make(name)
        shutil.rmtree(folder / "onnx")
        command = [self.trireme, "export", folder, "--python", sys.executable, "--log-level", "error"]
        ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
        if ran.returncode != 1 or (folder / "onnx" / "model.onnx").exists() or "does not answer" not in ran.stderr:
            raise AssertionError(f"exit code {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        self.table.said(name, table.library(folder, self.known[name]), "`trireme export` puts its graph aside, which takes texts of one length")
        return "put aside, as it has to be"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path, default=ROOT / "target" / "debug")
    parser.add_argument("--only", default="", help="parts of names, comma separated")
    parser.add_argument("--keep", type=Path, help="a folder to leave folders and repositories in")
    parser.add_argument("--ways", default=",".join(WAYS), help="how folders are served, comma separated")
    parser.add_argument("--table", type=Path, help="a page to write the table of kinds to: docs/supported-models.md")
    args = parser.parse_args()
    wanted = [part for part in args.only.split(",") if part]
    chosen = lambda names: [name for name in names if not wanted or any(part in name for part in wanted)]
    # The exporter writes to standard output itself: that goes where warnings go.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    wrong = [name for name in folders.FOLDERS if name.startswith("wrong")]
    with tempfile.TemporaryDirectory() as temporary:
        run = Run(args.binaries, args.keep or Path(temporary), out, args.ways.split(","))
        others = [*wrong, *NOT_EXPORTED, *NOT_COMPARED, *folders.REFUSED, *folders.REMEDIES]
        run.served([name for name in chosen(folders.FOLDERS) if name not in others])
        for name in chosen(NOT_COMPARED):
            run.attempt(name, lambda: run.not_compared(name))
        for name in chosen(NOT_EXPORTED):
            run.attempt(f"{name}, without its graph", lambda: run.not_exported(name))
        for name in chosen(folders.REFUSED):
            run.attempt(name, lambda: run.refused_kind(name))
        for name in chosen(folders.REMEDIES):
            run.attempt(name, lambda: run.remedied(name))
        for name in chosen(BY_THEIR_LIBRARY):
            run.attempt(f"{name}, by a model.py", lambda: run.by_its_library(name))
        # All that follow add no rows.
        print(f"\n{run.table.text()}\n", file=out, flush=True)
        if args.table:
            run.table.read_missing(args.table, folders.FOLDERS)
            args.table.write_text(run.table.page(len(TEXTS), run.ways), encoding="utf-8")
        for name in chosen(["fields-of-the-libraries"]):
            run.attempt(name, fields.check)
        if not args.table:
            for name in chosen(["supported-models"]):
                run.attempt(name, lambda: table.check([name for name in folders.FOLDERS if name not in wrong]))
        for name in chosen(BY_PYTHON):
            run.attempt(f"{name}, by Python", lambda: run.by_python(name))
        for name in chosen(QUIET):
            run.attempt(f"{name}, quiet", lambda: run.quiet(name))
        for name in chosen(["t5-without-a-length"]):
            run.attempt(f"{name}, long texts", lambda: run.not_cut_silently(name))
        for name in chosen(["generate-t5-without-lengths"]):
            run.attempt(f"{name}, answers cut", lambda: run.noticed_text(name))
        for name in chosen(["mean-normalized"]):
            run.attempt(f"{name}, in a folder of folders", lambda: run.all_of_a_folder(name))
        for name in chosen(EXPORTED):
            run.attempt(f"{name}, without its graph", lambda: run.exported(name))
        for name in chosen(["splade-without-modules"]):
            run.attempt(f"{name}, without its card", lambda: run.asked(name))
        for name in chosen(wrong):
            run.attempt(name, lambda: run.noticed(name))
        for name in chosen(contradictions.PLANTED):
            path = run.work / f"planted-{name}"
            run.attempt(name, lambda: run.refused(path, contradictions.make(name, path, run.make)))
    if run.failed:
        print(f"{len(run.failed)} of {run.count} checks failed: {', '.join(run.failed)}", file=out, flush=True)
        return 1
    print(f"all {run.count} checks hold, of {len(run.known)} folders: the server's answers are those of their libraries", file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
