//! An ensemble as a list of steps, and the remaining steps of a request on its way.
//!
//! An ensemble compiles to a [`RoutePlan`] when it is loaded (`model-repository` checks types; nested ensembles are
//! flattened there). For each request the gateway turns the plan into a [`Route`]: it resolves versions, prunes steps
//! that no requested output needs, and sets for each step the tensors that die after it. The route travels in the
//! message, so workers hold no ensemble state. A request for a single model is a route of one step.

mod branches;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

pub use self::branches::{Branch, Branches};
use crate::{InferError, ModelKey, Name, Reshape, Tensor};

/// A compiled ensemble or single model, before it is reduced to one request. The steps are in an order in which each
/// one's inputs exist when it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutePlan {
    /// The model that clients name.
    pub model: Name,
    /// Whether `model` is an ensemble. Errors inside a step then name it.
    pub ensemble: bool,
    /// Steps in execution order.
    pub steps: Vec<PlanStep>,
    /// The model's outputs, in configuration order.
    pub outputs: Vec<Name>,
    /// The reshapes of outputs on their way to the client, in this order; an output without an entry keeps its shape.
    pub reshapes: BTreeMap<String, Vec<Reshape>>,
    /// The outputs of which one side batches, the step that gives the output or the model, and the other side does not.
    pub crossing: BTreeSet<String>,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanStep {
    /// The model that runs.
    pub model: Name,
    /// Its version; `None` means the latest ready one when the request arrives.
    pub version: Option<i64>,
    /// Where its inputs come from.
    pub inputs: Vec<StepInput>,
    /// Where its outputs go. Outputs of the model that are not listed are not computed.
    pub outputs: Vec<StepOutput>,
}

/// One entry of a step's input map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepInput {
    /// The input's name at the model.
    pub name: Name,
    /// The live tensor it takes.
    pub tensor: Name,
    /// Whether the step may run without this input, if the tensor does not exist.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
    /// The reshapes of the tensor on its way to the model, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "read_reshapes")]
    pub reshapes: Vec<Reshape>,
    /// Whether one side batches, the side that gives the tensor or the model, and the other side does not. Only such a tensor
    /// gets or loses a batch dimension.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub crosses: bool,
}

/// One entry of a step's output map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepOutput {
    /// The output's name at the model.
    pub name: Name,
    /// The live tensor it becomes.
    pub tensor: Name,
}

/// One step of a route: a plan step with its version resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The model version that runs.
    pub model: ModelKey,
    /// Where its inputs come from.
    #[serde(deserialize_with = "read_inputs")]
    pub inputs: Vec<StepInput>,
    /// Where its outputs go.
    #[serde(deserialize_with = "read_outputs")]
    pub outputs: Vec<StepOutput>,
    /// Live tensors that no step needs after this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "read_dead")]
    pub dead: Vec<Name>,
    /// The priority level of its model's queue at which the request waits, 1 highest; 0 if the queue has no levels.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub level: u32,
    /// The content of its model that the request was admitted for, as workers announce it: no worker of another one runs the step.
    /// `None` where no content is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Name>,
}

fn read_inputs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<StepInput>, D::Error> {
    crate::read_list(deserializer, "inputs of a step")
}

fn read_outputs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<StepOutput>, D::Error> {
    crate::read_list(deserializer, "outputs of a step")
}

fn read_reshapes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Reshape>, D::Error> {
    crate::read_list(deserializer, "reshapes of an input")
}

fn read_dead<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Name>, D::Error> {
    crate::read_list(deserializer, "dead tensors of a step")
}

fn is_zero(level: &u32) -> bool {
    *level == 0
}

/// Sets for each step which tensors die with it: those that no later step takes, unless `stays` keeps them to the end.
/// `live` are the tensors that exist before the first step.
fn let_die(steps: &mut [Step], live: &[&str], stays: impl Fn(&str) -> bool) {
    let mut live: Vec<Name> = live.iter().map(|&tensor| tensor.into()).collect();
    for index in 0..steps.len() {
        let (before, later) = steps.split_at_mut(index + 1);
        let step = &mut before[index];
        live.extend(step.outputs.iter().map(|output| output.tensor.clone()));
        let needed = |tensor: &Name| {
            stays(tensor) || later.iter().any(|step| step.inputs.iter().any(|input| input.tensor == *tensor))
        };
        (live, step.dead) = live.into_iter().partition(needed);
    }
}

