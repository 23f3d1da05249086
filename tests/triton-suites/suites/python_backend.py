"""L0_backend_python: what `triton_python_backend_utils` gives to a model.py."""

import shutil

from case import Run, Suite

NO_BATCHES = (r"^max_batch_size:.*", "")
BATCHES_OF_8 = (r"^max_batch_size:.*", "max_batch_size: 8")
DECOUPLED = "model_transaction_policy { decoupled: True }"
INSIDE = ("../test_infer_shm_leak.py",)


def batching(delay_us):
    return f"dynamic_batching {{ preferred_batch_size: [8], max_queue_delay_microseconds: {delay_us} }}"


def of(datatype):
    return ("TYPE_FP32", f"TYPE_{datatype}")


def base(models):
    models.python("identity_fp32")
    models.python("identity_bf16")
    models.python("identity_fp32", "identity_uint8", edits=[of("UINT8"), BATCHES_OF_8], add=batching(12000000))
    models.python("identity_fp32", "identity_uint8_nobatch", edits=[of("UINT8"), NO_BATCHES])
    models.python("identity_fp32", "identity_uint32", edits=[of("UINT32")])
    models.python("identity_fp32", "identity_bool", edits=[of("BOOL")])
    models.python("identity_fp32", "default_model_name", add='default_model_filename: "mymodel.py"')
    folder = models.root / "default_model_name/1"
    (folder / "model.py").rename(folder / "mymodel.py")
    for name in ("pytorch_fp32_fp32", "delayed_model", "optional", "non_contiguous", "string", "string_fixed", "dlpack_identity"):
        models.python(name)
    models.python("init_args", edits=[("TRITON_DIR_PATH", str(models.qa.parent))])


def lifecycle(models):
    models.python("error_code")
    models.python("execute_cancel")
    models.python("execute_error", edits=[BATCHES_OF_8], add=batching(12000000))
    models.python("execute_grpc_error", edits=[BATCHES_OF_8], add=batching(1200000))
    models.python("decoupled_grpc_error")
    models.python("execute_return_error")
    models.python("wrong_model", edits=[of("UINT32")])


def bls(models):
    for name in ("bls", "bls_async", "bls_memory", "bls_memory_async", "dlpack_add_sub", "add_sub", "execute_error", "identity_fp32"):
        models.python(name)
    for name in ("dlpack_identity", "dlpack_square", "identity_fp32_timeout"):
        models.python(name)
    models.generated("qa_sequence_implicit_model_repository", "onnx_nobatch_sequence_int32", edits=[("KIND_GPU", "KIND_CPU")])
    square(models)


def square(models):
    """The example of python_backend that two suites copy."""
    example = models.data / "python_backend/decoupled"
    (models.root / "square_int32/1").mkdir(parents=True)
    (models.root / "square_int32/1/model.py").write_bytes((example / "square_model.py").read_bytes())
    (models.root / "square_int32/config.pbtxt").write_bytes((example / "square_config.pbtxt").read_bytes())


def bls_loading(models):
    models.python("bls_model_loading")
    models.generated("qa_model_repository", "onnx_int32_int32_int32")
    shutil.rmtree(models.root / "onnx_int32_int32_int32/1")


def decoupled(models):
    models.own()
    models.python("identity_fp32")
    models.python("execute_cancel", add=DECOUPLED)
    models.python("response_sender_until_cancelled")
    models.python("dlpack_add_sub")
    square(models)


def response_sender(models):
    for decoupled_part in ("", "_decoupled"):
        for file, async_part in (("model.py", ""), ("model_async.py", "_async")):
            for batching_part in ("", "_batching"):
                add = [DECOUPLED] if decoupled_part else []
                add += ["dynamic_batching { max_queue_delay_microseconds: 500000 }"] if batching_part else []
                models.python("response_sender", f"response_sender{decoupled_part}{async_part}{batching_part}", file, add="\n".join(add))


def each(*names):
    """Models of qa/python_models as they are."""
    return lambda models: [models.python(name) for name in names]


def chain(source):
    def make(models):
        for number in (1, 2, 3):
            models.python(source, f"dlpack_io_identity_{number}")
        models.python("ensemble_io")

    return make


def ensemble(models):
    models.python("ensemble")
    models.python("add_sub", "add_sub_1")
    models.python("add_sub", "add_sub_2")


def readiness(models):
    models.python("identity_fp32")
    values = {"returns_true": "true", "returns_false": "false", "raises_error": "exception", "returns_non_boolean": "non_boolean"}
    values |= {"timeout": "true", "coroutine_returns_true": "coroutine"}
    for kind, value in values.items():
        delay = "8" if kind == "timeout" else "0.1"
        name = f"is_ready_fn_{kind}"
        add = f'parameters: {{ key: "READINESS_FN_RETURN_VALUE" value: {{ string_value: "{value}" }} }}\n'
        add += f'parameters: {{ key: "READINESS_FN_DELAY_SECS" value: {{ string_value: "{delay}" }} }}'
        models.python("identity_fp32", name, add=add)
        file = "readiness_coroutine_model.py" if value == "coroutine" else "readiness_model.py"
        (models.root / name / "1/model.py").write_bytes((models.suite / "test_models" / file).read_bytes())
    models.own("test_models")


def llm(models):
    models.copy(models.suite / "requested_output_model", "llm")


def io(case, models, label="", **env):
    return Run((f"io_test.py::IOTest::{case}",), models, env=env, label=label)


def inside(model, models, label="", flags=(), **env):
    """A model that runs unit tests in `execute`."""
    return Run(INSIDE, models, flags, {"MODEL_NAME": model, **env}, label or model)


SHARED_MEMORY = ("--allow-client-shm=true",)
EXPLICIT = ("--model-control-mode=explicit",)

