//! An ensemble and its composing models to a route plan.
//!
//! As in Triton, shapes agree where the dims do, or else where the full shapes do, batch dimension included. So a step that
//! batches may follow one that does not: with equal dims the tensor gets a batch dimension of 1 on its way, or loses it
//! (`batch_dimension`); where `[-1]` before one side's dims makes the other side's, it stays as it is. Which tensors pass between
//! such models is marked in the flat plan, so that nested ensembles make no difference.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use trireme_inference::{DataType, PlanStep, Reshape, RoutePlan, Shape, StepInput, StepOutput};

use super::CompiledEnsemble;
use super::graph::{execution_order, validate_ensemble};
use crate::batch_dimension::mark_crossing;
use crate::{EnsembleError, EnsembleStep, ModelConfig, ModelInput, ModelOutput};

/// Ensembles inside ensembles beyond this depth are refused.
const MAX_NESTING: usize = 32;
/// A route travels in every message: an ensemble of more steps than this, nested ones flattened, is refused.
const MAX_STEPS: usize = 256;

/// Finds the configuration of a model's version (`None`: the latest), if it exists.
type Lookup<'a> = &'a dyn Fn(&str, Option<i64>) -> Option<Arc<ModelConfig>>;

/// Checks the ensemble `config` against its composing models, which `lookup` gives by name and version (`None`: the
/// latest), and compiles it. Nested ensembles are flattened; the outer ensemble's tensors keep their names.
pub fn compile_ensemble(config: &Arc<ModelConfig>, lookup: Lookup<'_>) -> Result<CompiledEnsemble, EnsembleError> {
    let (mut plan, decoupled) = compile(config, lookup, &mut vec![config.name.clone()])?;
    let batches = |model: &str, version| lookup(model, version).is_some_and(|model| model.batches());
    mark_crossing(&mut plan, config.batches(), batches);
    check_sequences(config, &plan, decoupled, lookup)?;
    let mut config = config.clone();
    if decoupled && !config.decoupled {
        Arc::make_mut(&mut config).set_decoupled();
    }
    Ok(CompiledEnsemble { config, plan })
}

/// Steps with sequences keep their states between requests, so that each request has one answer, which no other request gets.
fn check_sequences(
    config: &ModelConfig,
    plan: &RoutePlan,
    decoupled: bool,
    lookup: Lookup<'_>,
) -> Result<(), EnsembleError> {
    let has_sequences =
        |step: &&PlanStep| lookup(&step.model, step.version).is_some_and(|model| model.sequence_batching.is_some());
    let Some(step) = plan.steps.iter().find(has_sequences) else { return Ok(()) };
    let (ensemble, model) = (&config.name, &step.model);
    let fault = match (decoupled || config.decoupled, config.response_cache, config.max_rows_per_message) {
        (true, ..) => "a decoupled step, whose requests have several answers: serve the two as models of their own",
        (_, true, _) => "'response_cache', which would answer without the model's state: remove it",
        (_, _, Some(_)) => "'max_rows_per_message', but a request of a sequence is one row: remove it",
        _ => return Ok(()),
    };
    Err(EnsembleError::Invalid(format!(
        "ensemble '{ensemble}' has a step of model '{model}' with 'sequence_batching', and {fault}"
    )))
}

/// The plan, and whether a request may have any number of responses. `path` holds the ensembles being compiled, the
/// outermost first and `config` last.
fn compile(
    config: &ModelConfig,
    lookup: Lookup<'_>,
    path: &mut Vec<String>,
) -> Result<(RoutePlan, bool), EnsembleError> {
    validate_ensemble(config)?;
    let steps = config.ensemble.as_deref().unwrap_or_default();
    let models = find_models(config, steps, lookup, path)?;
    check_tensors(config, steps, &models)?;
    let inputs = config.inputs.iter().map(|input| input.name.as_str()).collect();
    let order = execution_order(&inputs, steps);

    let mut decoupled: Vec<bool> = models.iter().map(|model| model.decoupled).collect();
    let mut names = Names::new(config, steps);
    let mut views = views_of_inputs(config);
    let mut plan = Vec::new();
    for &index in &order {
        let (step, model) = (&steps[index], &models[index]);
        if model.is_ensemble() {
            path.push(model.name.clone());
            let (inner, inner_decoupled) = compile(model, lookup, path)?;
            path.pop();
            decoupled[index] = inner_decoupled;
            flatten(config, step, model, inner, &mut names, &mut views, &mut plan)?;
        } else {
            plan.push(plan_step(step, model, &views));
        }
        if plan.len() > MAX_STEPS {
            return Err(EnsembleError::Invalid(format!("ensemble {} has more than {MAX_STEPS} steps", config.name)));
        }
    }
    check_decoupled(config, steps, &decoupled, &order)?;
    let outputs = config.outputs.iter().map(|output| output.name.as_str().into()).collect();
    let reshapes = views_of_outputs(config, &views);
    let model = config.name.as_str().into();
    let plan = RoutePlan { model, ensemble: true, steps: plan, outputs, reshapes, crossing: BTreeSet::new() };
    Ok((plan, decoupled.contains(&true)))
}

