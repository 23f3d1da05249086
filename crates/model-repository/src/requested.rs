//! Checks a configuration that came with a request to load a model. The client that sends it need not be the operator: the
//! configuration may say how the model computes, and may name no file or library outside the model's own folder.
//!
//! The lists name the allowed settings, so that a new setting of ONNX Runtime is refused until it is added here. `validate`
//! checks the paths of every configuration.

use crate::{ModelConfig, RepositoryError};

/// Beginnings of parameters that ONNX Runtime takes as settings of its sessions.
const SESSION_SETTINGS: [&str; 4] = ["session.", "optimization.", "mlas.", "ep."];

/// The session settings that name no file and no address in memory.
const SESSION: &[&str] = &[
    "mlas.disable_kleidiai",
    "mlas.enable_gemm_fastmath_arm64_bfloat16",
    "optimization.disable_specified_optimizers",
    "optimization.enable_cast_chain_elimination",
    "optimization.enable_gelu_approximation",
    "session.disable_aot_function_inlining",
    "session.disable_cpu_ep_fallback",
    "session.disable_double_qdq_remover",
    "session.disable_prepacking",
    "session.disable_quant_qdq",
    "session.dynamic_block_base",
    "session.enable_dq_matmulnbits_fusion",
    "session.enable_quant_qdq_cleanup",
    "session.force_spinning_stop",
    "session.graph_optimizations_loop_level",
    "session.inter_op.allow_spinning",
    "session.inter_op.spin_backoff_max",
    "session.inter_op.spin_duration_us",
    "session.intra_op.allow_spinning",
    "session.intra_op.spin_backoff_max",
    "session.intra_op.spin_duration_us",
    "session.qdq_matmulnbits_accuracy_level",
    "session.qdqisint8allowed",
    "session.set_denormal_as_zero",
    "session.strict_shape_type_inference",
    "session.use_device_allocator_for_initializers",
    "session.x64quantprecision",
];

/// Parameters of accelerators that name no file, library or address, by the accelerator's name.
const ACCELERATORS: &[(&str, &[&str])] = &[
    (
        "openvino",
        &[
            "EXECUTION_MODE_HINT",
            "INFERENCE_NUM_THREADS",
            "INFERENCE_PRECISION_HINT",
            "NUM_STREAMS",
            "PERFORMANCE_HINT",
            "num_streams",
            "num_threads",
            "precision",
        ],
    ),
    (
        "tensorrt",
        &[
            "int8_use_native_calibration_table",
            "max_workspace_size_bytes",
            "precision_mode",
            "trt_bf16_enable",
            "trt_builder_optimization_level",
            "trt_fp16_enable",
            "trt_int8_enable",
            "trt_max_workspace_size",
            "trt_sparsity_enable",
        ],
    ),
    (
        "cuda",
        &[
            "arena_extend_strategy",
            "cudnn_conv_algo_search",
            "cudnn_conv_use_max_workspace",
            "do_copy_in_default_stream",
            "enable_cuda_graph",
            "gpu_mem_limit",
            "prefer_nhwc",
            "use_tf32",
        ],
    ),
];

/// Checks a configuration that came with a request. The error names the setting and the allowed ones.
pub(crate) fn check(config: &ModelConfig) -> Result<(), RepositoryError> {
    let refuse = |what: &str, key: &str, allowed: &[&str]| {
        Err(RepositoryError::Invalid(format!(
            "model '{}': {what} '{key}' is not allowed in a configuration that comes with a load request; allowed are {}. \
             Write it into config.pbtxt in the model repository, and load the model without a configuration",
            config.name,
            allowed.join(", ")
        )))
    };
    let is_setting = |key: &&String| SESSION_SETTINGS.iter().any(|prefix| key.starts_with(prefix));
    if let Some(key) = config.parameters.keys().filter(is_setting).find(|key| !SESSION.contains(&key.as_str())) {
        return refuse("session setting", key, SESSION);
    }
    let optimization = &config.optimization;
    for (name, parameters) in optimization.cpu_accelerators.iter().chain(&optimization.gpu_accelerators) {
        // The backend refuses an unknown accelerator; its parameters are refused here.
        let allowed = ACCELERATORS.iter().find(|(known, _)| known == name).map_or(&[][..], |(_, allowed)| *allowed);
        if let Some(key) = parameters.keys().find(|key| !allowed.contains(&key.as_str())) {
            return refuse(&format!("parameter of execution accelerator '{name}'"), key, allowed);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<(), String> {
        let config = ModelConfig::parse(&format!("backend: 'onnxruntime' {text}"), "m").unwrap();
        check(&config).map_err(|error| error.to_string())
    }

    fn parameter(key: &str) -> String {
        format!("parameters {{ key: '{key}' value {{ string_value: '/etc/passwd' }} }}")
    }

    fn accelerator(kind: &str, name: &str, key: &str) -> String {
        format!(
            "optimization {{ execution_accelerators {{ {kind}_execution_accelerator: [{{ name: '{name}'
             parameters {{ key: '{key}' value: '/etc/passwd' }} }}] }} }}"
        )
    }

    #[test]
    fn settings_that_name_files_are_refused() {
        for key in [
            "session.optimized_model_filepath",
            "session.model_external_initializers_file_folder_path",
            "session.debug_layout_transformation",
            "ep.context_file_path",
            "ep.cuda.user_compute_stream",
            "session.something_new",
        ] {
            let error = checked(&parameter(key)).unwrap_err();
            assert!(error.starts_with(&format!("model 'm': session setting '{key}' is not allowed")), "{error}");
            assert!(error.contains("session.set_denormal_as_zero"), "it says what is allowed: {error}");
        }
        for (kind, name, key) in [
            ("cpu", "openvino", "cache_dir"),
            ("cpu", "openvino", "CACHE_DIR"),
            ("gpu", "tensorrt", "trt_engine_cache_path"),
            ("gpu", "tensorrt", "trt_extra_plugin_lib_paths"),
            ("gpu", "cuda", "user_compute_stream"),
            ("gpu", "new", "anything"),
        ] {
            let error = checked(&accelerator(kind, name, key)).unwrap_err();
            assert!(error.contains(&format!("accelerator '{name}' '{key}' is not allowed")), "{error}");
        }
    }

    #[test]
    fn settings_of_the_computation_are_allowed() {
        for key in ["session.set_denormal_as_zero", "intra_op_thread_count", "my_own"] {
            assert_eq!(checked(&parameter(key)), Ok(()), "{key}");
        }
        assert_eq!(checked(&accelerator("cpu", "openvino", "precision")), Ok(()));
        assert_eq!(checked(&accelerator("gpu", "tensorrt", "precision_mode")), Ok(()));
    }
}
