//! Instances of decoupled models: requests join while others are answered, and each has any number of responses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use trireme_inference::{InferError, request_timeout};
use trireme_runtime::{
    Calls, ExecuteRequest, ExecuteResponse, Outage, Progress, StepwiseInstance, Ticket, one_response,
};

use crate::batch::{ResponseOutputs, outputs, process_lost, send_execute};
use crate::frame::{Frame, Layout, LinkError};
use crate::message::{FromChild, ResponseHeader, Responses, ToChild};
use crate::nested::{NestedRequests, refuse, unreadable};
use crate::slot::Slot;

/// Most requests that an instance works on at a time.
const MAX_REQUESTS: usize = 64;

/// Longest duration of a step. Between steps requests join, and the harness notices cancellations.
const LONGEST_STEP: Duration = Duration::from_millis(2);

/// An instance of a decoupled model.
pub struct DecoupledInstance {
    slot: Slot,
    execution_limit: Option<Duration>,
    requests: BTreeMap<Ticket, InHand>,
    /// Requests that the child has not been given yet.
    joined: Vec<(Ticket, ExecuteRequest)>,
    /// When the current call of `execute` began, and how long it may take; `None` if `execute` has returned.
    executing: Option<(Instant, Option<Duration>)>,
    /// The socket to the process that has the requests, and what the model has asked other models over it.
    process: Option<NestedRequests>,
}

/// A request that is not answered yet.
struct InHand {
    calls: Calls,
    in_parts: bool,
    /// The first response of a request that takes one response. It is kept until the request is closed, because a second
    /// response would be an error.
    only: Option<ResponseOutputs>,
}

// === impl DecoupledInstance ===

impl DecoupledInstance {
    /// An instance whose child is in this slot. One call of its `execute` may take so long.
    pub fn new(slot: Slot, execution_limit: Option<Duration>) -> DecoupledInstance {
        let (requests, joined) = (BTreeMap::new(), Vec::new());
        DecoupledInstance { slot, execution_limit, requests, joined, executing: None, process: None }
    }

    /// Sends new requests to the child and reads its responses.
    fn exchange(&mut self, progress: &mut Vec<(Ticket, Progress)>) -> Result<(), LinkError> {
        let link = match (&self.process, self.requests.len() == self.joined.len()) {
            // No request is with an earlier process: new requests go to the current one.
            (_, true) => self.slot.link().ok_or(LinkError::Closed)?,
            (Some(process), false) => process.link().clone(),
            (None, false) => return Err(LinkError::Closed),
        };
        if !self.process.as_ref().is_some_and(|process| Arc::ptr_eq(process.link(), &link)) {
            self.executing = None;
            self.process = Some(NestedRequests::new(link.clone()));
        }
        if self.executing.is_none() && !self.joined.is_empty() {
            send_execute(&link, self.joined.iter().map(|(ticket, request)| (request, *ticket)), false)?;
            let asked = self.joined.iter().filter_map(|(_, request)| request_timeout(&request.parameters)).max();
            let limit = self.execution_limit.map(|limit| limit.max(asked.unwrap_or_default()));
            self.joined.clear();
            self.executing = Some((Instant::now(), limit));
        }
        let until = Instant::now() + LONGEST_STEP;
        let mut wait = LONGEST_STEP;
        while let Some(frame) = link.receive(wait)? {
            match self.slot.recipe().read(&frame, self.slot.instance())? {
                Some(FromChild::Responses(Responses { responses, executed, released, .. })) => {
                    if executed {
                        link.executed(released);
                        self.executing = None;
                    }
                    progress.extend(responses.into_iter().filter_map(|response| self.take(response, &frame)));
                }
                Some(FromChild::Infer(header)) => {
                    if let Some(process) = &self.process {
                        process.send(*header, &frame, self.requests.values().map(|request| &request.calls))?;
                    }
                }
                Some(FromChild::HangUp { ids }) => {
                    if let Some(process) = &self.process {
                        process.hang_up(&ids);
                    }
                }
                Some(FromChild::Unreadable { id, reason }) => refuse(&link, id, unreadable(&reason))?,
                // A late answer, for which nobody waited any more.
                Some(FromChild::Ready { .. }) | None => {}
                Some(other) => return Err(LinkError::Garbage(format!("{other:?} while it executed"))),
            }
            // Once there is progress, only frames that have already arrived are read.
            wait = match progress.is_empty() {
                true => until.saturating_duration_since(Instant::now()),
                false => Duration::ZERO,
            };
        }
        match self.executing {
            Some((since, Some(limit))) if since.elapsed() > limit => Err(LinkError::Overdue(limit.as_secs_f32())),
            _ => Ok(()),
        }
    }

