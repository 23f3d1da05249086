//! Folders of GLiNER and GLiNER2: the labels of a request stand before its text, and the graph scores spans of the text's words.

use serde_json::Value;
use trireme_inference::DataType;

use super::description::{Executor, FolderDescription};
use super::files::{Json, Reader};
use super::graphs::{self, GraphFile};
use super::heads::{Head, Source};
use super::origin::Derived;
use super::span_rows::SpanRows;
use super::task::Task;
use super::tokenizer::{self, Prompts, Tokenizer};

/// The file by which such a folder is known.
pub(super) const FILE: &str = "gliner_config.json";

/// The `model_type` of folders of GLiNER2, and the folder with their encoder's configuration.
const EXTRACTOR: &str = "extractor";
const ENCODER: &str = "encoder_config/";

/// The tokens of GLiNER2 around labels.
const LABEL_TOKEN: &str = "[E]";
const SEPARATOR: &str = "[SEP_TEXT]";

/// The library of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    Gliner,
    Gliner2,
}

/// The graph's inputs with their datatypes and dimensions.
const INPUTS: [(&str, DataType, usize); 6] = [
    ("input_ids", DataType::Int64, 2),
    ("attention_mask", DataType::Int64, 2),
    ("words_mask", DataType::Int64, 2),
    ("text_lengths", DataType::Int64, 2),
    ("span_idx", DataType::Int64, 3),
    ("span_mask", DataType::Bool, 2),
];

/// The further outputs of graphs of GLiNER2, each with its rank: the logits of labels of classes, and those of spans for the fields of records.
const CLASS_LOGITS: (&str, usize) = ("class_logits", 2);
const RECORD_LOGITS: (&str, usize) = ("record_logits", 5);

/// Fields that tell another architecture, each with its name.
const OTHERS: [(&str, &str); 3] =
    [("labels_encoder", "a bi-encoder"), ("labels_decoder", "a decoder of labels"), ("relations_layer", "relations")];

/// The length of rows of models without a longest row: so many tokens for each word, and not less than a usual row.
const TOKENS_PER_WORD: u64 = 4;
const USUAL_LENGTH: u64 = 512;

/// The library of the folder's model, where it is of this kind.
pub(super) fn library(reader: &Reader<'_>) -> Option<Library> {
    if reader.has(FILE) {
        return Some(Library::Gliner);
    }
    let config = reader.has("config.json").then(|| reader.json_or_empty("config.json"))?;
    (config.get("model_type").is_some_and(|kind| kind == EXTRACTOR)).then_some(Library::Gliner2)
}

/// The description of the folder.
pub(super) fn describe(reader: &Reader<'_>, library: Library) -> Option<FolderDescription> {
    match library {
        Library::Gliner => describe_gliner(reader),
        Library::Gliner2 => describe_gliner2(reader),
    }
}

