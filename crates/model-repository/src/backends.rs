//! Every backend that a configuration may name: what tells it, and which service hosts it. The only list of them; a service
//! makes its own, and a test of the `trireme` command holds the two together.

/// A backend that is known by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownBackend {
    /// What `backend` in config.pbtxt says.
    pub name: &'static str,
    /// The service that hosts it, which is its stage. `None`: nobody here does, but an error that names such a backend says
    /// more than one that knows of none.
    pub service: Option<&'static str>,
    /// The platform that means it.
    pub(crate) platform: Option<&'static str>,
    /// The file in a version directory that means it.
    pub(crate) file: Option<&'static str>,
}

/// The backend of ONNX models.
pub(crate) const ONNXRUNTIME: &str = "onnxruntime";

/// Where a version directory holds the files of several, the first one decides.
pub static BACKENDS: [KnownBackend; 11] = [
    KnownBackend { name: "tensorrt", service: None, platform: Some("tensorrt_plan"), file: Some("model.plan") },
    KnownBackend {
        name: ONNXRUNTIME,
        service: Some("model"),
        platform: Some("onnxruntime_onnx"),
        file: Some("model.onnx"),
    },
    KnownBackend { name: "openvino", service: None, platform: None, file: Some("model.xml") },
    KnownBackend { name: "pytorch", service: None, platform: Some("pytorch_libtorch"), file: Some("model.pt") },
    KnownBackend { name: "python", service: Some("python"), platform: None, file: Some("model.py") },
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
    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static KnownBackend> {
        BACKENDS.iter().find(|known| known.name == name)
    }
}
