//! `modules.json`: the modules that sentence-transformers runs one after the other.
//!
//! Reads the forms before and since sentence-transformers 5.4. A field that the library ignores with a warning is an error here.

use serde_json::Value;
use trireme_model_files::safetensors;
use trireme_model_files::torch_file;

use super::fields;
use super::files::{Json, Reader, kind};
use super::origin::{Derived, SENTENCE_TRANSFORMERS};
use super::routes::{self, MODULES};

/// The weights of a module as older folders have them.
pub(super) const TORCH_WEIGHTS: &str = "pytorch_model.bin";

/// The names that the transformer's own file has had.
pub(crate) const TRANSFORMER_CONFIGS: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// Pooling modes: the older flag, the newer name, and the argument of op `pool`. Several are concatenated in this order.
const POOLING: [(&str, &str, &str); 6] = [
    ("pooling_mode_cls_token", "cls", "cls"),
    ("pooling_mode_max_tokens", "max", "max"),
    ("pooling_mode_mean_tokens", "mean", "mean"),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", "mean_sqrt_len"),
    ("pooling_mode_weightedmean_tokens", "weightedmean", "weighted_mean"),
    ("pooling_mode_lasttoken", "lasttoken", "last"),
];

/// The libraries whose classes are known.
const OWN_CLASSES: [&str; 2] = ["sentence_transformers.", "pylate."];

/// The classes that are served, by their last word.
const SERVED: [&str; 13] = [
    "Transformer",
    "MLMTransformer",
    "Pooling",
    "Dense",
    "LayerNorm",
    "Normalize",
    "Dropout",
    "SpladePooling",
    "MultiVectorMask",
    "LogitScore",
    "StaticEmbedding",
    "SparseStaticEmbedding",
    "Router",
];

/// The activations that op `dense` has.
const ACTIVATIONS: [&str; 13] = [
    "Identity",
    "Tanh",
    "ReLU",
    "GELU",
    "Sigmoid",
    "SiLU",
    "Softsign",
    "LeakyReLU",
    "ELU",
    "ReLU6",
    "Softplus",
    "Mish",
    "Hardtanh",
];

/// The name of the contradiction between a class's name and its unknown code.
const CUSTOM: &str = "custom-module";

/// A module and its place in `modules.json`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Module {
    /// `modules.json: [1]`.
    pub(crate) place: String,
    pub(crate) step: ModuleKind,
}

/// The work of one module.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ModuleKind {
    /// Runs the model whose files are in this folder, which ends with a slash or is empty.
    Transformer {
        folder: String,
    },
    /// Looks up a vector for each token, and takes their mean; or a number for each token (`of_tokens`).
    Static {
        folder: String,
        of_tokens: bool,
    },
    Pooling(Pooling),
    /// A linear layer with its activation.
    Dense {
        folder: String,
        from: u64,
        to: u64,
    },
    LayerNorm {
        folder: String,
        width: u64,
    },
    Normalize,
    /// Logits over the vocabulary to weights of tokens: the argument of op `splade`.
    Splade {
        argument: Derived<String>,
    },
    /// Logits over the vocabulary to a score: the argument of op `logit_score`.
    LogitScore {
        argument: Derived<String>,
    },
    /// Zeroes the vectors of padding, and of tokens that are not compared.
    Mask {
        skiplist_words: Option<Derived<Vec<String>>>,
        /// The sides that the words are for.
        skiplist_tasks: Option<Derived<Vec<String>>>,
    },
}

// === impl Module ===

impl Module {
    /// Whether it is a layer with weights, which a graph may run.
    pub(super) fn is_layer(&self) -> bool {
        matches!(self.step, ModuleKind::Dense { .. } | ModuleKind::LayerNorm { .. })
    }
}

/// How one vector is made of many.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pooling {
    /// The arguments of op `pool`, in order.
    pub(crate) modes: Derived<Vec<&'static str>>,
    /// Whether the tokens of a prompt take part.
    pub(crate) include_prompt: bool,
    /// The width of the vectors that come in.
    pub(crate) width: Option<Derived<u64>>,
}

