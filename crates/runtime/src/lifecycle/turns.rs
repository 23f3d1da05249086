//! Turns: the changes of one model are made one after the other, in the order in which they were asked for, and beside the changes of other
//! models.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// The models with changes that are made or wait.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>>);

/// The turn of one model, until it is dropped.
#[must_use]
pub(crate) struct Turn {
    _guard: OwnedMutexGuard<()>,
}

// === impl Turns ===

impl Turns {
    /// Waits until earlier changes of the model have had their turns.
    pub async fn of(&self, model: &str) -> Turn {
        let turns = {
            let mut models = self.0.lock();
            models.retain(|_, turns| turns.strong_count() > 0);
            let known = models.get(model).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let turns = Arc::default();
                models.insert(model.to_owned(), Arc::downgrade(&turns));
                turns
            })
        };
        Turn { _guard: turns.lock_owned().await }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_model_waits_for_itself_and_for_no_other() {
        let turns = Turns::default();
        let first = turns.of("a").await;
        let mut second = Box::pin(turns.of("a"));
        assert!(second.as_mut().now_or_never().is_none());
        let other = turns.of("b").now_or_never().expect("another model");
        let mut third = Box::pin(turns.of("a"));
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.as_mut().now_or_never().is_none(), "the second comes before");
        drop(second.await);
        drop((third.await, other));
        drop(turns.of("c").await);
        assert_eq!(turns.0.lock().len(), 1, "models with which nothing is done are forgotten");
    }
}
