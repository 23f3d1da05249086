//! Fields that only classifiers have.

use super::described::Files;
use super::files::Reader;
use super::head::{self, Activation};
use super::origin::Derived;
use super::task::{Purpose, Task};

/// Fields that only classifiers have.
#[derive(Default)]
pub(super) struct Head {
    pub(super) labels: Option<Derived<Vec<String>>>,
    pub(super) problem: Option<Derived<(&'static str, Activation)>>,
}

// === impl Head ===

impl Head {
    pub(super) fn of(reader: &Reader<'_>, purpose: &Purpose, files: &Files) -> Head {
        if !matches!(purpose.task.value, Task::Classify | Task::Rerank | Task::TokenClassify) {
            return Head::default();
        }
        let labels = head::labels(reader, &files.config);
        let problem =
            (purpose.task.value == Task::Classify).then(|| head::problem(reader, &files.config, labels.value.len()));
        Head { labels: Some(labels), problem }
    }
}
