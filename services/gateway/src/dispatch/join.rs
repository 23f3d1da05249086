//! A request that travels as several messages, and their answers as its one answer.
//!
//! There are two ways to come to several: rows in parts, and branches of an ensemble that run at the same time. A part's
//! route may fork as well, so each message is sent as a request of its own ([`Dispatcher::exchange`]). What they share is
//! here: an error of one is the request's and cancels the others, which are dropped with the join.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use trireme_bus::{Output, Reply, WorkMessage};
use trireme_inference::{Branch, Branches, InferError, Ledger, Parameters, Tensor, UnixMicros};

use super::{Dispatcher, no_answer};
use crate::rows::{self, RowOrder};

/// Messages of one request on their way at a time.
const AT_ONCE: usize = 64;

/// What a request travels as.
pub(super) trait Pieces: Send + 'static {
    /// Whether all messages go to one queue, so that only the first one says whether it is full; the others wait until it
    /// has room for them. A request of more messages than a queue takes could never be answered otherwise.
    const SHARE_A_QUEUE: bool;

    /// A message that can be sent now, with its number; each is given once. `None` while all that are left wait for
    /// answers, and when none is left.
    fn next(&mut self) -> Option<(usize, WorkMessage)>;

    /// The message of this number was answered.
    fn answered(&mut self, number: usize, output: Output, ledger: Ledger);

    /// The request's answer, when all messages were answered.
    fn finish(self) -> Result<Reply, InferError>;
}

/// Rows in parts, named `request.part`.
pub(super) struct Parts {
    /// The request, without tensors.
    whole: WorkMessage,
    parts: std::iter::Enumerate<std::vec::IntoIter<Vec<Tensor>>>,
    order: RowOrder,
    outputs: Vec<Vec<Tensor>>,
    parameters: Parameters,
    /// That of the part answered last, which the request waited for.
    ledger: Ledger,
}

/// Branches of a route, named `request.b<branch>`.
pub(super) struct Fork {
    /// The request, without tensors.
    whole: WorkMessage,
    branches: Branches,
    parameters: Parameters,
    /// By branch.
    ledgers: BTreeMap<usize, Ledger>,
}

/// Sends a request's messages, waits for all answers, and joins them. Where the request is itself a message of another, it
/// has `siblings`.
pub(super) async fn join<P: Pieces>(
    dispatcher: Dispatcher,
    mut pieces: P,
    siblings: Option<Arc<Notify>>,
) -> Result<Reply, InferError> {
    let mut under_way = FuturesUnordered::new();
    let answered = Arc::new(Notify::new());
    let mut wait = siblings;
    loop {
        while under_way.len() < AT_ONCE
            && let Some((number, message)) = pieces.next()
        {
            let mut exchange = dispatcher.exchange(message, wait.clone());
            if P::SHARE_A_QUEUE {
                wait.get_or_insert_with(|| answered.clone());
            }
            under_way.push(async move { (number, exchange.next().await) });
        }
        let Some((number, reply)) = under_way.next().await else { return pieces.finish() };
        let reply = reply.unwrap_or_else(|| Err(no_answer()))?;
        match reply.outcome {
            Ok(output) => {
                pieces.answered(number, output, reply.ledger);
                answered.notify_one();
            }
            Err(_) => return Ok(reply),
        }
    }
}

/// A request to make messages of; they bring tensors of their own.
fn without_tensors(message: WorkMessage) -> WorkMessage {
    WorkMessage { tensors: Vec::new(), ..message }
}

/// The request's answer.
fn reply(whole: &WorkMessage, tensors: Vec<Tensor>, parameters: Parameters, ledger: Ledger) -> Reply {
    Reply { ledger, ..whole.reply(Ok(Output { tensors, parameters })) }
}

// === impl Parts ===

impl Parts {
    /// `message` in these parts.
    pub fn new(message: WorkMessage, parts: rows::Parts) -> Parts {
        let whole = without_tensors(message);
        let rows::Parts { tensors, order } = parts;
        let outputs = vec![Vec::new(); tensors.len()];
        let (parameters, ledger) = (Parameters::default(), Ledger::default());
        Parts { whole, parts: tensors.into_iter().enumerate(), order, outputs, parameters, ledger }
    }
}

impl Pieces for Parts {
    const SHARE_A_QUEUE: bool = true;

    fn next(&mut self) -> Option<(usize, WorkMessage)> {
        let (number, tensors) = self.parts.next()?;
        let request_id = format!("{}.{number}", self.whole.request_id);
        Some((number, WorkMessage { request_id, tensors, sent_at: UnixMicros::now(), ..self.whole.clone() }))
    }

    fn answered(&mut self, number: usize, output: Output, ledger: Ledger) {
        self.outputs[number] = output.tensors;
        self.parameters.extend(output.parameters);
        self.ledger = ledger;
    }

    fn finish(self) -> Result<Reply, InferError> {
        let tensors = rows::join(self.outputs, &self.order)?;
        Ok(reply(&self.whole, tensors, self.parameters, self.ledger))
    }
}

// === impl Fork ===

impl Fork {
    /// `message` in the branches of its route.
    pub fn new(message: WorkMessage, branches: Branches) -> Fork {
        let whole = without_tensors(message);
        Fork { whole, branches, parameters: Parameters::default(), ledgers: BTreeMap::new() }
    }
}

impl Pieces for Fork {
    const SHARE_A_QUEUE: bool = false;

    fn next(&mut self) -> Option<(usize, WorkMessage)> {
        let Branch { number, route, tensors } = self.branches.begin()?;
        let request_id = format!("{}.b{number}", self.whole.request_id);
        Some((number, WorkMessage { request_id, route, tensors, sent_at: UnixMicros::now(), ..self.whole.clone() }))
    }

    fn answered(&mut self, number: usize, output: Output, ledger: Ledger) {
        self.branches.end(number, output.tensors);
        self.parameters.extend(output.parameters);
        self.ledgers.insert(number, ledger);
    }

    fn finish(self) -> Result<Reply, InferError> {
        let hops = self.ledgers.into_values().flat_map(|ledger| ledger.0).collect();
        Ok(reply(&self.whole, self.branches.outputs(), self.parameters, Ledger(hops)))
    }
}