/// The modules of the folder; `None` where it has no `modules.json`. Modules that cannot be served are faults.
pub(crate) fn read(reader: &Reader<'_>) -> Option<Vec<Module>> {
    let value = reader.value(MODULES)?;
    let Some(list) = value.as_array() else {
        reader.fault(format_args!("{MODULES} holds {}, expected a list of modules", kind(&value)));
        return None;
    };
    let listed = routes::expand(reader, list);
    let modules: Vec<_> = listed.into_iter().filter_map(|(place, value)| module(reader, place, &value)).collect();
    if list.is_empty() {
        reader.fault(format_args!("{MODULES} lists no modules"));
    }
    Some(modules)
}

/// The folder of the module that runs or looks up the model: with a slash at its end, or empty for the model's own folder. `None`
/// where the modules have none.
pub(crate) fn base(modules: Option<&[Module]>) -> Option<String> {
    modules.into_iter().flatten().find_map(|module| match &module.step {
        ModuleKind::Transformer { folder } | ModuleKind::Static { folder, .. } => Some(folder.clone()),
        _ => None,
    })
}

fn module(reader: &Reader<'_>, place: String, value: &Value) -> Option<Module> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let Some(name) = text("type") else {
        reader.fault(format_args!("{place} has no 'type'"));
        return None;
    };
    let folder = match text("path").unwrap_or_default().trim_matches('/') {
        // model2vec writes a dot for the folder itself.
        "" | "." => String::new(),
        path if path.split('/').any(|part| part == "..") => {
            reader.fault(format_args!("{place}.path is '{path}', which is outside of the folder"));
            return None;
        }
        path => format!("{path}/"),
    };
    let kind = name.rsplit('.').next().unwrap_or_default();
    if !OWN_CLASSES.iter().any(|library| name.starts_with(library)) && SERVED.contains(&kind) {
        // The class may do anything, so that its name alone says little.
        reader.contradiction(
            CUSTOM,
            format_args!(
                "{place}.type is '{name}', a class of the folder's own code, which is not run: a model.py may run it, which loads the folder with \
                 SentenceTransformer(…, trust_remote_code=True) (docs/python.md)"
            ),
            &format!(
                "it is taken for sentence-transformers' {kind}; compare with: trireme verify {}",
                reader.root().display()
            ),
        );
    }
    if !folder.is_empty()
        && !matches!(kind, "Transformer" | "MLMTransformer" | "StaticEmbedding")
        && let Some(json) = reader.json(&format!("{folder}config.json"))
    {
        fields::check(reader, kind, &json);
        check_names(reader, kind, &json);
    }
    if let Value::Object(fields) = value {
        fields::check(reader, MODULES, &Json::of(&place, fields.clone()));
    }
    if value.get("kwargs").and_then(Value::as_array).is_some_and(|names| !names.is_empty()) {
        reader.contradiction(
            "module-kwargs",
            format_args!("{place}.kwargs names arguments of requests that the module takes, which is not supported"),
            "the module gets none, as where a request names none",
        );
    }
    let step = match kind {
        "Transformer" | "MLMTransformer" => ModuleKind::Transformer { folder },
        "StaticEmbedding" => ModuleKind::Static { folder, of_tokens: false },
        "SparseStaticEmbedding" => ModuleKind::Static { folder, of_tokens: true },
        "Pooling" => ModuleKind::Pooling(pooling(reader, &folder)?),
        "Dense" => dense(reader, folder)?,
        "LayerNorm" => layer_norm(reader, folder)?,
        "Normalize" => ModuleKind::Normalize,
        "SpladePooling" => splade(reader, &folder)?,
        "MultiVectorMask" => mask(reader, &folder)?,
        "LogitScore" => logit_score(reader, &folder)?,
        // Does something in training only.
        "Dropout" => return None,
        _ => {
            reader.refuse(format_args!(
                "{place}.type is '{name}', which is not supported; supported are {}: serve the folder by a model.py (backend: \"python\") that \
                 loads it with its own library (docs/python.md)",
                SERVED.join(", ")
            ));
            return None;
        }
    };
    Some(Module { place, step })
}