BLS = ("bls", "bls_memory", "bls_memory_async", "bls_async")
GPU = "needs a GPU"
UNREADY = tuple(f"*::test_is_ready_{case}" for case in ("raises_exception", "returns_false", "returns_non_boolean", "takes_long_time"))

SUITES = [
    Suite(
        "L0_backend_python",
        (Run(("python_test.py",), base, SHARED_MEMORY),),
        {
            "*::test_bf16": "expects `as_numpy` of BF16 to raise; here it gives an array where `ml_dtypes` is installed",
            "*::test_growth_error": "expects the words of a pool of shared memory, which is not there: the server refuses the request's size",
            "*::test_*_tensor_error": GPU,
        },
    ),
    Suite("L0_backend_python/lifecycle", (Run(("lifecycle_test.py",), lifecycle, log="lifecycle_server.log"),)),
    Suite(
        "L0_backend_python/bls",
        (
            *(
                Run(
                    INSIDE,
                    bls,
                    env={"BLS_KIND": kind},
                    turns=tuple({"MODEL_NAME": model, "LABEL": f"{model} {kind}"} for model in BLS),
                )
                for kind in ("non_decoupled", "decoupled")
            ),
            inside("bls_model_loading", bls_loading, flags=(*EXPLICIT, "--load-model=bls_model_loading")),
            Run(("bls_parameters_test.py",), each("bls_parameters")),
        ),
        {
            "*::test_bls_parameters": "a model that would wait for itself is refused",
            "bls_model_loading*": "the model asks for other models in `initialize`, where it can ask nobody here",
            "bls_memory*": "expects the words of a pool of shared memory, which is not there",
            "bls *": "most of its 13 tests pass; others need a GPU, ask from forked processes or expect Triton's words",
            "bls_async *": GPU,
        },
    ),
    Suite(
        "L0_backend_python/decoupled",
        (Run(("decoupled_test.py",), decoupled, log="decoupled_server.log"),),
        {
            "*::test_decoupled_bls": GPU,
            "*::test_decoupled_bls_ignore_cancel": "`cancel()` of a request to another model ends it here, whether that model minds or not",
        },
    ),
    Suite(
        "L0_backend_python/response_sender",
        (
            Run(("response_sender_test.py",), response_sender),
            Run(("response_sender_complete_final_test.py",), each("response_sender_complete_final")),
        ),
    ),
    Suite("L0_backend_python/async_execute", (Run(("concurrency_test.py",), each("async_execute_decouple", "async_execute_decouple_bls")),)),
    Suite(
        "L0_backend_python/parameters",
        (Run(("response_parameters_test.py",), each("response_parameters", "response_parameters_decoupled", "response_parameters_bls")),),
        {"*::test_setting_float_response_parameters": "a parameter may be a float here"},
    ),
    Suite(
        "L0_backend_python/io",
        (
            io("test_ensemble_io", chain("dlpack_io_identity"), "default", TRIAL="default"),
            io("test_ensemble_io", chain("dlpack_io_identity_decoupled"), "decoupled", TRIAL="decoupled"),
            io("test_empty_gpu_output", each("dlpack_empty_output")),
            io("test_variable_gpu_output", each("variable_gpu_output")),
            io("test_requested_output_default", each("add_sub", "dlpack_io_identity_decoupled")),
            io("test_requested_output_decoupled", each("add_sub", "dlpack_io_identity_decoupled")),
            io("test_requested_output_decoupled_prior_crash", llm),
        ),
        dict.fromkeys(("*_ensemble_io", "*_gpu_output", "*_requested_output_decoupled"), GPU),
    ),
    Suite(
        "L0_backend_python/restart",
        (Run(("restart_test.py",), lambda models: models.own()),),
        {"*": "the model looks into `pb_utils.shared_memory`, which is not there"},
    ),
    Suite(
        "L0_backend_python/model_control",
        (Run(("model_control_test.py",), each("identity_fp32", "simple_identity_fp32"), EXPLICIT),),
        {"*::test_invalid_character_model_names": "a model's name may have any characters here but those of paths"},
    ),
    Suite("L0_backend_python/ensemble", (Run(("ensemble_test.py",), ensemble),), {"*::test_ensemble_gpu": GPU}),
    Suite(
        "L0_backend_python/model_readiness",
        (
            Run(("test_model_readiness.py::TestModelReadiness",), each("identity_fp32")),
            Run(("test_model_readiness.py::TestUserDefinedModelReadinessFunction",), readiness, ("--strict-readiness=false", "--exit-on-error=false")),
        ),
        note="with `--exit-on-error=false`: else `trireme serve` ends because of a model that is not ready at its start",
        left_out={
            "*::test_model_not_ready": "the suite's shell script ends the model's process before it",
            **dict.fromkeys(UNREADY, "expects answers of an instance whose `is_ready` says no, which takes no work here"),
        },
    ),
    Suite("L0_backend_python/argument_validation", (inside("argument_validation", lambda models: models.own()),)),
    Suite("L0_backend_python/logging", (Run(("logging_test.py",), each("identity_fp32_logging")),)),
    Suite(
        "L0_backend_python/custom_metrics",
        (inside("custom_metrics", each("custom_metrics")),),
        {"*": "the model reads its metrics at the port while it executes; they are sent there when `execute` returns"},
    ),
    Suite(
        "L0_backend_python/request_rescheduling",
        (
            Run(
                (*INSIDE, "grpc_endpoint_test.py"),
                each("bls_request_rescheduling", "request_rescheduling_addsub", "iterative_sequence", "wrong_return_type"),
                (*EXPLICIT, "--load-model=*"),
                {"MODEL_NAME": "bls_request_rescheduling"},
            ),
        ),
        {"*": "needs rescheduling, which is not there"},
    ),
]
