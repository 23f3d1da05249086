//! The bus with its stores of jobs on disk: the properties of every bus, and what the end of the process leaves.

#[path = "../../bus/tests/conformance/mod.rs"]
#[expect(dead_code, reason = "a bus on which only gateways may do some things has connections of two kinds")]
mod conformance;

use std::sync::Arc;

use trireme_bus::{Bus, QueueOptions};
use trireme_bus_disk::OnDisk;

use crate::conformance::{Setup, states};

#[tokio::test]
async fn conforms() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let bus = OnDisk::open(&QueueOptions::default(), directory.path()).expect("the directory can be used");
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
        Arc::new(OnDisk::open(&QueueOptions::default(), directory.path()).expect("the directory can be used"))
    };
    states::the_rows_about_the_end_hold(open(), async || open()).await;
}
