//! The flags of `trireme export`.

use std::path::PathBuf;

use clap::Args;
use trireme_model::OnnxRuntimeArgs;
use trireme_telemetry::TelemetryArgs;

/// Flags of `trireme export`.
#[derive(Args)]
pub struct ExportArgs {
    /// A model folder, with its weights as model.safetensors or pytorch_model.bin: the file is written to onnx/ in it. Or a model of a
    /// model repository, with 1/model.pt (TorchScript) or 1/model.pt2 (torch.export): the file is written beside that
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// A Python that has optimum-onnx, or torch and transformers, and for the comparison the model's library; for a model of a model
    /// repository torch alone, and onnxscript for a model.pt2
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub python: PathBuf,

    /// The task of a model folder whose files leave it open or say another one, as embed for a causal language model
    #[arg(long, value_name = "TASK")]
    pub task: Option<String>,

    /// The lowest likeness to the library's answers that is good enough, as in `trireme verify`
    #[arg(long, value_name = "NUMBER", default_value_t = 0.9999)]
    pub min_cosine: f64,

    /// Do not compare the answers with those of the model's library
    #[arg(long)]
    pub skip_verify: bool,

    #[command(flatten)]
    pub onnxruntime: OnnxRuntimeArgs,
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}
