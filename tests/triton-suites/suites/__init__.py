"""The suites that run, by kind, and those that do not."""

from . import inference, protocols, python_backend, sequences

SUITES = inference.SUITES + sequences.SUITES + python_backend.SUITES + protocols.SUITES

NOT_TRIED = (
    "suites for GPUs, TensorRT, LibTorch, OpenVINO and the storage of clouds; suites that are programs in C++, Java or shell alone, such as "
    "`L0_json` and `L0_warmup`; suites that ask C++ backends of their own, such as `L0_query` and `L0_response_statistics`; "
    "`L0_response_cache`, whose `cache_config` is not there; `L0_nan_inf`, which needs numpy 1; and the others, among them `L0_lifecycle`, "
    "`L0_model_config`, `L0_metrics`, `L0_trace`, `L0_model_update` and `L0_rate_limiter`"
)
