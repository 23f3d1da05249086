//! `layer_norm:FOLDER`: normalises the last axis to mean 0 and variance 1, then scales and shifts it, from the folder of a
//! sentence-transformers module `LayerNorm` in the version directory.

use ndarray::{Array1, Axis};
use serde::Deserialize;
use trireme_inference::InferError;

use super::op::{Op, OpEntry, Resources};
use crate::inputs::Side;
use crate::weights::ModuleFolder;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "layer_norm",
    usage: "layer_norm:FOLDER",
    doc: "layer normalisation of the last axis, from a folder of sentence-transformers",
    inputs: &[],
    embeds: true,
    reduces: false,
    build,
};

/// The number added to the variance: PyTorch's default, which the module does not change.
const EPSILON: f32 = 1e-5;

struct LayerNorm {
    weight: Array1<f32>,
    bias: Array1<f32>,
}

#[derive(Deserialize)]
struct Config {
    dimension: usize,
}

/// Makes the op; reads the folder.
fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    let folder = ModuleFolder::open(resources.version_path, argument)?;
    let Config { dimension } = folder.config()?;
    let weight = folder.vector("norm.weight", dimension)?;
    Ok(Box::new(LayerNorm { weight, bias: folder.vector("norm.bias", dimension)? }))
}

// === impl LayerNorm ===

impl Op for LayerNorm {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        let dims = &input.expect(Form::Floats, 2..=usize::MAX)?.dims;
        let width = self.weight.len() as i64;
        match dims.last() {
            Some(&found) if found >= 0 && found != width => {
                Err(format!("takes {width} components by its config.json, got {input}"))
            }
            _ => Ok(Signature::new(Form::Floats, [&dims[..dims.len() - 1], &[width]].concat())),
        }
    }

    fn apply<'a>(&self, value: Value<'a>, _: &Side<'_>) -> Result<Value<'a>, InferError> {
        let mut array = value.into_floats()?.into_owned();
        let last = Axis(array.ndim() - 1);
        if array.len_of(last) != self.weight.len() {
            let (expected, found) = (self.weight.len(), array.len_of(last));
            return Err(InferError::invalid_arg(format!("layer_norm takes {expected} components, got {found}")));
        }
        for mut vector in array.lanes_mut(last) {
            let mean = vector.sum() / vector.len() as f32;
            vector -= mean;
            let variance = vector.iter().map(|v| v * v).sum::<f32>() / vector.len() as f32;
            vector /= (variance + EPSILON).sqrt();
            vector *= &self.weight;
            vector += &self.bias;
        }
        Ok(Value::Floats(array.into()))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{CowArray, arr2};

    use super::*;
    use crate::weights::tests::write;

    #[test]
    fn vectors_are_normalised_scaled_and_shifted() {
        let directory = tempfile::tempdir().unwrap();
        let tensors: [(&str, &[usize], &[f32]); 2] =
            [("norm.weight", &[2], &[1.0, 2.0]), ("norm.bias", &[2], &[0.0, 5.0])];
        write(directory.path(), "3_LayerNorm", r#"{"dimension": 2}"#, &tensors);
        let resources = Resources { version_path: directory.path(), ..Resources::default() };
        let op = build(Some("3_LayerNorm"), &resources).unwrap();
        let value = Value::Floats(CowArray::from(arr2(&[[1.0, 3.0], [4.0, 4.0]]).into_dyn()));
        let result = op.apply(value, &Side::default()).unwrap().into_floats().unwrap();
        let expected = arr2(&[[-1.0, 7.0], [0.0, 5.0]]).into_dyn();
        assert!((&result - &expected).iter().all(|difference: &f32| difference.abs() < 1e-4), "{result}");
        assert!(op.signature(&Signature::new(Form::Floats, [-1, 3])).is_err());
    }
}