/// The remaining steps of a request. Cloning shares the steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    model: ModelKey,
    ensemble: bool,
    steps: Arc<[Step]>,
    /// Index into `steps` of the step to run next.
    cursor: usize,
    /// How many steps had run before the first of `steps`.
    offset: u32,
}

// === impl RoutePlan ===

impl RoutePlan {
    /// The plan of a single model: one step whose live tensors are the model's own inputs and outputs. `inputs` are
    /// names, each with whether it is optional.
    pub fn single(model: &str, inputs: impl IntoIterator<Item = (Name, bool)>, outputs: Vec<Name>) -> RoutePlan {
        let input = |(name, optional): (Name, bool)| StepInput {
            tensor: name.clone(),
            name,
            optional,
            reshapes: Vec::new(),
            crosses: false,
        };
        let inputs = inputs.into_iter().map(input).collect();
        let step_outputs = outputs.iter().map(|name| StepOutput { name: name.clone(), tensor: name.clone() }).collect();
        RoutePlan {
            model: model.into(),
            ensemble: false,
            steps: vec![PlanStep { model: model.into(), version: None, inputs, outputs: step_outputs }],
            outputs,
            reshapes: BTreeMap::new(),
            crossing: BTreeSet::new(),
        }
    }

    /// The route of one request.
    ///
    /// `version` is the resolved version of the model itself. `requested` are the names of the requested outputs; none
    /// means all. `inputs` are the names of the request's tensors. `resolve` returns the version that runs for a step's
    /// model, or the error that answers the request. Steps on which no requested output depends are left out, unless they have no outputs at
    /// all.
    pub fn route(
        &self,
        version: i64,
        requested: &[&str],
        inputs: &[&str],
        mut resolve: impl FnMut(&str, Option<i64>) -> Result<i64, InferError>,
    ) -> Result<Route, InferError> {
        let mut needed: BTreeSet<&str> = if requested.is_empty() {
            self.outputs.iter().map(Name::as_str).collect()
        } else {
            requested.iter().copied().collect()
        };
        let last_needed = needed.clone();

        // Backward: keep a step if one of its outputs is needed; then its inputs are needed too.
        let mut kept: Vec<(&PlanStep, Vec<StepOutput>)> = Vec::with_capacity(self.steps.len());
        for step in self.steps.iter().rev() {
            let outputs: Vec<_> = step.outputs.iter().filter(|o| needed.contains(o.tensor.as_str())).cloned().collect();
            // A model without outputs runs for its side effects.
            if outputs.is_empty() && !step.outputs.is_empty() {
                continue;
            }
            needed.extend(step.inputs.iter().map(|i| i.tensor.as_str()));
            kept.push((step, outputs));
        }
        kept.reverse();

        let mut steps = Vec::with_capacity(kept.len());
        for (step, outputs) in kept {
            let version = match step.model == self.model {
                true if !self.ensemble => version,
                _ => resolve(&step.model, step.version)?,
            };
            steps.push(Step {
                model: ModelKey { name: step.model.clone(), version },
                inputs: step.inputs.clone(),
                outputs,
                dead: Vec::new(),
                level: 0,
                content: None,
            });
        }
        let_die(&mut steps, inputs, |tensor| last_needed.contains(tensor));
        let model = ModelKey { name: self.model.clone(), version };
        Ok(Route { model, ensemble: self.ensemble, steps: steps.into(), cursor: 0, offset: 0 })
    }

    /// An output under the shape that the client is to see.
    pub fn reshape_output(&self, output: Tensor) -> Result<Tensor, InferError> {
        match self.reshapes.get(output.name()) {
            Some(reshapes) => reshaped(output, reshapes),
            None => Ok(output),
        }
    }
}

// === impl Route ===

impl Route {
    /// A route received over the bus: `offset` steps had run before the first of `steps`.
    pub fn resume(model: ModelKey, ensemble: bool, offset: u32, steps: Vec<Step>) -> Route {
        Route { model, ensemble, steps: steps.into(), cursor: 0, offset }
    }

