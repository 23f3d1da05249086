"""Suites about sequences: which requests share an instance's slot, with control inputs and implicit state."""

from case import Run, Suite

CPU = ("KIND_GPU", "KIND_CPU")
FAMILY = "qa_sequence_model_repository"
ENSEMBLES = "qa_ensemble_model_repository/qa_sequence_model_repository"
PLAIN = ("simple_sequence", "length1_sequence", "batch_size", "no_sequence_start", "no_sequence_start2", "no_sequence_end")
PLAIN += ("no_correlation_id",)


def batches(size, instances, kind=""):
    """The suite's models for one trial: batches of `size` in so many instances."""

    def make(models):
        edits = [CPU, ("kind: KIND_CPU", f"kind: KIND_CPU\n    count: {instances}")]
        edits += [("^max_batch_size:.*", f"max_batch_size: {size}")] if size else []
        for datatype in ("int32", "bool"):
            models.generated(FAMILY, f"onnx_{kind}sequence_{datatype}", edits=edits)
        models.all_generated(ENSEMBLES, f"*_onnx_{kind}sequence_int32", edits[2:])
        models.all_generated(ENSEMBLES, "nop_*")

    return make


def variable(models):
    edits = [CPU, ("^max_batch_size:.*", "max_batch_size: 4")]
    for datatype in ("int32", "bool"):
        models.generated("qa_variable_sequence_model_repository", f"onnx_sequence_{datatype}", edits=edits)


def trial(label, models, instances, batching, ensembles="1", kind="FIXED"):
    """Each case with a server of its own: they compare statistics with numbers."""
    env = {"NO_BATCHING": "0" if batching else "1", "MODEL_INSTANCES": str(instances), "BATCHER_TYPE": kind, "BACKENDS": "onnx"}
    env |= {"ENSEMBLES": ensembles, "IMPLICIT_STATE": "0", "INITIAL_STATE_FILE": "0"}
    return tuple(Run((f"sequence_batcher_test.py::SequenceBatcherTest::test_{name}",), models, env=env, label=label) for name in PLAIN)


def implicit(models):
    models.generated("qa_sequence_implicit_model_repository", "onnx_nobatch_sequence_int32", edits=[CPU])
    state = 'output [{ name: "OUTPUT_STATE" data_type: TYPE_INT32 dims: [ 1 ] }]'
    models.generated("qa_sequence_implicit_model_repository", "onnx_nobatch_sequence_int32", "onnx_nobatch_sequence_int32_output", [CPU], state)


def oldest(models):
    models.all_generated("qa_dyna_sequence_model_repository", "onnx_*")
    for folder in models.root.iterdir():
        models.configure(folder, (folder / "config.pbtxt").read_text(), [CPU, ("kind: KIND_CPU", "kind: KIND_CPU\n    count: 1")])


SUITES = [
    Suite(
        "L0_sequence_batcher",
        (
            *trial("no batches", batches(0, 4, "nobatch_"), 4, False),
            *trial("1 instance", batches(4, 1), 1, True),
            *trial("4 instances", batches(1, 4), 4, True),
            *trial("variable", variable, 1, True, "0", "VARIABLE"),
        ),
    ),
    Suite(
        "L0_dyna_sequence_batcher",
        tuple(
            Run(
                (f"dyna_sequence_batcher_test.py::DynaSequenceBatcherTest::test_{name}",),
                oldest,
                env={"NO_BATCHING": "1", "BACKENDS": "onnx", "IMPLICIT_STATE": "0"},
            )
            for name in ("simple_sequence", "length1_sequence")
        ),
    ),
    Suite(
        "L0_implicit_state",
        (Run(("implicit_state.py",), implicit, env={"BACKENDS": "onnx"}),),
        dict.fromkeys(("*_memory", "*_single_buffer", "*_no_*", "*_name"), "asks models of a C++ backend of the suite"),
    ),
]
