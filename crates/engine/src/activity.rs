//! The present step of a load: the thread that loads says it, and the task that waits for the load reads it.

use std::cell::RefCell;
use std::sync::Arc;

use parking_lot::Mutex;

thread_local! {
    /// The load that this thread carries out.
    static CURRENT: RefCell<Option<Activity>> = const { RefCell::new(None) };
}

/// The present step of one load.
#[derive(Clone)]
pub struct Activity(Arc<Mutex<String>>);

/// Names the present step of the load on this thread, for people who wait: in the log of a load that takes long, and in the
/// repository index. On other threads it does nothing.
pub fn doing(what: impl Into<String>) {
    CURRENT.with_borrow(|current| {
        if let Some(Activity(said)) = current {
            *said.lock() = what.into();
        }
    });
}

// === impl Activity ===

impl Activity {
    /// A load that has just begun.
    pub fn new() -> Activity {
        Activity(Arc::new(Mutex::new("reading its files".to_owned())))
    }

    /// The text that was said last.
    pub fn now(&self) -> String {
        self.0.lock().clone()
    }

    /// Carries out `load`, whose [`doing`] is about this activity.
    pub fn during<T>(self, load: impl FnOnce() -> T) -> T {
        CURRENT.with_borrow_mut(|current| *current = Some(self));
        let loaded = load();
        CURRENT.with_borrow_mut(|current| *current = None);
        loaded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_says_what_it_does_until_it_ends() {
        doing("nothing that anybody hears");
        let activity = Activity::new();
        assert_eq!(activity.now(), "reading its files");
        let read = activity.clone();
        activity.clone().during(|| {
            doing("warming up");
            assert_eq!(read.now(), "warming up");
        });
        doing("something else");
        assert_eq!(activity.now(), "warming up");
    }
}