    /// The same route with the level of each step's queue; `level` returns it for the step's model.
    pub fn at_levels(mut self, level: impl Fn(&ModelKey) -> u32) -> Route {
        let levels: Vec<u32> = self.steps.iter().map(|step| level(&step.model)).collect();
        if levels.iter().any(|&level| level != 0) {
            let steps = self.steps.iter().cloned().zip(levels).map(|(step, level)| Step { level, ..step });
            self.steps = steps.collect();
        }
        self
    }

    /// The same route for these contents of its models; `content` returns the one that is served.
    pub fn for_contents(mut self, content: impl Fn(&ModelKey) -> Option<Name>) -> Route {
        for step in Arc::make_mut(&mut self.steps) {
            step.content = content(&step.model);
        }
        self
    }

    /// The same route where remaining step `index` also takes `inputs` and gives `outputs`. Their tensors have names that no
    /// other step has: the inputs die with the step, the outputs stay to the end.
    pub fn with_tensors(mut self, index: usize, inputs: Vec<StepInput>, outputs: Vec<StepOutput>) -> Route {
        let mut steps = self.steps.to_vec();
        if let Some(step) = steps.get_mut(self.cursor + index) {
            step.dead.extend(inputs.iter().map(|input| input.tensor.clone()));
            step.inputs.extend(inputs);
            step.outputs.extend(outputs);
        }
        self.steps = steps.into();
        self
    }

    /// The model that the client requested.
    pub fn model(&self) -> &ModelKey {
        &self.model
    }

    /// Whether that model is an ensemble.
    pub fn is_ensemble(&self) -> bool {
        self.ensemble
    }

    /// The step to run next; `None` when the request is complete.
    pub fn current(&self) -> Option<&Step> {
        self.steps.get(self.cursor)
    }

    /// The steps still to run, the current one first.
    pub fn remaining(&self) -> &[Step] {
        &self.steps[self.cursor..]
    }

    /// The number of the current step, counted from 0 at the gateway. With the request's id it names the step's
    /// message, so a step that is delivered again publishes its result under the same name.
    pub fn step_number(&self) -> u32 {
        self.offset.saturating_add(self.cursor as u32)
    }

    /// The current step's inputs under the model's names for them. Tensor bytes are shared. A missing required tensor
    /// is an error that names the tensor and the step.
    pub fn step_inputs(&self, live: &[Tensor]) -> Result<Vec<Tensor>, InferError> {
        let Some(step) = self.current() else {
            return Err(InferError::internal(format!("route of '{}' has no step left to run", self.model)));
        };
        let mut inputs = Vec::with_capacity(step.inputs.len());
        for input in &step.inputs {
            match live.iter().find(|t| t.name() == input.tensor) {
                Some(tensor) => inputs.push(reshaped(tensor.clone(), &input.reshapes)?.renamed(input.name.clone())),
                None if input.optional => {}
                None => {
                    return Err(InferError::invalid_arg(format!(
                        "tensor '{}', which step '{}' takes as input '{}', was not produced by any step before it",
                        input.tensor, step.model, input.name
                    )));
                }
            }
        }
        Ok(inputs)
    }

    /// Moves past the current step: `produced` (under the model's names) become live tensors by the output map, and
    /// tensors that no later step needs are dropped. A mapped output that the step did not produce is left out; a later
    /// step that requires it reports the error.
    pub fn advance(&mut self, live: &mut Vec<Tensor>, produced: Vec<Tensor>) {
        let Some(step) = self.steps.get(self.cursor) else { return };
        let dies = |name: &str| step.dead.iter().any(|dead| dead == name);
        // A single model's output may have the name of an input, which must not pass for it.
        live.retain(|tensor| !dies(tensor.name()) && !step.outputs.iter().any(|output| output.tensor == tensor.name()));
        for tensor in produced {
            // A model's output may become two live tensors: one that the client asked for, and a state of its sequence.
            for output in step.outputs.iter().filter(|output| output.name == tensor.name() && !dies(&output.tensor)) {
                live.push(tensor.clone().renamed(output.tensor.clone()));
            }
        }
        self.cursor += 1;
    }

