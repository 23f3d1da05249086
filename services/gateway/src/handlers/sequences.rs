//! Requests of sequences: the tensors that models with `sequence_batching` get beside those of the client.
//!
//! Every step of a request whose model has `sequence_batching` gets the controls of its sequence and the states that the
//! request before left. They are live tensors of the route, under names that no model uses.
//!
//! Not here: where the states come from, and the order of the requests (`dispatch::sequence`).

use std::time::Duration;

use trireme_bus::SequenceName;
use trireme_inference::{
    Cause, InferError, Membership, ModelKey, Parameters, PlanStep, Route, RoutePlan, Step, StepInput, StepOutput,
    Tensor,
};

use crate::dispatch::{SequenceStep, StateTensor, Turn};
use crate::registry::Catalog;

/// A request of a sequence, with the tensors that clients do not see.
pub(super) struct InSequence {
    /// Its route, with the added tensors.
    pub route: Route,
    /// The added tensors that the gateway makes: controls.
    pub tensors: Vec<Tensor>,
    /// The request's part of its sequence.
    pub turn: Turn,
}

/// A request as far as its sequence matters.
pub(super) struct SequenceRequest<'a> {
    /// The model that the client requests.
    pub plan: &'a RoutePlan,
    /// The client's parameters.
    pub parameters: &'a Parameters,
    /// The client's rows, 1 for a model without a batch dimension.
    pub rows: i64,
    /// The longest time that the next request of the sequence may take.
    pub patience: Duration,
}

/// Adds to a route what the sequence of the request brings along. `Err` has the unchanged route if none of its models has
/// sequences.
pub(super) fn join(
    catalog: &Catalog,
    asked: &SequenceRequest<'_>,
    route: Route,
) -> Result<Result<InSequence, Route>, InferError> {
    let config =
        |model: &ModelKey| catalog.find(&model.name, Some(model.version)).map(|(_, served)| served.config.clone());
    let mut found = Vec::new();
    for (index, step) in route.remaining().iter().enumerate() {
        let config = config(&step.model)?;
        if let Some(batching) = config.sequence_batching.clone() {
            found.push((index, step.clone(), config, batching));
        }
    }
    let Some((_, first, ..)) = found.first() else { return Ok(Err(route)) };
    let invalid = |text: String| route.describe(InferError::invalid_arg(text).because(Cause::Sequence));
    let model = &first.model.name;
    if asked.rows > 1 {
        return Err(invalid(format!(
            "inference request to model '{model}' must specify batch-size 1 due to requirements of sequence batcher"
        )));
    }
    let member = Membership::of(asked.parameters).map_err(|error| route.describe(error))?.ok_or_else(|| {
        invalid(format!("inference request to model '{model}' must specify a non-zero or non-empty correlation ID"))
    })?;
    let max_idle = found.iter().map(|(.., batching)| batching.max_idle).min().unwrap_or_default();
    let places = places(&asked.plan.steps, route.remaining());
    let (mut joined, mut tensors, mut steps) = (route.clone(), Vec::new(), Vec::new());
    for (index, step, config, batching) in found {
        let name = format!("{}/{}", places[index], step.model);
        let called = |what: &str, tensor: &str| format!("={what}/{name}/{tensor}");
        let controls = config.control_tensors(&member, |control| called("control", control));
        let controls = controls.map_err(|error| route.describe(error))?;
        let taken = |tensor: String, input: &str, optional| StepInput {
            name: input.into(),
            tensor: tensor.into(),
            optional,
            reshapes: Vec::new(),
            crosses: false,
        };
        let mut inputs: Vec<StepInput> = batching
            .controls
            .iter()
            .map(|control| taken(called("control", &control.name), &control.name, false))
            .collect();
        // The first request of a sequence brings none: the worker has the initial ones.
        inputs.extend(batching.states.iter().map(|state| taken(called("state", &state.input), &state.input, true)));
        let states: Vec<StateTensor> = batching
            .states
            .iter()
            .map(|state| StateTensor {
                taken: called("state", &state.input),
                given: called("next", &state.input),
                output: state.output.clone(),
            })
            .collect();
        let outputs = states
            .iter()
            .map(|state| StepOutput { name: state.output.as_str().into(), tensor: state.given.as_str().into() })
            .collect();
        joined = joined.with_tensors(index, inputs, outputs);
        tensors.extend(controls);
        steps.push(SequenceStep { name, model: step.model.name.to_string(), states });
    }
    let turn = Turn {
        name: SequenceName { model: route.model().clone(), id: member.id },
        start: member.start,
        end: member.end,
        max_idle,
        lapse: max_idle.saturating_add(asked.patience),
        steps,
    };
    Ok(Ok(InSequence { route: joined, tensors, turn }))
}

/// The place of each step of a route among the steps of its plan. Routes leave steps out that no requested output needs, so
/// the place of a step in its route differs between requests.
fn places(plan: &[PlanStep], route: &[Step]) -> Vec<usize> {
    let mut rest = plan.iter().enumerate();
    let place = |step: &Step| {
        let same =
            |(_, planned): &(usize, &PlanStep)| planned.model == step.model.name && planned.inputs == step.inputs;
        rest.find(same).map_or(plan.len(), |(place, _)| place)
    };
    route.iter().map(place).collect()
}
