//! The bus within one process: the properties of every bus.

use std::sync::Arc;

use trireme_bus::{Bus, InProcess};

use crate::conformance::{self, Setup};

#[tokio::test]
async fn conforms() {
    let bus = InProcess::default();
    let setup = Setup::new(move || {
        let bus: Arc<dyn Bus> = Arc::new(bus.clone());
        async { bus }
    });
    conformance::run(&setup).await;
}
