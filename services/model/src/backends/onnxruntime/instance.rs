//! The work of an instance's thread: it joins requests to a batch, pads them, and splits and cuts the outputs.
//!
//! Not here: the run itself (`run`); batches of a packed graph (`packed`).

mod packed;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use trireme_engine::{Description, Division, ExecuteRequest, ExecuteResponse, ExecuteTiming, ModelInstance, Stop};
use trireme_inference::{InferError, Name, Reshape, Shape, Tensor, TensorSpec, room_for};
use trireme_model_repository::ModelConfig;

use super::binding::Memory;
use super::caches;
use super::layouts::Wide;
use super::run::{Outcome, Runner, in_model, unwanted};
use super::schema::Schema;
use super::shared::InstanceSession;
use super::tasks::{self, Tasks};
use crate::batcher::apart::{self, Runs};
use crate::batcher::merge::{self, Cut};
use crate::batcher::spans::{self, SpanRows, SpanRun};
use crate::batcher::{Declaration, Padded, Padding, Steps};

/// An instance of an ONNX model.
pub struct OnnxInstance {
    model: String,
    runner: Runner,
    batch: Batching,
    /// The declared padding, if requests of differing lengths may share a batch.
    padding: Option<Padding>,
    /// The same, if padding changes results, so that not even the rows of a request share a run.
    apart: Option<Padding>,
    /// Whether the rows of a request, which all have one length, do not share a run.
    rows_apart: bool,
    /// Becomes true when rows kept apart may share a run.
    shares: Option<Arc<OnceLock<bool>>>,
    /// The outputs in the configuration's order.
    outputs: Vec<TensorSpec>,
    /// Outputs whose shape differs at the model.
    output_reshapes: Vec<(String, Reshape)>,
    /// Inputs of the model that are empty, because no request has them.
    caches: Vec<TensorSpec>,
    /// The tasks that requests choose among, if one of `caches` is the task.
    tasks: Option<Tasks>,
    /// The groups of the graph, if it is packed.
    groups: Option<usize>,
    /// The most tokens of a run of one request.
    most_tokens: u32,
    /// How the rows of a request are divided, if this is a model of spans.
    spans: Option<SpanRows>,
}

/// The meaning of the first dimension.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Batching {
    /// No special meaning: each request runs alone.
    None,
    /// The batch, by `max_batch_size`: every request has to have it.
    Implied,
    /// The batch, by declared padding. `dims` contain the batch dimension, so a request alone may have any shapes that fit.
    Declared,
}

/// A batch that ran.
struct Batch {
    /// Outputs of all requests together, as the model returned them.
    outputs: Vec<Tensor>,
    /// Rows of each request.
    rows: Vec<u32>,
    /// Length of each request and of the run, if inputs were padded.
    lengths: Option<Padded>,
    started: Instant,
    gathered: Instant,
    ran: Instant,
}

// === impl OnnxInstance ===

impl OnnxInstance {
    /// An instance that runs `session` as `config` describes it, on batches padded by `padding`.
    pub fn new(
        config: &ModelConfig,
        schema: &Schema,
        session: InstanceSession,
        padding: Option<Padding>,
        arena_shrinkage: Option<String>,
    ) -> OnnxInstance {
        let batches = config.max_batch_size > 0;
        let input_reshapes = config.inputs.iter().filter_map(|input| {
            let to = input.reshape.clone().or_else(|| scalar(&schema.inputs, &input.name, batches))?;
            Some((input.name.clone(), Reshape { from: input.dims.clone(), to }))
        });
        let output_reshapes = config.outputs.iter().filter_map(|output| {
            let from = output.reshape.clone().or_else(|| scalar(&schema.outputs, &output.name, batches))?;
            Some((output.name.clone(), Reshape { from, to: output.dims.clone() }))
        });
        OnnxInstance {
            model: config.name.clone(),
            runner: Runner::new(config.name.clone(), session, input_reshapes.collect(), arena_shrinkage),
            batch: match (batches, &padding) {
                (true, _) => Batching::Implied,
                (false, Some(_)) => Batching::Declared,
                (false, None) => Batching::None,
            },
            padding,
            outputs: config.output_specs(),
            output_reshapes: output_reshapes.collect(),
            apart: None,
            rows_apart: false,
            shares: None,
            groups: None,
            most_tokens: apart::MOST_TOKENS,
            spans: Declaration::of_spans(config),
            tasks: caches::undeclared(config, &schema.inputs)
                .iter()
                .any(|input| input.name == tasks::INPUT)
                .then(|| Tasks::of(config).unwrap_or_default()),
            caches: caches::undeclared(config, &schema.inputs),
        }
    }

