"""Suites that ask models of ONNX, Python and ensembles for inferences."""

import shutil

from case import Run, Suite

PYTHON = 'backend: "python"'
NO_PLATFORM = (r"^platform:.*", PYTHON)
SWAPPED = ("float32", "int32", "int16", "int8")
ENSEMBLES = (
    *("wrong_label_int32_float32_float32", "label_override_int32_float32_float32", "mix_type_int32_float32_float32"),
    *("batch_to_nobatch_float32_float32_float32", "batch_to_nobatch_nobatch_float32_float32_float32"),
    *("nobatch_to_batch_float32_float32_float32", "nobatch_to_batch_nobatch_float32_float32_float32"),
    "mix_nobatch_batch_float32_float32_float32",
)
ONE_VERSION = (r"^version_policy:.*", "version_policy: { specific { versions: [1] }}")


def as_python(models, family, name, prefix, plain, swapped, add="", edits=()):
    """The twin in Python of a model of ONNX: its configuration and labels, and a model.py that adds and subtracts, or the reverse."""
    source = models.data / family / name
    twin = name.replace("onnx", prefix)
    parts = twin.split("_")[-3:]
    model = swapped if parts[0] in SWAPPED and len(set(parts)) == 1 else plain
    target = models.root / twin
    (target / "1").mkdir(parents=True)
    shutil.copy(models.qa / "python_models" / model / "model.py", target / "1")
    shutil.copy(source / "output0_labels.txt", target)
    models.configure(target, (source / "config.pbtxt").read_text(), (NO_PLATFORM, ONE_VERSION, *edits), add)


def add_and_subtract(dlpack):
    """What L0_infer serves: every combination of types, in ONNX, in Python and behind ensembles."""

    def make(models):
        for folder in sorted((models.data / "qa_model_repository").glob("onnx_*")):
            if "bf16" in folder.name:
                continue
            models.generated("qa_model_repository", folder.name)
            if dlpack:
                as_python(models, "qa_model_repository", folder.name, "python_dlpack", "dlpack_add_sub", "dlpack_sub_add")
            else:
                as_python(models, "qa_model_repository", folder.name, "python", "add_sub", "sub_add")
        family = "qa_ensemble_model_repository/qa_model_repository"
        models.all_generated(family, "*_onnx_*")
        models.all_generated(family, "nop_*")
        for name in ENSEMBLES:
            models.copy(models.qa / "ensemble_models" / name, name)
        zero(models, "custom_zero_1_float32", 8, "[ -1 ]")
        zero(models, "custom_nobatch_zero_1_float32", 0, "[ -1, -1 ]")

    return make


def zero(models, name, batch, dims, add=""):
    """The suite's own configuration for backend `identity`."""
    source = models.qa / "custom_models/custom_zero_1_float32"
    models.copy(source, name, [("max_batch_size:.*", f"max_batch_size: {batch}"), (r"dims: \[.*\]", f"dims: {dims}")], add)


def identity(family):
    def make(models):
        models.all_generated(family)
        models.all_generated(f"qa_ensemble_model_repository/{family}")

    return make


def reshape(models):
    identity("qa_reshape_model_repository")(models)
    for sizes, datatype in (((1, 2, 3, 4), "float32"), ((1, 2, 3), "int32")):
        for size in sizes:
            for kind in ("", "nobatch_"):
                name = f"{kind}zero_{size}_{datatype}"
                if (models.data / "qa_reshape_model_repository" / f"onnx_{name}").exists():
                    edits = [(r"^platform:.*", 'backend: "identity"')]
                    models.generated("qa_reshape_model_repository", f"onnx_{name}", f"custom_{name}", edits)


def strings(models):
    models.generated("qa_identity_model_repository", "onnx_zero_1_object")
    models.python("string_identity", edits=[(r"\[ 1 \]", "[ 8 ]")])


def batcher(family, batching, edits=()):
    def make(models):
        changes = [("^max_batch_size:.*", "max_batch_size: 8"), ONE_VERSION, *edits]
        models.generated(family, "onnx_float32_float32_float32", edits=changes, add=batching)
        as_python(models, family, "onnx_float32_float32_float32", "python", "add_sub", "add_sub", batching, changes)

    return make


PREFERRED = "dynamic_batching { preferred_batch_size: [ 2, 6 ], max_queue_delay_microseconds: 10000000 }"


def variable(models):
    batcher("qa_variable_model_repository", PREFERRED, [("16", "-1")])(models)


def batch_cases(names, models, label):
    """Each case with a server of its own: they compare statistics with numbers."""
    env = {"BACKENDS": "onnx python"}
    return tuple(Run((f"batcher_test.py::BatcherTest::test_{name}",), models, env=env, label=label) for name in names)


PLAIN_BATCHES = (
    *("static_batch_preferred", "static_batch_lt_any_preferred", "static_batch_not_preferred", "static_batch_gt_max_preferred"),
    *("multi_batch_not_preferred", "multi_batch_gt_max_preferred", "multi_batch_sum_gt_max_preferred", "multi_same_output0"),
    *("multi_same_output1", "multi_different_outputs", "multi_different_output_order"),
)
OTHER_SHAPES = ("multi_batch_not_preferred_different_shape", "multi_batch_preferred_different_shape")
RAGGED = ("multi_batch_different_shape_allow_ragged", "multi_batch_different_shape")


CPU = {"ENSEMBLES": "1", "TRITON_SERVER_CPU_ONLY": "1"}

SUITES = [
    Suite(
        "L0_infer",
        (
            Run(("infer_test.py",), add_and_subtract(False), env={**CPU, "BACKENDS": "onnx python"}, label="onnx python"),
            Run(("infer_test.py",), add_and_subtract(True), env={**CPU, "BACKENDS": "python_dlpack"}, label="python_dlpack"),
        ),
    ),
    Suite("L0_infer_zero", (Run(("infer_zero_test.py",), identity("qa_identity_model_repository"), env={"BACKENDS": "onnx"}),)),
    Suite("L0_infer_reshape", (Run(("infer_reshape_test.py",), reshape),), {"*::test_[fo]*": "asks models of LibTorch, too"}),
    Suite("L0_string_io", (Run(("string_client_test.py",), strings),)),
    Suite(
        "L0_batcher",
        (
            *batch_cases(PLAIN_BATCHES, batcher("qa_model_repository", PREFERRED), "fixed"),
            *batch_cases(OTHER_SHAPES + RAGGED, variable, "variable"),
        ),
        {"*_allow_ragged": "asks a model of ONNX with `batch_output`, which is not there"},
    ),
]