/// A Dense before the pooling changes vectors of tokens, and one behind it the vector of a text.
pub(crate) fn check_places(reader: &Reader<'_>, modules: &[Module]) {
    let Some(at) = modules.iter().position(|module| matches!(module.step, ModuleKind::Pooling(_))) else { return };
    for (place, module) in modules.iter().enumerate() {
        let ModuleKind::Dense { folder, .. } = &module.step else { continue };
        let Some(json) = reader.json(&format!("{folder}config.json")) else { continue };
        let expected = if place < at { "token_embeddings" } else { "sentence_embedding" };
        let found = json.get("module_input_name").and_then(Value::as_str);
        if let Some(found) = found.filter(|found| *found != expected) {
            reader.fault(format_args!(
                "{}: module_input_name is '{found}', but {} stands {} the Pooling, where it is '{expected}'",
                json.file,
                module.place,
                if place < at { "before" } else { "behind" }
            ));
        }
    }
}

/// Refuses a module that reads or writes a tensor of another name than those of a chain of modules.
fn check_names(reader: &Reader<'_>, kind: &str, json: &Json) {
    const KNOWN: [(&str, [&str; 2]); 2] = [
        ("module_input_name", ["sentence_embedding", "token_embeddings"]),
        ("module_output_name", ["sentence_embedding", "token_embeddings"]),
    ];
    for (key, known) in KNOWN {
        let Some(name) = json.get(key).and_then(Value::as_str) else { continue };
        // The last Dense of a cross-encoder gives its scores.
        let is_scores = kind == "Dense" && key == "module_output_name" && name == "scores";
        let is_logits = kind == "LogitScore" && name == "causal_logits";
        if !known.contains(&name) && !is_scores && !is_logits {
            reader.fault(format_args!(
                "{}: {key} is '{name}', which is not supported, expected {}: the modules are one chain",
                json.file,
                known.join(" or ")
            ));
        }
    }
}

/// The configuration that a module has to have.
fn config(reader: &Reader<'_>, folder: &str) -> Option<Json> {
    let file = format!("{folder}config.json");
    let json = reader.json(&file);
    if json.is_none() && !reader.has(&file) {
        reader.fault(format_args!("{file} is missing, which {MODULES} needs: fetch it from where the model is from"));
    }
    json
}

/// The value that a field has under its newer or its older name; both have to agree.
fn renamed(reader: &Reader<'_>, json: &Json, newer: &str, older: &str) -> Option<Derived<u64>> {
    let (new, old) = (json.number(reader, newer), json.number(reader, older));
    if let (Some(new), Some(old)) = (&new, &old)
        && new.value != old.value
    {
        let file = &json.file;
        reader.fault(format_args!("{file}: {newer} is {}, but {file}: {older} is {}", new.value, old.value));
    }
    new.or(old)
}

fn logit_score(reader: &Reader<'_>, folder: &str) -> Option<ModuleKind> {
    let json = config(reader, folder)?;
    let Some(positive) = json.number(reader, "true_token_id") else {
        reader.fault(format_args!("{}: true_token_id is missing, whose logit is the score", json.file));
        return None;
    };
    let argument = match json.number(reader, "false_token_id") {
        Some(negative) => Derived::field(
            format!("{}-{}", positive.value, negative.value),
            &json.file,
            "true_token_id, false_token_id",
        ),
        None => positive.map(|id| id.to_string()),
    };
    Some(ModuleKind::LogitScore { argument })
}