    /// The instance's session, for another instance.
    pub fn into_session(self) -> InstanceSession {
        self.runner.into_session()
    }

    /// From now on runs have these lengths.
    pub fn pad_to(&mut self, steps: Steps) {
        if let Some(padding) = &mut self.padding {
            padding.steps = steps;
        }
    }

    /// From now on a request of more tokens has several runs of at most so many.
    pub fn run_at_most(&mut self, tokens: u32) {
        self.most_tokens = tokens;
    }

    /// From now on requests of different lengths do not share a batch, nor do a request's rows.
    pub fn keep_requests_apart(&mut self) {
        self.apart = self.padding.take();
        self.rows_apart = self.apart.is_none();
        if self.batch == Batching::Declared {
            self.batch = Batching::None;
        }
    }

    /// The same until `shares` is true.
    pub fn keep_requests_apart_until(&mut self, shares: Arc<OnceLock<bool>>) {
        self.keep_requests_apart();
        self.shares = Some(shares);
    }

    /// Lets requests share a run from when they may.
    fn heed(&mut self) {
        if self.shares.as_ref().and_then(|shares| shares.get()) == Some(&true) {
            self.shares = None;
            self.padding = self.apart.take();
            if self.batch == Batching::None && self.padding.is_some() {
                self.batch = Batching::Declared;
            }
        }
    }

    /// Lets the instance use `wide` when it runs alone.
    pub fn share(&mut self, wide: Arc<Wide>) {
        self.runner.share(wide);
    }

    /// Gives the instance `memory` for its inputs and outputs. Without it the instance runs all the same, only slower.
    pub fn stage(&mut self, memory: Memory) {
        self.runner.stage(memory);
    }

    /// Whether inputs and outputs are in memory for the device.
    #[cfg(test)]
    pub fn is_staged(&self) -> bool {
        self.runner.is_staged()
    }

    /// Runs `requests` as one batch; an error applies to all of them.
    pub fn execute_together(&mut self, requests: &[ExecuteRequest]) -> Result<Vec<ExecuteResponse>, InferError> {
        if let Some(groups) = self.groups {
            return self.execute_packed(requests, groups);
        }
        let Batch { outputs, rows, lengths, started, gathered, ran } = self.run(requests)?;
        let parts = self.hand_out(&requests.iter().collect::<Vec<_>>(), outputs, &rows, lengths.as_ref())?;
        let timing = ExecuteTiming {
            compute_input: gathered - started,
            compute_infer: ran - gathered,
            compute_output: ran.elapsed(),
            batch_size: rows.iter().fold(0, |sum, rows| sum.saturating_add(*rows)),
        };
        Ok(parts.into_iter().map(|outputs| ExecuteResponse { outputs, timing, ..ExecuteResponse::default() }).collect())
    }

    /// The runs of a request with many rows, such as the windows of a long text, or with rows that share no run.
    fn division(&self, request: &ExecuteRequest) -> Result<Option<Division>, InferError> {
        let part = |inputs| ExecuteRequest { inputs, ..request.clone() };
        if let Some(spans) = &self.spans
            && let Some(runs) = spans.runs(&request.inputs)?
        {
            let (rows, inputs): (Vec<_>, Vec<_>) =
                runs.into_iter().map(|SpanRun { rows, inputs }| (rows, inputs)).unzip();
            let runs = inputs.into_iter().map(|inputs| vec![part(inputs)]).collect();
            let model = self.model.clone();
            let join = move |outputs: Vec<Vec<Tensor>>| {
                let runs: Vec<_> = rows.into_iter().zip(outputs).collect();
                spans::join(&runs).map_err(|error| in_model(&model, error))
            };
            return Ok(Some(Division::new(runs, join)));
        }
        let padding = self.padding.as_ref().filter(|_| self.batch == Batching::Declared);
        if let Some(padding) = padding
            && let Some(Runs { mut rows, runs }) = apart::runs(padding, &request.inputs, self.most_tokens)?
        {
            let order: Vec<usize> = runs.iter().flatten().copied().collect();
            let mut row = |at: usize| part(std::mem::take(&mut rows[at]));
            let runs = runs.into_iter().map(|run| run.into_iter().map(&mut row).collect()).collect();
            let (model, padding) = (self.model.clone(), padding.clone());
            let join = move |outputs: Vec<Vec<Tensor>>| {
                let mut outputs: Vec<_> = order.into_iter().zip(outputs).collect();
                outputs.sort_unstable_by_key(|(at, _)| *at);
                let outputs: Vec<_> = outputs.into_iter().map(|(_, outputs)| outputs).collect();
                apart::join(&padding, &outputs).map_err(|error| in_model(&model, error))
            };
            return Ok(Some(Division::new(runs, join)));
        }
        let rows = match (&self.apart, padding) {
            (Some(apart), _) => apart::rows(apart, &request.inputs)?,
            (None, _) if self.rows_apart => apart::whole(&request.inputs)?,
            (None, Some(padding)) => apart::parts(padding, &request.inputs, self.most_tokens)?,
            (None, None) => None,
        };
        let Some(rows) = rows else { return Ok(None) };
        let (model, apart) = (self.model.clone(), self.apart.clone());
        let join = move |outputs: Vec<Vec<Tensor>>| {
            let joined = match apart {
                Some(padding) => apart::join(&padding, &outputs),
                None => {
                    merge::join(&outputs.iter().map(Vec::as_slice).collect::<Vec<_>>(), &[], None).map(Cow::into_owned)
                }
            };
            joined.map_err(|error| in_model(&model, error))
        };
        Ok(Some(Division::new(rows.into_iter().map(|row| vec![part(row)]).collect(), join)))
    }

