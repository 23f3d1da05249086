//! [`Table`]: a vector for each token, as `model.safetensors` holds it.

use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// Names under which the vectors may be: those of model2vec and of sentence-transformers' `StaticEmbedding`.
const VECTORS: [&str; 2] = ["embeddings", "embedding.weight"];

/// The name of a table of one number for each token, that of sentence-transformers' `SparseStaticEmbedding`.
const WEIGHT: &str = "weight";

/// Vectors by token id. They keep the precision of the file; sums are taken in f32.
pub(super) struct Table {
    vectors: Vectors,
    width: usize,
    /// The weight of each token's vector, by token id.
    weights: Option<Vec<f32>>,
    /// The row of each token's vector, by token id; without it the row is the id.
    rows: Option<Vec<usize>>,
    /// The number of token ids.
    tokens: usize,
    /// Whether it is a number for each token, that of `SparseStaticEmbedding`.
    of_tokens: bool,
}

enum Vectors {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    I8(Vec<i8>),
}

// === impl Table ===

impl Table {
    /// Reads the table in `bytes`, the content of the file `path`. The error names the file and the tensor.
    pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<Table, String> {
        let fault = |reason: String| format!("{}: {reason}", path.display());
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| fault(error.to_string()))?;
        let vectors = VECTORS.iter().find_map(|name| tensors.tensor(name).ok());
        let alone = || tensors.tensor(WEIGHT).ok().filter(|tensor| tensor.shape().len() == 1);
        let vectors = vectors.or_else(alone).ok_or_else(|| {
            let found = tensors.names().into_iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
            fault(format!(
                "it has no tensor 'embeddings' or 'embedding.weight', and no '{WEIGHT}' of one dimension, found {found}"
            ))
        })?;
        let (rows, width) = match vectors.shape() {
            &[rows, width] => (rows, width),
            &[rows] => (rows, 1),
            found => return Err(fault(format!("the vectors have shape {found:?}, expected a row for each token"))),
        };
        let of_tokens = vectors.shape().len() == 1;
        let optional = |name: &str| tensors.tensor(name).ok();
        let weights = optional("weights").map(|tensor| numbers("weights", &tensor)).transpose().map_err(fault)?;
        let mapping = optional("mapping").map(|tensor| numbers("mapping", &tensor)).transpose().map_err(fault)?;
        let mapping: Option<Vec<usize>> =
            mapping.map(|numbers| numbers.into_iter().map(|number| number as usize).collect());
        if let Some(outside) = mapping.iter().flatten().find(|&&row| row >= rows) {
            return Err(fault(format!(
                "tensor 'mapping' names row {outside}, expected one of the {rows} rows of vectors"
            )));
        }
        let tokens = mapping.as_ref().map_or(rows, Vec::len);
        if let Some(weights) = weights.as_ref().filter(|weights| weights.len() != tokens) {
            let found = weights.len();
            return Err(fault(format!(
                "tensor 'weights' has {found} numbers, expected one for each of {tokens} tokens"
            )));
        }
        Ok(Table {
            vectors: Vectors::read(&vectors).map_err(fault)?,
            width,
            weights: weights.map(|weights| weights.into_iter().map(|weight| weight as f32).collect()),
            rows: mapping,
            tokens,
            of_tokens,
        })
    }

    /// Whether it has one number for each token, which is not added up over the tokens of a text.
    pub(super) fn is_of_tokens(&self) -> bool {
        self.of_tokens
    }

    /// Components of a vector.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// How many token ids there are.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Adds the weighted vector of a token to `sum`. The id is below [`Table::tokens`].
    pub(super) fn add(&self, token: usize, sum: &mut [f32]) {
        let row = self.rows.as_ref().map_or(token, |rows| rows[token]);
        let weight = self.weights.as_ref().map_or(1.0, |weights| weights[token]);
        let of = row * self.width..(row + 1) * self.width;
        match &self.vectors {
            Vectors::F32(vectors) => add(sum, &vectors[of], weight, |v| v),
            Vectors::F16(vectors) => add(sum, &vectors[of], weight, f16::to_f32),
            Vectors::Bf16(vectors) => add(sum, &vectors[of], weight, bf16::to_f32),
            Vectors::I8(vectors) => add(sum, &vectors[of], weight, f32::from),
        }
    }
}

fn add<T: Copy>(sum: &mut [f32], vector: &[T], weight: f32, convert: impl Fn(T) -> f32) {
    for (sum, &component) in sum.iter_mut().zip(vector) {
        *sum += convert(component) * weight;
    }
}

// === impl Vectors ===

impl Vectors {
    fn read(tensor: &TensorView<'_>) -> Result<Vectors, String> {
        let data = tensor.data();
        Ok(match tensor.dtype() {
            Dtype::F32 => Vectors::F32(elements(data, f32::from_le_bytes)),
            Dtype::F64 => Vectors::F32(elements(data, |bytes| f64::from_le_bytes(bytes) as f32)),
            Dtype::F16 => Vectors::F16(elements(data, f16::from_le_bytes)),
            Dtype::BF16 => Vectors::Bf16(elements(data, bf16::from_le_bytes)),
            Dtype::I8 => Vectors::I8(elements(data, i8::from_le_bytes)),
            other => return Err(format!("the vectors are {other:?}, expected F32, F64, F16, BF16 or I8")),
        })
    }
}

/// The numbers of a tensor of one dimension.
fn numbers(name: &str, tensor: &TensorView<'_>) -> Result<Vec<f64>, String> {
    if tensor.shape().len() != 1 {
        return Err(format!("tensor '{name}' has shape {:?}, expected a number for each token", tensor.shape()));
    }
    let data = tensor.data();
    Ok(match tensor.dtype() {
        Dtype::F64 => elements(data, f64::from_le_bytes),
        Dtype::F32 => elements(data, |bytes| f32::from_le_bytes(bytes).into()),
        Dtype::F16 => elements(data, |bytes| f16::from_le_bytes(bytes).into()),
        Dtype::BF16 => elements(data, |bytes| bf16::from_le_bytes(bytes).into()),
        Dtype::I64 => elements(data, |bytes| i64::from_le_bytes(bytes) as f64),
        Dtype::U64 => elements(data, |bytes| u64::from_le_bytes(bytes) as f64),
        Dtype::I32 => elements(data, |bytes| i32::from_le_bytes(bytes).into()),
        Dtype::U32 => elements(data, |bytes| u32::from_le_bytes(bytes).into()),
        Dtype::I16 => elements(data, |bytes| i16::from_le_bytes(bytes).into()),
        Dtype::U16 => elements(data, |bytes| u16::from_le_bytes(bytes).into()),
        other => return Err(format!("tensor '{name}' is {other:?}, expected numbers")),
    })
}

fn elements<const N: usize, T>(data: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.as_chunks::<N>().0.iter().map(|&bytes| convert(bytes)).collect()
}
