//! The states of a message and of a record of durable work, as data: [`page`] prints `docs/delivery-states.md` from it, and the suite
//! makes each row happen on both buses.

use std::fmt::{self, Display, Write};
use std::path::PathBuf;

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In its queue; no worker has it.
    Waiting,
    /// With a worker, which has not settled the delivery.
    Held,
    /// In its queue, where a worker has returned it to with a pause.
    Paused,
}

/// An event in a message's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Taken,
    PublishedAgain,
    TakenBack,
    WorkGoesOn,
    Settled,
    Returned,
    PauseEnds,
    ReturnedTooOften,
    LetGo,
    WorkerEnds,
    QueuesEnd,
}

/// The process that settles a message or writes a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Nobody,
    Worker,
    Gateway,
    Bus,
}

/// The finding of the process that looks next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finds {
    /// The message, as if nothing had happened.
    Waiting,
    /// No message: it counts for the queue, and its worker settles it.
    Held,
    /// No message before the pause ends; it counts for the queue.
    Paused,
    /// The message, with a count of deliveries that is one higher.
    AgainAtOnce,
    AgainAfterPause,
    AgainAfterAckWait,
    /// The queue does not have the message.
    Nothing,
    /// No message ever, but it counts for the queue.
    Stuck,
    /// The bus has no such event.
    NoEvent,
}

/// A row about a message.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub place: Place,
    pub event: Event,
    pub acknowledges: Who,
    pub in_process: Finds,
    pub over_nats: Finds,
    /// The consequence, and its place in the code.
    pub then: &'static str,
}

/// Where a durable request, or a batch, is: its record in the store of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// It has an owner, and something is left to do.
    Open,
    /// It has an answer, or was cancelled, or has expired.
    Ended,
}

/// An event in a record's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    OwnerEnds,
    AnswerWritten,
    WrittenByAnother,
    Deleted,
    TimeEnds,
    StoreEnds,
}

/// The finding of the gateway that reads the record next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// The record as it was; the first gateway that writes over its revision owns it.
    Same,
    /// The record as it was last written.
    Last,
    /// The other's record; a write over the revision before is refused.
    Others,
    Nothing,
}

/// A row about a record, the same on both buses.
#[derive(Clone, Copy, Debug)]
pub struct RecordRow {
    pub record: Record,
    pub change: Change,
    pub writes: Who,
    pub reads: Read,
    pub then: &'static str,
}

const fn row(place: Place, event: Event, who: Who, [in_process, over_nats]: [Finds; 2], then: &'static str) -> Row {
    Row { place, event, acknowledges: who, in_process, over_nats, then }
}

/// Every event that a message has in each state.
#[rustfmt::skip]
pub const MESSAGES: [Row; 15] = {
    use Event::*;
    use Finds as F;
    use Place::*;
    use Who::*;
    [
        row(Waiting, Taken, Nobody, [F::Held, F::Held], "the worker reports progress on the delivery: `Nats::keep_alive` in `crates/bus/src/nats/deliveries.rs`"),
        row(Waiting, PublishedAgain, Nobody, [F::Waiting, F::Waiting], "the queue knows the name: `WorkMessage::message_id` in `crates/bus/src/message.rs`"),
        row(Waiting, TakenBack, Gateway, [F::Nothing, F::Nothing], "the gateway has answered, or has no client: `Canceller` in `services/gateway/src/dispatch/cancel.rs`"),
        row(Waiting, QueuesEnd, Nobody, [F::Nothing, F::Nothing], "the gateway publishes the request again: `Reconciler` in `services/gateway/src/dispatch/reconcile.rs`"),
        row(Held, WorkGoesOn, Nobody, [F::Held, F::Held], "the worker is alone with the message, however long it takes"),
        row(Held, Settled, Worker, [F::Nothing, F::Nothing], "the next queue, or the gateway, has the result: `HostedModel::pass_on` in `crates/runtime/src/settle/results.rs`"),
        row(Held, Returned, Nobody, [F::Paused, F::Paused], "the failure may pass: `disposition` in `crates/runtime/src/settle/disposition.rs`"),
        row(Held, ReturnedTooOften, Bus, [F::Nothing, F::Stuck], "a worker has given the message up before: `HostedModel::count_attempts` in `crates/runtime/src/intake/attempts.rs`"),
        row(Held, LetGo, Nobody, [F::AgainAtOnce, F::AgainAfterAckWait], "the next worker notes the attempt before it begins: `Acker` in `crates/bus/src/delivery.rs`"),
        row(Held, WorkerEnds, Nobody, [F::NoEvent, F::AgainAfterAckWait], "the broker gets no reports of progress any more; the next worker notes the attempt before it begins"),
        row(Held, TakenBack, Gateway, [F::Held, F::Nothing], "the worker drops the work, and its acknowledgement has no effect: `HostedModel::drop_cancelled` in `crates/runtime/src/intake/admit.rs`"),
        row(Held, QueuesEnd, Nobody, [F::Nothing, F::Nothing], "a late acknowledgement settles nothing in the new queue; the gateway publishes the request again unless the reply comes"),
        row(Paused, PauseEnds, Nobody, [F::AgainAfterPause, F::AgainAfterPause], "the next worker notes the attempt before it begins"),
        row(Paused, TakenBack, Gateway, [F::Nothing, F::Nothing], "as for a message that waits"),
        row(Paused, QueuesEnd, Nobody, [F::Nothing, F::Nothing], "as for a message that waits"),
    ]
};

const fn record(record: Record, change: Change, writes: Who, reads: Read, then: &'static str) -> RecordRow {
    RecordRow { record, change, writes, reads, then }
}

