//! Puts a folder's files together: the graph, the ops before and after it, and whether the files agree.

use serde_json::Value;
use trireme_model_files::onnx::Graph;

use super::causal;
use super::chain::{self, embedding};
use super::choices::PaddingSide;
use super::classifier::Head;
use super::described::FolderFiles;
use super::description::{Executor, FolderDescription};
use super::fields;
use super::files::{Json, Reader};
use super::graphs::{self, GraphFile};
use super::heads;
use super::inputs;
use super::late;
use super::messages;
use super::modules::{self, Module, ModuleKind};
use super::origin::Derived;
use super::precision::Precision;
use super::scores::{scores, sparse};
use super::spans;
use super::tables;
use super::task::{self, Purpose, Task, architecture};
use super::tokenizer::{self, Prompts, Tokenizer};

/// Classifiers that libraries keep beside an encoder, each with its library, and what applies it.
const HEADS: [(&str, &str, &str); 2] = [
    ("model_head.pkl", "SetFit", "joblib.load('model_head.pkl').predict_proba(vectors)"),
    ("pipeline.skops", "model2vec", "skops.io.load('pipeline.skops').predict_proba(vectors)"),
];

pub(crate) fn describe(reader: &Reader<'_>) -> Option<FolderDescription> {
    if let Some(library) = spans::library(reader) {
        return spans::describe(reader, library);
    }
    let mut modules = modules::read(reader);
    let own = reader.json("config_sentence_transformers.json");
    late::complete(own.as_ref(), &mut modules);
    let base = modules::base(modules.as_deref());
    if modules.is_some() && base.is_none() {
        reader.lacks("modules.json lists no Transformer, MLMTransformer or StaticEmbedding, of which it needs one");
    }
    let folder = base.unwrap_or_default();
    let config = reader.json_or_empty(&format!("{folder}config.json"));
    for (kind, json) in [("config.json", Some(&config)), ("config_sentence_transformers.json", own.as_ref())] {
        if let Some(json) = json {
            fields::check(reader, kind, json);
        }
    }
    if let Some(json) = modules::transformer_config(reader, &folder) {
        fields::check(reader, "sentence_bert_config.json", &json);
    }
    if let Some(modules) = &modules {
        modules::check_places(reader, modules);
    }
    let files = FolderFiles { config, own, modules };
    if refuse_others(reader, &files) {
        return None;
    }
    let mut purpose = task::purpose(reader, files.modules.as_deref(), files.own.as_ref(), &files.config, &folder);
    let of_tokens = |module: &Module| matches!(module.step, ModuleKind::Static { of_tokens: true, .. });
    let of_tokens = files.modules.iter().flatten().any(of_tokens);
    let mut tokenizer = tokenizer::read(reader, &folder, &files.config, purpose.is_static && !of_tokens);
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
    if !purpose.is_static
        && purpose.task.value != Task::Generate
        && let Some(tokenizer) = &mut tokenizer
    {
        tokenizer.messages = messages::read(reader, &folder, &files, purpose.task.value);
    }
    let score = causal::score(reader, &purpose, &files, &folder);
    if let (Some(_), Some(tokenizer), None) = (&score, &mut tokenizer, reader.choices().padding_side) {
        let why = "the score is read at the last token, so that the library fills rows up on the left";
        tokenizer.padding_side = Derived::from(PaddingSide::Left, why);
    }
    if purpose.task.value == Task::Generate {
        return generation(reader, purpose.task, tokenizer?, &files.config, prompts);
    }
    if of_tokens {
        return tables::token_weights(reader, purpose.task, tokenizer?, &files, &folder, prompts);
    }
    if purpose.is_static {
        return tables::static_model(reader, purpose.task, tokenizer?, &files, &folder, prompts);
    }
    let file = graphs::find(reader, &folder, purpose.export());
    if let Some(file) = &file {
        inputs::check(reader, file);
        if reader.choices().task.is_none() {
            guess_sparse(&mut purpose, &files, file);
        }
    }
    let (mut tokenizer, file) = (tokenizer?, file?);
    if score.is_none() && architecture(&files.config).ends_with("ForCausalLM") && file.gives_logits_alone() {
        reader.fault(format_args!(
            "{}: architectures is {}, a causal language model, and {} gives what its head makes: texts are not generated by decoders here. To \
             embed with it, export it without the head: mv {3}/{4} {3}/{4}.logits && trireme export {3} --task embed && trireme serve {3} --pooling \
             last, or another way to pool",
            files.config.file,
            architecture(&files.config),
            file.outputs(),
            reader.root().display(),
            file.file.value
        ));
        return None;
    }
    check_vocabulary(reader, &tokenizer, &file, &files.config);
    check_positions(reader, &mut tokenizer, &file);
    let head = if score.is_some() { Head::default() } else { Head::of(reader, &purpose, &files) };
    let mut chain = match (purpose.task.value, score) {
        (_, Some(score)) => causal::scores(reader, &purpose, &files, &file, score),
        (Task::Embed | Task::MultiVector, None) => embedding(reader, purpose.task.value, &files, &file),
        (Task::Sparse, None) => sparse(reader, &files, &file, &tokenizer),
        _ => scores(reader, &purpose, &files, &file, &head),
    };
    if matches!(purpose.task.value, Task::Embed | Task::MultiVector) {
        chain::trim(reader, files.own.as_ref(), &mut chain);
    }
    let (mut late, mut heads, mut unserved) = (late, Vec::new(), None);
    if let (Task::Embed, Some(output)) = (purpose.task.value, &chain.output) {
        if heads::are_there(reader) {
            match output.value.width().filter(|_| output.value.rank() == Some(3)) {
                Some(width) => heads = heads::read(reader, &tokenizer, width),
                None => {
                    let there: Vec<_> = heads::files().filter(|file| reader.has(file)).collect();
                    let why = format!(
                        "{} gives no vectors of tokens; export it with --task feature-extraction",
                        file.file.value
                    );
                    unserved = Some(Derived::from(there.join(", "), why));
                }
            }
        } else if reader.choices().output.is_none() {
            (heads, unserved) = heads::of_graph(&file, &tokenizer, &output.value);
        }
        if !heads.is_empty() {
            late = heads::late(&heads, &tokenizer);
        }
    }
    let is_open = matches!(purpose.task.value, Task::MultiVector | Task::Sparse | Task::TokenClassify);
    if (is_open || !heads.is_empty()) && file.graph.input("attention_mask").is_none() {
        reader.fault(format_args!(
            "{0} has no input attention_mask, so that it takes the padding of shorter texts for text: export it again: mv {1}/{0} {1}/{0}.unmasked \
             && trireme export {1} --task {2}",
            file.file.value,
            reader.root().display(),
            purpose.task.value.name()
        ));
    }
    let takes_texts = takes_texts(&purpose, &tokenizer);
    if takes_texts {
        let origin = "a classifier with one label, and no problem_type: it scores pairs and single texts alike";
        purpose.task = Derived::from(purpose.task.value, format!("{}: architectures is {origin}", files.config.file));
    }
    let width = chain.width;
    if width.is_none() {
        reader.fault(format_args!(
            "no file says how wide the vectors are: neither the outputs of {} nor {}: hidden_size",
            file.file.value, files.config.file
        ));
    }
    let adapters = file.graph.input(inputs::TASK_INPUT).map(|input| adapters(&files.config, file.place(input)));
    let executor = Executor::Onnx { file: Box::new(file), output: chain.output? };
    Some(FolderDescription {
        special_tokens: tokenizer.adds_special.clone(),
        ops: chain.ops,
        excludes_prompt: chain.excludes_prompt,
        graph_end: chain.graph_end,
        width: width?,
        labels: head.labels,
        problem: head.problem.map(|problem| problem.map(|(name, _)| name)),
        late,
        heads,
        unserved,
        takes_texts,
        adapters,
        ..FolderDescription::plain(reader, purpose.task, tokenizer, prompts, executor)
    })
}