fn describe_gliner2(reader: &Reader<'_>) -> Option<FolderDescription> {
    let config = reader.json("config.json")?;
    let instead = "serve it with a model.py that uses the library gliner2 (docs/python.md)";
    for (field, wanted) in [("architecture", "span"), ("token_pooling", "first")] {
        if let Some(other) = config.text(reader, field).filter(|found| found.value != wanted) {
            reader.fault(format_args!("{} is {}, expected {wanted}: {instead}", other.origin, other.value));
            return None;
        }
    }
    let file = format!("{ENCODER}config.json");
    if !reader.has(&file) {
        let root = reader.root().display();
        reader.lacks(format_args!(
            "{root} has no {file}, the encoder's configuration, which the library saves: download the folder again"
        ));
        return None;
    }
    let encoder = reader.json(&file)?;
    let mut tokenizer = tokenizer::read(reader, "", &encoder, false)?;
    has_tokens(reader, &tokenizer, Library::Gliner2)?;
    let head = config.object(reader, "span_head").unwrap_or_default();
    let head = Json::of("config.json: span_head", head);
    let width = head.number(reader, "max_width").or_else(|| config.number(reader, "max_width"));
    let width = width.unwrap_or_else(|| Derived::default_of(8, "gliner2 2.1", "no field says it"));
    let words = config.number(reader, "max_len").filter(|number| number.value > 0);
    let words = words.unwrap_or_else(|| Derived::from(USUAL_LENGTH, "no field says how many words a row may have"));
    let spans = SpanRows {
        form: "gliner2",
        label_token: LABEL_TOKEN.to_owned(),
        separator: SEPARATOR.to_owned(),
        max_words: words.value,
        max_width: width.value,
    };
    // The library cuts no row.
    if tokenizer.max_length.as_ref().is_none_or(|length| !is_hard(reader, &encoder, length)) {
        tokenizer.max_length = Some(length_of(&words));
    }
    tokenizer.adds_special = Some(Derived::from(false, "rows of gliner2 begin with their schema"));
    described(reader, tokenizer, Derived::from(spans, format!("{}, {}", words.origin, width.origin)), Library::Gliner2)
}

fn describe_gliner(reader: &Reader<'_>) -> Option<FolderDescription> {
    let config = reader.json(FILE)?;
    if refuse_others(reader, &config) {
        return None;
    }
    let encoder = config.object(reader, "encoder_config").unwrap_or_default();
    let encoder = Json::of(&format!("{FILE}: encoder_config"), encoder);
    let mut tokenizer = tokenizer::read(reader, "", &encoder, false)?;
    has_tokens(reader, &tokenizer, Library::Gliner)?;
    let number = |key: &str, usual: u64| {
        let told = config.number(reader, key).filter(|number| number.value > 0);
        told.unwrap_or_else(|| Derived::default_of(usual, "gliner 0.2", "no field says it"))
    };
    let (words, width) = (number("max_len", 384), number("max_width", 12));
    let text = |key: &str, usual: &str| config.text(reader, key).map_or_else(|| usual.to_owned(), |text| text.value);
    let spans = SpanRows {
        form: "gliner",
        label_token: text("ent_token", "<<ENT>>"),
        separator: text("sep_token", "<<SEP>>"),
        max_words: words.value,
        max_width: width.value,
    };
    check_label_token(reader, &config, &spans.label_token)?;
    // The library cuts rows at the tokenizer's length, and at no other where positions are relative.
    if tokenizer.max_length.as_ref().is_none_or(|length| !is_hard(reader, &encoder, length)) {
        tokenizer.max_length = Some(length_of(&words));
    }
    let spans = Derived::from(spans, format!("{FILE}: ent_token, sep_token, max_len, max_width"));
    described(reader, tokenizer, spans, Library::Gliner)
}

/// Refuses a tokenizer that does not tell the words of its tokens.
fn has_tokens(reader: &Reader<'_>, tokenizer: &Tokenizer, library: Library) -> Option<()> {
    if tokenizer.files.iter().any(|file| file == "tokenizer.json") {
        return Some(());
    }
    let (root, module, class) = (reader.root().display(), library.export(), library.class());
    reader.lacks(format_args!(
        "{root} has no tokenizer.json, which tells the words of tokens; save the tokenizer with the library: python -c \"from {module} import {class}; \
         {class}.from_pretrained('{root}').save_pretrained('{root}')\""
    ));
    None
}

/// The length of rows of so many words.
fn length_of(words: &Derived<u64>) -> Derived<u64> {
    let origin = format!("{TOKENS_PER_WORD} tokens for each word, {USUAL_LENGTH} at least; {}", words.origin);
    Derived::from((TOKENS_PER_WORD * words.value).max(USUAL_LENGTH), origin)
}

