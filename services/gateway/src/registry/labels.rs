//! The classification extension: an output that is requested as classes is answered with the labels of its highest scores.

use std::collections::BTreeMap;

use trireme_inference::{InferError, RequestedOutput, Tensor};
use trireme_model_repository::Repository;
use trireme_protocol::classification::classify;

/// The most levels of nested ensembles that are followed. Another module refuses ensembles that contain themselves.
const MAX_NESTING: usize = 64;

/// The labels of every output with labels, by model and output.
#[derive(Debug, Default)]
pub struct Labels(BTreeMap<String, BTreeMap<String, Vec<String>>>);

// === impl Labels ===

impl Labels {
    /// The labels of all models. An ensemble's output has the labels of the model it comes from, unless it has its own.
    pub fn of(repository: &Repository) -> Labels {
        let mut all = BTreeMap::new();
        for model in repository.models() {
            let outputs = model.config.outputs.iter().map(|output| output.name.as_str());
            let labelled: BTreeMap<_, _> = outputs
                .filter_map(|output| Some((output.to_owned(), find(repository, &model.name, output, 0)?.to_vec())))
                .collect();
            if !labelled.is_empty() {
                all.insert(model.name.clone(), labelled);
            }
        }
        Labels(all)
    }

    /// The labels of a model's output; empty where its classes have no names.
    pub fn of_output(&self, model: &str, output: &str) -> &[String] {
        self.0.get(model).and_then(|outputs| outputs.get(output)).map_or(&[], Vec::as_slice)
    }

    /// Replaces the tensors that were requested as classes.
    pub fn classify(
        &self,
        model: &str,
        batched: bool,
        requested: &[RequestedOutput],
        tensors: &mut [Tensor],
    ) -> Result<(), InferError> {
        for output in requested.iter().filter(|output| output.classification > 0) {
            if let Some(tensor) = tensors.iter_mut().find(|tensor| tensor.name() == output.name) {
                let labels = self.0.get(model).and_then(|outputs| outputs.get(&output.name));
                *tensor = classify(tensor, output.classification, batched, labels.map_or(&[], Vec::as_slice))?;
            }
        }
        Ok(())
    }
}

fn find<'a>(repository: &'a Repository, model: &str, output: &str, nesting: usize) -> Option<&'a [String]> {
    let model = repository.model(model)?;
    if let Some(own) = model.labels(output) {
        return Some(own);
    }
    let steps = model.config.ensemble.as_ref().filter(|_| nesting < MAX_NESTING)?;
    let makes = |map: &'a BTreeMap<String, String>| map.iter().find(|(_, tensor)| *tensor == output);
    let (step, (name, _)) = steps.iter().find_map(|step| Some((step, makes(&step.output_map)?)))?;
    find(repository, &step.model_name, name, nesting + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn write(directory: &Path, model: &str, config: &str, labels: &str) {
        fs::create_dir_all(directory.join(model).join("1")).unwrap();
        fs::write(directory.join(model).join("config.pbtxt"), config).unwrap();
        fs::write(directory.join(model).join("labels.txt"), labels).unwrap();
    }

    #[test]
    fn ensembles_inherit_labels_unless_they_have_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let io = |labels: &str| {
            format!(
                r#"input {{ name: "IN" data_type: TYPE_FP32 dims: 3 }}
                   output {{ name: "OUT" data_type: TYPE_FP32 dims: 3 {labels} }}"#
            )
        };
        let own = r#"label_filename: "labels.txt""#;
        let leaf = format!(r#"backend: "identity" {}"#, io(own));
        let ensemble = |of: &str, labels: &str| {
            format!(
                r#"platform: "ensemble" {} ensemble_scheduling {{ step {{ model_name: "{of}" model_version: -1
                   input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "OUT" }} }} }}"#,
                io(labels)
            )
        };
        write(directory.path(), "leaf", &leaf, "a\nb\nc\n");
        write(directory.path(), "heir", &ensemble("leaf", ""), "");
        write(directory.path(), "grandheir", &ensemble("heir", ""), "");
        write(directory.path(), "own", &ensemble("leaf", own), "x\ny\nz\n");
        let labels = Labels::of(&Repository::open(&[directory.path().to_owned()]).unwrap());
        for (model, expected) in [("leaf", "2.000000:1:b"), ("grandheir", "2.000000:1:b"), ("own", "2.000000:1:y")] {
            let mut tensors = [Tensor::from_values("OUT", [3], vec![1.0f32, 2.0, 0.5]).unwrap()];
            let requested = [RequestedOutput { name: "OUT".to_owned(), classification: 1 }];
            labels.classify(model, false, &requested, &mut tensors).unwrap();
            assert_eq!(tensors[0].bytes_elements().unwrap().collect::<Vec<_>>(), [expected.as_bytes()], "{model}");
        }
    }
}
