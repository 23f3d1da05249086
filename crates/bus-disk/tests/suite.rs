//! The bus with its stores of jobs on disk: the properties of every bus, and what the end of the process leaves.

#[path = "../../bus/tests/conformance/mod.rs"]
#[expect(dead_code, reason = "a bus on which only gateways may do some things has connections of two kinds")]
mod conformance;

use std::sync::Arc;

use trireme_bus::{Bus, QueueOptions};

use crate::conformance::{Setup, states};

#[tokio::test]
async fn conforms() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let bus = trireme_bus_disk::open(&QueueOptions::default(), directory.path()).expect("the directory can be used");
    let setup = Setup::new(move || {
        let bus: Arc<dyn Bus> = Arc::new(bus.clone());
        async { bus }
    });
    conformance::run(&setup).await;
}

#[tokio::test]
async fn the_end_of_the_process_leaves_what_the_table_says() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let open = || -> Arc<dyn Bus> {
        Arc::new(trireme_bus_disk::open(&QueueOptions::default(), directory.path()).expect("the directory can be used"))
    };
    states::the_rows_about_the_end_hold(open(), async || open()).await;
}

/// A process that opens the directory next does not wait for the tasks of a gateway's inbox.
#[tokio::test]
async fn an_open_inbox_does_not_hold_the_file() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let bus = trireme_bus_disk::open(&QueueOptions::default(), directory.path()).expect("the directory can be used");
    let inbox = bus.open_inbox("gateway").await.expect("an inbox");
    // The inbox's task has begun.
    tokio::task::yield_now().await;
    drop(bus);
    trireme_bus_disk::open(&QueueOptions::default(), directory.path()).expect("the file is free");
    assert_eq!(inbox.gateway(), "gateway");
}