    /// Lets the slot read what the child's threads send while it has no request.
    fn rest(&self) {
        if self.requests.is_empty() && self.executing.is_none() {
            self.slot.set_used(false);
        }
    }

    /// The progress that a response means for its request.
    fn take(&mut self, response: ResponseHeader, frame: &Frame) -> Option<(Ticket, Progress)> {
        let ticket = response.id;
        let request = self.requests.get_mut(&ticket)?;
        let done = |(outputs, parameters)| {
            Progress::Done(Ok(ExecuteResponse { outputs, parameters, ..ExecuteResponse::default() }))
        };
        let progress = match (outputs(response, frame), request.in_parts) {
            ((Some(Err(error)), _), _) => Progress::Done(Err(error)),
            ((Some(Ok(outputs)), true), true) => done(outputs),
            ((Some(Ok((outputs, parameters))), false), true) => Progress::Part(outputs, parameters),
            ((None, true), true) => done(ResponseOutputs::default()),
            ((Some(Ok(outputs)), is_final), false) => match request.only.replace(outputs) {
                Some(_) => Progress::Done(Err(one_response())),
                None if is_final => done(request.only.take()?),
                None => return None,
            },
            ((None, true), false) => match request.only.take() {
                Some(outputs) => done(outputs),
                None => Progress::Done(Err(one_response())),
            },
            ((None, false), _) => return None,
        };
        if matches!(progress, Progress::Done(_)) {
            self.requests.remove(&ticket);
        }
        Some((ticket, progress))
    }
}

impl StepwiseInstance for DecoupledInstance {
    fn room(&self) -> usize {
        match self.executing {
            // A new request would only wait in the child.
            Some(_) => 0,
            None if self.slot.link().is_none() => 0,
            None => MAX_REQUESTS.saturating_sub(self.requests.len()),
        }
    }

    fn join(&mut self, ticket: Ticket, request: ExecuteRequest) -> Result<(), InferError> {
        self.slot.set_used(true);
        self.requests.insert(ticket, InHand { calls: request.calls.clone(), in_parts: request.in_parts, only: None });
        self.joined.push((ticket, request));
        Ok(())
    }

    fn leave(&mut self, ticket: Ticket) {
        self.requests.remove(&ticket);
        let waiting = self.joined.len();
        self.joined.retain(|(joined, _)| *joined != ticket);
        if self.joined.len() == waiting
            && let Some(process) = &self.process
        {
            // If sending fails, the next step notices that the child is gone.
            let _ = process.link().send(&ToChild::Cancel { ids: vec![ticket] }, &Layout::default());
            if self.requests.is_empty() {
                process.cancel_all();
            }
        }
        self.rest();
    }

    fn step(&mut self) -> Vec<(Ticket, Progress)> {
        let mut progress = Vec::new();
        if let Err(error) = self.exchange(&mut progress) {
            let mut reason = error.to_string();
            if let Some(process) = self.process.take() {
                reason = self.slot.give_up(process.link(), &reason);
            }
            (self.executing, self.joined) = (None, Vec::new());
            let lost = std::mem::take(&mut self.requests).into_keys();
            let model = &self.slot.recipe().model;
            progress.extend(lost.map(|ticket| (ticket, Progress::Done(Err(process_lost(model, &reason))))));
        }
        self.rest();
        progress
    }

    fn outage(&self) -> Option<watch::Receiver<Outage>> {
        Some(self.slot.outage())
    }
}
