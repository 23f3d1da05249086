//! The data flow that an ensemble's maps describe, without a look at its composing models.

use std::collections::{BTreeMap, BTreeSet};

use crate::{EnsembleError, EnsembleStep, ModelConfig};

/// Checks the configuration of an ensemble by itself: that it has no settings that ensembles cannot have, that its steps are
/// complete, and that in its data flow each tensor has one source and is used, and each output is written.
pub fn validate_ensemble(config: &ModelConfig) -> Result<(), EnsembleError> {
    let name = &config.name;
    let fail = |text: String| Err(EnsembleError::Invalid(text));
    if !config.message.instance_group.is_empty() {
        return fail(format!("instance group should not be specified for ensemble '{name}'"));
    }
    if config.message.optimization.is_some() {
        return fail(format!("optimization should not be specified for ensemble '{name}'"));
    }
    if !config.warmup.is_empty() {
        return fail(format!("model_warmup can not be specified for ensemble '{name}'"));
    }
    let steps = config.ensemble.as_deref().unwrap_or_default();
    if steps.is_empty() {
        return fail(format!("must specify 'step' for ensemble '{name}'"));
    }
    for (index, step) in steps.iter().enumerate() {
        let missing = [
            ("model_name", step.model_name.is_empty()),
            ("input_map", step.input_map.is_empty()),
            ("output_map", step.output_map.is_empty()),
        ];
        if let Some((field, _)) = missing.iter().find(|(_, missing)| *missing) {
            return fail(format!("must specify '{field}' in step {index} of ensemble '{name}'"));
        }
    }

    let sources = sources(config, steps)?;
    let inputs: BTreeSet<&str> = config.inputs.iter().map(|input| input.name.as_str()).collect();
    let taken: BTreeSet<&str> = steps.iter().flat_map(|s| s.input_map.values()).map(String::as_str).collect();
    let mentioned = |tensor: &str| taken.contains(tensor) || sources.contains_key(tensor);
    if let Some(input) = config.inputs.iter().find(|input| !mentioned(&input.name)) {
        return fail(format!("ensemble input '{}' for ensemble {name}' is not used", input.name));
    }

    let order = execution_order(&inputs, steps);
    let mut ready = inputs.clone();
    ready.extend(order.iter().flat_map(|&index| steps[index].output_map.values()).map(String::as_str));
    for output in &config.outputs {
        let output = output.name.as_str();
        if !mentioned(output) {
            return fail(format!("ensemble output '{output}' for ensemble {name}' is not used"));
        }
        if !ready.contains(output) {
            let root = unconnected_root(output, &sources, steps, &ready);
            let cause = match root == output {
                true => String::new(),
                false => format!(": at least one of its depending tensors, '{root}', is not connected"),
            };
            return fail(format!("output '{output}' for ensemble '{name}' is not written{cause}"));
        }
    }
    let outputs: BTreeSet<&str> = config.outputs.iter().map(|output| output.name.as_str()).collect();
    let all: BTreeSet<&str> = taken.iter().chain(sources.keys()).copied().collect();
    for tensor in all.difference(&outputs) {
        if !ready.contains(tensor) || !taken.contains(tensor) {
            return fail(format!("ensemble tensor '{tensor}' is unused in ensemble '{name}'"));
        }
    }
    Ok(())
}

/// Which step writes each tensor.
fn sources<'a>(config: &ModelConfig, steps: &'a [EnsembleStep]) -> Result<BTreeMap<&'a str, usize>, EnsembleError> {
    let mut sources = BTreeMap::new();
    for (index, step) in steps.iter().enumerate() {
        for tensor in step.output_map.values() {
            let input = config.inputs.iter().any(|input| input.name == *tensor);
            if input {
                return Err(EnsembleError::Invalid(format!(
                    "ensemble tensor '{tensor}' is an input of ensemble '{}' and cannot appear in the output map of \
                     step {index}",
                    config.name
                )));
            }
            if sources.insert(tensor.as_str(), index).is_some() {
                return Err(EnsembleError::Invalid(format!(
                    "ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{}' step {index}",
                    config.name
                )));
            }
        }
    }
    Ok(sources)
}

/// Indices of the steps in an order in which a step's tensors exist when it runs: the configured order wherever possible. Steps
/// whose tensors never exist are left out.
pub(super) fn execution_order(inputs: &BTreeSet<&str>, steps: &[EnsembleStep]) -> Vec<usize> {
    let mut ready = inputs.clone();
    let mut order = Vec::with_capacity(steps.len());
    let mut waiting: Vec<usize> = (0..steps.len()).collect();
    while let Some(position) =
        waiting.iter().position(|&index| steps[index].input_map.values().all(|tensor| ready.contains(tensor.as_str())))
    {
        let index = waiting.remove(position);
        ready.extend(steps[index].output_map.values().map(String::as_str));
        order.push(index);
    }
    order
}

/// Follows the dependencies of `output` back to the tensor that no step writes, or once around a cycle.
fn unconnected_root<'a>(
    output: &'a str,
    sources: &BTreeMap<&'a str, usize>,
    steps: &'a [EnsembleStep],
    ready: &BTreeSet<&str>,
) -> &'a str {
    let mut seen = BTreeSet::new();
    let mut last = output;
    while let Some(&index) = sources.get(last) {
        let inputs = steps[index].input_map.values().map(String::as_str);
        let next = inputs.into_iter().find(|&tensor| !ready.contains(tensor) && seen.insert(tensor));
        match next {
            Some(tensor) => last = tensor,
            None => break,
        }
    }
    last
}
