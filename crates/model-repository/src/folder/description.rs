//! The description of a model folder, as its files give it: a value of which repositories, tables and reports are made.

use std::collections::BTreeMap;
use std::path::PathBuf;

use trireme_model_files::onnx::GraphTensor;

use super::choices::{Accelerator, LongTexts};
use super::files::Reader;
use super::graphs::GraphFile;
use super::heads;
use super::late::Late;
use super::origin::Derived;
use super::routes::Routes;
use super::span_rows::SpanRows;
use super::task::Task;
use super::tokenizer::{Prompts, Tokenizer};
use crate::Nli;

/// A model folder's contents, each with the file and field that it came from. [`FolderDescription::read`] makes it and refuses a
/// folder whose files contradict each other.
#[derive(Clone, Debug, PartialEq)]
pub struct FolderDescription {
    pub(crate) root: PathBuf,
    pub(crate) task: Derived<Task>,
    pub(crate) tokenizer: Tokenizer,
    /// Whether `[CLS]` and the like are added; `None`: the tokenizer's default.
    pub(crate) special_tokens: Option<Derived<bool>>,
    pub(crate) executor: Executor,
    pub(crate) ops: Vec<Derived<String>>,
    /// The op that the graph has done with its output already.
    pub(crate) graph_end: Option<Derived<&'static str>>,
    /// Whether pooling leaves out the tokens of a prompt.
    pub(crate) excludes_prompt: bool,
    /// The size of the last axis of the result: a vector's width, or the number of labels.
    pub(crate) width: Derived<i64>,
    pub(crate) labels: Option<Derived<Vec<String>>>,
    pub(crate) problem: Option<Derived<&'static str>>,
    pub(crate) prompts: Prompts,
    /// How labels of requests stand before texts, where the graph scores spans of words.
    pub(crate) spans: Option<Derived<SpanRows>>,
    /// How queries and documents are treated, for models with a vector for each token.
    pub(crate) late: Late,
    /// Further results that are made of the same states.
    pub(crate) heads: Vec<heads::Head>,
    /// Files of such results that the graph gives no states for.
    pub(crate) unserved: Option<Derived<String>>,
    /// Whether a reranker takes single texts, too, as a classifier does.
    pub(crate) takes_texts: bool,
    /// Warnings for a person.
    pub(crate) warnings: Vec<String>,
    /// The tasks that requests choose among, where the graph has an adapter for each.
    pub(crate) adapters: Option<Derived<Vec<String>>>,
    /// The accelerator that runs the graph.
    pub(crate) accelerator: Accelerator,
    /// The flag about texts that are longer than the longest row.
    pub(crate) long_texts: Option<LongTexts>,
    /// Further names of the model.
    pub(crate) served_names: Vec<String>,
    /// The descriptions of all routes, where the folder has a Router: this one is of the usual route.
    pub(crate) routed: Option<Box<Routed>>,
}

/// The descriptions of a folder by each of its routes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Routed {
    pub(crate) routes: Routes,
    pub(crate) each: BTreeMap<String, FolderDescription>,
}

/// The way in which the model is executed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Executor {
    Onnx {
        file: Box<GraphFile>,
        /// The output that is used, with the dimensions that are known of it.
        output: Derived<GraphTensor>,
    },
    Static {
        file: Derived<String>,
        config: Option<String>,
        /// The width of the table; 0 for a number for each token.
        width: i64,
        /// The id of tokens that take no part.
        unknown: Option<Derived<i64>>,
    },
    /// All files of the folder that the backend may want.
    Generation { files: Vec<String>, tells_target: bool },
}

// === impl FolderDescription ===

impl FolderDescription {
    /// A model with the tokenizer's own special tokens, without ops, labels and further results. The width of its result is open.
    pub(super) fn plain(
        reader: &Reader<'_>,
        task: Derived<Task>,
        tokenizer: Tokenizer,
        prompts: Prompts,
        executor: Executor,
    ) -> FolderDescription {
        FolderDescription {
            root: reader.root().to_owned(),
            task,
            tokenizer,
            special_tokens: None,
            executor,
            ops: Vec::new(),
            graph_end: None,
            excludes_prompt: false,
            width: Derived::from(-1, ""),
            labels: None,
            problem: None,
            prompts,
            spans: None,
            late: Late::default(),
            heads: Vec::new(),
            unserved: None,
            takes_texts: false,
            warnings: Vec::new(),
            adapters: None,
            accelerator: reader.choices().accelerator,
            long_texts: reader.choices().long_texts,
            served_names: Vec::new(),
            routed: None,
        }
    }

    /// Warnings for a person, before the folder is served.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The tasks that it is served for.
    pub fn tasks(&self) -> Vec<Task> {
        let single = self.takes_texts.then_some(Task::Classify);
        let zero_shot = self.does_zero_shot().then_some(Task::ZeroShot);
        let heads = self.heads.iter().map(|head| head.task);
        std::iter::once(self.task.value).chain(single).chain(zero_shot).chain(heads).collect()
    }

    /// Whether its classes say if one text follows from another, and its graph gives their logits.
    fn does_zero_shot(&self) -> bool {
        let labels = self.labels.as_ref().filter(|_| self.task.value == Task::Classify && self.graph_end.is_none());
        labels.is_some_and(|labels| Nli::of(&labels.value).is_some())
    }

    /// Whether the labels of a request stand before its texts, as with GLiNER, so that a request without labels is refused.
    pub fn needs_labels(&self) -> bool {
        self.spans.is_some()
    }

    /// The path of the ONNX file within the folder; `None` for static models, which have no ONNX file, and for
    /// models that generate, which have several.
    pub fn graph(&self) -> Option<&str> {
        match &self.executor {
            Executor::Onnx { file, .. } => Some(&file.file.value),
            Executor::Static { .. } | Executor::Generation { .. } => None,
        }
    }
}
