//! Auto-completion: the model's own metadata fills the fields that its configuration leaves open.

use trireme_inference::{DataType, TensorSpec};

use crate::normalize::Surroundings;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_instance_group::Kind;
use crate::proto::{self, ModelDynamicBatching, ModelTensorReshape};
use crate::{AutoComplete, InstanceKind, ModelConfig, RepositoryError};

// === impl ModelConfig ===

impl ModelConfig {
    /// Whether the backend has to supply inputs or outputs.
    pub fn is_incomplete(&self) -> bool {
        self.message.input.is_empty() || self.message.output.is_empty()
    }

    /// Fills in inputs and outputs where none are declared; does nothing where both are.
    ///
    /// A model whose every tensor has a variable first dimension batches: without a `max_batch_size` it gets the
    /// default one, and dynamic batching where no scheduler is named. A `max_batch_size` on a model that cannot batch is
    /// an error. On an error the configuration stays as it was.
    pub fn complete(&mut self, found: AutoComplete) -> Result<(), RepositoryError> {
        if !self.is_incomplete() {
            return Ok(());
        }
        let mut message = self.message.clone();
        let batches = found.inputs.iter().chain(&found.outputs).all(|tensor| tensor.shape.first() == Some(&-1));
        if batches {
            if message.max_batch_size == 0 {
                message.max_batch_size = i32::try_from(found.default_max_batch_size).unwrap_or(i32::MAX);
            }
            if message.max_batch_size > 1 && message.scheduling_choice.is_none() {
                message.scheduling_choice = Some(SchedulingChoice::DynamicBatching(ModelDynamicBatching::default()));
            }
        } else if message.max_batch_size != 0 {
            return Err(RepositoryError::Invalid(format!(
                "autofill failed for model '{}': model does not support batching while non-zero max_batch_size is \
                 specified",
                self.name
            )));
        }
        let strip = message.max_batch_size > 0;
        if message.input.is_empty() {
            message.input = found
                .inputs
                .iter()
                .filter(|tensor| !self.hides(&tensor.name))
                .map(|tensor| input(tensor, strip))
                .collect();
        }
        if message.output.is_empty() {
            message.output = found
                .outputs
                .iter()
                .filter(|tensor| !self.hides(&tensor.name))
                .map(|tensor| output(tensor, strip))
                .collect();
        }
        let completed = ModelConfig::from_message(message, &Surroundings::default())?;
        *self = if self.is_for_execution() { completed.for_execution() } else { completed };
        Ok(())
    }

    /// The configuration with its instance groups of `KIND_GPU` on the CPU, as many instances as on one GPU; `None` where it has no such group.
    pub fn with_gpu_groups_on_cpu(&self) -> Option<ModelConfig> {
        let mut config = self.clone();
        for (group, message) in config.instance_groups.iter_mut().zip(&mut config.message.instance_group) {
            if group.kind == InstanceKind::Gpu {
                (group.kind, message.kind) = (InstanceKind::Cpu, Kind::Cpu as i32);
                group.gpus.clear();
                message.gpus.clear();
            }
        }
        (config.instance_groups != self.instance_groups).then_some(config)
    }

    /// Makes an ensemble decoupled, because one of its models is.
    pub(crate) fn set_decoupled(&mut self) {
        self.message.model_transaction_policy.get_or_insert_default().decoupled = true;
        self.decoupled = true;
    }
}

fn data_type(datatype: DataType) -> i32 {
    proto::DataType::from_str_name(datatype.config_name()).expect("the schema has every datatype") as i32
}

/// `dims` must not be empty, so a scalar per row is declared as `[1]` and reshaped.
fn dims(tensor: &TensorSpec, strip: bool) -> (Vec<i64>, Option<ModelTensorReshape>) {
    match tensor.shape.get(usize::from(strip)..).unwrap_or_default() {
        [] => (vec![1], strip.then(ModelTensorReshape::default)),
        dims => (dims.to_vec(), None),
    }
}

fn input(tensor: &TensorSpec, strip: bool) -> proto::ModelInput {
    let (dims, reshape) = dims(tensor, strip);
    proto::ModelInput {
        name: tensor.name.to_string(),
        data_type: data_type(tensor.datatype),
        dims,
        reshape,
        optional: tensor.optional,
        ..Default::default()
    }
}

fn output(tensor: &TensorSpec, strip: bool) -> proto::ModelOutput {
    let (dims, reshape) = dims(tensor, strip);
    proto::ModelOutput {
        name: tensor.name.to_string(),
        data_type: data_type(tensor.datatype),
        dims,
        reshape,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, shape: &[i64]) -> TensorSpec {
        TensorSpec { name: name.into(), datatype: DataType::Fp32, shape: shape.into(), optional: false }
    }

    fn found(input: &[i64], output: &[i64]) -> AutoComplete {
        AutoComplete { inputs: vec![tensor("x", input)], outputs: vec![tensor("y", output)], default_max_batch_size: 4 }
    }

    fn config(text: &str) -> ModelConfig {
        ModelConfig::parse(&format!("backend: 'onnxruntime' {text}"), "m").unwrap()
    }

    #[test]
    fn a_model_that_batches_gets_a_batch_size_and_a_batcher() {
        let mut config = config("");
        config.complete(found(&[-1, 3], &[-1])).unwrap();
        assert_eq!(config.max_batch_size, 4);
        assert_eq!(config.dynamic_batching.as_ref().unwrap().preferred_batch_sizes, [4]);
        assert_eq!(config.input_specs()[0].shape[..], [-1, 3]);
        assert_eq!((&config.outputs[0].dims[..], config.outputs[0].reshape.as_deref()), (&[1][..], Some(&[][..])));
        assert_eq!(ModelConfig::from_json(&config.to_json()).unwrap().message, config.message);
    }

    #[test]
    fn groups_of_gpus_go_to_the_cpu() {
        let gpus = "instance_group [{ name: 'g' kind: KIND_GPU count: 2 gpus: [0, 1] }, { kind: KIND_CPU count: 3 }]";
        let config = config(gpus).with_gpu_groups_on_cpu().unwrap();
        let groups = config.instance_groups.iter().map(|group| (group.kind, group.count, &group.gpus[..]));
        assert!(groups.eq([(InstanceKind::Cpu, 2, &[][..]), (InstanceKind::Cpu, 3, &[][..])]));
        let shown = ModelConfig::from_json(&config.to_json()).unwrap();
        assert_eq!(shown.instance_groups, config.instance_groups);
        assert!(config.with_gpu_groups_on_cpu().is_none(), "there is none any more");
    }

    #[test]
    fn what_is_declared_stays() {
        let mut config = config("max_batch_size: 16 input [{ name: 'a' data_type: TYPE_INT64 dims: [-1] }]");
        config.complete(found(&[-1, -1], &[-1, 8])).unwrap();
        assert_eq!((config.max_batch_size, config.inputs[0].name.as_str()), (16, "a"));
        assert_eq!(config.outputs[0].dims[..], [8]);
        let before = config.message.clone();
        config.complete(found(&[1], &[1])).unwrap();
        assert_eq!(config.message, before);
    }

    #[test]
    fn a_model_that_cannot_batch_keeps_its_full_shapes_or_fails() {
        let mut plain = config("");
        plain.complete(found(&[-1, 3], &[2])).unwrap();
        assert_eq!((plain.max_batch_size, plain.dynamic_batching), (0, None));
        assert_eq!(plain.inputs[0].dims[..], [-1, 3]);

        let mut batching = config("max_batch_size: 2");
        let error = batching.complete(found(&[-1, 3], &[2])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
        );
        assert!(batching.is_incomplete());
    }
}
