//! The bus within one process: the properties of every bus.

use std::sync::Arc;

use trireme_bus::{Bus, InProcess, QueueOptions};

use crate::conformance::{self, Setup, states};

#[tokio::test]
async fn conforms() {
    let bus = InProcess::default();
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
        Arc::new(InProcess::open(&QueueOptions::default(), directory.path()).expect("the directory can be used"))
    };
    states::the_rows_about_the_end_hold(open(), async || open()).await;
}