/// The composing models by step. Any that are missing are reported together.
fn find_models(
    config: &ModelConfig,
    steps: &[EnsembleStep],
    lookup: Lookup<'_>,
    path: &[String],
) -> Result<Vec<Arc<ModelConfig>>, EnsembleError> {
    let mut missing = BTreeSet::new();
    let mut models = Vec::with_capacity(steps.len());
    for EnsembleStep { model_name, model_version, .. } in steps {
        if let Some(start) = path.iter().find(|ensemble| *ensemble == model_name) {
            return Err(EnsembleError::Invalid(format!(
                "circular dependency between ensembles: {start} -> ... -> {} -> {start}",
                config.name
            )));
        }
        match (lookup(model_name, *model_version), model_version) {
            (Some(model), _) => models.push(model),
            (None, Some(version)) if lookup(model_name, None).is_some() => {
                return Err(EnsembleError::VersionUnavailable {
                    ensemble: config.name.clone(),
                    model: model_name.clone(),
                    version: *version,
                });
            }
            (None, _) => {
                missing.insert(model_name.clone());
            }
        }
    }
    if !missing.is_empty() {
        let models = missing.into_iter().collect();
        return Err(EnsembleError::ModelsUnavailable { ensemble: config.name.clone(), models });
    }
    if path.len() > MAX_NESTING {
        return Err(EnsembleError::Invalid(format!(
            "ensemble {} nests ensembles more than {MAX_NESTING} deep",
            path.first().unwrap_or(&config.name)
        )));
    }
    Ok(models)
}

/// An ensemble tensor as one side declares it: a step or the ensemble itself.
#[derive(Clone)]
struct Declaration {
    /// The model that declares it, as Triton names it: a composing model or the ensemble itself.
    model: String,
    /// The place of the declaration, for errors: `step 0 'tokenizer' output 'ids' gives`.
    place: String,
    datatype: DataType,
    dims: Shape,
    /// With the batch dimension, where the declaring model batches.
    full: Shape,
}

fn check_tensors(
    config: &ModelConfig,
    steps: &[EnsembleStep],
    models: &[Arc<ModelConfig>],
) -> Result<(), EnsembleError> {
    let ensemble = &config.name;
    let fail = |text: String| Err(EnsembleError::Invalid(text));
    let mut declarations = Declarations { ensemble, known: BTreeMap::new() };
    for input in &config.inputs {
        let place = format!("ensemble input '{}' gives", input.name);
        let dims = input.reshape.as_ref().unwrap_or(&input.dims);
        declarations.add(&input.name, Declaration::new(config, place, input.datatype, dims))?;
    }
    for output in &config.outputs {
        let place = format!("ensemble output '{}' expects", output.name);
        let dims = output.reshape.as_ref().unwrap_or(&output.dims);
        declarations.add(&output.name, Declaration::new(config, place, output.datatype, dims))?;
    }
    for (index, (step, model)) in steps.iter().zip(models).enumerate() {
        let name = &step.model_name;
        if model.max_batch_size != 0 && model.max_batch_size < config.max_batch_size {
            return fail(format!(
                "ensemble {ensemble} allows maximum batch size {}, but it contains model {name} which only allows \
                 maximum batch size to be {}",
                config.max_batch_size, model.max_batch_size
            ));
        }
        for (input, tensor) in &step.input_map {
            if !model.inputs.iter().any(|i| i.name == *input) {
                return fail(format!(
                    "in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing input {input} in \
                     model {name}"
                ));
            }
        }
        for input in &model.inputs {
            match step.input_map.get(&input.name) {
                Some(tensor) => {
                    let place = format!("step {index} '{name}' input '{}' expects", input.name);
                    declarations.add(tensor, Declaration::new(model, place, input.datatype, &input.dims))?;
                }
                None if input.optional => {}
                None => return fail(unmapped(ensemble, &input.name, name)),
            }
        }
        for (output, tensor) in &step.output_map {
            let Some(output) = model.outputs.iter().find(|o| o.name == *output) else {
                return fail(format!(
                    "in ensemble {ensemble}, ensemble tensor {tensor} is mapped from non-existing output {output} in \
                     model {name}"
                ));
            };
            let place = format!("step {index} '{name}' output '{}' gives", output.name);
            declarations.add(tensor, Declaration::new(model, place, output.datatype, &output.dims))?;
        }
    }
    Ok(())
}

