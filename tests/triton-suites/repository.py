"""Model folders of a run, made of the checkout's own: its Python models, its generators for ONNX files, its folders of configurations."""

import re
import shutil
import subprocess
from pathlib import Path

GENERATED = {
    "qa_model_repository": ("gen_qa_models.py", "--onnx"),
    "qa_variable_model_repository": ("gen_qa_models.py", "--onnx", "--variable"),
    "qa_identity_model_repository": ("gen_qa_identity_models.py", "--onnx"),
    "qa_reshape_model_repository": ("gen_qa_reshape_models.py", "--onnx", "--variable"),
    "qa_sequence_model_repository": ("gen_qa_sequence_models.py", "--onnx"),
    "qa_variable_sequence_model_repository": ("gen_qa_sequence_models.py", "--onnx", "--variable"),
    "qa_sequence_implicit_model_repository": ("gen_qa_implicit_models.py", "--onnx"),
    "qa_dyna_sequence_model_repository": ("gen_qa_dyna_sequence_models.py", "--onnx"),
    "qa_scalar_models": ("gen_qa_ort_scalar_models.py",),
    "qa_ensemble_model_repository/qa_model_repository": ("gen_qa_models.py", "--ensemble"),
    "qa_ensemble_model_repository/qa_identity_model_repository": ("gen_qa_identity_models.py", "--ensemble"),
    "qa_ensemble_model_repository/qa_reshape_model_repository": ("gen_qa_reshape_models.py", "--ensemble"),
    "qa_ensemble_model_repository/qa_sequence_model_repository": ("gen_qa_sequence_models.py", "--ensemble"),
}
"""The generators of qa/common, by the folder that they fill."""


def generate(python, qa, data):
    """Fills `data` with the models that the generators make for ONNX Runtime."""
    for folder, (script, *flags) in GENERATED.items():
        (data / folder).mkdir(parents=True)
        opset = [] if "--ensemble" in flags else ["--onnx_opset=0"]
        command = [python, script, *flags, *opset, f"--models_dir={data / folder}"]
        made = subprocess.run(command, cwd=qa / "common", capture_output=True, text=True)
        if made.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} failed: {made.stderr[-2000:]}")


class Repository:
    """The model repository that one run serves; `suite` is the folder of the suite."""

    def __init__(self, qa, data, suite):
        self.qa, self.data, self.suite = qa, data, suite
        self.root, self.given = suite / "models", suite / "models.given"
        if self.root.exists() and not self.given.exists():
            self.root.rename(self.given)
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()

    def python(self, source, name=None, model="model.py", edits=(), add=""):
        """A model of qa/python_models, under another name perhaps."""
        self.copy(self.qa / "python_models" / source, name or source, edits, add, model)

    def generated(self, family, source, name=None, edits=(), add=""):
        """A model that a generator has made."""
        self.copy(self.data / family / source, name or source, edits, add)

    def all_generated(self, family, pattern="*", edits=()):
        """The models of a generator whose names match a pattern."""
        for folder in sorted((self.data / family).glob(pattern)):
            self.generated(family, folder.name, edits=edits)

    def own(self, source="models.given"):
        """The models in a folder of the suite, by default `models`, each with a version if it has none."""
        for folder in sorted(path for path in (self.suite / source).iterdir() if path.is_dir()):
            self.copy(folder, folder.name)

    def copy(self, source, name, edits=(), add="", model="model.py"):
        """A folder with a configuration; a model.py beside it goes into version 1."""
        target = self.root / name
        shutil.copytree(source, target, dirs_exist_ok=True)
        self.version(target)
        for file in target.glob("*.py"):
            file.rename(target / "1" / file.name)
        if model != "model.py":
            (target / "1" / model).rename(target / "1" / "model.py")
        if (target / "config.pbtxt").exists():
            self.configure(target, (target / "config.pbtxt").read_text(), edits, add)

    def config(self, name, text):
        """A model that is a configuration alone."""
        self.version(self.root / name)
        self.configure(self.root / name, text)

    @staticmethod
    def configure(target, text, edits=(), add=""):
        """Writes a configuration with the folder's name. `edits` are patterns, to begin with in a line, and what takes their place."""
        for pattern, replacement in ((r"^name:.*", f'name: "{target.name}"'), *edits):
            text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
        (target / "config.pbtxt").write_text(f"{text}\n{add}\n")

    @staticmethod
    def version(folder):
        """Gives a model's folder a version if it has none: git keeps no empty folders."""
        if not any(path.name.isdigit() for path in Path(folder).glob("*")):
            (folder / "1").mkdir(parents=True)