fn pooling(reader: &Reader<'_>, folder: &str) -> Option<Pooling> {
    let json = config(reader, folder)?;
    let file = &json.file;
    let flags: Vec<_> = POOLING.iter().filter(|(flag, ..)| json.get(flag) == Some(&Value::Bool(true))).collect();
    let named = match json.get("pooling_mode") {
        None => None,
        Some(Value::String(name)) => Some(vec![name.clone()]),
        Some(Value::Array(names)) => {
            Some(names.iter().map(|name| name.as_str().unwrap_or_default().to_owned()).collect())
        }
        Some(other) => {
            reader.fault(format_args!("{file}: pooling_mode is {}, expected a name or a list of names", kind(other)));
            return None;
        }
    };
    let modes = match named {
        Some(names) => {
            let mut modes = Vec::new();
            for name in &names {
                match POOLING.iter().find(|(_, newer, _)| newer == name) {
                    Some((_, _, mode)) => modes.push(*mode),
                    None => {
                        let known = POOLING.map(|(_, newer, _)| newer).join(", ");
                        reader.fault(format_args!("{file}: pooling_mode is '{name}', expected one of {known}"));
                        return None;
                    }
                }
            }
            if let Some((flag, ..)) = flags.iter().find(|(.., mode)| !modes.contains(mode)) {
                reader.fault(format_args!("{file}: pooling_mode is {}, but {file}: {flag} is true", names.join(", ")));
            }
            Derived::field(modes, file, "pooling_mode")
        }
        None if flags.is_empty() => {
            Derived::default_of(vec!["mean"], SENTENCE_TRANSFORMERS, &format!("{file} names no mode"))
        }
        None => {
            let origin = flags.iter().map(|(flag, ..)| *flag).collect::<Vec<_>>().join(", ");
            Derived::field(flags.iter().map(|(.., mode)| *mode).collect(), file, &origin)
        }
    };
    Some(Pooling {
        modes,
        include_prompt: json.flag(reader, "include_prompt").is_none_or(|flag| flag.value),
        width: renamed(reader, &json, "embedding_dimension", "word_embedding_dimension"),
    })
}

fn dense(reader: &Reader<'_>, folder: String) -> Option<ModuleKind> {
    let json = config(reader, &folder)?;
    let (from, to) = (json.number(reader, "in_features"), json.number(reader, "out_features"));
    let (Some(from), Some(to)) = (from, to) else {
        reader.fault(format_args!("{} has to have in_features and out_features", json.file));
        return None;
    };
    if let Some(activation) = json.text(reader, "activation_function") {
        let name = activation.value.rsplit('.').next().unwrap_or_default();
        if !ACTIVATIONS.contains(&name) {
            reader.fault(format_args!(
                "{} is '{}', which is not supported, expected torch.nn's {}; export the graph with all modules in it: trireme export",
                activation.origin,
                activation.value,
                ACTIVATIONS.join(", ")
            ));
        }
    }
    for (layer, shape) in weights(reader, &folder)? {
        if layer == "linear.weight" && shape != [to.value as i64, from.value as i64] {
            reader.fault(format_args!(
                "{}: in_features is {} and out_features {}, but {folder}model.safetensors: {layer} has shape {shape:?}",
                json.file, from.value, to.value
            ));
        }
    }
    Some(ModuleKind::Dense { folder, from: from.value, to: to.value })
}

fn layer_norm(reader: &Reader<'_>, folder: String) -> Option<ModuleKind> {
    let json = config(reader, &folder)?;
    let Some(width) = json.number(reader, "dimension") else {
        reader.fault(format_args!("{} has to have dimension", json.file));
        return None;
    };
    weights(reader, &folder)?;
    Some(ModuleKind::LayerNorm { folder, width: width.value })
}

