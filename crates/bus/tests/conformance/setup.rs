//! The connections to the bus under test.

use std::pin::Pin;
use std::sync::Arc;

use trireme_bus::Bus;
use trireme_bus::fixtures;

/// Gives the suite its connections to the bus under test.
pub struct Setup {
    connect: Connect,
    /// `None` if every connection may do the same.
    connect_gateway: Option<Connect>,
}

type Connect = Box<dyn Fn() -> Connecting + Send + Sync>;
type Connecting = Pin<Box<dyn Future<Output = Arc<dyn Bus>> + Send>>;

// === impl Setup ===

impl Setup {
    /// `connect` makes a new connection to the same bus each time, for a gateway or a worker.
    pub fn new<F>(connect: impl Fn() -> F + Send + Sync + 'static) -> Setup
    where
        F: Future<Output = Arc<dyn Bus>> + Send + 'static,
    {
        Setup { connect: Box::new(move || Box::pin(connect())), connect_gateway: None }
    }

    /// Sets the function that makes connections for gateways, if only those may do some things.
    #[must_use]
    pub fn with_gateways<F>(mut self, connect: impl Fn() -> F + Send + Sync + 'static) -> Setup
    where
        F: Future<Output = Arc<dyn Bus>> + Send + 'static,
    {
        self.connect_gateway = Some(Box::new(move || Box::pin(connect())));
        self
    }

    pub(super) async fn connect_gateway(&self) -> Arc<dyn Bus> {
        let connect = self.connect_gateway.as_ref().unwrap_or(&self.connect);
        fixtures::within("a gateway's connection to the bus", connect()).await
    }

    pub(super) async fn connect(&self) -> Arc<dyn Bus> {
        fixtures::within("a connection to the bus", (self.connect)()).await
    }
}
