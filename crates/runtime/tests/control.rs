//! Model control on the in-process bus: what a participant is told, and in which order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::Mutex;
use trireme_bus::InProcess;
use trireme_inference::UnixMicros;
use trireme_runtime::TaskSet;
use trireme_runtime::control::{self, Change, Control, Order, Outcome, Override, Participant, Role};

/// Writes down what it is told, and takes its time.
#[derive(Default)]
struct Scribe(Mutex<Vec<String>>);

#[async_trait]
impl Participant for Scribe {
    async fn load(&self, model: &str, _: &Override) -> Outcome {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.0.lock().push(model.to_owned());
        Outcome::Done(Vec::new())
    }

    async fn unload(&self, _: &str) -> Outcome {
        Outcome::NotMine
    }

    async fn settled(&self, model: &str, _: Option<&Override>) {
        self.0.lock().push(format!("settled {model}"));
    }
}

async fn joined(bus: &Arc<InProcess>, name: &str, role: Role) -> Control {
    Control::join(bus.clone(), name.to_owned(), role).await.expect("in process nothing refuses")
}

/// What a worker says that it remembers is nothing to other workers: else one that was broken into would have all others
/// load what it likes.
#[tokio::test(flavor = "multi_thread")]
async fn workers_believe_gateways_and_a_first_gateway_believes_workers() {
    let (bus, tasks) = (Arc::new(InProcess::default()), TaskSet::new());
    let old = joined(&bus, "old worker", Role::Worker).await;
    let change = Change { at: UnixMicros::now(), wanted: Some(Override::default()), implied: false };
    old.memory().keep("loaded", &change);
    old.serve(Arc::<Scribe>::default(), &tasks);
    let new = joined(&bus, "new worker", Role::Worker).await;
    assert!(new.memory().changes().is_empty(), "there is no gateway to ask");
    let (scribe, heard) = (Arc::new(Scribe::default()), new.memory().clone());
    new.serve(scribe.clone(), &tasks);

    let gateway = joined(&bus, "gateway", Role::Gateway).await;
    assert!(gateway.memory().changes().contains_key("loaded"));
    let told = async {
        while *scribe.0.lock() != ["settled loaded"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.expect("the gateway tells what it has heard");
    assert!(heard.changes().contains_key("loaded"));
    gateway.serve(Arc::<Scribe>::default(), &tasks);
    assert!(joined(&bus, "third worker", Role::Worker).await.memory().changes().contains_key("loaded"));
    tasks.join().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_carried_out_in_the_order_they_came_in() {
    let (bus, tasks, scribe) = (Arc::new(InProcess::default()), TaskSet::new(), Arc::new(Scribe::default()));
    Control::join(bus.clone(), "scribe".to_owned(), Role::Worker).await.unwrap().serve(scribe.clone(), &tasks);
    let models: Vec<String> = (0..50).map(|number| format!("m{number}")).collect();
    let (order, expected) = (Order::Load(Override::default()), BTreeSet::from(["scribe".to_owned()]));
    // Each asks when it is polled for the first time, which is in this order.
    let commands = models.iter().map(|model| control::command(bus.as_ref(), model, &order, &expected));
    for answers in join_all(commands).await {
        assert_eq!(answers.unwrap()["scribe"], Outcome::Done(Vec::new()));
    }
    assert_eq!(*scribe.0.lock(), models);
    tasks.join().await;
}
