//! Puts a folder's files together: the graph, the ops before and after it, and whether the files agree.

use std::path::PathBuf;

use serde_json::Value;

use super::chain::{embedding, scores, sparse, token_chain};
use super::classifier::Head;
use super::described::Files;
use super::files::{Json, Reader};
use super::graphs::{self, GraphFile};
use super::heads;
use super::late::{self, Late};
use super::modules::{self, ModuleKind};
use super::onnx::{Graph, GraphTensor};
use super::origin::Derived;
use super::precision::Precision;
use super::safetensors;
use super::task::{self, Purpose, Task};
use super::tokenizer::{self, Prompts, Tokenizer};

/// The inputs of a graph that a tokenizer makes.
const TOKENIZED: [&str; 4] = ["input_ids", "attention_mask", "token_type_ids", "position_ids"];

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
    /// Whether pooling leaves out the tokens of a prompt.
    pub(crate) excludes_prompt: bool,
    /// The size of the last axis of the result: a vector's width, or the number of labels.
    pub(crate) width: Derived<i64>,
    pub(crate) labels: Option<Derived<Vec<String>>>,
    pub(crate) problem: Option<Derived<&'static str>>,
    pub(crate) prompts: Prompts,
    /// How queries and documents are treated, for models with a vector for each token.
    pub(crate) late: Late,
    /// Further results that are made of the same states.
    pub(crate) heads: Vec<heads::Head>,
    /// Files of such results that the graph gives no states for.
    pub(crate) unserved: Option<Derived<String>>,
}

/// The way in which the model is executed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Executor {
    Onnx {
        file: GraphFile,
        /// The output that is used, with the dimensions that are known of it.
        output: Derived<GraphTensor>,
    },
    Static {
        file: Derived<String>,
        config: Option<String>,
        /// The id of tokens that take no part.
        unknown: Option<Derived<i64>>,
    },
    /// All files of the folder that the backend may want.
    Generation { files: Vec<String>, tells_target: bool },
}

// === impl FolderDescription ===

impl FolderDescription {
    /// The path of the ONNX file within the folder; `None` for static models, which have no ONNX file, and for
    /// models that generate, which have several.
    pub fn graph(&self) -> Option<&str> {
        match &self.executor {
            Executor::Onnx { file, .. } => Some(&file.file.value),
            Executor::Static { .. } | Executor::Generation { .. } => None,
        }
    }
}

pub(crate) fn describe(reader: &Reader<'_>) -> Option<FolderDescription> {
    let mut modules = modules::read(reader);
    let own = reader.json("config_sentence_transformers.json");
    late::complete(own.as_ref(), &mut modules);
    let base = modules::base(modules.as_deref());
    if modules.is_some() && base.is_none() {
        reader.fault("modules.json lists no Transformer, MLMTransformer or StaticEmbedding, of which it needs one");
    }
    let folder = base.unwrap_or_default();
    let config = reader.json_or_empty(&format!("{folder}config.json"));
    let files = Files { config, own, modules };
    let mut purpose = task::purpose(reader, files.modules.as_deref(), files.own.as_ref(), &files.config, &folder);
    let tokenizer = tokenizer::read(reader, &folder, &files.config, purpose.is_static);
    let mut prompts = tokenizer::prompts(reader, files.own.as_ref());
    let (own, modules) = (files.own.as_ref(), files.modules.as_deref());
    let late = late::read(reader, purpose.task.value, &folder, own, modules, &mut prompts);
    late.lengths().for_each(|length| tokenizer::check_length(reader, &length, &files.config));
    if modules.is_none() && architecture(&files.config) == "HF_ColBERT" {
        reader.fault(format_args!(
            "{0}: architectures is HF_ColBERT, whose projection and markers only the library of ColBERT reads; save it with \
             sentence-transformers: python -c \"from sentence_transformers import MultiVectorEncoder as M; \
             M('{1}').save('{1}-st')\"",
            files.config.file,
            reader.root().display()
        ));
    }

    if reader.precision() != Precision::Exact && (purpose.is_static || purpose.task.value == Task::Generate) {
        reader.fault(format_args!(
            "--precision {} chooses among the ONNX files of one graph, which this model does not have; serve it by a process without \
             this flag",
            reader.precision().name()
        ));
    }
    if purpose.task.value == Task::Generate {
        return generation(reader, purpose.task, tokenizer?, &files.config, prompts);
    }
    if purpose.is_static {
        return static_model(reader, purpose.task, tokenizer?, &files, &folder, prompts);
    }
    let file = graphs::find(reader, &folder, purpose.task.value);
    if let Some(file) = &file {
        check_inputs(reader, file);
        guess_sparse(&mut purpose, &files, file);
    }
    let (tokenizer, file) = (tokenizer?, file?);
    check_vocabulary(reader, &tokenizer, &file, &files.config);
    let head = Head::of(reader, &purpose, &files);
    let chain = match purpose.task.value {
        Task::Embed | Task::MultiVector => embedding(reader, purpose.task.value, &files, &file),
        Task::Sparse => sparse(reader, &files, &file),
        _ => scores(reader, &purpose, &files, &file, &head),
    };
    let (mut late, mut heads, mut unserved) = (late, Vec::new(), None);
    if let (Task::Embed, Some(output)) = (purpose.task.value, &chain.output)
        && heads::are_there(reader)
    {
        match output.value.width().filter(|_| output.value.rank() == Some(3)) {
            Some(width) => heads = heads::read(reader, &tokenizer, width),
            None => {
                let there: Vec<_> = heads::files().filter(|file| reader.has(file)).collect();
                let why =
                    format!("{} gives no vectors of tokens; export it with --task feature-extraction", file.file.value);
                unserved = Some(Derived::from(there.join(", "), why));
            }
        }
        late = heads::late(&heads, &tokenizer);
    }
    let width = chain.width;
    if width.is_none() {
        reader.fault(format_args!(
            "no file says how wide the vectors are: neither the outputs of {} nor {}: hidden_size",
            file.file.value, files.config.file
        ));
    }
    Some(FolderDescription {
        root: reader.root().to_owned(),
        task: purpose.task,
        tokenizer,
        special_tokens: None,
        executor: Executor::Onnx { file, output: chain.output? },
        ops: chain.ops,
        excludes_prompt: chain.excludes_prompt,
        width: width?,
        labels: head.labels,
        problem: head.problem.map(|problem| problem.map(|(name, _)| name)),
        prompts,
        late,
        heads,
        unserved,
    })
}

