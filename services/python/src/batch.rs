//! Instances of models that answer each request once: a batch goes to the child, and its responses come back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use trireme_inference::{InferError, Parameters, Tensor};
use trireme_runtime::{ExecuteRequest, ExecuteResponse, ExecuteTiming, ModelInstance, Outage, Stop};

use crate::child::LOOK;
use crate::frame::{Frame, Layout, Link, LinkError};
use crate::message::{FromChild, RequestHeader, ResponseHeader, Responses, ToChild};
use crate::nested::{NestedRequests, refuse, unreadable};
use crate::policy::CallTime;
use crate::slot::Slot;

/// An instance that has had nothing to do for so long serves few requests.
const IDLE: Duration = Duration::from_micros(200);

/// An instance of a model that is not decoupled.
pub struct BatchInstance {
    slot: Slot,
    /// Whether requests have a batch dimension.
    batches: bool,
    /// Present where each request is a call of `execute` of its own.
    apart: Option<Arc<CallTime>>,
    next: u64,
    /// When the last execution ended.
    ended: Option<Instant>,
}

/// The results of a batch so far.
struct Batch {
    /// One result per request; the ticket of the first request is `first`.
    results: Vec<Option<Result<ResponseOutputs, InferError>>>,
    first: u64,
    executed: bool,
    /// Whether the child knows that nobody waits for the request any more.
    told: Vec<bool>,
}

// === impl BatchInstance ===

impl BatchInstance {
    /// An instance whose child is in this slot. `apart`: each request is a call of `execute` of its own, and the time that a call
    /// takes is noted there.
    pub fn new(slot: Slot, batches: bool, apart: Option<Arc<CallTime>>) -> BatchInstance {
        BatchInstance { slot, batches, apart, next: 0, ended: None }
    }

    fn run(&mut self, link: &Arc<Link>, requests: &[ExecuteRequest], batch: &mut Batch) -> Result<(), LinkError> {
        send_execute(link, requests.iter().zip(batch.first..), self.apart.is_some())?;
        let nested = NestedRequests::new(link.clone());
        // Of a short call the response is there before this thread would be asleep. Where requests come together or one after the other,
        // the child needs the CPU more.
        let is_lone = requests.len() == 1 && self.ended.is_none_or(|ended| ended.elapsed() > IDLE);
        let mut soon = is_lone && self.apart.as_ref().is_some_and(|calls| calls.are_short());
        while !batch.is_done() {
            let frame = match std::mem::take(&mut soon) {
                true => link.receive_soon()?,
                false => None,
            };
            let frame = match frame {
                None => link.receive(LOOK)?,
                frame => frame,
            };
            let Some(frame) = frame else {
                batch.send_cancelled(link, requests)?;
                if batch.waiting(requests).next().is_none() {
                    nested.cancel_all();
                }
                continue;
            };
            match self.slot.recipe().read(&frame, self.slot.instance())? {
                Some(FromChild::Responses(Responses { responses, executed, released, took_ns })) => {
                    if executed {
                        batch.executed = true;
                        link.executed(released);
                        if let (Some(calls), Some(took)) = (&self.apart, took_ns) {
                            calls.note(Duration::from_nanos(took) / requests.len() as u32);
                        }
                    }
                    responses.into_iter().for_each(|response| batch.take(response, &frame));
                }
                Some(FromChild::Infer(header)) => {
                    nested.send(*header, &frame, batch.waiting(requests).map(|request| &request.calls))?;
                }
                Some(FromChild::HangUp { ids }) => nested.hang_up(&ids),
                Some(FromChild::Unreadable { id, reason }) => refuse(link, id, unreadable(&reason))?,
                // A late answer, for which nobody waited any more.
                Some(FromChild::Ready { .. }) | None => {}
                Some(other) => return Err(LinkError::Garbage(format!("{other:?} while it executed"))),
            }
        }
        Ok(())
    }

    fn rows(&self, requests: &[ExecuteRequest]) -> u32 {
        let rows = |request: &ExecuteRequest| match self.batches {
            true => request.inputs.first().and_then(|input| input.shape().first()).copied().unwrap_or(1),
            false => 1,
        };
        u32::try_from(requests.iter().map(rows).sum::<i64>()).unwrap_or(u32::MAX)
    }
}