fn described(
    reader: &Reader<'_>,
    tokenizer: Tokenizer,
    spans: Derived<SpanRows>,
    library: Library,
) -> Option<FolderDescription> {
    if graphs::listed(reader, "").is_empty() {
        let (root, package) = (reader.root().display(), library.export());
        reader.lacks(format_args!(
            "{root} holds no ONNX file; make one with: trireme export {root}, by a Python that has {package}: pip install {} onnx",
            library.package()
        ));
        return None;
    }
    let file = graphs::find(reader, "", library.export())?;
    check_graph(reader, &file)?;
    let output = file.logits(4).cloned();
    let Some(output) = output else {
        reader.fault(format_args!(
            "{} gives {}, expected logits of rank 4: words, widths and labels of each row",
            file.file.value,
            file.outputs()
        ));
        return None;
    };
    let output = Derived::from(output.clone(), file.place(&output));
    let heads = match library {
        Library::Gliner => Vec::new(),
        Library::Gliner2 => heads(reader, &file),
    };
    let executor = Executor::Onnx { file: Box::new(file), output };
    let (place, op) = match library {
        Library::Gliner => (format!("{FILE} is there"), "spans"),
        Library::Gliner2 => (format!("config.json: model_type is {EXTRACTOR}"), "spans:by_label"),
    };
    Some(FolderDescription {
        special_tokens: tokenizer.adds_special.clone(),
        ops: vec![Derived::from(op.to_owned(), "entities of the labels that a request names")],
        spans: Some(spans),
        heads,
        ..FolderDescription::plain(
            reader,
            Derived::from(Task::TokenClassify, place),
            tokenizer,
            Prompts::default(),
            executor,
        )
    })
}

/// The heads of the graph besides entities: classes, and records where there are classes.
fn heads(reader: &Reader<'_>, file: &GraphFile) -> Vec<Head> {
    let lacks = |output: &str, what: &str| {
        reader.warn(format_args!(
            "{} has no output '{output}', so that {what}: move it away, and make it again with trireme export {}",
            file.file.value,
            reader.root().display()
        ));
    };
    let folding = Derived::from("fold:max".to_owned(), "a label of a window is one of the text");
    let classes = Derived::from("classes".to_owned(), "scores of the labels that a request names");
    let records = Derived::from("records".to_owned(), "structures and relations that a request names");
    let Some(classes) = head(file, CLASS_LOGITS, Task::ZeroShot, vec![folding, classes]) else {
        lacks(CLASS_LOGITS.0, "entities alone are found");
        return Vec::new();
    };
    let Some(records) = head(file, RECORD_LOGITS, Task::Extract, vec![records]) else {
        lacks(RECORD_LOGITS.0, "structures and relations are not found");
        return vec![classes];
    };
    vec![classes, records]
}

/// A further result, where the graph has the output for it.
fn head(file: &GraphFile, (name, rank): (&str, usize), task: Task, ops: Vec<Derived<String>>) -> Option<Head> {
    let output = file.graph.output(name).filter(|output| output.rank().is_none_or(|found| found == rank))?;
    let (source, origin) = (Source::Output(output.clone()), file.place(output));
    Some(Head { task, source, origin, ops, width: -1 })
}

/// Whether a longer row fails in the model, or is cut by the library.
fn is_hard(reader: &Reader<'_>, encoder: &Json, length: &Derived<u64>) -> bool {
    let relative = ["deberta", "deberta-v2"];
    let is_relative = encoder.get("model_type").and_then(Value::as_str).is_none_or(|kind| relative.contains(&kind));
    !is_relative
        || reader
            .json("tokenizer_config.json")
            .is_some_and(|own| own.get("model_max_length").and_then(Value::as_u64) == Some(length.value))
}

