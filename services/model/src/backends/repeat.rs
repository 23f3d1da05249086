//! `backend: "repeat"`: a decoupled model that gives each element of its input back as a response of its own, for tests and
//! for measuring everything but a model.
//!
//! Inputs `IN` (any datatype, one dimension) and `DELAY` (UINT32, as many elements: milliseconds before each response);
//! outputs `OUT` (the element) and `IDX` (UINT32, its index). Triton's `repeat_int32` example does the same. An input
//! `WAIT` is taken, as there, and has no effect: requests do not wait for one another.
//!
//! Parameters: `max_requests` is how many requests an instance works on side by side, 64 if not given; `abort_on` a number
//! that ends the process when it is in an INT32 `IN` whose first response is due.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use trireme_engine::{
    Backend, ExecuteRequest, ExecuteResponse, Instance, LoadError, LoadedModel, ModelSource, OneAtATime, Progress,
    StepwiseInstance, Ticket, one_response,
};
use trireme_inference::{InferError, Name, Parameters, Tensor};
use trireme_model_repository::ModelConfig;

use super::abort::AbortOn;

/// Requests that an instance works on side by side, unless the model says otherwise.
const MAX_REQUESTS: usize = 64;

/// The longest step, so that cancellations are noticed and requests can join.
const LONGEST_STEP: Duration = Duration::from_millis(5);

/// The repeat backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Repeat;

/// An instance of a repeat model.
struct RepeatInstance {
    max_requests: usize,
    abort_on: AbortOn,
    requests: BTreeMap<Ticket, Repetition>,
}

/// A request within an instance.
struct Repetition {
    values: Tensor,
    delays: Tensor,
    outputs: Vec<Name>,
    /// The responses made so far.
    made: usize,
    due: Instant,
    in_parts: bool,
    /// Whether it ends the process.
    aborts: bool,
}

impl Backend for Repeat {
    fn name(&self) -> &'static str {
        "repeat"
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        let config = source.config;
        check(config)?;
        let max_requests = match config.parameters.get("max_requests") {
            None => MAX_REQUESTS,
            Some(text) => text.trim().parse().ok().filter(|&count| count > 0).ok_or_else(|| {
                LoadError::Config(format!(
                    "model '{}': parameter 'max_requests' has to be a whole number of at least 1, found '{text}'",
                    config.name
                ))
            })?,
        };
        let abort_on = AbortOn::of(config)?;
        let instance =
            || Instance::Stepwise(Box::new(RepeatInstance { max_requests, abort_on, requests: BTreeMap::new() }));
        Ok(LoadedModel {
            config: Arc::new(config.clone()),
            instances: std::iter::repeat_with(instance).take(source.cpu_instances()?).collect(),
            background: Vec::new(),
            guests: Vec::new(),
            policy: Box::new(OneAtATime),
            canary: None,
        })
    }
}

fn check(config: &ModelConfig) -> Result<(), LoadError> {
    let model = &config.name;
    let refuse = |reason: String| Err(LoadError::Config(format!("model '{model}': {reason}")));
    if !config.decoupled || config.max_batch_size > 0 {
        return refuse(
            "a repeat model needs 'model_transaction_policy { decoupled: true }' and no 'max_batch_size'".into(),
        );
    }
    for name in ["IN", "DELAY"] {
        if !config.inputs.iter().any(|input| input.name == name) {
            return refuse(format!("a repeat model needs the inputs 'IN' and 'DELAY', and '{name}' is missing"));
        }
    }
    let known = |output: &&trireme_model_repository::ModelOutput| !["OUT", "IDX"].contains(&output.name.as_str());
    match config.outputs.iter().find(known) {
        Some(output) => refuse(format!("a repeat model has the outputs 'OUT' and 'IDX', found '{}'", output.name)),
        None => Ok(()),
    }
}

// === impl RepeatInstance ===

impl StepwiseInstance for RepeatInstance {
    fn room(&self) -> usize {
        self.max_requests - self.requests.len()
    }

