//! The network cable of one process: a proxy to each broker.

use super::proxy::Proxy;

/// The connections between a process and the brokers. Unless a method names a broker, it acts on all of them.
#[derive(Debug)]
pub(super) struct Cable(Vec<Proxy>);

// === impl Cable ===

impl Cable {
    /// A cable to the brokers at these URLs.
    pub fn start(brokers: &[String]) -> Cable {
        Cable(brokers.iter().map(|broker| Proxy::start(broker)).collect())
    }

    /// The URLs that the process connects to, separated by commas.
    pub fn urls(&self) -> String {
        self.0.iter().map(Proxy::url).collect::<Vec<_>>().join(",")
    }

    /// See [`Proxy::cut`].
    pub fn cut(&self) {
        self.0.iter().for_each(Proxy::cut);
    }

    /// See [`Proxy::mend`].
    pub fn mend(&self) {
        self.0.iter().for_each(Proxy::mend);
    }

    /// The proxy to one broker.
    pub fn to(&self, broker: usize) -> &Proxy {
        &self.0[broker]
    }

    /// See [`Proxy::reset`].
    pub fn reset(&self) {
        self.0.iter().for_each(Proxy::reset);
    }

    /// See [`Proxy::unplug`].
    pub fn unplug(&self) {
        self.0.iter().for_each(Proxy::unplug);
    }

    /// See [`Proxy::plug_in`].
    pub fn plug_in(&self) {
        self.0.iter().for_each(Proxy::plug_in);
    }

    /// See [`Proxy::acknowledge_early`].
    pub fn acknowledge_early(&self) {
        self.0.iter().for_each(Proxy::acknowledge_early);
    }
}