/// The tensors of a module's weights.
fn weights(reader: &Reader<'_>, folder: &str) -> Option<Vec<(String, Vec<i64>)>> {
    let file = format!("{folder}model.safetensors");
    match safetensors::shapes(&reader.path(&file)) {
        Ok(shapes) => Some(shapes.into_iter().collect()),
        Err(_) if !reader.has(&file) && reader.has(&format!("{folder}{TORCH_WEIGHTS}")) => {
            let file = format!("{folder}{TORCH_WEIGHTS}");
            let shape = |(name, tensor): (String, torch_file::TorchTensor)| {
                (name, tensor.shape.iter().map(|&size| size as i64).collect())
            };
            match torch_file::read(&reader.path(&file)) {
                Ok(tensors) => Some(tensors.into_iter().map(shape).collect()),
                Err(reason) => {
                    let root = reader.root().display();
                    reader.unreadable(
                        &file,
                        format_args!(
                            "cannot be read: {reason}; or write model.safetensors: python -c \"from sentence_transformers import \
                             SentenceTransformer as S; S('{root}').save('{root}')\""
                        ),
                    );
                    None
                }
            }
        }
        Err(error) => {
            reader.unreadable(&file, format_args!("cannot be read: {error}"));
            None
        }
    }
}

fn splade(reader: &Reader<'_>, folder: &str) -> Option<ModuleKind> {
    let json = config(reader, folder)?;
    let activation = json.text(reader, "activation_function");
    let activation =
        activation.unwrap_or_else(|| Derived::default_of("relu".to_owned(), SENTENCE_TRANSFORMERS, "no field says it"));
    if !["relu", "log1p_relu"].contains(&activation.value.as_str()) {
        reader.fault(format_args!("{} is '{}', expected relu or log1p_relu", activation.origin, activation.value));
    }
    let strategy = json.text(reader, "pooling_strategy").map_or("max".to_owned(), |strategy| strategy.value);
    match strategy.as_str() {
        "max" => Some(ModuleKind::Splade { argument: activation }),
        "sum" => Some(ModuleKind::Splade { argument: activation.map(|activation| format!("{activation}+sum")) }),
        other => {
            reader.fault(format_args!("{}: pooling_strategy is '{other}', expected max or sum", json.file));
            None
        }
    }
}

fn mask(reader: &Reader<'_>, folder: &str) -> Option<ModuleKind> {
    let json = config(reader, folder)?;
    const KEEP: &str = "keep_only_token_ids";
    if json.get(KEEP).is_some_and(|value| value.as_array().is_none_or(|list| !list.is_empty())) {
        let file = &json.file;
        reader.fault(format_args!("{file}: {KEEP} is for tokens of images, which are not supported; remove it"));
    }
    let list = |key: &str| words(reader, &json.file, key, json.get(key)?);
    let skiplist_tasks = list("skiplist_tasks");
    if let Some(tasks) = &skiplist_tasks
        && let Some(other) = tasks.value.iter().find(|task| !["query", "document"].contains(&task.as_str()))
    {
        reader.fault(format_args!("{} has '{other}', expected query and document", tasks.origin));
    }
    Some(ModuleKind::Mask { skiplist_words: list("skiplist_words"), skiplist_tasks })
}

/// A list of texts, or one text alone.
pub(crate) fn words(reader: &Reader<'_>, file: &str, key: &str, found: &Value) -> Option<Derived<Vec<String>>> {
    let list = match found {
        Value::String(word) => Some(vec![word.clone()]),
        Value::Array(list) => list.iter().map(|word| word.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    if list.is_none() {
        reader.fault(format_args!("{file}: {key} is {}, expected a list of texts", kind(found)));
    }
    list.map(|list| Derived::field(list, file, key))
}

/// The transformer's own file, under any of its names; if the folder has two, they have to agree.
pub(crate) fn transformer_config(reader: &Reader<'_>, folder: &str) -> Option<Json> {
    let found: Vec<_> = TRANSFORMER_CONFIGS.iter().filter_map(|name| reader.json(&format!("{folder}{name}"))).collect();
    let first = found.first()?.clone();
    for other in &found[1..] {
        let [ours, theirs] = [&first, other].map(|json| json.number(reader, "max_seq_length").map(|value| value.value));
        if let (Some(ours), Some(theirs)) = (ours, theirs)
            && ours != theirs
        {
            let (file, other) = (&first.file, &other.file);
            reader.fault(format_args!(
                "{file}: max_seq_length is {ours}, but {other}: max_seq_length is {theirs}; remove one of the files"
            ));
        }
    }
    Some(first)
}