    fn join(&mut self, ticket: Ticket, request: ExecuteRequest) -> Result<(), InferError> {
        let aborts = self.abort_on.is_in(&request.inputs);
        let repetition = Repetition::of(request, aborts)?;
        if !repetition.in_parts && repetition.values.element_count() != 1 {
            return Err(one_response());
        }
        self.requests.insert(ticket, repetition);
        Ok(())
    }

    fn leave(&mut self, ticket: Ticket) {
        self.requests.remove(&ticket);
    }

    fn step(&mut self) -> Vec<(Ticket, Progress)> {
        if let Some(next) = self.requests.values().map(|request| request.due).min() {
            thread::sleep(next.saturating_duration_since(Instant::now()).min(LONGEST_STEP));
        }
        let now = Instant::now();
        if self.requests.values().any(|request| request.aborts && request.due <= now) {
            self.abort_on.abort();
        }
        let due = self.requests.iter_mut().filter(|(_, request)| request.due <= now);
        let made: Vec<_> = due.map(|(&ticket, request)| (ticket, request.next(now))).collect();
        for (ticket, progress) in &made {
            if matches!(progress, Progress::Done(_)) {
                self.requests.remove(ticket);
            }
        }
        made
    }
}

// === impl Repetition ===

impl Repetition {
    fn of(request: ExecuteRequest, aborts: bool) -> Result<Repetition, InferError> {
        let input = |name: &str| {
            let found = request.inputs.iter().find(|input| input.name() == name);
            found.ok_or_else(|| InferError::invalid_arg(format!("input '{name}' is missing")))
        };
        let (values, delays) = (input("IN")?.clone(), input("DELAY")?.clone());
        let count = delays.values::<u32>().map_err(|error| InferError::invalid_arg(error.to_string()))?.len();
        let [expected] = values.shape()[..] else {
            let message = format!("input 'IN' has shape {}, expected one dimension", values.shape());
            return Err(InferError::invalid_arg(message));
        };
        if expected != count as i64 {
            let message = format!("input 'DELAY' has {count} elements, expected {expected}, as many as 'IN'");
            return Err(InferError::invalid_arg(message));
        }
        if values.datatype().element_size().is_none() {
            return Err(InferError::invalid_arg("input 'IN' is BYTES, expected elements of a fixed size"));
        }
        let (outputs, in_parts) = (request.outputs, request.in_parts);
        let mut repetition = Repetition { values, delays, outputs, made: 0, due: Instant::now(), in_parts, aborts };
        repetition.due += repetition.pause();
        Ok(repetition)
    }

    /// The pause before the next response. The final mark, "no more responses", follows the last response at once.
    fn pause(&self) -> Duration {
        let delays = self.delays.data().chunks_exact(size_of::<u32>()).nth(self.made);
        let delay = delays.and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
        Duration::from_millis(delay.into())
    }

    /// Makes the next response. Each takes many times the memory of its element, so none is made before.
    fn next(&mut self, now: Instant) -> Progress {
        let index = self.made;
        if index as u64 == self.values.element_count() {
            return Progress::Done(Ok(ExecuteResponse::default()));
        }
        self.made += 1;
        self.due = now + self.pause();
        match (self.outputs.iter().map(|name| self.output(name, index)).collect(), self.in_parts) {
            (Ok(outputs), true) => Progress::Part(outputs, Parameters::default()),
            (outputs, _) => {
                Progress::Done(outputs.map(|outputs| ExecuteResponse { outputs, ..ExecuteResponse::default() }))
            }
        }
    }

