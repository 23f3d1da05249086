//! The states of messages and of records of durable work: each row of the table happens, and the next process finds what the row says.

#[path = "states/table.rs"]
mod table;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use trireme_bus::fixtures::{ACK_WAIT, assert_idle, message_at, model, options, take, unique, within};
use trireme_bus::{Acker, Bucket, Bus, BusError, Consumer, Delivery, MessagePosition, WorkMessage, escape_token};
use trireme_inference::{Lane, ModelKey};

use self::table::{Change, Event, Finds, MESSAGES, Place, RECORDS, Read, Record, RecordRow, Row, Who};
use super::queues::{A_WHILE, publish};
use super::setup::Setup;

/// The pause with which a worker returns a message: longer than a look takes, even on a busy machine.
const PAUSE: Duration = Duration::from_secs(4);

/// The shortest time for which a broker keeps a value.
const TIME_TO_LIVE: Duration = Duration::from_secs(1);

/// A message in its state, before its row's event.
struct Case {
    row: Row,
    lane: Lane,
    gateway: Arc<dyn Bus>,
    worker: Arc<dyn Bus>,
    message: WorkMessage,
    position: MessagePosition,
    delivery: Option<Delivery>,
    /// When nobody had taken the message yet.
    begun: Instant,
}

pub async fn each_row_about_a_message_holds(setup: &Setup) {
    let rows = MESSAGES.into_iter().filter(|row| row.event != Event::QueuesEnd);
    let cases = rows.flat_map(|row| Lane::ALL.map(|(lane, _)| (row, lane)));
    join_all(cases.map(async |(row, lane)| {
        let (gateway, worker) = (setup.connect_gateway().await, setup.connect().await);
        let next = setup.connect().await;
        let case = Case::arrange(row, lane, gateway, worker).await;
        let in_process = !next.is_shared();
        let finds = if in_process { row.in_process } else { row.over_nats };
        if finds == Finds::NoEvent {
            return;
        }
        let (model, message, begun) = (case.model().clone(), case.message.clone(), case.begun);
        let (who, held) = case.happen().await;
        assert_eq!(who, row.acknowledges, "{row:?}");
        find(&*next, &model, &message, finds, begun, row).await;
        drop(held);
    }))
    .await;
}

