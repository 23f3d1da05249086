//! Requests of a model to other models: the child sends a frame, a gateway runs the request, and the responses go back.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::DropGuard;
use trireme_engine::{Calls, Nested, NestedResponse};
use trireme_inference::{InferError, Parameters};

use crate::frame::{Frame, Layout, Link, LinkError};
use crate::message::{AnswerHeader, InferHeader, ToChild};

/// The requests that a child waits for. When they are dropped, all of them are cancelled.
pub struct NestedRequests {
    link: Arc<Link>,
    running: Arc<Mutex<Running>>,
}

/// The child's requests whose last response has not come yet, by the id that the child gave them.
type Running = HashMap<u64, DropGuard>;

// === impl NestedRequests ===

impl NestedRequests {
    /// The requests of the child at the other end of `link`, none so far.
    pub fn new(link: Arc<Link>) -> NestedRequests {
        NestedRequests { link, running: Arc::default() }
    }

    /// The link to the child.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Sends a request of the child on behalf of the requests whose ways these are. If that is refused, the child gets the
    /// error as the response.
    pub fn send<'a>(
        &self,
        header: InferHeader,
        frame: &Frame,
        of: impl Iterator<Item = &'a Calls>,
    ) -> Result<(), LinkError> {
        let id = header.id;
        // The task of the request must not keep it alive.
        let (link, running) = (self.link.clone(), Arc::downgrade(&self.running));
        let answered = move |reply: NestedResponse| {
            if let Some(running) = running.upgrade().filter(|_| reply.last) {
                running.lock().remove(&id);
            }
            // If sending fails, the thread of the instance notices that the child is gone.
            let _ = answer(&link, id, reply.last, &reply.outcome);
        };
        // Locked until the guard is there, which the last reply removes.
        let mut running = self.running.lock();
        let sent = nested(header, frame).and_then(|nested| Calls::send(of, nested, answered));
        match sent {
            Ok(guard) => {
                running.insert(id, guard);
                Ok(())
            }
            Err(error) => refuse(&self.link, id, error),
        }
    }

    /// Cancels requests whose answers the child does not wait for any more.
    pub fn hang_up(&self, ids: &[u64]) {
        let mut running = self.running.lock();
        for id in ids {
            running.remove(id);
        }
    }

    /// Cancels all requests, because nobody waits for the requests on whose behalf they were sent. The child gets an error for
    /// each of them.
    pub fn cancel_all(&self) {
        let running = std::mem::take(&mut *self.running.lock());
        for (id, _guard) in running {
            let error = InferError::cancelled("nobody waits any more for the request that the model executes");
            // If sending fails, the thread of the instance notices that the child is gone.
            let _ = refuse(&self.link, id, error);
        }
    }
}

/// Answers a request of the child with an error.
pub fn refuse(link: &Link, id: u64, error: InferError) -> Result<(), LinkError> {
    answer(link, id, true, &Err(error))
}

/// The error of a request of the child with a value that cannot be read.
pub fn unreadable(reason: &str) -> InferError {
    InferError::invalid_arg(format!("the request to another model cannot be read: {reason}"))
}

/// The request in a frame.
fn nested(header: InferHeader, frame: &Frame) -> Result<Nested, InferError> {
    let inputs = header.inputs.iter().map(|input| frame.tensor(input)).collect::<Result<_, _>>();
    Ok(Nested {
        action: header.action,
        inputs: inputs.map_err(|error| InferError::invalid_arg(error.to_string()))?,
        model: header.model,
        version: header.version.filter(|&version| version > 0),
        id: header.request_id,
        outputs: header.outputs,
        parameters: header.parameters,
        in_parts: header.in_parts,
    })
}

/// Sends a response to the child.
fn answer(
    link: &Link,
    id: u64,
    is_final: bool,
    outcome: &Result<(Vec<trireme_inference::Tensor>, Parameters), InferError>,
) -> Result<(), LinkError> {
    let none = Parameters::default();
    let mut layout = Layout::default();
    let header = match outcome {
        Ok((tensors, parameters)) => {
            let outputs = tensors.iter().map(|tensor| layout.add(tensor)).collect();
            AnswerHeader { id, is_final, outputs, parameters, error: None }
        }
        Err(error) => {
            AnswerHeader { id, is_final, outputs: Vec::new(), parameters: &none, error: Some(error.clone().into()) }
        }
    };
    link.send(&ToChild::Answer(header), &layout)
}