fn unmapped(ensemble: &str, input: &str, model: &str) -> String {
    format!("in ensemble {ensemble}, input {input} in model {model} is not mapped to any ensemble tensors")
}

// === impl Declaration ===

impl Declaration {
    /// A tensor that `model` declares with these dims.
    fn new(model: &ModelConfig, place: String, datatype: DataType, dims: &Shape) -> Declaration {
        Declaration { model: model.name.clone(), place, datatype, dims: dims.clone(), full: model.full_shape(dims) }
    }
}

/// The first declaration for each ensemble tensor.
struct Declarations<'a> {
    ensemble: &'a str,
    known: BTreeMap<String, Declaration>,
}

impl Declarations<'_> {
    /// Compares `declaration` with the first one for `tensor`, and keeps it if it is the first.
    fn add(&mut self, tensor: &str, declaration: Declaration) -> Result<(), EnsembleError> {
        let Some(first) = self.known.get(tensor) else {
            self.known.insert(tensor.to_owned(), declaration);
            return Ok(());
        };
        let (what, left, right) = if first.datatype != declaration.datatype {
            let (left, right) = (first.datatype.config_name(), declaration.datatype.config_name());
            ("data type", left.to_owned(), right.to_owned())
        } else if !may_agree(&first.dims, &declaration.dims) && !may_agree(&first.full, &declaration.full) {
            ("shape", first.full.to_string(), declaration.full.to_string())
        } else {
            return Ok(());
        };
        let full = |c: &Declaration| format!("{} {} {}", c.place, c.datatype.config_name(), c.full);
        Err(EnsembleError::Invalid(format!(
            "in ensemble {}, ensemble tensor {tensor}: inconsistent {what}: {left} is inferred from model {} while \
             {right} is inferred from model {}; {}, {}",
            self.ensemble,
            first.model,
            declaration.model,
            full(&declaration),
            full(first)
        )))
    }
}

/// Whether a tensor could have both shapes; where one is variable, the request decides.
fn may_agree(left: &Shape, right: &Shape) -> bool {
    left.len() == right.len() && left.iter().zip(right.iter()).all(|(&l, &r)| l == r || l == -1 || r == -1)
}

/// Responses of different decoupled models cannot be paired, so neither a step nor the ensemble's outputs may take tensors of two
/// decoupled models. Parts of parts have no numbers, so no decoupled model may follow another.
fn check_decoupled(
    config: &ModelConfig,
    steps: &[EnsembleStep],
    decoupled: &[bool],
    order: &[usize],
) -> Result<(), EnsembleError> {
    // The decoupled step that each tensor comes from in the end; a tensor without an entry comes from none.
    let mut origins: BTreeMap<&str, usize> = BTreeMap::new();
    for &index in order {
        let step = &steps[index];
        let mut inputs = step.input_map.values().map(|tensor| origins.get(tensor.as_str()).copied());
        let inherited = inputs.next().flatten();
        if inputs.any(|origin| origin != inherited) {
            return Err(different_origins(&config.name, &step.model_name));
        }
        if decoupled[index] && inherited.is_some() {
            return Err(EnsembleError::Invalid(format!(
                "in ensemble {}, step of decoupled model '{}' receives inputs originated from another decoupled model, which \
                 is not supported",
                config.name, step.model_name
            )));
        }
        let own = if decoupled[index] { Some(index) } else { inherited };
        origins.extend(own.into_iter().flat_map(|own| step.output_map.values().map(move |t| (t.as_str(), own))));
    }
    let mut outputs = config.outputs.iter().map(|output| origins.get(output.name.as_str()));
    let first = outputs.next().flatten();
    match outputs.all(|origin| origin == first) {
        true => Ok(()),
        false => Err(different_origins(&config.name, &config.name)),
    }
}

fn different_origins(ensemble: &str, model: &str) -> EnsembleError {
    EnsembleError::Invalid(format!(
        "in ensemble {ensemble}, step of model '{model}' receives inputs originated from different decoupled models"
    ))
}

/// The reshapes of an ensemble's tensors on their way to a step or to the client: of the ensemble's inputs, and of the outputs of
/// nested ensembles that have a `reshape`.
type Views = BTreeMap<String, Vec<Reshape>>;

fn views_of_inputs(config: &ModelConfig) -> Views {
    let view = |input: &ModelInput| {
        let to = input.reshape.clone()?;
        Some((input.name.clone(), vec![Reshape { from: input.dims.clone(), to }]))
    };
    config.inputs.iter().filter_map(view).collect()
}