    fn run(&mut self, requests: &[ExecuteRequest]) -> Result<Batch, InferError> {
        let started = Instant::now();
        let rows = self.rows(requests)?;
        let selected = self.select_outputs(requests)?;
        self.check_room(requests, &selected)?;
        let inputs: Vec<_> = requests.iter().map(|request| &request.inputs[..]).collect();
        let padding = self.padding.as_ref();
        let lengths = padding.and_then(|padding| padding.lengths(&inputs));
        let padded = padding.filter(|_| lengths.is_some()).map_or(&[][..], |padding| &padding.inputs);
        let to = lengths.as_ref().map(|padded| padded.to);
        let mut inputs = merge::join(&inputs, padded, to).map_err(|error| in_model(&self.model, error))?;
        if !self.caches.is_empty() {
            let all = inputs.first().and_then(|input| input.shape().first().copied()).unwrap_or(0);
            let task = self.task(requests)?;
            let made = self.caches.iter().map(|cache| match task {
                Some(task) if cache.name == tasks::INPUT => Tasks::tensor(cache, task),
                _ => caches::empty(cache, all),
            });
            let made: Result<Vec<_>, _> = made.collect();
            inputs.to_mut().extend(made?);
        }
        let Outcome { outputs, began, ended } = self.runner.run(requests, &inputs, &selected)?;
        Ok(Batch { outputs, rows, lengths, started, gathered: began, ran: ended })
    }

    /// The task of a run.
    fn task(&self, requests: &[ExecuteRequest]) -> Result<Option<i64>, InferError> {
        let first = self.tasks.as_ref().zip(requests.first());
        let task = first.map(|(tasks, request)| tasks.number(request)).transpose();
        task.map_err(|error| in_model(&self.model, error))
    }

    /// How many requests from the first one on have its task; those that name none have one each.
    fn of_one_task(&self, requests: &[ExecuteRequest]) -> usize {
        let task = |request| self.task(std::slice::from_ref(request)).ok();
        let Some(first) = requests.first().filter(|_| self.tasks.is_some()).map(task) else { return requests.len() };
        requests.iter().take_while(|request| first.is_some() && task(request) == first).count().max(1)
    }

    fn rows(&self, requests: &[ExecuteRequest]) -> Result<Vec<u32>, InferError> {
        match (self.batch, requests) {
            (Batching::None, _) => Ok(vec![1; requests.len()]),
            (Batching::Declared, [alone]) => Ok(vec![Description::exact(&alone.inputs).rows]),
            _ => requests.iter().map(|request| merge::rows(&self.model, &request.inputs)).collect(),
        }
    }

    /// Checks the room for the outputs of rows without elements, whose shape costs nothing. Another dimension of an output that is open
    /// counts as 1.
    fn check_room(&self, requests: &[ExecuteRequest], selected: &[Name]) -> Result<(), InferError> {
        let empty = requests.iter().flat_map(|request| &request.inputs).filter(|input| input.data().is_empty());
        let Some(rows) = empty.filter_map(|input| input.shape().first().copied()).max() else { return Ok(()) };
        for TensorSpec { name, datatype, shape, .. } in self.outputs.iter().filter(|own| selected.contains(&own.name)) {
            let dim = |(axis, &dim): (usize, &i64)| if axis == 0 && dim == -1 { rows } else { dim.abs() };
            let shape: Vec<i64> = shape.iter().enumerate().map(dim).collect();
            room_for(name, shape, datatype.element_size().unwrap_or(4), 0)
                .map_err(|error| in_model(&self.model, error.into()))?;
        }
        Ok(())
    }

