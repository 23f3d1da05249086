//! Requests that travel as several messages, and how their answers are joined.
//!
//! A request is divided for two reasons: its rows travel in parts, or its ensemble has branches that run at the same
//! time. A part's route may fork as well, so each message is sent as a request of its own ([`piece`]).
//! The common part is here: an error of one message is the request's error and cancels the other messages, which are
//! dropped with the join.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use trireme_bus::{AnswerForm, Output, Reply, WorkMessage};
use trireme_inference::{
    Branch, Branches, Hop, InferError, Ledger, Parameters, Tensor, TextFacts, UnixMicros, format_name,
};

use super::exchange::{Exchange, no_answer};
use super::flight::{Outbox, is_declined};
use crate::rows::{self, RowOrder};

/// Most messages of one request in flight at a time.
const AT_ONCE: usize = 64;

/// The messages of a request.
trait Pieces: Send + 'static {
    /// Whether all messages go to one queue. Then only the first one is refused when the queue is full, and the others
    /// wait for room. Otherwise a request with more messages than fit into a queue could never be answered.
    const SHARE_A_QUEUE: bool;

    /// A message that can be sent now, with its number; each message is returned once. `None` if none is left, or if
    /// all that are left wait for answers.
    fn next(&mut self) -> Option<(usize, WorkMessage)>;

    /// The message with this number was answered.
    fn answered(&mut self, number: usize, output: Output, ledger: Ledger);

    /// The request's answer, after all messages were answered.
    fn finish(self) -> Result<Reply, InferError>;
}

/// Rows in parts, named `request.part`.
struct SplitRequest {
    /// The request without its tensors.
    whole: WorkMessage,
    parts: std::iter::Enumerate<std::vec::IntoIter<Vec<Tensor>>>,
    order: RowOrder,
    outputs: Vec<Vec<Tensor>>,
    parameters: Parameters,
    /// The ledger of the part that was answered last, with the facts about the texts of all parts.
    ledger: Ledger,
    /// By part and hop, the facts about each text, where they are known.
    each_text: Vec<Vec<Option<Vec<TextFacts>>>>,
}

/// Branches of a route, named `request.b<branch>`.
struct Fork {
    /// The request without its tensors.
    whole: WorkMessage,
    branches: Branches,
    parameters: Parameters,
    /// The ledger of each branch.
    ledgers: BTreeMap<usize, Ledger>,
}

/// The exchange of an admitted request. If its route forks, it is sent in branches.
pub fn exchange(outbox: &Outbox, message: WorkMessage) -> Exchange {
    match Fork::of(&message) {
        Some(fork) => divided(outbox, message, fork, Fork::of),
        None => Exchange::Whole(Box::new(outbox.flight(message, true, None))),
    }
}

/// The exchange of an admitted request whose rows travel in parts.
pub fn split(outbox: &Outbox, message: WorkMessage, parts: rows::SplitRows) -> Exchange {
    let message = without_tensors(message);
    let first = SplitRequest::new(&message, parts.clone());
    divided(outbox, message, first, move |message| Some(SplitRequest::new(message, parts.clone())))
}

/// The exchange of a request that travels as several messages. Where a worker declines a message, because it serves another content than
/// the request was admitted for, all messages are sent anew for the contents that are served by then: no answer is joined from two contents.
fn divided<P: Pieces>(
    outbox: &Outbox,
    mut message: WorkMessage,
    first: P,
    anew: impl Fn(&WorkMessage) -> Option<P> + Send + 'static,
) -> Exchange {
    let (outbox, original) = (outbox.clone(), message.request_id.clone());
    Exchange::Single(Some(Box::pin(async move {
        let (mut pieces, mut declined) = (first, 0);
        loop {
            let reply = join(outbox.clone(), pieces, None).await?;
            if !is_declined(&reply) || !outbox.admit_anew(&mut message, declined).await {
                return Ok(reply);
            }
            declined += 1;
            // Replies to the messages before are none to these.
            message.request_id = format_name!("{original}r{declined}");
            match anew(&message) {
                Some(next) => pieces = next,
                None => return Ok(reply),
            }
        }
    })))
}

/// The exchange of a message of a request. See [`Flight`](super::flight::Flight) for `siblings`.
fn piece(outbox: &Outbox, message: WorkMessage, siblings: Option<Arc<Notify>>) -> Exchange {
    match Fork::of(&message) {
        Some(fork) => Exchange::Single(Some(Box::pin(join(outbox.clone(), fork, siblings)))),
        None => Exchange::Whole(Box::new(outbox.flight(message, false, siblings))),
    }
}

