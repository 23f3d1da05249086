//! Models with a vector for each token (ColBERT) treat queries and documents differently: lengths, queries that are filled up, tokens
//! whose vectors are not compared.
//!
//! sentence-transformers writes it into the transformer's file and the folder of `MultiVectorMask`. PyLate, its predecessor for these
//! models, writes it into config_sentence_transformers.json, together with prefixes, and lists neither the mask nor the
//! normalization among the modules; it is read as sentence-transformers reads it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::files::{Json, Reader, kind};
use super::modules::{self, Module, ModuleKind};
use super::origin::Derived;
use super::processing;
use super::task::{PYLATE, Task};
use super::tokenizer::Prompts;

/// The length to which PyLate fills queries up where its file gives none.
const USUAL_QUERY: u64 = 32;

/// The tokens whose vectors are not compared where PyLate's file lists none: Python's `string.punctuation`.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// Fields of config_sentence_transformers.json that only PyLate writes.
const MARKS: [&str; 9] = [
    "query_length",
    "document_length",
    "query_expansion",
    "do_query_expansion",
    "attend_to_expansion_tokens",
    "attend_to_mask_tokens",
    "query_prefix",
    "document_prefix",
    "skiplist_words",
];

/// The parameters of the tokenizer for queries and documents. JSON values are texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Late {
    pub(crate) query_length: Option<Derived<u64>>,
    pub(crate) document_length: Option<Derived<u64>>,
    pub(crate) query_expansion: Option<Derived<String>>,
    pub(crate) skiplist_words: Option<Derived<String>>,
    pub(crate) skiplist_tasks: Option<Derived<String>>,
    pub(crate) prompts_as_tokens: Option<Derived<bool>>,
}

/// Whether a folder is one of PyLate.
pub(super) fn is_pylate(own: Option<&Json>) -> bool {
    own.and_then(|own| own.get("model_type")).is_some_and(|kind| kind == PYLATE)
}

/// The modules that PyLate leaves out of its list, at their places.
pub(super) fn complete(own: Option<&Json>, modules: &mut Option<Vec<Module>>) {
    let (Some(own), Some(modules)) = (own.filter(|_| is_pylate(own)), modules) else { return };
    let place = format!("{}: model_type {PYLATE}", own.file);
    let has_mask = modules.iter().any(|module| matches!(module.step, ModuleKind::Mask { .. }));
    if !has_mask {
        let mask = ModuleKind::Mask { skiplist_words: None, skiplist_tasks: None };
        modules.push(Module { place: place.clone(), step: mask });
        modules.push(Module { place, step: ModuleKind::Normalize });
    }
}

/// Reads how queries and documents are treated; what differs between them for a task that knows no queries is a fault. PyLate's
/// prefixes become prompts.
pub(super) fn read(
    reader: &Reader<'_>,
    task: Task,
    folder: &str,
    own: Option<&Json>,
    modules: Option<&[Module]>,
    prompts: &mut Prompts,
) -> Late {
    let transformer = modules::transformer_config(reader, folder);
    let transformer = transformer.as_ref();
    if task != Task::MultiVector {
        for key in ["query_expansion", "query_length", "document_length"] {
            if let Some(file) = transformer.filter(|file| file.get(key).is_some()) {
                reader.fault(format_args!(
                    "{}: {key} treats queries and documents differently, which is supported for models with a vector for each token \
                     only (MultiVectorMask); remove it",
                    file.file
                ));
            }
        }
        return Late::default();
    }
    let told = own.filter(|own| MARKS.iter().any(|mark| own.get(mark).is_some() || own.is_null(mark)));
    let mut late = Late::default();
    // Lengths in the newer place hold for both sides.
    let fixed = transformer.and_then(processing::processing_length).is_some();
    for (slot, key) in [(&mut late.query_length, "query_length"), (&mut late.document_length, "document_length")] {
        let file = transformer.filter(|file| file.get(key).is_some()).or(told);
        *slot = file.filter(|_| !fixed).and_then(|file| file.number(reader, key)).filter(|length| length.value > 0);
    }
    late.query_expansion = expansion(reader, transformer, told, &mut late.query_length);
    let mask = modules.into_iter().flatten().find_map(|module| match &module.step {
        ModuleKind::Mask { skiplist_words, skiplist_tasks } => Some((skiplist_words.clone(), skiplist_tasks.clone())),
        _ => None,
    });
    let (words, tasks) = mask.unwrap_or_default();
    let words = words.or_else(|| pylate_words(reader, own));
    let words = words.filter(|words| !words.value.is_empty());
    late.skiplist_words = words.map(|words| words.map(|words| json!(words).to_string()));
    late.skiplist_tasks = tasks.map(|tasks| tasks.map(|tasks| json!(tasks).to_string()));
    if let Some(own) = told {
        late.prompts_as_tokens = prefixes(reader, own, prompts);
    }
    if late != Late::default() {
        name_sides(prompts);
    }
    late
}

