//! Fields that only classifiers have.

use super::described::FolderFiles;
use super::files::Reader;
use super::head::{self, Activation};
use super::modules::ModuleKind;
use super::origin::Derived;
use super::task::{self, Purpose, Task};

/// Fields that only classifiers have.
#[derive(Default)]
pub(super) struct Head {
    pub(super) labels: Option<Derived<Vec<String>>>,
    pub(super) problem: Option<Derived<(&'static str, Activation)>>,
}

// === impl Head ===

impl Head {
    pub(super) fn of(reader: &Reader<'_>, purpose: &Purpose, files: &FolderFiles) -> Head {
        if !matches!(purpose.task.value, Task::Classify | Task::Rerank | Task::TokenClassify) {
            return Head::default();
        }
        let modular = files
            .modules
            .as_deref()
            .filter(|modules| modules.iter().any(|module| matches!(module.step, ModuleKind::Pooling(_))));
        let labels = match task::scores(modular) {
            // config.json is that of the model before the modules that make the scores.
            Some(count) => {
                let names = (0..count.min(1 << 20)).map(|id| format!("LABEL_{id}")).collect();
                Derived::from(names, "the last Dense of modules.json")
            }
            None => head::labels(reader, &files.config),
        };
        let problem =
            (purpose.task.value == Task::Classify).then(|| head::problem(reader, &files.config, labels.value.len()));
        Head { labels: Some(labels), problem }
    }
}