/// Every event that a record has in each state.
#[rustfmt::skip]
pub const RECORDS: [RecordRow; 7] = {
    use Change::*;
    use Record::*;
    use Who::*;
    [
        record(Open, OwnerEnds, Nobody, Read::Same, "a gateway that lives takes it over and runs it again: `crates/jobs/src/driver.rs`"),
        record(Open, AnswerWritten, Gateway, Read::Last, "the answer waits for its client: `crates/jobs/src/requests.rs`"),
        record(Open, WrittenByAnother, Gateway, Read::Others, "a gateway that has lost the record writes nothing more: a client has cancelled, or another gateway has taken over"),
        record(Open, Deleted, Gateway, Read::Nothing, "the owner's next write is refused"),
        record(Open, StoreEnds, Nobody, Read::Same, "its owner, or another gateway, runs it again"),
        record(Ended, TimeEnds, Bus, Read::Nothing, "the client gets 404"),
        record(Ended, StoreEnds, Nobody, Read::Last, "the answer waits for its client"),
    ]
};

/// The file of the page.
pub fn file() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/delivery-states.md"))
}

/// The page.
pub fn page() -> String {
    let mut page = BEGINNING.to_owned();
    for Row { place, event, acknowledges, in_process, over_nats, then } in MESSAGES {
        let _ = writeln!(page, "| {place} | {event} | {acknowledges} | {in_process} | {over_nats} | {then} |");
    }
    page.push_str(BETWEEN);
    for RecordRow { record, change, writes, reads, then } in RECORDS {
        let _ = writeln!(page, "| {record} | {change} | {writes} | {reads} | {then} |");
    }
    page.push_str(END);
    page
}

const BEGINNING: &str = "<!-- Made by `cargo run -p trireme-bus --example delivery_states`; a test compares it with the table. -->

# Delivery, state by state

This page says for each state of a message what may happen to it, who acknowledges it then, and what the next process finds. Each row is
made to happen on both buses by the conformance suite (`crates/bus/tests/conformance/states.rs`), in the live lane and in the bulk lane. The
table itself is data: `crates/bus/tests/conformance/states/table.rs`. [delivery.md](delivery.md) has the rules that follow from it.

## A message in a queue

The columns \"next\" say what a worker finds that asks this queue next. A message that is found again has a count of deliveries that is one
higher. In one process a worker does not end by itself: the process ends, and its queues with it. The queues of a broker are in its memory.

| message | event | acknowledges | next, in process | next, over NATS | then |
|---|---|---|---|---|---|
";

const BETWEEN: &str = "
So a worker acknowledges its own deliveries and nobody else does, and a gateway takes back its own requests. A message that no process
finds any more, and whose request has no answer, is published again by its gateway.

## A record of durable work

A durable request, or a batch, is a record in the store of jobs. Its owner is a gateway, which sends the requests as messages of the
table above, in the bulk lane. Nobody acknowledges a record: a gateway writes it over the revision that it has read, and the
store confirms the write. Rows hold over NATS, and in one process with `--data-dir`; without it the store ends with the process.

| record | event | writes | the next gateway reads | then |
|---|---|---|---|---|
";

const END: &str = "
A webhook that is left to call keeps its record open for this table: another gateway calls it when the owner ends.
";

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Place::Waiting => "waits",
            Place::Held => "is with a worker",
            Place::Paused => "was given back with a pause",
        })
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Event::Taken => "a worker takes it",
            Event::PublishedAgain => "the same step is published again",
            Event::TakenBack => "the client leaves, or the deadline passes, and the gateway takes it back",
            Event::WorkGoesOn => "the work lasts longer than `ack_wait`",
            Event::Settled => "the result was published or answered, or the work is of no use any more",
            Event::Returned => "the worker gives it back with a pause",
            Event::PauseEnds => "the pause ends",
            Event::ReturnedTooOften => "workers give it back more often than the queue delivers it",
            Event::LetGo => "the worker drops the delivery unsettled",
            Event::WorkerEnds => "the worker's process, or its connection, ends",
            Event::QueuesEnd => "the queues end: with the process, or with the broker",
        })
    }
}

impl Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Who::Nobody => "nobody",
            Who::Worker => "the worker",
            Who::Gateway => "the gateway",
            Who::Bus => "the bus",
        })
    }
}

impl Display for Finds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Finds::Waiting => "the message, once",
            Finds::Held => "nothing while the worker has it",
            Finds::Paused => "nothing before the pause ends",
            Finds::AgainAtOnce => "the message again, at once",
            Finds::AgainAfterPause => "the message again, not before the pause has ended",
            Finds::AgainAfterAckWait => "the message again, after `ack_wait`",
            Finds::Nothing => "nothing",
            Finds::Stuck => "nothing; it takes its place until the broker drops it after its deadline",
            Finds::NoEvent => "(the queues end)",
        })
    }
}

impl Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Record::Open => "open",
            Record::Ended => "ended",
        })
    }
}

impl Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Change::OwnerEnds => "its gateway ends",
            Change::AnswerWritten => "its gateway writes the answer",
            Change::WrittenByAnother => "another gateway writes it",
            Change::Deleted => "a gateway deletes it",
            Change::TimeEnds => "its time to live ends",
            Change::StoreEnds => "the process, or the broker, ends",
        })
    }
}

impl Display for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Read::Same => "the same record; the first gateway that writes over its revision has it",
            Read::Last => "the record with its answer",
            Read::Others => "the other's record; a write over the revision before is refused",
            Read::Nothing => "nothing; a write over the revision before is refused",
        })
    }
}
