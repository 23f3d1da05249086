//! Finds the task that a folder's model was trained for.

use serde_json::Value;

use super::files::{Json, Reader};
use super::modules::{Module, ModuleKind, transformer_config};
use super::origin::Derived;

pub(crate) use crate::task::Task;

/// The value of `model_type` in folders of PyLate.
pub(super) const PYLATE: &str = "ColBERT";

/// A task, and two facts that its files give with it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Purpose {
    pub(crate) task: Derived<Task>,
    /// A sentence-transformers CrossEncoder, which has its own rule for the activation of its scores.
    pub(crate) cross_encoder: bool,
    /// The model looks its vectors up by token and has no graph.
    pub(crate) is_static: bool,
    /// A causal language model, whose scores are logits of tokens.
    pub(crate) causal: bool,
}

// === impl Purpose ===

impl Purpose {
    /// The name for `optimum-cli export onnx` of the graph that the model needs.
    pub(crate) fn export(&self) -> &'static str {
        if self.causal { "text-generation" } else { self.task.value.export() }
    }
}

// === impl Task ===

impl Task {
    /// The task's name for `optimum-cli export onnx`. A tokenizer has no graph.
    pub(crate) fn export(self) -> &'static str {
        match self {
            Task::Embed | Task::MultiVector => "feature-extraction",
            Task::Sparse => "fill-mask",
            Task::Rerank | Task::Classify | Task::ZeroShot => "text-classification",
            Task::TokenClassify | Task::Extract => "token-classification",
            Task::Generate => "text2text-generation-with-past",
            Task::Tokenize | Task::Decode => "feature-extraction",
        }
    }
}

/// Finds the task by the modules, by the model type that sentence-transformers wrote, and by the architecture, in this order.
pub(crate) fn purpose(
    reader: &Reader<'_>,
    modules: Option<&[Module]>,
    own: Option<&Json>,
    config: &Json,
    folder: &str,
) -> Purpose {
    let mut found = by_files(reader, modules, own, config, folder);
    if let Some(task) = reader.choices().task {
        found.task = Derived::from(task, "--task");
    }
    let is_score = |module: &Module| matches!(module.step, ModuleKind::LogitScore { .. });
    found.causal = match modules {
        Some(modules) => modules.iter().any(is_score),
        None => found.task.value == Task::Rerank && architecture(config).ends_with("ForCausalLM"),
    };
    found
}

/// The first of the architectures that config.json names.
pub(super) fn architecture(config: &Json) -> &str {
    config.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str).unwrap_or_default()
}

