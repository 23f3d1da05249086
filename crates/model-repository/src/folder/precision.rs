//! Which of a folder's ONNX files is served, where it has several of one model.

/// The precision of weights that is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// The most exact file that the folder has.
    #[default]
    Exact,
    /// A file with weights of 16 bits.
    Fp16,
    /// A file with weights of 8 bits, as `trireme optimize` writes it.
    Int8,
}

/// Names of ONNX files, those before others that keep more of the model's precision: as optimum, transformers.js, fastembed
/// and sentence-transformers write them.
const EXACT: [&str; 6] = ["model", "model_optimized", "model_O1", "model_O2", "model_O3", "model_O4"];

const FP16: [&str; 1] = ["model_fp16"];

/// Files for any processor, and those that were made for one, each with the processor's flag.
const INT8: [(&str, Option<&str>); 7] = [
    ("model_int8", None),
    ("model_qint8_arm64", Some("arm64")),
    ("model_qint8_avx512_vnni", Some("avx512vnni")),
    ("model_qint8_avx512", Some("avx512f")),
    ("model_quint8_avx2", Some("avx2")),
    ("model_quantized", None),
    ("model_uint8", None),
];

// === impl Precision ===

impl Precision {
    /// Every precision.
    pub const ALL: [Precision; 3] = [Precision::Exact, Precision::Fp16, Precision::Int8];

    /// The word for it in flags.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Exact => "exact",
            Precision::Fp16 => "fp16",
            Precision::Int8 => "int8",
        }
    }

    /// The precision of this name.
    pub fn named(name: &str) -> Option<Precision> {
        Precision::ALL.into_iter().find(|precision| precision.name() == name)
    }

    /// Names of files without their ending, the best one first. Where the most exact file is asked for, those of less precision
    /// follow.
    pub(crate) fn stems(self) -> Vec<&'static str> {
        match self {
            Precision::Fp16 => FP16.to_vec(),
            Precision::Int8 => int8(),
            Precision::Exact => [EXACT.as_slice(), &FP16, &int8()].concat(),
        }
    }
}

/// Files of 8 bits: those for this processor before those for others.
fn int8() -> Vec<&'static str> {
    let fits = |processor: &Option<&str>| processor.is_none_or(has);
    let (fitting, other): (Vec<_>, Vec<_>) = INT8.into_iter().partition(|(_, processor)| fits(processor));
    fitting.into_iter().chain(other).map(|(stem, _)| stem).collect()
}

#[cfg(target_arch = "x86_64")]
fn has(processor: &str) -> bool {
    match processor {
        "avx512vnni" => is_x86_feature_detected!("avx512vnni"),
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx2" => is_x86_feature_detected!("avx2"),
        _ => false,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn has(processor: &str) -> bool {
    processor == "arm64" && cfg!(target_arch = "aarch64")
}
