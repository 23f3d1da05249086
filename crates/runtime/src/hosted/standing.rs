//! The reasons why a hosted version takes no work: an outage of its instances, or another content that is served under its name.

use std::sync::atomic::AtomicBool;

use tokio::sync::Notify;
use trireme_bus::{Content, ModelState};
use trireme_inference::Name;

/// The content of a version, and whether it may be served.
pub(crate) struct Standing {
    pub content: Content,
    /// The space of its answers, as each of them tells it.
    pub space: Option<Name>,
    /// Whether its content is to be chosen although live workers have another one, until that was said.
    pub switch: AtomicBool,
    /// Whether a gateway has said that it is served, and nothing has changed since.
    pub is_served: AtomicBool,
    /// Notified when a gateway has to be asked again.
    pub recheck: Notify,
    /// Held while a gateway is asked, and until its verdict holds.
    pub asking: tokio::sync::Mutex<()>,
}

/// The reasons why a version takes no work just now.
#[derive(Debug, Default)]
pub(crate) struct Obstacles {
    /// All of its instances are out.
    pub outage: Option<String>,
    /// Its content is not served.
    pub content: Option<Refusal>,
}

/// Why a content is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub reason: String,
    /// The number of the choice to which the version has yielded.
    pub yields_to: Option<u64>,
}

// === impl Standing ===

impl Standing {
    pub fn new(content: Content, switch: bool) -> Standing {
        Standing {
            space: content.space.as_deref().map(Name::from),
            content,
            switch: AtomicBool::new(switch),
            is_served: AtomicBool::new(false),
            recheck: Notify::new(),
            asking: tokio::sync::Mutex::default(),
        }
    }
}

// === impl Obstacles ===

impl Obstacles {
    /// The state of a loaded version.
    pub fn state(&self) -> ModelState {
        let refusal = self.content.as_ref().map(|refusal| &refusal.reason);
        match refusal.or(self.outage.as_ref()) {
            Some(reason) => ModelState::Recovering(reason.clone()),
            None => ModelState::Ready,
        }
    }

    pub fn yields_to(&self) -> Option<u64> {
        self.content.as_ref()?.yields_to
    }
}