fn views_of_outputs(config: &ModelConfig, views: &Views) -> Views {
    let view = |output: &ModelOutput| {
        let mut view = views.get(&output.name).cloned().unwrap_or_default();
        view.extend(output.reshape.clone().map(|from| Reshape { from, to: output.dims.clone() }));
        (!view.is_empty()).then(|| (output.name.clone(), view))
    };
    config.outputs.iter().filter_map(view).collect()
}

fn plan_step(step: &EnsembleStep, model: &ModelConfig, views: &Views) -> PlanStep {
    let inputs = model.inputs.iter().filter_map(|input| {
        let tensor = step.input_map.get(&input.name)?.clone();
        let reshapes = views.get(&tensor).cloned().unwrap_or_default();
        let (name, tensor, optional) = (input.name.as_str().into(), tensor.into(), input.optional);
        Some(StepInput { name, tensor, optional, reshapes, crosses: false })
    });
    let outputs = step
        .output_map
        .iter()
        .map(|(name, tensor)| StepOutput { name: name.as_str().into(), tensor: tensor.as_str().into() });
    PlanStep {
        model: step.model_name.as_str().into(),
        version: step.model_version,
        inputs: inputs.collect(),
        outputs: outputs.collect(),
    }
}

/// Puts the steps of a nested ensemble in the place of `step`: its inputs and outputs become the outer ensemble's tensors, and
/// all other tensors get names that the outer ensemble does not have.
fn flatten(
    outer: &ModelConfig,
    step_of_nested: &EnsembleStep,
    nested: &ModelConfig,
    inner: RoutePlan,
    names: &mut Names,
    views: &mut Views,
    plan: &mut Vec<PlanStep>,
) -> Result<(), EnsembleError> {
    let mut renamed: BTreeMap<String, String> = step_of_nested.output_map.clone();
    for input in &nested.inputs {
        if step_of_nested.output_map.contains_key(&input.name) {
            return Err(EnsembleError::Invalid(format!(
                "in ensemble {}, output {} of nested ensemble {} is one of its inputs: map the input instead",
                outer.name, input.name, nested.name
            )));
        }
        if let Some(tensor) = step_of_nested.input_map.get(&input.name) {
            renamed.insert(input.name.clone(), tensor.clone());
        }
    }
    // Optional inputs of the nested ensemble that the outer one leaves out.
    let absent =
        |tensor: &str| nested.inputs.iter().any(|i| i.name == tensor) && !step_of_nested.input_map.contains_key(tensor);
    let mut rename = |tensor: String| match renamed.get(&tensor) {
        Some(name) => name.clone(),
        None => {
            let name = names.fresh(&nested.name, &tensor);
            renamed.insert(tensor, name.clone());
            name
        }
    };
    for mut step in inner.steps {
        if let Some(input) = step.inputs.iter().find(|input| absent(&input.tensor) && !input.optional) {
            return Err(EnsembleError::Invalid(unmapped(&outer.name, &input.name, &step.model)));
        }
        step.inputs.retain(|input| !absent(&input.tensor));
        for input in &mut step.inputs {
            // First in the outer ensemble's shape, then in the nested one's.
            let outer = step_of_nested.input_map.get(input.tensor.as_str()).and_then(|tensor| views.get(tensor));
            input.reshapes.splice(..0, outer.into_iter().flatten().cloned());
            input.tensor = rename(input.tensor.to_string()).into();
        }
        for output in &mut step.outputs {
            output.tensor = rename(output.tensor.to_string()).into();
        }
        plan.push(step);
    }
    let outputs = inner.reshapes.into_iter();
    views
        .extend(outputs.filter_map(|(name, view)| Some((step_of_nested.output_map.get(name.as_str())?.clone(), view))));
    Ok(())
}

/// The tensor names that an ensemble uses, so that new ones differ.
struct Names(BTreeSet<String>);

impl Names {
    fn new(config: &ModelConfig, steps: &[EnsembleStep]) -> Names {
        let own = config.inputs.iter().map(|i| &i.name).chain(config.outputs.iter().map(|o| &o.name));
        let mapped = steps.iter().flat_map(|step| step.input_map.values().chain(step.output_map.values()));
        Names(own.chain(mapped).cloned().collect())
    }

    /// A name not used before: `nested/tensor`, numbered where that is taken.
    fn fresh(&mut self, ensemble: &str, tensor: &str) -> String {
        let plain = format!("{ensemble}/{tensor}");
        let mut name = plain.clone();
        let mut number = 2;
        while !self.0.insert(name.clone()) {
            name = format!("{plain}#{number}");
            number += 1;
        }
        name
    }
}
