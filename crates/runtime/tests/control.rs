//! Model control on the in-process bus: what a participant is told, and in which order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::Mutex;
use trireme_bus::InProcess;
use trireme_runtime::TaskSet;
use trireme_runtime::control::{self, Control, Order, Outcome, Override, Participant};

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

    async fn settled(&self, _: &str, _: Option<&Override>) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_carried_out_in_the_order_they_came_in() {
    let (bus, tasks, scribe) = (Arc::new(InProcess::default()), TaskSet::new(), Arc::new(Scribe::default()));
    Control::join(bus.clone(), "scribe".to_owned()).await.unwrap().serve(scribe.clone(), &tasks);
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
