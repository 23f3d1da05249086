//! Counts of this gateway's requests for metrics: HTTP requests by route, method and status, and operations by the names that OpenTelemetry
//! has for them.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use trireme_inference::{InferError, Latencies};

/// OpenTelemetry's name of operations that make vectors of texts.
pub const EMBEDDINGS: &str = "embeddings";

/// The name of this server among providers of models.
pub const PROVIDER: &str = "trireme";

/// An HTTP route with a method and a status.
type Answered = (String, String, u16);

/// A model, and the code of an error.
type Embedded = (String, Option<String>);

/// The counts.
#[derive(Default)]
pub struct RequestCounts {
    answered: Mutex<BTreeMap<Answered, u64>>,
    embedded: Mutex<BTreeMap<Embedded, Latencies>>,
}

// === impl RequestCounts ===

impl RequestCounts {
    /// Counts an answer. `route` is one of the routes, so that clients cannot make names of series.
    pub fn answered(&self, route: &str, method: &str, status: u16) {
        *self.answered.lock().entry((route.to_owned(), method.to_owned(), status)).or_default() += 1;
    }

    /// Counts a request for vectors of texts.
    pub fn embedded(&self, model: &str, duration: Duration, error: Option<&InferError>) {
        let key = (model.to_owned(), error.map(|error| format!("{:?}", error.code)));
        self.embedded.lock().entry(key).or_default().record(duration);
    }

    /// Every answered route, method and status, with the number of requests.
    pub fn all_answered(&self) -> BTreeMap<Answered, u64> {
        self.answered.lock().clone()
    }

    /// Every model that was asked for vectors, with the code of an error, and how long that took.
    pub fn all_embedded(&self) -> BTreeMap<Embedded, Latencies> {
        self.embedded.lock().clone()
    }
}
