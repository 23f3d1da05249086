"""Suites about HTTP, gRPC, parameters, streams and the server's own requests."""

import shutil

from case import Run, Suite

EXPLICIT = ("--model-control-mode=explicit",)
LOAD_ALL = (*EXPLICIT, "--load-model=*")
SHARED_MEMORY = ("--allow-client-shm=true",)
EXAMPLES = "../../docs/examples/model_repository"


def examples(*names):
    """Models of the checkout's examples."""
    return lambda models: [models.copy(models.suite / EXAMPLES / name, name) for name in names]


def own(models):
    models.own()


def simple_ensemble(models):
    own(models)
    for version in "12":
        shutil.copytree(models.suite / EXAMPLES / "simple/1", models.root / "simple" / version, dirs_exist_ok=True)


def http_unit(models):
    for name in ("onnx_zero_1_float32", "onnx_zero_1_object", "onnx_zero_1_float16", "onnx_zero_3_float32"):
        models.generated("qa_identity_model_repository", name)
    models.generated("qa_identity_model_repository", "onnx_zero_1_object", "onnx_zero_1_object_1_element", [("-1", "1")])
    queue = "dynamic_batching { max_queue_delay_microseconds: 1000000 preferred_batch_size: [ 8 ]\n default_queue_policy { max_queue_size: 1 } }"
    models.generated("qa_identity_model_repository", "onnx_zero_1_float32", "onnx_zero_1_float32_queue", add=queue)
    examples("simple_identity")(models)
    models.copy(models.suite / EXAMPLES / "simple_identity", "simple_identity_int64", [("TYPE_STRING", "TYPE_INT64")])


def sizes(models):
    models.generated("qa_identity_model_repository", "onnx_zero_1_float32")
    examples("simple_identity")(models)


def grpc_unit(models):
    examples("simple")(models)
    models.python("string_identity", edits=[(r"dims: \[ 1 \]", "dims: [ -1 ]")])


def class_count(models):
    models.python("identity_fp32")
    models.python("identity_fp32", "identity_bytes", edits=[("TYPE_FP32", "TYPE_STRING")])


def slow_identity(delay_ms):
    def make(models):
        tensor = 'put [{ name: "%sPUT0" data_type: TYPE_INT32 dims: [ -1 ] }]'
        tensors = f"in{tensor % 'IN'}\nout{tensor % 'OUT'}"
        delay = f'parameters [{{ key: "execute_delay_ms" value: {{ string_value: "{delay_ms}" }} }}]'
        models.config("custom_identity_int32", f'backend: "identity"\nmax_batch_size: 1024\n{tensors}\n{delay}\n')

    return make


def parameters(case, *flags):
    return Run((f"parameters_test.py::InferenceParametersTest::{case}",), lambda models: models.own("model_repository"), flags)


HEADERS = ("--grpc-header-forward-pattern", "MY_HEADER.*", "--http-header-forward-pattern", "MY_HEADER.*")
ANY_HEADER = ("--grpc-header-forward-pattern", ".*", "--http-header-forward-pattern", ".*")
MEMORY_CASES = (
    *("invalid_create_shm", "valid_create_set_register", "unregister_before_register", "unregister_after_register"),
    *("reregister_after_register", "unregister_after_inference", "register_after_inference", "too_big_shm", "mixed_raw_shm"),
    *("unregisterall", "infer_offset_out_of_bound", "infer_byte_size_out_of_bound", "infer_integer_overflow", "register_out_of_bound"),
    *("register_reserved_names", "register_invalid_shm_key", "python_client_leak"),
)


SIZE_CASE = "http_input_size_limit_test.py::InferSizeLimitTest::test_{}"
SMALL = (
    *("default_limit_raw_binary", "default_limit_json", "large_string_in_json", "default_limit_compressed"),
    *("json_dtype_size_expansion_exceeds_limit_error", "no_leak_on_invalid_inference_header_length"),
)
LARGE = ("large_input_raw_binary", "large_input_json", "large_input_compressed")
OPTIONAL_CASES = (
    *("all_inputs", "optional_same_input", "optional_mix_inputs", "optional_mix_inputs_2", "ensemble_all_inputs"),
    *("ensemble_optional_same_input", "ensemble_optional_mix_inputs", "ensemble_optional_mix_inputs_2", "ensemble_optional_pipeline"),
    "ensemble_optional_connecting_tensor",
)


def memory(protocol):
    """Each case with a server of its own: one that fails leaves regions behind."""
    case, env = "shared_memory_test.py::SharedMemoryTest::test_{}", {"CLIENT_TYPE": protocol}
    yield Run((case.format("client_shm_disabled_by_default"),), examples("simple"), env=env, label=protocol)
    for name in MEMORY_CASES:
        yield Run((case.format(name),), examples("simple"), SHARED_MEMORY, env, protocol)


def simple_of_onnx(models):
    models.generated("qa_model_repository", "onnx_int32_int32_int32", "simple")


DELAYS = "needs delays that Triton has for its tests"
COUNTED = "counts the models that NVIDIA's image has"