/// The first of the architectures that config.json names.
fn architecture(config: &Json) -> &str {
    config.get("architectures").and_then(|list| list.get(0)?.as_str()).unwrap_or_default()
}

/// A masked language model without `modules.json` is SPLADE if its graph gives logits over the vocabulary, as
/// sentence-transformers takes it.
fn guess_sparse(purpose: &mut Purpose, files: &Files, file: &GraphFile) {
    let architecture = architecture(&files.config);
    let gives_tokens = ["last_hidden_state", "token_embeddings"].iter().any(|name| file.graph.output(name).is_some());
    if purpose.task.value == Task::Embed
        && files.modules.is_none()
        && architecture.ends_with("ForMaskedLM")
        && !gives_tokens
        && file.logits(3).is_some()
    {
        let why = format!("{}: architectures, and {} gives logits", files.config.file, file.file.value);
        purpose.task = Derived::guessed(Task::Sparse, &why);
    }
}

/// The inputs have to be those that a tokenizer makes, with any number of rows.
fn check_inputs(reader: &Reader<'_>, file: &GraphFile) {
    let path = &file.file.value;
    if file.graph.input("input_ids").is_none() {
        let found = file.graph.inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>().join(", ");
        reader.fault(format_args!("{path} has no input input_ids; its inputs are: {found}"));
    }
    if file.graph.inputs.iter().any(|input| input.name.starts_with("past_key_values")) {
        reader.fault(format_args!(
            "{path} takes a key-value cache (past_key_values); export it again with --task feature-extraction"
        ));
    }
    for input in file.graph.inputs.iter().filter(|input| !input.name.starts_with("past_key_values")) {
        if !TOKENIZED.contains(&input.name.as_str()) {
            let (name, known) = (&input.name, TOKENIZED.join(", "));
            reader
                .fault(format_args!("{path} has an input {name}, which no tokenizer makes; known inputs are: {known}"));
        }
        if let Some(dims) = &input.dims
            && (dims.len() != 2 || dims[0] != -1)
        {
            let name = &input.name;
            reader.fault(format_args!(
                "{path}: input {name} has dims {dims:?}, expected [-1, -1]; export it again with dynamic axes"
            ));
        }
    }
}

/// An id beyond the rows of the embedding table would fail every run that contains it.
fn check_vocabulary(reader: &Reader<'_>, tokenizer: &Tokenizer, file: &GraphFile, config: &Json) {
    let Some(highest) = &tokenizer.highest else { return };
    let rows = match file.graph.vocabulary {
        Some(rows) => Some(Derived::from(rows, format!("{}: the table of input_ids", file.file.value))),
        None => config.number(reader, "vocab_size").map(|rows| rows.map(|rows| rows as i64)),
    };
    if let Some(rows) = rows.filter(|rows| highest.value >= rows.value) {
        reader.fault(format_args!(
            "{} has ids up to {}, but {} has {} rows",
            highest.origin, highest.value, rows.origin, rows.value
        ));
    }
}