/// Sends a request's messages, waits for all answers, and joins them. If the request is itself a message of another
/// request, `siblings` is that request's.
async fn join<P: Pieces>(outbox: Outbox, mut pieces: P, siblings: Option<Arc<Notify>>) -> Result<Reply, InferError> {
    let mut under_way = FuturesUnordered::new();
    let answered = Arc::new(Notify::new());
    let mut wait = siblings;
    loop {
        while under_way.len() < AT_ONCE
            && let Some((number, message)) = pieces.next()
        {
            let mut sent = piece(&outbox, message, wait.clone());
            if P::SHARE_A_QUEUE {
                wait.get_or_insert_with(|| answered.clone());
            }
            under_way.push(async move { (number, sent.next().await) });
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

/// The request as a template for messages, which have tensors of their own.
fn without_tensors(message: WorkMessage) -> WorkMessage {
    WorkMessage { tensors: Vec::new(), ..message }
}

/// The request's answer.
fn reply(whole: &WorkMessage, tensors: Vec<Tensor>, parameters: Parameters, ledger: Ledger) -> Reply {
    Reply { ledger, ..whole.reply(Ok(Output { tensors, parameters })) }
}

// === impl SplitRequest ===

impl SplitRequest {
    /// Divides a request, without its tensors, into these parts.
    fn new(message: &WorkMessage, parts: rows::SplitRows) -> SplitRequest {
        let whole = message.clone();
        let rows::SplitRows { tensors, order } = parts;
        let (outputs, each_text) = (vec![Vec::new(); tensors.len()], vec![Vec::new(); tensors.len()]);
        let (parameters, ledger) = (Parameters::default(), Ledger::default());
        SplitRequest { whole, parts: tensors.into_iter().enumerate(), order, outputs, parameters, ledger, each_text }
    }
}

impl Pieces for SplitRequest {
    const SHARE_A_QUEUE: bool = true;

    fn next(&mut self) -> Option<(usize, WorkMessage)> {
        let (number, tensors) = self.parts.next()?;
        let request_id = format!("{}.{number}", self.whole.request_id);
        Some((
            number,
            WorkMessage { request_id: request_id.into(), tensors, sent_at: UnixMicros::now(), ..self.whole.clone() },
        ))
    }

    fn answered(&mut self, number: usize, output: Output, ledger: Ledger) {
        let rows = output.tensors.first().and_then(|tensor| usize::try_from(*tensor.shape().first()?).ok());
        let known = |hop: &Hop| hop.facts_of_each(rows?).map(Cow::into_owned);
        self.each_text[number] = ledger.0.iter().map(known).collect();
        self.outputs[number] = output.tensors;
        self.parameters.extend(output.parameters);
        let before = std::mem::replace(&mut self.ledger, ledger);
        self.ledger.add_texts_of(&before);
    }

    fn finish(mut self) -> Result<Reply, InferError> {
        for (at, hop) in self.ledger.0.iter_mut().enumerate() {
            let parts = self.each_text.iter().map(|hops| hops.get(at).and_then(Option::as_deref));
            let each = parts.collect::<Option<Vec<_>>>().map(|parts| parts.concat());
            hop.each_text = each.and_then(|each| self.order.restore_values(each)).unwrap_or_default();
        }
        let tensors = rows::join(self.outputs, &self.order)?;
        Ok(reply(&self.whole, tensors, self.parameters, self.ledger))
    }
}

// === impl Fork ===

impl Fork {
    /// Divides a request into the branches of its route, if that forks. Not a request for an answer in parts: it stays one message, so
    /// that its parts keep their order.
    fn of(message: &WorkMessage) -> Option<Fork> {
        let branches = match message.answer {
            AnswerForm::Whole => message.route.branches(&message.tensors)?,
            AnswerForm::InParts | AnswerForm::Part(_) => return None,
        };
        let whole = WorkMessage { tensors: Vec::new(), ..message.clone() };
        Some(Fork { whole, branches, parameters: Parameters::default(), ledgers: BTreeMap::new() })
    }
}

impl Pieces for Fork {
    const SHARE_A_QUEUE: bool = false;

    fn next(&mut self) -> Option<(usize, WorkMessage)> {
        let Branch { number, route, tensors } = self.branches.begin()?;
        let request_id = format!("{}.b{number}", self.whole.request_id);
        Some((
            number,
            WorkMessage {
                request_id: request_id.into(),
                route,
                tensors,
                sent_at: UnixMicros::now(),
                ..self.whole.clone()
            },
        ))
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