/// The rows about the end of the queues and of the store: `end` ends them, and gives a connection to those that come after.
pub async fn the_rows_about_the_end_hold(before: Arc<dyn Bus>, end: impl AsyncFnOnce() -> Arc<dyn Bus>) {
    let rows = MESSAGES.into_iter().filter(|row| row.event == Event::QueuesEnd);
    let cases = rows.flat_map(|row| Lane::ALL.map(|(lane, _)| (row, lane)));
    let cases = join_all(cases.map(|(row, lane)| Case::arrange(row, lane, before.clone(), before.clone()))).await;
    let mut records = Vec::new();
    for row in RECORDS.into_iter().filter(|row| row.change == Change::StoreEnds) {
        let (key, revision) = written(&*before, row).await;
        records.push((row, key, revision));
    }
    let told: Vec<_> = cases.iter().map(|case| (case.row, case.message.clone(), case.begun)).collect();
    // Deliveries that are held now are let go when the queues are gone.
    let held: Vec<_> = cases.into_iter().map(|case| case.delivery).collect();
    drop(before);
    let after = end().await;
    drop(held);
    for (row, message, begun) in told {
        let model = message.queue().expect("it has a step").clone();
        within("a queue anew", async {
            while after.declare_queue(&model, &options()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        let finds = if after.is_shared() { row.over_nats } else { row.in_process };
        assert_eq!(row.acknowledges, Who::Nobody, "{row:?}");
        find(&*after, &model, &message, finds, begun, row).await;
    }
    for (row, key, revision) in records {
        read(&*after, &key, revision, row).await;
    }
}

pub async fn each_row_about_a_record_holds(setup: &Setup) {
    join_all(RECORDS.into_iter().filter(|row| row.change != Change::StoreEnds).map(async |row| {
        let (owner, other) = (setup.connect_gateway().await, setup.connect_gateway().await);
        let (key, revision) = written(&*owner, row).await;
        let put = async |bus: &dyn Bus, value: &'static str| {
            within("a write", bus.put(Bucket::Jobs, &key, value.into(), Some(revision), None)).await
        };
        let who = match row.change {
            Change::OwnerEnds => {
                owner.close().await;
                Who::Nobody
            }
            Change::AnswerWritten => {
                put(&*owner, name(Record::Ended)).await.expect("it is the owner's");
                Who::Gateway
            }
            Change::WrittenByAnother => {
                put(&*other, "other").await.expect("it has read the revision");
                Who::Gateway
            }
            Change::Deleted => {
                within("a deletion", other.delete(Bucket::Jobs, &key, Some(revision))).await.expect("it has read it");
                Who::Gateway
            }
            Change::TimeEnds => {
                within("its end", async {
                    while other.get(Bucket::Jobs, &key).await.expect("a look").is_some() {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                })
                .await;
                Who::Bus
            }
            Change::StoreEnds => unreachable!("not among these rows"),
        };
        assert_eq!(who, row.writes, "{row:?}");
        read(&*other, &key, revision, row).await;
    }))
    .await;
}

// === impl Case ===

impl Case {
    /// Brings a message into the state of a row.
    async fn arrange(row: Row, lane: Lane, gateway: Arc<dyn Bus>, worker: Arc<dyn Bus>) -> Case {
        let model = model("state");
        within("a queue", gateway.declare_queue(&model, &options())).await.expect("a queue is made");
        let message = WorkMessage { gateway: unique("gateway").into(), ..message_at(&model, lane.level(0), 1) };
        let position = within("a publish", gateway.publish(&message)).await.expect("the queue takes the message");
        let begun = Instant::now();
        let mut case = Case { row, lane, gateway, worker, message, position, delivery: None, begun };
        if row.place != Place::Waiting {
            case.delivery = Some(case.take().await);
        }
        if row.place == Place::Paused {
            case.delivery.take().expect("taken").acker.nak(PAUSE).await.expect("returned");
        }
        case
    }

    fn model(&self) -> &ModelKey {
        self.message.queue().expect("it has a step")
    }

    /// The worker takes the message.
    async fn take(&self) -> Delivery {
        take(&mut open(&*self.worker, self.model(), self.lane).await, "the message").await
    }

    /// The right of the worker to settle the message that it has.
    fn held(&mut self) -> Acker {
        self.delivery.take().expect("the worker has it").acker
    }

    /// Makes the event happen. Returns the process that has settled the message, and the delivery if its worker still has it.
    async fn happen(mut self) -> (Who, Option<Delivery>) {
        let who = match self.row.event {
            Event::Taken => {
                self.delivery = Some(self.take().await);
                Who::Nobody
            }
            Event::PublishedAgain => {
                publish(&*self.gateway, &self.message).await;
                Who::Nobody
            }
            Event::TakenBack => {
                within("a cancellation", self.gateway.cancel(&self.message.request_id)).await.expect("it is sent");
                within("taking it back", self.gateway.take_back(&self.position)).await.expect("it is out of the queue");
                Who::Gateway
            }
            Event::WorkGoesOn => {
                tokio::time::sleep(ACK_WAIT * 2).await;
                Who::Nobody
            }
            Event::Settled => {
                self.held().ack().await.expect("acknowledged");
                Who::Worker
            }
            Event::Returned => {
                self.held().nak(PAUSE).await.expect("returned");
                Who::Nobody
            }
            Event::PauseEnds => Who::Nobody,
            Event::ReturnedTooOften => {
                // So many deliveries more than a worker gives a message up after are in the contract.
                let most = options().max_deliveries() + 10;
                let mut consumer = open(&*self.worker, self.model(), self.lane).await;
                self.held().nak(Duration::ZERO).await.expect("returned");
                for deliveries in 2..=most {
                    let again = take(&mut consumer, "the message once more").await;
                    assert_eq!(again.deliveries, deliveries);
                    again.acker.nak(Duration::ZERO).await.expect("returned");
                }
                Who::Bus
            }
            Event::LetGo => {
                drop(self.held());
                Who::Nobody
            }
            Event::WorkerEnds => {
                self.worker.close().await;
                drop(self.held());
                Who::Nobody
            }
            Event::QueuesEnd => unreachable!("not among these rows"),
        };
        (who, self.delivery)
    }
}

/// Looks as a worker, and as the gateway that asks which of its requests the queue has.
async fn find(bus: &dyn Bus, model: &ModelKey, message: &WorkMessage, finds: Finds, begun: Instant, row: Row) {
    let mut consumer = open(bus, model, message.lane()).await;
    let counts = async || {
        let found = within("a look", bus.unsettled(model, &[message.level()], &message.gateway)).await;
        found.expect("a look").contains(message.request_id.as_str())
    };
    let again = async |consumer: &mut Box<dyn Consumer>, deliveries| {
        let found = take(consumer, "the message").await;
        assert_eq!((&found.message, found.deliveries), (message, deliveries), "{row:?}");
        found.acker.ack().await.expect("acknowledged");
    };
    match finds {
        Finds::Waiting => {
            again(&mut consumer, 1).await;
            assert_idle(&mut consumer, A_WHILE, "the message was there once").await;
        }
        Finds::Held | Finds::Paused => {
            assert_idle(&mut consumer, A_WHILE, "the message is not to be had").await;
            assert!(counts().await, "{row:?}");
        }
        Finds::AgainAtOnce => {
            let found = consumer.next(1).now_or_never();
            let found = found.unwrap_or_else(|| panic!("{row:?}: nothing is there at once")).expect("work").remove(0);
            assert_eq!((&found.message, found.deliveries), (message, 2), "{row:?}");
        }
        Finds::AgainAfterPause => {
            again(&mut consumer, 2).await;
            assert!(begun.elapsed() >= PAUSE, "{row:?}");
        }
        Finds::AgainAfterAckWait => {
            again(&mut consumer, 2).await;
            assert!(begun.elapsed() >= ACK_WAIT, "{row:?}");
        }
        Finds::Nothing => {
            within("an empty queue", async {
                while counts().await {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
            .await;
            assert_idle(&mut consumer, A_WHILE, "the queue does not have the message").await;
        }
        Finds::Stuck => {
            assert_idle(&mut consumer, ACK_WAIT * 2, "the message is delivered no more").await;
            assert!(counts().await, "{row:?}");
        }
        Finds::NoEvent => unreachable!("there is nothing to find"),
    }
}

async fn open(bus: &dyn Bus, model: &ModelKey, lane: Lane) -> Box<dyn Consumer> {
    let opened = async {
        match lane {
            Lane::Live => bus.pull(model).await,
            Lane::Bulk => bus.pull_bulk(model).await,
        }
    };
    within("a hold on the queue", opened).await.expect("the queue can be worked on")
}

fn name(record: Record) -> &'static str {
    match record {
        Record::Open => "open",
        Record::Ended => "ended",
    }
}

/// Writes a record in its state. Returns its key and revision.
async fn written(bus: &dyn Bus, row: RecordRow) -> (String, u64) {
    let key = escape_token(&unique("record"));
    let lapse = (row.change == Change::TimeEnds).then_some(TIME_TO_LIVE);
    let revision = within("a write", bus.put(Bucket::Jobs, &key, name(row.record).into(), Some(0), lapse)).await;
    (key, revision.expect("written"))
}

/// Reads as another gateway does, and writes over the revision that it has read.
async fn read(bus: &dyn Bus, key: &str, revision: u64, row: RecordRow) {
    let found = within("a look", async {
        loop {
            match bus.get(Bucket::Jobs, key).await {
                Ok(found) => return found,
                Err(BusError::Unreachable(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => panic!("{row:?}: {error}"),
            }
        }
    })
    .await;
    let value = found.as_ref().map(|entry| &*entry.value);
    // The values differ, as the owners in records do: a store takes the same value once more for a write that is sent again.
    let write = async |value: &'static str| {
        within("a write", bus.put(Bucket::Jobs, key, value.into(), Some(revision), None)).await
    };
    let refused = |written: Result<u64, BusError>| matches!(written, Err(BusError::Conflict { .. }));
    match row.reads {
        Read::Same => {
            assert_eq!(value, Some(name(row.record).as_bytes()), "{row:?}");
            write("one").await.expect("it is the first to write");
            assert!(refused(write("two").await), "{row:?}: the second one");
        }
        Read::Last => assert_eq!(value, Some(name(Record::Ended).as_bytes()), "{row:?}"),
        Read::Others => {
            assert_eq!(value, Some(&b"other"[..]), "{row:?}");
            assert!(refused(write("two").await), "{row:?}");
        }
        Read::Nothing => {
            assert_eq!(value, None, "{row:?}");
            assert!(refused(write("two").await), "{row:?}");
        }
    }
}

#[test]
fn the_page_is_what_the_table_says() {
    let page = std::fs::read_to_string(table::file()).expect("docs/delivery-states.md is there");
    assert!(page == table::page(), "run: cargo run -p trireme-bus --example delivery_states");
}

#[test]
fn no_state_has_an_event_twice() {
    for (at, row) in MESSAGES.iter().enumerate() {
        assert!(!MESSAGES[..at].iter().any(|other| (other.place, other.event) == (row.place, row.event)), "{row:?}");
    }
    for (at, row) in RECORDS.iter().enumerate() {
        assert!(!RECORDS[..at].iter().any(|other| (other.record, other.change) == (row.record, row.change)), "{row:?}");
    }
}
