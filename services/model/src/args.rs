//! Flags about ONNX Runtime.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::OnnxRuntimeOptions;
use crate::backends::{AccuracyLevel, default_cost_model_cache};
use crate::batcher::packing::Packing;

/// Flags of every process that runs ONNX models.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "ONNX Runtime")]
pub struct OnnxRuntimeArgs {
    /// The ONNX Runtime library (libonnxruntime.so); by default ORT_DYLIB_PATH, then .tools/onnxruntime,
    /// then the Python wheel onnxruntime in the environment that this program is installed in, then the system's
    #[arg(long, env = "TRIREME_ONNXRUNTIME_LIBRARY", value_name = "FILE")]
    pub onnxruntime_library: Option<PathBuf>,

    /// The plugin with OpenVINO's execution provider, for models that ask for the accelerator openvino; by default
    /// .tools/openvino, then the provider that the ONNX Runtime library may have built in
    #[arg(long, env = "TRIREME_OPENVINO_LIBRARY", value_name = "FILE")]
    pub openvino_library: Option<PathBuf>,

    /// Where optimised models are kept, so that the next start need not optimise them; none by default
    #[arg(long, env = "TRIREME_MODEL_CACHE", value_name = "DIR")]
    pub model_cache: Option<PathBuf>,

    /// Threads within an operator, for models that do not say; by default the CPUs of the process over the model's instances
    #[arg(long, env = "TRIREME_ONNXRUNTIME_INTRA_THREADS", value_name = "COUNT")]
    pub onnxruntime_intra_threads: Option<usize>,

    /// Largest batch, in rows, of models that can batch and whose configuration leaves it open; 0 turns that off
    #[arg(long, env = "TRIREME_ONNXRUNTIME_DEFAULT_MAX_BATCH_SIZE", value_name = "COUNT", default_value_t = 4)]
    pub onnxruntime_default_max_batch_size: u32,

    /// Threads between operators, for models that do not say
    #[arg(long, env = "TRIREME_ONNXRUNTIME_INTER_THREADS", value_name = "COUNT")]
    pub onnxruntime_inter_threads: Option<usize>,

    /// Where measured costs of models are kept, so that the next start need not measure; empty for nowhere; by default
    /// trireme/cost-models in the user's cache directory
    #[arg(long, env = "TRIREME_COST_MODEL_CACHE", value_name = "DIR")]
    pub cost_model_cache: Option<OsString>,

    /// The graph that serves text models with pad_inputs, where they have no parameter packing: texts of a run are padded, or packed
    #[arg(long, env = "TRIREME_PACKING", value_name = "WHEN", value_enum, default_value_t)]
    pub packing: Packing,

    /// The precision of weights of 4 or 8 bits (MatMulNBits) on CPUs, where a graph has no accuracy_level and its model no such parameter
    #[arg(long, env = "TRIREME_ACCURACY_LEVEL", value_name = "WHO", value_enum, default_value_t)]
    pub accuracy_level: AccuracyLevel,
}

impl From<&OnnxRuntimeArgs> for OnnxRuntimeOptions {
    fn from(args: &OnnxRuntimeArgs) -> Self {
        let cache = args.cost_model_cache.clone().map(PathBuf::from).or_else(default_cost_model_cache);
        OnnxRuntimeOptions {
            cost_model_cache: cache.filter(|directory| !directory.as_os_str().is_empty()),
            openvino_library: args.openvino_library.clone(),
            model_cache: args.model_cache.clone(),
            library: args.onnxruntime_library.clone(),
            intra_threads: args.onnxruntime_intra_threads,
            inter_threads: args.onnxruntime_inter_threads,
            default_max_batch_size: args.onnxruntime_default_max_batch_size,
            packing: args.packing,
            accuracy_level: args.accuracy_level,
        }
    }
}