    fn output(&self, name: &Name, index: usize) -> Result<Tensor, InferError> {
        let (values, size) = (&self.values, self.values.datatype().element_size().unwrap_or(1));
        Ok(match name.as_str() {
            "OUT" => Tensor::new("OUT", values.datatype(), [1], values.data().slice(index * size..(index + 1) * size)),
            _ => Tensor::from_values("IDX", [1], vec![index as u32]),
        }?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::conformance::{load, request};

    const CONFIG: &str = "backend: 'repeat' model_transaction_policy { decoupled: true }
        input [{ name: 'IN' data_type: TYPE_INT32 dims: [-1] }, { name: 'DELAY' data_type: TYPE_UINT32 dims: [-1] }]
        output [{ name: 'OUT' data_type: TYPE_INT32 dims: [1] }, { name: 'IDX' data_type: TYPE_UINT32 dims: [1] }]";

    fn repeat(values: &[i32], in_parts: bool) -> ExecuteRequest {
        let inputs = [
            Tensor::from_values("IN", [values.len() as i64], values.to_vec()).unwrap(),
            Tensor::from_values("DELAY", [values.len() as i64], vec![0u32; values.len()]).unwrap(),
        ];
        ExecuteRequest { in_parts, ..request(&inputs, &["OUT", "IDX"]) }
    }

    fn instance() -> Instance {
        let config = ModelConfig::parse(CONFIG, "m").unwrap();
        load(&Repeat, &config, "").unwrap().instances.remove(0)
    }

    #[test]
    fn each_element_is_a_response_and_requests_run_side_by_side() {
        let mut instance = instance();
        let instance = instance.as_stepwise().unwrap();
        instance.join(1, repeat(&[7, 8], true)).unwrap();
        instance.join(2, repeat(&[9], true)).unwrap();
        instance.join(3, repeat(&[5, 5], true)).unwrap();
        assert_eq!(instance.room(), MAX_REQUESTS - 3);
        instance.leave(3);
        let mut seen = Vec::new();
        while instance.room() < MAX_REQUESTS {
            for (ticket, progress) in instance.step() {
                seen.push(match progress {
                    Progress::Part(outputs, _) => {
                        (ticket, outputs[0].values::<i32>().unwrap()[0], Some(outputs[1].values::<u32>().unwrap()[0]))
                    }
                    Progress::Done(last) => (ticket, last.unwrap().outputs.len() as i32, None),
                });
            }
        }
        seen.sort_by_key(|(ticket, ..)| *ticket);
        assert_eq!(seen, [(1, 7, Some(0)), (1, 8, Some(1)), (1, 0, None), (2, 9, Some(0)), (2, 0, None)]);
    }

    #[test]
    fn a_caller_that_takes_one_answer_gets_one() {
        let mut instance = instance();
        let instance = instance.as_stepwise().unwrap();
        instance.join(1, repeat(&[7], false)).unwrap();
        let [(1, Progress::Done(Ok(response)))] = &instance.step()[..] else { panic!("one answer") };
        assert_eq!(*response.outputs[0].values::<i32>().unwrap(), [7]);
        for values in [&[][..], &[1, 2]] {
            let error = instance.join(2, repeat(values, false)).unwrap_err();
            assert!(error.message.starts_with("generate expects model to produce exactly 1 response"), "{error}");
        }
        let mut unequal = repeat(&[1, 2], true);
        unequal.inputs[1] = Tensor::from_values("DELAY", [1], vec![0u32]).unwrap();
        let error = instance.join(3, unequal).unwrap_err();
        assert_eq!(error.message, "input 'DELAY' has 1 elements, expected 2, as many as 'IN'");
        assert_eq!(instance.room(), MAX_REQUESTS);
    }

    #[test]
    fn a_configuration_that_cannot_repeat_is_refused() {
        let fail = |text: String| {
            let config = ModelConfig::parse(&text, "m").unwrap();
            load(&Repeat, &config, "").err().unwrap().to_string()
        };
        let decoupled = "model_transaction_policy { decoupled: true }";
        assert!(fail(CONFIG.replace(decoupled, "")).contains("needs 'model_transaction_policy"));
        assert!(fail(CONFIG.replace("'DELAY'", "'D'")).contains("'DELAY' is missing"));
        assert!(fail(CONFIG.replace("'IDX'", "'I'")).contains("the outputs 'OUT' and 'IDX', found 'I'"));
        let none = format!("{CONFIG} parameters {{ key: 'max_requests' value {{ string_value: '0' }} }}");
        assert!(fail(none).contains("'max_requests' has to be a whole number of at least 1, found '0'"));
    }
}