SUITES = [
    Suite(
        "L0_http",
        (
            Run(("http_test.py",), http_unit, LOAD_ALL),
            Run(("generate_endpoint_test.py",), lambda models: models.own("../python_models/generate_models")),
            Run(("python_http_aio_test.py",), examples("simple", "simple_identity"), SHARED_MEMORY),
            Run(("http_client_plugin_test.py",), examples("simple"), SHARED_MEMORY),
            Run(
                ("http_restricted_api_test.py",),
                examples("simple"),
                (
                    "--http-restricted-api=model-repository:admin-key=admin-value",
                    "--http-restricted-api=inference,metadata:infer-key=infer-value",
                ),
            ),
            Run(tuple(map(SIZE_CASE.format, SMALL)), sizes),
            Run(tuple(map(SIZE_CASE.format, LARGE)), sizes, (f"--http-max-input-size={2**27}",)),
            Run(("http_request_many_chunks.py",), examples("simple"), (*EXPLICIT, "--load-model=simple")),
        ),
        {
            "*::test_descriptive_status_code": "requests that gather for a batch do not count in `max_queue_size` here",
            "*::test_get_model_repository_index": COUNTED,
            "*::test_generate_stream_response_error": "an error before the first event is an ordinary error here, no event",
            "*::test_chunked_*over_max*": "a body is limited in bytes here, not in chunks",
            "*SizeLimit*_raw_binary": "a request that is too large is refused in other words: before its body is read",
        },
    ),
    Suite(
        "L0_grpc",
        (
            Run(("python_unit_test.py::GrpcTest",), grpc_unit),
            Run(
                ("python_unit_test.py::RestrictedProtocolTest",),
                examples("simple"),
                (
                    "--grpc-restricted-protocol=model-repository:admin-key=admin-value",
                    "--grpc-restricted-protocol=inference,health:infer-key=infer-value",
                ),
            ),
            Run(("python_grpc_aio_test.py",), examples("simple", "simple_identity"), SHARED_MEMORY),
            Run(("grpc_client_plugin_test.py",), lambda models: models.own("client_plugin_models"), ANY_HEADER),
        ),
        {
            "*::test_get_model_repository_index": COUNTED,
            "*::test_register_cuda_shared_memory": "expects the words of a server that was built for GPUs",
        },
    ),
    Suite(
        "L0_parameters",
        (
            parameters("test_params"),
            parameters("test_params_reserved_rejected"),
            parameters("test_headers", *HEADERS),
            parameters("test_grpc_header_forward_pattern_case_sensitive", "--grpc-header-forward-pattern", "(?-i)MY_HEADER.*"),
            parameters("test_headers_reserved_rejected", *ANY_HEADER),
            *(Run(("class_count_test.py",), class_count, env={"CLIENT_TYPE": protocol}, label=protocol) for protocol in ("http", "grpc")),
        ),
        {
            "*::test_headers": "blanks at the end of a header's value do not belong to it here (RFC 9110)",
            "*::test_headers_reserved_rejected": "a header with the name of a reserved parameter is not forwarded; Triton refuses the request",
        },
    ),
    Suite(
        "L0_shared_memory",
        (*memory("http"), *memory("grpc")),
        {
            "http: *::test_infer_integer_overflow": "an offset and size past the region are refused in other words",
            "*::test_register_reserved_names": "no names of regions are reserved here: there is no python backend in shared memory",
            "*::test_register_invalid_shm_key": "a key that is no name is refused in other words",
        },
    ),
    Suite(
        "L0_request_cancellation",
        (Run(("grpc_cancellation_test.py",), slow_identity(10000)),),
        dict.fromkeys(("*_step_start", "*_during_cancellation", "*_before_finish_?", "*_final_response"), DELAYS),
    ),
    Suite(
        "L0_client_timeout",
        (
            Run(("client_infer_timeout_test.py",), own),
            Run(("client_non_infer_timeout_test.py",), own, (*EXPLICIT, *SHARED_MEMORY, "--load-model=custom_identity_int32")),
        ),
        {"client_non_infer_timeout_test.py*": DELAYS},
    ),
    Suite("L0_input_validation", (Run(("input_validation_test.py::InputValTest",), own),)),
    Suite(
        "L0_optional_input",
        tuple(Run((f"optional_input_test.py::OptionalInputTest::test_{name}",), own) for name in OPTIONAL_CASES),
    ),
    Suite(
        "L0_simple_ensemble",
        tuple(
            Run((f"ensemble_test.py::EnsembleTest::test_ensemble_{name}",), simple_ensemble)
            for name in ("add_sub", "sequence_flags", "add_sub_one_output", "partial_add_sub")
        ),
        {
            "*::test_ensemble_partial_add_sub": "looks for Triton's words in the log",
            "*::test_ensemble_sequence_flags": "an ensemble's answers do not repeat the flags of a sequence's requests",
        },
    ),
    Suite("L0_logging", (Run(("logging_endpoint_test.py",), simple_of_onnx),)),
]