/// Whether a reranker is a classifier of single texts as well: nothing says for which task it was trained, and the libraries of both tasks
/// make the same score, unless a chat template is applied.
fn takes_texts(purpose: &Purpose, tokenizer: &Tokenizer) -> bool {
    purpose.task.value == Task::Rerank && purpose.task.is_guess() && tokenizer.messages.is_none()
}

/// A masked language model without `modules.json` is SPLADE if its graph gives logits over the vocabulary, as
/// sentence-transformers takes it.
fn guess_sparse(purpose: &mut Purpose, files: &FolderFiles, file: &GraphFile) {
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

/// Models of kinds that no task here has, or whose weights are in parts. No export mends them. Gives whether the model is one.
fn refuse_others(reader: &Reader<'_>, files: &FolderFiles) -> bool {
    let architecture = architecture(&files.config);
    let answers_questions = architecture.ends_with("ForQuestionAnswering");
    if answers_questions {
        reader.refuse(format_args!(
            "{}: architectures is {architecture}, and question answering is no task that folders are served for: serve the ONNX file in a \
             model repository of your own (docs/model-repository.md), with a model.py that finds the answers in its scores \
             (docs/python.md)",
            files.config.file
        ));
    }
    for (file, library, apply) in HEADS {
        if reader.has(file) {
            reader.warn(format_args!(
                "{file} is the classifier of {library}, which is a pickle and is not run: the answers are the vectors that it judges; apply \
                 it to them where they arrive, with {apply}"
            ));
        }
    }
    if reader.has("idf.json") && reader.route().is_none() {
        reader.warn(
            "idf.json holds the weights of queries' tokens for search without inference, and is not read: queries go through the graph, as \
             documents do. Save the model with sentence-transformers' SparseEncoder, which writes a Router with a SparseStaticEmbedding",
        );
    }
    if reader.has("gliner_config.json") {
        reader.refuse(
            "gliner_config.json: GLiNER looks for the labels that a request names, which is no task that folders are served for: serve it \
             with a model.py that uses the library gliner (docs/python.md)",
        );
        return true;
    }
    answers_questions
}

/// The names of a graph's adapters, in the order of their numbers.
fn adapters(config: &Json, place: String) -> Derived<Vec<String>> {
    let names = config.get("lora_adaptations").and_then(Value::as_array);
    let names = names.map(|names| names.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect::<Vec<_>>());
    match names.filter(|names| !names.is_empty()) {
        Some(names) => Derived::field(names, &config.file, "lora_adaptations"),
        None => Derived::from(Vec::new(), place),
    }
}

/// An id beyond the rows of the embedding table would fail every run that contains it.
fn check_vocabulary(reader: &Reader<'_>, tokenizer: &Tokenizer, file: &GraphFile, config: &Json) {
    let Some(highest) = &tokenizer.highest else { return };
    let rows = match file.graph.vocabulary {
        Some(rows) => Some(Derived::from(rows, format!("{}: the table of input_ids", file.file.value))),
        None => config.number(reader, "vocab_size").map(|rows| rows.map(|rows| rows as i64)),
    };
    let Some(rows) = rows.filter(|rows| highest.value >= rows.value) else { return };
    if tokenizer.highest_learned.is_some_and(|learned| learned < rows.value) {
        reader.warn(format_args!(
            "{} has added tokens with ids up to {}, but {} has {} rows: a text that holds one of these tokens is an error; others are not",
            highest.origin, highest.value, rows.origin, rows.value
        ));
    } else {
        reader.fault(format_args!(
            "{} has ids up to {}, but {} has {} rows",
            highest.origin, highest.value, rows.origin, rows.value
        ));
    }
}

/// A row longer than the table of positions would fail in the graph.
fn check_positions(reader: &Reader<'_>, tokenizer: &mut Tokenizer, file: &GraphFile) {
    let (Some(length), Some(positions)) = (&mut tokenizer.max_length, file.graph.positions) else { return };
    let place = format!("{}: the table of positions", file.file.value);
    match u64::try_from(positions) {
        Ok(positions) if length.value <= positions => {}
        Ok(positions) if length.is_guess() => *length = Derived::from(positions, place),
        _ => reader.fault(format_args!(
            "{} is {}, but {place} has {positions} rows: write at most that, because longer texts fail in the model",
            length.origin, length.value
        )),
    }
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
            Ok(graph) => files.extend(graphs::external_files(&graph, reader, part)),
            Err(error) => reader.unreadable(part, format_args!("cannot be read: {error}")),
        }
    }
    files.extend(parts);
    files.sort_unstable();
    files.dedup();
    if !files.iter().any(|file| file.contains(graphs::ENCODER)) {
        graphs::missing(reader, "", Task::Generate.export());
        return None;
    }
    // The output of these models begins with the target language's token, which the tokenizer supplies.
    let class = reader.json("tokenizer_config.json");
    let class =
        class.as_ref().and_then(|config| config.get("tokenizer_class")).and_then(Value::as_str).unwrap_or_default();
    let tells_target = ["M2M100", "Nllb", "MBart"].iter().any(|family| class.starts_with(family))
        || config.get("model_type").is_some_and(|kind| ["m2m_100", "mbart"].iter().any(|known| kind == known));
    let executor = Executor::Generation { files, tells_target };
    Some(FolderDescription {
        ops: vec![Derived::from("decode".to_owned(), "the tokenizer's files")],
        ..FolderDescription::plain(reader, task, tokenizer, prompts, executor)
    })
}