    /// `error` as the client will see it: inside an ensemble it begins with the ensemble's name, as in Triton.
    pub fn describe(&self, mut error: InferError) -> InferError {
        if self.ensemble {
            error.message = format!("in ensemble '{}', {}", self.model.name, error.message);
        }
        error
    }
}

/// A tensor with its shape changed by `reshapes`, one after the other.
fn reshaped(tensor: Tensor, reshapes: &[Reshape]) -> Result<Tensor, InferError> {
    if reshapes.is_empty() {
        return Ok(tensor);
    }
    let shape = reshapes.iter().fold(tensor.shape().clone(), |shape, reshape| reshape.apply(&shape));
    tensor.reshaped(shape).map_err(|error| InferError::internal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(name: &str, tensor: &str) -> StepInput {
        StepInput { name: name.into(), tensor: tensor.into(), optional: false, reshapes: Vec::new(), crosses: false }
    }

    fn output(name: &str, tensor: &str) -> StepOutput {
        StepOutput { name: name.into(), tensor: tensor.into() }
    }

    fn step(model: &str, inputs: Vec<StepInput>, outputs: Vec<StepOutput>) -> PlanStep {
        PlanStep { model: model.into(), version: None, inputs, outputs }
    }

    /// TEXT -> tokenizer -> model -> (pool -> embedding, classify -> label)
    fn branching() -> RoutePlan {
        RoutePlan {
            model: "e".into(),
            ensemble: true,
            steps: vec![
                step("tok", vec![input("TEXT", "TEXT")], vec![output("ids", "ids"), output("mask", "mask")]),
                step("bert", vec![input("i", "ids"), input("m", "mask")], vec![output("h", "hidden")]),
                step("pool", vec![input("h", "hidden"), input("m", "mask")], vec![output("e", "embedding")]),
                step("classify", vec![input("h", "hidden")], vec![output("l", "label")]),
            ],
            outputs: vec!["embedding".into(), "label".into()],
            reshapes: BTreeMap::new(),
            crossing: BTreeSet::new(),
        }
    }

    fn tensor(name: &str) -> Tensor {
        Tensor::from_values(name, [1], vec![1i64]).unwrap()
    }

    fn names(live: &[Tensor]) -> Vec<&str> {
        live.iter().map(Tensor::name).collect()
    }

    #[test]
    fn tensors_die_after_their_last_use() {
        let route = branching().route(1, &[], &["TEXT"], |_, _| Ok(7)).unwrap();
        let dead: Vec<_> = route.remaining().iter().map(|s| s.dead.clone()).collect();
        assert_eq!(dead, [vec!["TEXT"], vec!["ids"], vec!["mask"], vec!["hidden"]]);
        assert_eq!(route.current().unwrap().model.version, 7);
    }

    #[test]
    fn unrequested_branches_are_pruned() {
        let route = branching().route(1, &["label"], &["TEXT"], |_, _| Ok(1)).unwrap();
        let models: Vec<_> = route.remaining().iter().map(|s| s.model.name.as_str()).collect();
        assert_eq!(models, ["tok", "bert", "classify"]);
        assert_eq!(route.remaining()[1].dead, ["ids", "mask"]);
    }

    #[test]
    fn a_walk_ends_with_exactly_the_requested_outputs() {
        let mut route = branching().route(1, &[], &["TEXT", "stray"], |_, _| Ok(1)).unwrap();
        let mut live = vec![tensor("TEXT"), tensor("stray")];
        let produced = [vec!["ids", "mask"], vec!["h"], vec!["e"], vec!["l"]];
        for (number, outputs) in produced.into_iter().enumerate() {
            assert_eq!(route.step_number() as usize, number);
            route.step_inputs(&live).unwrap();
            route.advance(&mut live, outputs.into_iter().map(tensor).collect());
        }
        assert!(route.current().is_none());
        assert_eq!(names(&live), ["embedding", "label"]);
    }

    #[test]
    fn a_missing_tensor_is_named_with_its_step() {
        let mut route = branching().route(1, &[], &["TEXT"], |_, _| Ok(1)).unwrap();
        let mut live = vec![tensor("TEXT")];
        route.advance(&mut live, vec![tensor("ids")]);
        let error = route.step_inputs(&live).unwrap_err();
        assert_eq!(
            error.message,
            "tensor 'mask', which step 'bert:1' takes as input 'm', was not produced by any step before it"
        );
    }

    #[test]
    fn a_model_without_outputs_runs() {
        let route = RoutePlan::single("m", [], Vec::new()).route(1, &[], &[], |_, _| Ok(1)).unwrap();
        assert_eq!(route.remaining().len(), 1);
    }

    #[test]
    fn a_single_model_is_a_route_of_one_step() {
        let plan = RoutePlan::single("m", [("a".into(), false), ("b".into(), true)], vec!["x".into(), "y".into()]);
        let mut route = plan.route(3, &["y"], &["a"], |_, _| unreachable!("its own version is given")).unwrap();
        assert_eq!(route.current().unwrap().model.to_string(), "m:3");
        let mut live = vec![tensor("a")];
        assert_eq!(names(&route.step_inputs(&live).unwrap()), ["a"]);
        route.advance(&mut live, vec![tensor("x"), tensor("y")]);
        assert_eq!(names(&live), ["y"]);
    }

    #[test]
    fn an_output_with_the_name_of_an_input_takes_its_place() {
        let plan = RoutePlan::single("m", [("x".into(), false), ("y".into(), true)], vec!["y".into(), "x".into()]);
        let mut route = plan.route(1, &[], &["x", "y"], |_, _| Ok(1)).unwrap();
        let mut live = vec![tensor("x"), tensor("y")];
        route.advance(&mut live, vec![tensor("x")]);
        assert_eq!(names(&live), ["x"], "an output that the model has not made is not the input of its name");
    }

    #[test]
    fn tensors_of_one_step_are_added_and_what_it_gives_stays() {
        let route = branching().route(1, &["label"], &["TEXT"], |_, _| Ok(1)).unwrap();
        let mut route = route.with_tensors(1, vec![input("before", "old")], vec![output("h", "new")]);
        let mut live = vec![tensor("TEXT"), tensor("old")];
        route.advance(&mut live, vec![tensor("ids"), tensor("mask")]);
        let inputs = route.step_inputs(&live).unwrap();
        assert_eq!(names(&inputs), ["i", "m", "before"]);
        // One output, taken twice.
        route.advance(&mut live, vec![tensor("h")]);
        assert_eq!(names(&live), ["hidden", "new"]);
        route.advance(&mut live, vec![tensor("l")]);
        assert_eq!(names(&live), ["new", "label"]);
    }

    #[test]
    fn shapes_change_on_the_way_to_a_step_and_to_the_client() {
        let mut plan = branching();
        let reshape = |from: &[i64], to: &[i64]| Reshape { from: from.into(), to: to.into() };
        plan.steps[0].inputs[0].reshapes = vec![reshape(&[4], &[2, 2]), reshape(&[2, 2], &[1, 4])];
        plan.reshapes.insert("label".into(), vec![reshape(&[2, 2], &[4])]);
        let route = plan.route(1, &[], &["TEXT"], |_, _| Ok(1)).unwrap();
        let tensor = |name: &str, shape: &[i64]| Tensor::from_values(name, shape, vec![1i64; 8]).unwrap();
        let inputs = route.step_inputs(&[tensor("TEXT", &[2, 4])]).unwrap();
        assert_eq!(inputs[0].shape()[..], [2, 1, 4]);
        let label = plan.reshape_output(tensor("label", &[2, 2, 2])).unwrap();
        assert_eq!(label.shape()[..], [2, 4]);
        let embedding = plan.reshape_output(tensor("embedding", &[2, 2, 2])).unwrap();
        assert_eq!(embedding.shape()[..], [2, 2, 2]);
    }

    #[test]
    fn errors_inside_an_ensemble_name_it() {
        let route = branching().route(1, &[], &["TEXT"], |_, _| Ok(1)).unwrap();
        assert_eq!(route.describe(InferError::internal("boom")).message, "in ensemble 'e', boom");
    }
}