fn by_files(
    reader: &Reader<'_>,
    modules: Option<&[Module]>,
    own: Option<&Json>,
    config: &Json,
    folder: &str,
) -> Purpose {
    let plain = |task| Purpose { task, cross_encoder: false, is_static: false, causal: false };
    let find = |wanted: fn(&ModuleKind) -> bool| modules.into_iter().flatten().find(|module| wanted(&module.step));
    let by_module = |module: &Module, task| plain(Derived::from(task, format!("{}.type", module.place)));
    let is_pylate = own.filter(|own| own.get("model_type").is_some_and(|kind| kind == PYLATE));
    if let Some(own) = is_pylate {
        return plain(Derived::field(Task::MultiVector, &own.file, "model_type"));
    }
    let model_type = own.and_then(|own| own.text(reader, "model_type"));
    if let Some(told) = model_type.clone().filter(|kind| kind.value == "CrossEncoder")
        && find(|step| matches!(step, ModuleKind::Pooling(_))).is_some()
    {
        // The scores are made by the modules behind the pooling.
        let task = match scores(modules) {
            Some(1) => Task::Rerank,
            _ => Task::Classify,
        };
        return Purpose { cross_encoder: true, ..plain(Derived::from(task, told.origin)) };
    }
    if let Some(module) = find(|step| matches!(step, ModuleKind::LogitScore { .. })) {
        return Purpose { cross_encoder: true, ..by_module(module, Task::Rerank) };
    }
    if let Some(module) = find(|step| matches!(step, ModuleKind::Static { .. })) {
        let task = match module.step {
            ModuleKind::Static { of_tokens: true, .. } => Task::Sparse,
            _ => Task::Embed,
        };
        return Purpose { is_static: true, ..by_module(module, task) };
    }
    if let Some(module) = find(|step| matches!(step, ModuleKind::Splade { .. })) {
        return by_module(module, Task::Sparse);
    }
    if let Some(module) = find(|step| matches!(step, ModuleKind::Mask { .. })) {
        return by_module(module, Task::MultiVector);
    }
    if let Some(module) = find(|step| matches!(step, ModuleKind::Pooling(_))) {
        return by_module(module, Task::Embed);
    }
    if let Some(kind) = &model_type {
        match kind.value.as_str() {
            "SparseEncoder" => return plain(Derived::from(Task::Sparse, kind.origin.clone())),
            "MultiVectorEncoder" => return plain(Derived::from(Task::MultiVector, kind.origin.clone())),
            _ => {}
        }
    }
    if config.get("model_type").is_some_and(|kind| kind == "model2vec") {
        return Purpose { is_static: true, ..plain(Derived::field(Task::Embed, &config.file, "model_type")) };
    }
    let architecture = architecture(config);
    let by_architecture = |task| Derived::field(task, &config.file, "architectures");
    if architecture == "StaticModel" {
        return Purpose { is_static: true, ..plain(by_architecture(Task::Embed)) };
    }
    let says_cross_encoder = model_type.as_ref().is_some_and(|kind| kind.value == "CrossEncoder");
    if let Some(told) = model_type.clone().filter(|_| says_cross_encoder && architecture.ends_with("ForCausalLM")) {
        return Purpose { cross_encoder: true, ..plain(Derived::from(Task::Rerank, told.origin)) };
    }
    if architecture.ends_with("ForSequenceClassification") || says_cross_encoder {
        return sequence(
            reader,
            model_type.filter(|_| says_cross_encoder),
            config,
            folder,
            by_architecture(Task::Classify),
        );
    }
    if architecture.ends_with("ForTokenClassification") {
        return plain(by_architecture(Task::TokenClassify));
    }
    if architecture.ends_with("ForConditionalGeneration") || architecture.ends_with("MTModel") {
        return plain(by_architecture(Task::Generate));
    }
    match architecture {
        "" => plain(Derived::guessed(Task::Embed, "no file names an architecture")),
        _ => plain(by_architecture(Task::Embed)),
    }
}

/// The number of scores that modules behind a pooling give: the width of the last Dense.
pub(crate) fn scores(modules: Option<&[Module]>) -> Option<u64> {
    modules?.iter().rev().find_map(|module| match &module.step {
        ModuleKind::Dense { to, .. } => Some(*to),
        _ => None,
    })
}

/// A classifier of texts: one with a single score for a pair is a reranker.
fn sequence(
    reader: &Reader<'_>,
    told: Option<Derived<String>>,
    config: &Json,
    folder: &str,
    classify: Derived<Task>,
) -> Purpose {
    let labels = match (config.get("id2label").and_then(Value::as_object), config.get("num_labels")) {
        (Some(labels), _) => labels.len() as u64,
        (None, Some(count)) => count.as_u64().unwrap_or(2),
        (None, None) => 2,
    };
    let own_task = transformer_config(reader, folder).and_then(|own| own.text(reader, "transformer_task"));
    let cross_encoder = told
        .map(|told| told.origin)
        .or_else(|| own_task.filter(|task| task.value == "sequence-classification").map(|task| task.origin))
        .or_else(|| {
            let keys = ["sentence_transformers", "sbert_ce_default_activation_function"];
            let key = keys.into_iter().find(|key| config.get(key).is_some())?;
            Some(format!("{}: {key}", config.file))
        });
    let regression = config.get("problem_type").is_some_and(|kind| kind == "regression");
    let task = match (&cross_encoder, labels) {
        (Some(origin), 1) => Derived::from(Task::Rerank, origin.clone()),
        (None, 1) if !regression => Derived::guessed(
            Task::Rerank,
            &format!("{} is a classifier with one label, and no problem_type", classify.origin),
        ),
        _ => classify,
    };
    Purpose { task, cross_encoder: cross_encoder.is_some(), is_static: false, causal: false }
}