    /// The outputs that any of the requests needs.
    fn select_outputs(&self, requests: &[ExecuteRequest]) -> Result<Vec<Name>, InferError> {
        let wanted = |name: &Name| requests.iter().any(|request| request.outputs.contains(name));
        let known = |name: &Name| self.outputs.iter().any(|own| own.name == *name);
        if let Some(unknown) = requests.iter().flat_map(|r| &r.outputs).find(|name| !known(name)) {
            let allowed = self.outputs.iter().map(|own| own.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(InferError::invalid_arg(format!(
                "unexpected inference output '{unknown}', allowed outputs are: {allowed}"
            )));
        }
        Ok(self.outputs.iter().map(|own| &own.name).filter(|name| wanted(name)).cloned().collect())
    }

    /// Splits the outputs into the requested ones of each request.
    fn hand_out(
        &self,
        requests: &[&ExecuteRequest],
        outputs: Vec<Tensor>,
        rows: &[u32],
        lengths: Option<&Padded>,
    ) -> Result<Vec<Vec<Tensor>>, InferError> {
        let mut parts: Vec<Vec<Tensor>> = requests.iter().map(|r| Vec::with_capacity(r.outputs.len())).collect();
        for output in outputs {
            let name = Name::new(output.name());
            let split = self.split(output, rows, lengths).map_err(|error| in_model(&self.model, error))?;
            for ((part, request), own) in split.into_iter().zip(requests).zip(&mut parts) {
                if request.outputs.contains(&name) {
                    own.push(part);
                }
            }
        }
        Ok(parts)
    }

    /// One output with the shape for clients, split by request and without padding.
    fn split(&self, output: Tensor, rows: &[u32], lengths: Option<&Padded>) -> Result<Vec<Tensor>, InferError> {
        let output = match self.output_reshapes.iter().find(|(name, _)| name == output.name()) {
            Some((_, reshape)) => {
                let shape = reshape.apply(output.shape());
                output.reshaped(shape).map_err(|error| InferError::internal(error.to_string()))?
            }
            None => output,
        };
        if self.batch == Batching::None || self.batch == Batching::Declared && rows.len() == 1 && lengths.is_none() {
            return Ok(vec![output]);
        }
        let padded = self.padding.iter().flat_map(|padding| &padding.outputs).find(|p| p.name == output.name());
        let cut = padded.zip(lengths).map(|(padded, run)| Cut {
            axis: padded.axis,
            lengths: &run.lengths,
            padded: run.to,
            left: padded.left,
        });
        merge::split(output, rows, cut)
    }
}

impl ModelInstance for OnnxInstance {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        if requests.is_empty() {
            return Vec::new();
        }
        self.heed();
        if let [request] = requests {
            match self.divide(request) {
                Ok(Some(division)) => return vec![division.run(|run| self.execute(run))],
                Ok(None) => {}
                Err(error) => return vec![Err(error)],
            }
        }
        let alike = self.of_one_task(requests);
        if alike < requests.len() {
            let (first, others) = requests.split_at(alike);
            return [self.execute(first), self.execute(others)].concat();
        }
        let together = requests.len() == 1 || self.batch != Batching::None;
        match together.then(|| self.execute_together(requests)) {
            Some(Ok(responses)) => responses.into_iter().map(Ok).collect(),
            Some(Err(error)) if requests.len() == 1 => vec![Err(error)],
            Some(Err(error)) if unwanted(requests).is_some() => vec![Err(error); requests.len()],
            // Halving the batch finds a request that fails the others, in fewer runs than one for each member.
            Some(Err(_)) => {
                let (first, second) = requests.split_at(requests.len() / 2);
                [self.execute(first), self.execute(second)].concat()
            }
            None => requests.iter().flat_map(|request| self.execute(std::slice::from_ref(request))).collect(),
        }
    }

    fn divide(&mut self, request: &ExecuteRequest) -> Result<Option<Division>, InferError> {
        self.heed();
        self.division(request).map_err(|error| in_model(&self.model, error))
    }

    fn stop(&self) -> Option<Arc<dyn Stop>> {
        Some(self.runner.stopper())
    }
}

/// The shape of a scalar, if the model's tensor is one. The configuration declares it as one element, because a shape
/// without dimensions cannot be declared.
fn scalar(tensors: &[TensorSpec], name: &str, batches: bool) -> Option<Shape> {
    let is_scalar = tensors.iter().any(|tensor| tensor.name == name && tensor.shape.is_empty());
    (is_scalar && !batches).then(Shape::default)
}