/// Refuses models of GLiNER that have other graphs. Gives whether it is one.
fn refuse_others(reader: &Reader<'_>, config: &Json) -> bool {
    let instead = "serve it with a model.py that uses the library gliner (docs/python.md)";
    let mut is_other = false;
    for (key, what) in OTHERS.iter().filter(|(key, _)| config.get(key).is_some()) {
        reader.fault(format_args!("{FILE}: {key} tells {what}, expected a model of spans with one encoder: {instead}"));
        is_other = true;
    }
    if config.get("span_mode").is_some_and(|mode| mode == "token_level") {
        reader.fault(format_args!("{FILE}: span_mode is token_level, expected a model of spans: {instead}"));
        is_other = true;
    }
    if config.get("precomputed_prompts_mode").is_some_and(|mode| mode == true) {
        reader.fault(format_args!("{FILE}: precomputed_prompts_mode is true, whose labels are fixed: {instead}"));
        is_other = true;
    }
    if let Some(splitter) = config.text(reader, "words_splitter_type").filter(|splitter| splitter.value != "whitespace")
    {
        reader.fault(format_args!(
            "{} is {}, expected whitespace, the only way to split words here: {instead}",
            splitter.origin, splitter.value
        ));
        is_other = true;
    }
    is_other
}

/// The graph looks for labels at the token with the number in the configuration.
fn check_label_token(reader: &Reader<'_>, config: &Json, token: &str) -> Option<()> {
    let json = reader.json("tokenizer.json")?;
    let added = json.get("added_tokens").and_then(Value::as_array);
    let named = added.into_iter().flatten().find(|added| added.get("content").is_some_and(|found| found == token));
    let id = named.and_then(|added| added.get("id")?.as_i64());
    let told = config.get("class_token_index").and_then(Value::as_i64).filter(|&id| id >= 0);
    match (id, told) {
        (None, _) => reader.fault(format_args!("tokenizer.json: added_tokens has no '{token}', which {FILE} puts before labels")),
        (Some(id), Some(told)) if id != told => reader.fault(format_args!(
            "{FILE}: class_token_index is {told}, but tokenizer.json gives '{token}' the id {id}: the graph would find no label"
        )),
        _ => return Some(()),
    }
    None
}

fn check_graph(reader: &Reader<'_>, file: &GraphFile) -> Option<()> {
    let graph = &file.graph;
    let is_input = |&&(name, datatype, rank): &&(&str, DataType, usize)| {
        let found = graph.input(name);
        found.is_some_and(|found| {
            found.datatype.is_none_or(|own| own == datatype) && found.rank().is_none_or(|own| own == rank)
        })
    };
    let lacking: Vec<_> = INPUTS.iter().filter(|input| !is_input(input)).map(|(name, ..)| *name).collect();
    let others: Vec<_> = graph
        .inputs
        .iter()
        .map(|input| input.name.as_str())
        .filter(|name| INPUTS.iter().all(|(own, ..)| own != name))
        .collect();
    if lacking.is_empty() && others.is_empty() {
        return Some(());
    }
    let said = |what: &str, names: &[&str]| {
        if names.is_empty() { String::new() } else { format!(" {what} {}", names.join(", ")) }
    };
    reader.fault(format_args!(
        "{}: its inputs are not those of a model of spans, {}:{}{}; export it again with trireme export {}",
        file.file.value,
        INPUTS.map(|(name, ..)| name).join(", "),
        said("it lacks or has otherwise", &lacking),
        said("it has", &others),
        reader.root().display()
    ));
    None
}

// === impl Library ===

impl Library {
    /// The word for `trireme export` of the graph.
    pub(super) const fn export(self) -> &'static str {
        match self {
            Library::Gliner => "gliner",
            Library::Gliner2 => "gliner2",
        }
    }

    /// The class that reads and writes folders.
    const fn class(self) -> &'static str {
        match self {
            Library::Gliner => "GLiNER",
            Library::Gliner2 => "GLiNER2",
        }
    }

    /// The package that pip installs.
    const fn package(self) -> &'static str {
        match self {
            Library::Gliner => "gliner",
            Library::Gliner2 => "'gliner2[local]'",
        }
    }
}
