//! Folders whose long texts may be read in windows: the op that makes one row of those of a text.

use super::choices::LongTexts;
use super::description::{Executor, FolderDescription};
use super::task::Task;

/// How the rows of a text's windows become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fold {
    /// The op with its argument.
    pub(super) op: &'static str,
    /// Why it is this one.
    pub(super) why: &'static str,
}

// === impl FolderDescription ===

impl FolderDescription {
    /// The op that folds windows; the error is why texts of this folder have one row each. Token classifiers fold by themselves.
    pub(super) fn fold(&self) -> Result<Fold, &'static str> {
        if !matches!(self.task.value, Task::Embed | Task::Rerank | Task::Classify) {
            return Err("its task makes no one row of several windows");
        }
        if !self.heads.is_empty() {
            return Err("it has further results of the same text, which are not folded");
        }
        if self.tokenizer.messages.is_some() {
            return Err("a chat template is put around its texts");
        }
        let has_file = self.tokenizer.files.iter().any(|file| file.rsplit('/').next() == Some("tokenizer.json"));
        if !has_file || matches!(self.executor, Executor::Generation { .. }) {
            return Err("it has no tokenizer.json, which tells the characters of tokens");
        }
        let fold = |op, why| Ok(Fold { op, why });
        match self.task.value {
            Task::Embed if self.gives_length_one() => fold(
                "fold:mean+normalize",
                "the windows of a long text, by their tokens; the vector gets length 1 again",
            ),
            Task::Embed => fold("fold:mean", "the windows of a long text, by their tokens"),
            Task::Rerank => fold("fold:max", "the best window of a document is the document's"),
            _ if self.problem.as_ref().is_some_and(|problem| problem.value.starts_with("multi_label")) => {
                fold("fold:max", "a label of a window is one of the text")
            }
            _ => fold("fold:mean", "the windows of a long text, by their tokens"),
        }
    }

    /// Whether long texts are read in windows where a request does not say it; with the reason.
    pub(super) fn reads_windows(&self) -> Option<&'static str> {
        match self.long_texts {
            Some(LongTexts::Windows) => Some("--long-texts"),
            None if self.task.value == Task::TokenClassify => {
                Some("a longer text has several rows, so that no entity is cut off")
            }
            Some(LongTexts::Cut) | None => None,
        }
    }

    /// The ops with the one that folds, each with its reason. It comes before the squashing of a reranker, which a request may leave out, and behind
    /// all others.
    pub(super) fn folding_ops(&self) -> Vec<(String, String)> {
        let mut ops: Vec<_> = self.ops.iter().map(|op| (op.value.clone(), op.origin.clone())).collect();
        let Ok(Fold { op, why }) = self.fold() else { return ops };
        if ops.is_empty() {
            ops.push((format!("slice:{}", self.width.value), "as the model gives it".to_owned()));
        }
        let squashes = self.task.value == Task::Rerank && ops.last().is_some_and(|(op, _)| op == "sigmoid");
        ops.insert(ops.len() - usize::from(squashes), (op.to_owned(), why.to_owned()));
        ops
    }

    /// Why long texts cannot be read in windows, though a person wants it.
    pub(super) fn fold_fault(&self) -> Option<String> {
        let wanted = self.long_texts == Some(LongTexts::Windows) && self.task.value != Task::TokenClassify;
        let why = self.fold().err().filter(|_| wanted)?;
        Some(format!("--long-texts windows: {why}; leave the flag out, or say cut"))
    }

    /// Whether vectors have length 1.
    fn gives_length_one(&self) -> bool {
        let ends = self.graph_end.as_ref().is_some_and(|end| end.value == "normalize");
        ends || self.ops.last().is_some_and(|op| op.value == "normalize")
    }
}