/// `query_expansion` as the tokenizer takes it. PyLate's length of queries is the one to which they are filled up.
fn expansion(
    reader: &Reader<'_>,
    transformer: Option<&Json>,
    told: Option<&Json>,
    query_length: &mut Option<Derived<u64>>,
) -> Option<Derived<String>> {
    const KEY: &str = "query_expansion";
    let is_there = |file: &&Json| file.get(KEY).is_some() || file.is_null(KEY);
    if let Some(file) = transformer.filter(is_there).or(told.filter(is_there)) {
        let found = file.object(reader, KEY)?;
        let known = |key: &str| ["strategy", "attend", "token", "length"].contains(&key);
        if let Some(unknown) = found.keys().find(|key| !known(key)) {
            reader.fault(format_args!(
                "{}: {KEY} has '{unknown}', expected strategy, attend, token and length",
                file.file
            ));
        }
        let strategy = found.get("strategy").cloned().unwrap_or_default();
        if !["fixed", "min"].iter().any(|known| strategy == *known) {
            let found = kind(&strategy);
            reader.fault(format_args!("{}: {KEY}.strategy is {found}, expected \"fixed\" or \"min\"", file.file));
        }
        if found.get("length").and_then(Value::as_u64).is_none_or(|length| length == 0) {
            reader.fault(format_args!("{}: {KEY}.length is missing, expected a whole number from 1", file.file));
        }
        let kept: BTreeMap<_, _> = found.into_iter().filter(|(_, value)| !value.is_null()).collect();
        return Some(Derived::field(json!(kept).to_string(), &file.file, KEY));
    }
    let told = told?;
    let flag = |key: &str| told.flag(reader, key);
    if flag("do_query_expansion").is_some_and(|flag| !flag.value) {
        return None;
    }
    let attend = flag("attend_to_expansion_tokens").or_else(|| flag("attend_to_mask_tokens"));
    let attend = attend.is_some_and(|flag| flag.value);
    let length = query_length.take();
    let value = json!({
        "strategy": "fixed",
        "attend": attend,
        "length": length.as_ref().map_or(USUAL_QUERY, |length| length.value)
    });
    Some(match length {
        Some(length) => Derived::from(value.to_string(), length.origin),
        None => Derived::default_of(value.to_string(), "PyLate", &format!("{} has no query_length", told.file)),
    })
}

/// The tokens that PyLate leaves out.
fn pylate_words(reader: &Reader<'_>, own: Option<&Json>) -> Option<Derived<Vec<String>>> {
    let own = own?;
    match own.get("skiplist_words") {
        Some(found) => modules::words(reader, &own.file, "skiplist_words", found),
        None if is_pylate(Some(own)) => {
            let words = PUNCTUATION.chars().map(String::from).collect();
            Some(Derived::default_of(words, "PyLate", &format!("{} has no skiplist_words", own.file)))
        }
        None => None,
    }
}

/// Puts PyLate's prefixes before the prompts of queries and documents. Gives whether they are tokens, where there are any.
fn prefixes(reader: &Reader<'_>, own: &Json, prompts: &mut Prompts) -> Option<Derived<bool>> {
    let mut found = None;
    for (key, name) in [("query_prefix", "query"), ("document_prefix", "document")] {
        let Some(prefix) = own.text(reader, key) else { continue };
        let origin = prefix.origin.clone();
        let texts = prompts.texts.get_or_insert_with(|| Derived::from(BTreeMap::new(), origin.clone()));
        let text = texts.value.entry(name.to_owned()).or_default();
        let rest = text.strip_prefix(&prefix.value).unwrap_or(text).to_owned();
        *text = format!("{}{rest}", prefix.value);
        found.get_or_insert(Derived::from(true, origin));
    }
    found
}

/// Requests say which side their texts are of by the name of a prompt, also where nothing is put before the texts.
fn name_sides(prompts: &mut Prompts) {
    let origin = "the names by which requests say what their texts are";
    let texts = prompts.texts.get_or_insert_with(|| Derived::from(BTreeMap::new(), origin));
    texts.value.entry("query".to_owned()).or_default();
    if !["document", "passage", "corpus"].iter().any(|name| texts.value.contains_key(*name)) {
        texts.value.insert("document".to_owned(), String::new());
    }
}

// === impl Late ===

impl Late {
    /// Whether not all tokens that the model sees are compared, or others as well.
    pub(crate) fn scores_apart(&self) -> bool {
        self.query_expansion.is_some() || self.skiplist_words.is_some()
    }

    /// The lengths of rows that it asks for.
    pub(super) fn lengths(&self) -> impl Iterator<Item = Derived<u64>> {
        let expanded = self.query_expansion.as_ref().and_then(|expansion| {
            let length = serde_json::from_str::<Value>(&expansion.value).ok()?.get("length")?.as_u64()?;
            Some(Derived::from(length, expansion.origin.clone()))
        });
        [self.query_length.clone(), self.document_length.clone(), expanded].into_iter().flatten()
    }
}