impl ModelInstance for BatchInstance {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        let started = Instant::now();
        let mut batch = Batch::new(self.next, requests.len());
        self.next += requests.len() as u64;
        self.slot.set_used(true);
        let ended = match self.slot.link() {
            Some(link) => {
                self.run(&link, requests, &mut batch).map_err(|error| self.slot.give_up(&link, &error.to_string()))
            }
            None => Err("it is being started again".to_owned()),
        };
        self.slot.set_used(false);
        self.ended = Some(Instant::now());
        let calls = self.apart.as_ref().map_or(1, |_| requests.len().max(1));
        let took = started.elapsed() / calls as u32;
        let rows = self.rows(requests);
        let timing_of = |request| ExecuteTiming {
            compute_infer: took,
            batch_size: self.apart.as_ref().map_or(rows, |_| self.rows(std::slice::from_ref(request))),
            ..ExecuteTiming::default()
        };
        let lost = || process_lost(&self.slot.recipe().model, ended.as_ref().err().map_or("", String::as_str));
        let results = batch.results.into_iter().map(|result| result.unwrap_or_else(|| Err(lost())));
        let response = |(result, request): (Result<ResponseOutputs, InferError>, _)| {
            let (outputs, parameters) = result?;
            Ok(ExecuteResponse { outputs, timing: timing_of(request), parameters, ..ExecuteResponse::default() })
        };
        results.zip(requests).map(response).collect()
    }

    fn stop(&self) -> Option<Arc<dyn Stop>> {
        Some(Arc::new(self.slot.killer()))
    }

    fn outage(&self) -> Option<watch::Receiver<Outage>> {
        Some(self.slot.outage())
    }
}

// === impl Batch ===

impl Batch {
    fn new(first: u64, requests: usize) -> Batch {
        Batch { results: vec![None; requests], first, executed: false, told: vec![false; requests] }
    }

    /// Whether every request is answered and the child can be asked again.
    fn is_done(&self) -> bool {
        self.executed && self.results.iter().all(Option::is_some)
    }

    /// The requests that are not answered and that somebody waits for.
    fn waiting<'a>(&self, requests: &'a [ExecuteRequest]) -> impl Iterator<Item = &'a ExecuteRequest> {
        let waits =
            |(request, result): &(&ExecuteRequest, &Option<_>)| result.is_none() && request.unwanted().is_none();
        requests.iter().zip(&self.results).filter(waits).map(|(request, _)| request)
    }

    fn take(&mut self, response: ResponseHeader, frame: &Frame) {
        let index = response.id.checked_sub(self.first).map(|index| index as usize);
        // A response sender may still close a request that has its response.
        let place = index.and_then(|index| self.results.get_mut(index)).filter(|result| result.is_none());
        if let Some(place) = place {
            *place = match outputs(response, frame) {
                (None, false) => None,
                // The request was closed without a response.
                (None, true) => Some(Ok(ResponseOutputs::default())),
                (outputs, _) => outputs,
            };
        }
    }

    /// Tells the child about requests that nobody waits for any more.
    fn send_cancelled(&mut self, link: &Link, requests: &[ExecuteRequest]) -> Result<(), LinkError> {
        let mut ids = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            if !self.told[index] && self.results[index].is_none() && request.unwanted().is_some() {
                self.told[index] = true;
                ids.push(self.first + index as u64);
            }
        }
        match ids.is_empty() {
            true => Ok(()),
            false => link.send(&ToChild::Cancel { ids }, &Layout::default()),
        }
    }
}

/// The outputs of a response, and its parameters.
pub type ResponseOutputs = (Vec<Tensor>, Parameters);

/// The outputs or the error of a response, `None` if it has neither, and whether it is the last response of its request.
pub fn outputs(response: ResponseHeader, frame: &Frame) -> (Option<Result<ResponseOutputs, InferError>>, bool) {
    let outputs = match (response.error, response.outputs) {
        (Some(error), _) => Some(Err(error.into())),
        (None, Some(outputs)) => {
            let tensors = outputs.iter().map(|header| frame.tensor(header)).collect::<Result<_, _>>();
            // A bad tensor from the model is not the client's fault.
            let bad = |error| InferError {
                of_model: true,
                ..InferError::internal(format!("the model answered with a bad tensor: {error}"))
            };
            Some(tensors.map(|tensors| (tensors, response.parameters)).map_err(bad))
        }
        (None, None) => None,
    };
    (outputs, response.is_final)
}

/// Sends requests to a child, each with its ticket. With `apart` each request is a call of `execute` of its own.
pub fn send_execute<'a>(
    link: &Link,
    requests: impl Iterator<Item = (&'a ExecuteRequest, u64)>,
    apart: bool,
) -> Result<(), LinkError> {
    let mut layout = Layout::default();
    let headers = requests.map(|(request, id)| RequestHeader {
        id,
        request_id: &request.client_id,
        inputs: request.inputs.iter().map(|input| layout.add(input)).collect(),
        outputs: &request.outputs,
        parameters: &request.parameters,
    });
    let requests = headers.collect();
    link.execute(&ToChild::Execute { requests, apart }, &layout)
}

/// The error of a request whose process was lost. The next process, or another worker, may execute the request.
pub fn process_lost(model: &str, reason: &str) -> InferError {
    InferError::unavailable(format!("model '{model}': its process was lost while it had the request: {reason}"))
}
