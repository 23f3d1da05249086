//! `dense:FOLDER`: a linear layer with its activation, from the folder of a sentence-transformers module `Dense`:
//! `[..., in]` to `[..., out]`.
//!
//! The folder lies in the version directory. `config.json` says `in_features`, `out_features`, `bias`,
//! `activation_function` (PyTorch's class, with its default arguments; Tanh where none is named) and `use_residual`;
//! `model.safetensors` has `linear.weight`, `linear.bias` and, where the residual changes its width, `residual.weight`.

use ndarray::{Array1, Array2, Ix2};
use serde::Deserialize;
use trireme_inference::InferError;

use super::op::{Op, OpEntry, Resources};
use crate::inputs::Side;
use crate::weights::ModuleFolder;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "dense",
    usage: "dense:FOLDER",
    doc: "a linear layer with its activation, from a folder of sentence-transformers",
    inputs: &[],
    embeds: true,
    reduces: false,
    build,
};

struct Dense {
    /// `[in, out]`.
    weight: Array2<f32>,
    bias: Option<Array1<f32>>,
    activation: Activation,
    residual: Residual,
}

/// The residual that is added to the result.
enum Residual {
    None,
    /// The input.
    Same,
    /// The input times this, `[in, out]`.
    Projected(Array2<f32>),
}

#[derive(Deserialize)]
struct Config {
    in_features: usize,
    out_features: usize,
    #[serde(default = "yes")]
    bias: bool,
    activation_function: Option<String>,
    #[serde(default)]
    use_residual: bool,
}

fn yes() -> bool {
    true
}

type Activation = fn(f32) -> f32;

/// Activations by the last part of the class's name.
const ACTIVATIONS: [(&str, Activation); 13] = [
    ("Identity", |x| x),
    ("Tanh", f32::tanh),
    ("ReLU", |x| if x < 0.0 { 0.0 } else { x }),
    ("GELU", |x| 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))),
    ("Sigmoid", |x| 1.0 / (1.0 + (-x).exp())),
    ("SiLU", |x| x / (1.0 + (-x).exp())),
    ("Softsign", |x| x / (1.0 + x.abs())),
    ("LeakyReLU", |x| if x < 0.0 { 0.01 * x } else { x }),
    ("ELU", |x| if x < 0.0 { x.exp_m1() } else { x }),
    ("ReLU6", |x| x.clamp(0.0, 6.0)),
    ("Softplus", softplus),
    ("Mish", |x| x * softplus(x).tanh()),
    ("Hardtanh", |x| x.clamp(-1.0, 1.0)),
];

/// PyTorch's, which is the identity above its threshold.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// Makes the op; reads the folder.
fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    let folder = ModuleFolder::open(resources.version_path, argument)?;
    let config: Config = folder.config()?;
    let (inputs, outputs) = (config.in_features, config.out_features);
    let transposed = |name| folder.matrix(name, outputs, inputs).map(|matrix| matrix.reversed_axes());
    Ok(Box::new(Dense {
        weight: transposed("linear.weight")?,
        bias: config.bias.then(|| folder.vector("linear.bias", outputs)).transpose()?,
        activation: activation(config.activation_function.as_deref())?,
        residual: match config.use_residual {
            false => Residual::None,
            true if inputs == outputs => Residual::Same,
            true => Residual::Projected(transposed("residual.weight")?),
        },
    }))
}

fn activation(class: Option<&str>) -> Result<Activation, String> {
    let class = class.unwrap_or("torch.nn.modules.activation.Tanh");
    let name = class.rsplit('.').next().unwrap_or_default();
    ACTIVATIONS.iter().find(|(known, _)| *known == name).map(|(_, function)| *function).ok_or_else(|| {
        let known = ACTIVATIONS.map(|(name, _)| name).join(", ");
        format!("config.json has activation_function '{class}', expected one of torch.nn's {known}")
    })
}

// === impl Dense ===

