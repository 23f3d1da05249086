//! Options of a process for all its ONNX models.

use std::path::PathBuf;

use super::levels::AccuracyLevel;
use crate::batcher::packing::Packing;

/// Options of the process for all its ONNX models.
#[derive(Clone, Debug)]
pub struct OnnxRuntimeOptions {
    /// The ONNX Runtime library. `None`: `ORT_DYLIB_PATH`, then the setup script's path, then the system's library.
    pub library: Option<PathBuf>,
    /// The plugin with OpenVINO's execution provider. `None`: the setup script's path.
    pub openvino_library: Option<PathBuf>,
    /// Directory for optimised models. `None`: models are optimised at each load.
    pub model_cache: Option<PathBuf>,
    /// Threads within an operator, for models without a setting. `None`: the CPUs of the process divided by the model's
    /// instances.
    pub intra_threads: Option<usize>,
    /// Threads between operators, for models without a setting. `None`: as many as within an operator.
    pub inter_threads: Option<usize>,
    /// Directory for measured costs. `None`: models are measured at each load.
    pub cost_model_cache: Option<PathBuf>,
    /// Largest batch, in rows, of models that can batch and whose configuration does not set it; 0 turns that off.
    pub default_max_batch_size: u32,
    /// Whether packed graphs serve, of models that are batched by length and whose configuration does not say.
    pub packing: Packing,
    /// The choice of the accuracy level of packed weights, for models whose graph and configuration do not say.
    pub accuracy_level: AccuracyLevel,
}

impl Default for OnnxRuntimeOptions {
    fn default() -> Self {
        OnnxRuntimeOptions {
            library: None,
            openvino_library: None,
            model_cache: None,
            intra_threads: None,
            inter_threads: None,
            cost_model_cache: None,
            default_max_batch_size: 4,
            packing: Packing::Off,
            accuracy_level: AccuracyLevel::Auto,
        }
    }
}
