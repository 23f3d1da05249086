//! Every backend that a configuration may name: the platform and the file that select it, and the service that hosts it. A
//! service registers its backends itself; a test of the `trireme` command compares the two lists.

/// A backend that is known by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownBackend {
    /// The value of `backend` in config.pbtxt.
    pub name: &'static str,
    /// The service that hosts every model of the backend, which is its stage. `None`: no service here does, and an error that names
    /// the backend can say so. Another service may host some of them beside its own: see `hosts` of `trireme_engine::Backend`.
    pub service: Option<&'static str>,
    /// The platform that selects this backend.
    pub(crate) platform: Option<&'static str>,
    /// The file in a version directory that selects this backend.
    pub(crate) file: Option<&'static str>,
}

/// The backend of ONNX models.
pub(crate) const ONNXRUNTIME: &str = "onnxruntime";
/// Triton's backend of TorchScript and torch.export models ([`crate::torch`]).
pub(crate) const PYTORCH: &str = "pytorch";

/// The backend of models in Python.
pub(crate) const PYTHON: &str = "python";

/// If a version directory holds the files of several backends, the first one in this list decides.
pub static BACKENDS: [KnownBackend; 12] = [
    KnownBackend { name: "tensorrt", service: None, platform: Some("tensorrt_plan"), file: Some("model.plan") },
    KnownBackend {
        name: ONNXRUNTIME,
        service: Some("model"),
        platform: Some("onnxruntime_onnx"),
        file: Some("model.onnx"),
    },
    KnownBackend { name: "openvino", service: None, platform: None, file: Some("model.xml") },
    KnownBackend { name: PYTORCH, service: None, platform: Some("pytorch_libtorch"), file: Some("model.pt") },
    KnownBackend { name: PYTHON, service: Some("python"), platform: None, file: Some("model.py") },
    KnownBackend { name: "process", service: Some("python"), platform: None, file: None },
    // These are not Triton's. A directory with nothing but a tokenizer is a tokenizer.
    KnownBackend { name: "tokenizer", service: Some("tokenizer"), platform: None, file: Some("tokenizer.json") },
    KnownBackend { name: "generation", service: Some("model"), platform: None, file: None },
    KnownBackend { name: "static", service: Some("model"), platform: None, file: None },
    KnownBackend { name: "identity", service: Some("model"), platform: None, file: None },
    KnownBackend { name: "repeat", service: Some("model"), platform: None, file: None },
    KnownBackend { name: "postprocess", service: Some("postprocess"), platform: None, file: None },
];

// === impl KnownBackend ===

impl KnownBackend {
    /// The backend of this name.
    pub fn named(name: &str) -> Option<&'static KnownBackend> {
        BACKENDS.iter().find(|known| known.name == name)
    }
}

/// The ONNX file and platform that serve in place of a backend or platform that is not run here, as the end of an error; `None` where there is
/// nothing to say.
pub fn onnx_instead(backend_or_platform: &str) -> Option<&'static str> {
    match backend_or_platform {
        "tensorrt" | "tensorrt_plan" => Some(
            "a TensorRT plan runs only on the GPU and version that it was made for: write the ONNX file that it was made from as model.onnx into \
             the version folder, with platform: \"onnxruntime_onnx\"; on a GPU the accelerator tensorrt compiles it there",
        ),
        "tensorflow" | "tensorflow_savedmodel" | "tensorflow_graphdef" => Some(
            "TensorFlow is not run here: make the ONNX file with python3 -m tf2onnx.convert --saved-model model.savedmodel --output model.onnx \
             (or --graphdef model.graphdef), and serve it from the version folder with platform: \"onnxruntime_onnx\"",
        ),
        _ => None,
    }
}
