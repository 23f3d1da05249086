//! A model's own tensors, compared with its configuration: missing parts are filled in, contradictions are refused.
//! Rules and error texts are Triton's.

use ort::value::Outlet;
use trireme_engine::LoadError;
use trireme_inference::{DataType, Shape, TensorSpec};
use trireme_model_repository::{AutoComplete, ModelConfig};

use super::values;

/// The tensors of a model, read from the model itself. Shapes are full, -1 for any size; empty for a scalar, and if the
/// model has no shape for the tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// Inputs in the model's order.
    pub inputs: Vec<TensorSpec>,
    /// Outputs in the model's order.
    pub outputs: Vec<TensorSpec>,
}

/// A tensor in the configuration; inputs and outputs are checked in the same way.
struct Declared<'a> {
    name: &'a str,
    datatype: DataType,
    dims: &'a Shape,
}

// === impl Schema ===

impl Schema {
    /// Reads a session's inputs and outputs. Errors on sequences, maps and datatypes that the v2 protocol does not
    /// have.
    pub fn new(model: &str, inputs: &[Outlet], outputs: &[Outlet]) -> Result<Schema, LoadError> {
        let tensors = |kind: &str, outlets: &[Outlet]| {
            outlets.iter().map(|outlet| tensor_spec(model, kind, outlet)).collect::<Result<Vec<_>, _>>()
        };
        Ok(Schema { inputs: tensors("input", inputs)?, outputs: tensors("output", outputs)? })
    }

    /// This schema, for completing a configuration.
    pub fn auto_complete(&self, default_max_batch_size: u32) -> AutoComplete {
        let inputs = self.inputs.iter().filter(|input| !super::caches::is_one(&input.name)).cloned().collect();
        AutoComplete { inputs, outputs: self.outputs.clone(), default_max_batch_size }
    }

    /// Checks the configuration against the model.
    pub fn check(&self, config: &ModelConfig) -> Result<(), LoadError> {
        let (declared, own) = (config.inputs.len(), super::caches::undeclared(config, &self.inputs).len());
        let provided = self.inputs.len() - own;
        if declared != provided {
            return Err(LoadError::Config(format!(
                "unable to load model '{}', configuration expects {declared} inputs, model provides {provided}",
                config.name
            )));
        }
        for input in &config.inputs {
            let dims = input.reshape.as_ref().unwrap_or(&input.dims);
            let declared = Declared { name: &input.name, datatype: input.datatype, dims };
            declared.check(config, "input", &self.inputs)?;
        }
        for output in &config.outputs {
            let dims = output.reshape.as_ref().unwrap_or(&output.dims);
            let declared = Declared { name: &output.name, datatype: output.datatype, dims };
            declared.check(config, "output", &self.outputs)?;
        }
        Ok(())
    }
}

fn tensor_spec(model: &str, kind: &str, outlet: &Outlet) -> Result<TensorSpec, LoadError> {
    let (name, dtype) = (outlet.name(), outlet.dtype());
    let datatype = dtype.tensor_type().and_then(values::datatype);
    let (Some(datatype), Some(shape)) = (datatype, dtype.tensor_shape()) else {
        return Err(LoadError::Config(format!(
            "model '{model}', {kind} '{name}': {dtype} is not supported, only tensors of the v2 datatypes are"
        )));
    };
    Ok(TensorSpec { name: name.into(), datatype, shape: Shape::from(&shape[..]), optional: false })
}

// === impl Declared ===

impl Declared<'_> {
    fn check(&self, config: &ModelConfig, kind: &str, provided: &[TensorSpec]) -> Result<(), LoadError> {
        let (model, name) = (&config.name, self.name);
        let Some(tensor) = provided.iter().find(|tensor| tensor.name == name) else {
            let allowed = provided.iter().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(LoadError::Config(format!(
                "unable to load model '{model}', unexpected inference {kind} '{name}', allowed {kind}s are: {allowed}"
            )));
        };
        if tensor.datatype != self.datatype {
            return Err(LoadError::Config(format!(
                "unable to load model '{model}', unexpected datatype {} for {kind} '{name}', expecting {}",
                tensor.datatype,
                self.datatype.config_name()
            )));
        }
        self.check_shape(config, &tensor.shape)
    }

    fn check_shape(&self, config: &ModelConfig, model_shape: &Shape) -> Result<(), LoadError> {
        let prefix = format!("model '{}', tensor '{}'", config.name, self.name);
        let batches = config.max_batch_size > 0;
        // A scalar cannot be declared, and some models do not say what shape a tensor has: one element stands for both.
        if model_shape.is_empty() && !batches && self.dims.iter().all(|&dim| dim == 1) {
            return Ok(());
        }
        let one_element = Shape::from([1]);
        let model_shape = if model_shape.is_empty() && !batches { &one_element } else { model_shape };
        if batches && model_shape.first() != Some(&-1) {
            return Err(LoadError::Config(format!(
                "{prefix}: for the model to support batching the shape should have at least 1 dimension and the first \
                 dimension must be -1; but shape expected by the model is {model_shape}"
            )));
        }
        let full = config.full_shape(self.dims);
        let fits = |(model, config): (&i64, &i64)| *model == -1 || *config == -1 || model == config;
        if model_shape.len() == full.len() && model_shape.iter().zip(full.iter()).all(fits) {
            return Ok(());
        }
        let specified = match batches {
            true => format!(
                "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making \
                 complete shape {full}"
            ),
            false => format!("shape {full}"),
        };
        Err(LoadError::Config(format!(
            "{prefix}: the model expects {} dimensions (shape {model_shape}) but the model configuration specifies {} \
             dimensions ({specified})",
            model_shape.len(),
            full.len()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(declared: &[i64], of_the_model: &[i64], more: &str) -> Result<(), String> {
        let config = ModelConfig::parse(&format!("backend: 'onnxruntime' {more}"), "m").unwrap();
        let dims = Shape::from(declared.to_vec());
        let declared = Declared { name: "x", datatype: DataType::Fp32, dims: &dims };
        declared.check_shape(&config, &Shape::from(of_the_model.to_vec())).map_err(|error| error.to_string())
    }

    #[test]
    fn a_tensor_without_a_shape_has_one_element_however_many_dims_say_so() {
        for dims in [&[1][..], &[1, 1], &[1, 1, 1], &[-1]] {
            assert_eq!(check(dims, &[], ""), Ok(()), "{dims:?}");
        }
        for dims in [&[2][..], &[1, 2], &[-1, 1]] {
            assert!(check(dims, &[], "").unwrap_err().contains("the model expects 1 dimensions"), "{dims:?}");
        }
        assert!(check(&[1, 1], &[], "max_batch_size: 4").unwrap_err().contains("to support batching"));
        assert!(check(&[1, 1], &[1], "").is_err(), "a shape that is there counts");
    }
}