/// A model that looks up vectors and has no graph: model2vec, StaticEmbedding.
fn static_model(
    reader: &Reader<'_>,
    task: Derived<Task>,
    tokenizer: Tokenizer,
    files: &Files,
    folder: &str,
    prompts: Prompts,
) -> Option<FolderDescription> {
    let file = format!("{folder}model.safetensors");
    let shapes = match safetensors::shapes(&reader.path(&file)) {
        Ok(shapes) => shapes,
        Err(error) => {
            reader.unreadable(&file, format_args!("cannot be read: {error}"));
            return None;
        }
    };
    let table = ["embeddings", "embedding.weight"].iter().find_map(|name| Some((*name, shapes.get(*name)?)));
    let Some((name, &[rows, width])) = table.map(|(name, shape)| (name, shape.as_slice())) else {
        reader.fault(format_args!("{file} has no table 'embeddings' or 'embedding.weight' of rank 2"));
        return None;
    };
    let mapped = shapes.get("mapping").and_then(|shape| shape.first().copied()).unwrap_or(rows);
    if let Some(highest) = tokenizer.highest.as_ref().filter(|highest| highest.value >= mapped) {
        reader.fault(format_args!(
            "{} has ids up to {}, but {file}: {name} has {mapped} rows",
            highest.origin, highest.value
        ));
    }
    let by_config = files.config.flag(reader, "normalize");
    let by_module = files.modules.iter().flatten().find(|module| module.step == ModuleKind::Normalize);
    if let (Some(flag), Some(modules)) = (&by_config, &files.modules)
        && flag.value != by_module.is_some()
        && !modules.is_empty()
    {
        let lists = if by_module.is_some() { "lists a Normalize" } else { "lists no Normalize" };
        reader.fault(format_args!("{} is {}, but modules.json {lists}", flag.origin, flag.value));
    }
    let mut ops = Vec::new();
    let width = Derived::from(width, format!("{file}: {name}"));
    let steps: Vec<_> = files.modules.iter().flatten().collect();
    let width = match steps.is_empty() {
        true => {
            if let Some(flag) = by_config.filter(|flag| flag.value) {
                ops.push(flag.map(|_| "normalize".to_owned()));
            }
            width
        }
        // The lookup pools the table's vectors, so only ops on one vector are left.
        false => token_chain(reader, &steps, width, &mut ops),
    };
    // model2vec leaves unknown tokens out; sentence-transformers does not.
    let leaves_out = files.config.get("model_type").is_some_and(|kind| kind == "model2vec");
    let unknown = tokenizer.unknown.clone().filter(|_| leaves_out);
    Some(FolderDescription {
        root: reader.root().to_owned(),
        task: task.clone(),
        tokenizer,
        special_tokens: Some(Derived::from(false, task.origin)),
        executor: Executor::Static {
            file: Derived::from(file, "the only weights that are looked up"),
            config: reader.has(&files.config.file).then(|| files.config.file.clone()),
            unknown,
        },
        ops,
        excludes_prompt: false,
        width,
        labels: None,
        problem: None,
        prompts,
        late: Late::default(),
        heads: Vec::new(),
        unserved: None,
    })
}

/// Encoder-decoder models: the backend reads their configurations itself.
fn generation(
    reader: &Reader<'_>,
    task: Derived<Task>,
    tokenizer: Tokenizer,
    config: &Json,
    prompts: Prompts,
) -> Option<FolderDescription> {
    let mut files: Vec<_> = ["config.json", "generation_config.json"]
        .into_iter()
        .filter(|file| reader.has(file))
        .map(str::to_owned)
        .collect();
    let names = ["", "onnx/"]
        .into_iter()
        .flat_map(|place| reader.names(place).into_iter().map(move |name| format!("{place}{name}")));
    let parts: Vec<_> = names.filter(|name| graphs::is_generation_part(name)).collect();
    for part in parts.iter().filter(|part| part.ends_with(".onnx")) {
        match Graph::read(&reader.path(part)) {
            Ok(graph) => files.extend(graph.external_files(reader, part)),
            Err(error) => reader.unreadable(part, format_args!("cannot be read: {error}")),
        }
    }
    files.extend(parts);
    files.sort_unstable();
    files.dedup();
    if !files.iter().any(|file| file.contains(graphs::ENCODER)) {
        graphs::missing(reader, "", Task::Generate);
        return None;
    }
    // The output of these models begins with the target language's token, which the tokenizer supplies.
    let class = reader.json("tokenizer_config.json");
    let class =
        class.as_ref().and_then(|config| config.get("tokenizer_class")).and_then(Value::as_str).unwrap_or_default();
    let tells_target = ["M2M100", "Nllb", "MBart"].iter().any(|family| class.starts_with(family))
        || config.get("model_type").is_some_and(|kind| ["m2m_100", "mbart"].iter().any(|known| kind == known));
    Some(FolderDescription {
        root: reader.root().to_owned(),
        task,
        tokenizer,
        special_tokens: None,
        executor: Executor::Generation { files, tells_target },
        ops: vec![Derived::from("decode".to_owned(), "the tokenizer's files")],
        excludes_prompt: false,
        width: Derived::from(-1, ""),
        labels: None,
        problem: None,
        prompts,
        late: Late::default(),
        heads: Vec::new(),
        unserved: None,
    })
}