impl Op for Dense {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        let mut dims = input.expect(Form::Floats, 2..=usize::MAX)?.dims.to_vec();
        let (inputs, outputs) = (self.weight.nrows() as i64, self.weight.ncols() as i64);
        if let Some(width) = dims.last_mut() {
            if *width >= 0 && *width != inputs {
                return Err(format!("takes {inputs} components by its config.json, got {input}"));
            }
            *width = outputs;
        }
        Ok(Signature::new(Form::Floats, dims))
    }

    fn apply<'a>(&self, value: Value<'a>, _: &Side<'_>) -> Result<Value<'a>, InferError> {
        let array = value.into_floats()?;
        let mut dims = array.shape().to_vec();
        let width = dims.pop().unwrap_or(0);
        let (inputs, outputs) = self.weight.dim();
        if width != inputs {
            return Err(InferError::invalid_arg(format!("dense takes {inputs} components, got {width}")));
        }
        let shape_fault = |_| InferError::internal("dense takes rows of numbers");
        let rows = dims.iter().product::<usize>();
        let rows =
            array.as_standard_layout().into_owned().into_shape_with_order((rows, inputs)).map_err(shape_fault)?;
        let rows = rows.into_dimensionality::<Ix2>().map_err(shape_fault)?;
        let mut result = rows.dot(&self.weight);
        if let Some(bias) = &self.bias {
            result += bias;
        }
        result.mapv_inplace(self.activation);
        match &self.residual {
            Residual::None => {}
            Residual::Same => result += &rows,
            Residual::Projected(weight) => result += &rows.dot(weight),
        }
        dims.push(outputs);
        let result = result.as_standard_layout().into_owned().into_shape_with_order(dims).map_err(shape_fault)?;
        Ok(Value::Floats(result.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ndarray::{CowArray, arr2, arr3};

    use super::*;
    use crate::weights::tests::write;

    fn dense(directory: &Path) -> Result<Box<dyn Op>, String> {
        build(Some("2_Dense"), &Resources { version_path: directory, ..Resources::default() })
    }

    fn apply(op: &dyn Op, array: ndarray::ArrayD<f32>) -> ndarray::ArrayD<f32> {
        op.apply(Value::Floats(CowArray::from(array)), &Side::default()).unwrap().into_floats().unwrap().into_owned()
    }

    #[test]
    fn rows_are_multiplied_and_activated() {
        let directory = tempfile::tempdir().unwrap();
        let config = r#"{"in_features": 2, "out_features": 3, "bias": true,
            "activation_function": "torch.nn.modules.activation.ReLU"}"#;
        let weight = [1.0, 0.0, 0.0, 1.0, 1.0, -1.0];
        let tensors: [(&str, &[usize], &[f32]); 2] =
            [("linear.weight", &[3, 2], &weight), ("linear.bias", &[3], &[0.5, 0.0, 0.0])];
        write(directory.path(), "2_Dense", config, &tensors);
        let op = dense(directory.path()).unwrap();
        assert_eq!(apply(&*op, arr2(&[[1.0, 2.0]]).into_dyn()), arr2(&[[1.5, 2.0, 0.0]]).into_dyn());
        let tokens = arr3(&[[[1.0, 2.0], [0.0, 0.0]]]).into_dyn();
        assert_eq!(apply(&*op, tokens), arr3(&[[[1.5, 2.0, 0.0], [0.5, 0.0, 0.0]]]).into_dyn());
        let error = op.signature(&Signature::new(Form::Floats, [-1, 5])).unwrap_err();
        assert!(error.starts_with("takes 2 components by its config.json"), "{error}");
    }

    #[test]
    fn the_residual_is_the_input_or_its_projection() {
        let directory = tempfile::tempdir().unwrap();
        let identity =
            r#""bias": false, "activation_function": "torch.nn.modules.linear.Identity", "use_residual": true"#;
        let config = format!(r#"{{"in_features": 2, "out_features": 1, {identity}}}"#);
        let tensors: [(&str, &[usize], &[f32]); 2] =
            [("linear.weight", &[1, 2], &[1.0, 1.0]), ("residual.weight", &[1, 2], &[10.0, 0.0])];
        write(directory.path(), "2_Dense", &config, &tensors);
        let op = dense(directory.path()).unwrap();
        assert_eq!(apply(&*op, arr2(&[[1.0, 2.0]]).into_dyn()), arr2(&[[13.0]]).into_dyn());

        let config = format!(r#"{{"in_features": 1, "out_features": 1, {identity}}}"#);
        write(directory.path(), "2_Dense", &config, &[("linear.weight", &[1, 1], &[3.0])]);
        assert_eq!(apply(&*dense(directory.path()).unwrap(), arr2(&[[2.0]]).into_dyn()), arr2(&[[8.0]]).into_dyn());
    }

    #[test]
    fn activations_are_those_of_pytorch() {
        let at = |name: &str, x| activation(Some(name)).unwrap()(x);
        assert!((at("torch.nn.modules.activation.GELU", 1.0) - 0.841_344_7).abs() < 1e-6);
        assert!((at("torch.nn.modules.activation.SiLU", 1.0) - 0.731_058_6).abs() < 1e-6);
        assert!((activation(None).unwrap()(1.0) - 0.761_594_2).abs() < 1e-6);
        assert!(at("torch.nn.modules.activation.ReLU", f32::NAN).is_nan());
        assert!(activation(Some("my.Swish")).unwrap_err().contains("'my.Swish', expected one of torch.nn's Identity"));
    }
}
