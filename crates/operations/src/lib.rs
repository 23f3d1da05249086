//! Operations on texts, free of any protocol: embed, sparse, multi-vector, rerank, classify, zero-shot, token-classify,
//! tokenize, decode. Each finds a model that offers it, makes an infer request of the texts, which goes the way of all infer
//! requests, and reads the result.
//!
//! Invariants:
//! - Any number of texts is taken: they travel in as many messages as they need, texts of like length together.
//! - A number that is no number is never a result: it is an error that names the model.
//!
//! Not here: bodies and statuses (`dialects`), which models there are and how a request runs ([`Pipelines`], which the gateway
//! implements), what stages do with the options (tokenizer, postprocess).

mod capabilities;
mod classify;
mod embed;
mod options;
mod pairs;
mod pipelines;
mod request;
mod rerank;
mod tokenize;
mod tokens;
mod zero_shot;

use std::sync::Arc;

use bytes::Bytes;
use trireme_inference::{
    DataType, InferError, InferRequest, InferResponse, Ledger, Name, ParameterValue, RequestedOutput, Shape, Tensor,
    UncheckedTensor, WINDOWS, shown,
};
use trireme_server::body::work;

pub use capabilities::{Capabilities, Routes, TOKENIZER, Task, served_names};
pub use classify::{Classified, ScoredLabel};
pub use embed::{SparseVectors, TokenVectors, Vectors};
pub use options::{Prompt, Side, TextOptions};
pub use pipelines::{Origin, Pipeline, Pipelines};
pub use request::OperationRequest;
pub use rerank::Scores;
pub use tokenize::{Token, TokenLists, ids};
pub use tokens::{Entities, TokenScores};
pub use trireme_inference::Window;
pub use zero_shot::{Candidates, ZeroShot};

/// Bytes of a number as digits for each of its own.
const DIGITS: usize = 3;

/// The operations, on the models of a gateway. Clones are the same.
#[derive(Clone)]
pub struct Operations(Arc<dyn Pipelines>);

/// A model that was found for an operation.
struct Found {
    pipeline: Pipeline,
    task: Task,
}

/// The answer to texts.
struct Answered {
    tensors: Vec<Tensor>,
    /// The window that each row is of, where the rows of all windows are kept.
    windows: Option<Vec<Window>>,
    ledger: Ledger,
}

/// A model that does something with texts, under one of its names.
#[derive(Clone, Debug)]
pub struct TextModel {
    /// The name.
    pub name: String,
    /// Its operations.
    pub tasks: Vec<Task>,
    /// Its classes.
    pub labels: Vec<String>,
    /// Most tokens of a row, where its tokenizer's configuration says it.
    pub max_length: Option<u64>,
    /// Most rows of an execution, the least of its steps; `None` where no step limits them.
    pub max_batch: Option<u64>,
    /// How the vectors of tokens become one.
    pub pooling: String,
    /// The origin of its vectors, or else of the answers of its first operation.
    pub origin: Origin,
}

// === impl Operations ===

impl Operations {
    /// The operations on these models.
    pub fn new(pipelines: Arc<dyn Pipelines>) -> Operations {
        Operations(pipelines)
    }

    /// Whether every model is ready.
    pub fn ready(&self) -> bool {
        self.0.ready()
    }

    /// How many requests wait for their answers.
    pub fn in_flight(&self) -> u64 {
        self.0.in_flight()
    }

    /// Whether a model has this name.
    pub fn knows(&self, name: &str) -> bool {
        !matches!(self.0.named(name), Ok(None))
    }

    /// The name of the only model that does something with texts; `None` where there are several, or none.
    pub fn only_model(&self) -> Option<String> {
        match (self.0.all().as_slice(), self.0.unready().is_empty()) {
            ([only], true) => Some(only.name.clone()),
            _ => None,
        }
    }

    /// Every ready model that does something with texts, under each of its names, that of the Hugging Face hub first. Models that embed come
    /// first and those that rerank then: some clients take the first one.
    pub fn text_models(&self) -> Vec<TextModel> {
        let named = |pipeline: &Pipeline| -> Vec<TextModel> {
            let names = std::iter::once(&pipeline.name).chain(&pipeline.capabilities.served_names);
            let (hub, others): (Vec<_>, Vec<_>) = names.partition(|name| name.contains('/'));
            let origin = self.origin(pipeline);
            hub.into_iter().chain(others).map(|name| TextModel::of(name, pipeline, origin.clone())).collect()
        };
        let mut all = self.0.all();
        let does = |pipeline: &Pipeline, task| pipeline.capabilities.tasks.contains_key(&task);
        all.sort_by_key(|pipeline| (!does(pipeline, Task::Embed), !does(pipeline, Task::Rerank)));
        all.iter().flat_map(named).collect()
    }

    /// The model of this name; without a name the only one that does something with texts.
    pub fn text_model(&self, name: Option<&str>) -> Result<TextModel, InferError> {
        let all = || self.0.all();
        let names = |all: &[Pipeline]| all.iter().map(|one| format!("'{}'", one.name)).collect::<Vec<_>>().join(", ");
        let Some(name) = name else {
            return match all().as_slice() {
                [only] => Ok(TextModel::of(&only.name, only, self.origin(only))),
                [] => match self.0.unready().as_slice() {
                    [] => Err(InferError::not_found("no model here does anything with texts")),
                    [first, ..] => Err(InferError::unavailable(format!(
                        "no model that is ready does anything with texts: {first}"
                    ))),
                },
                all => Err(InferError::invalid_arg(format!("the request names no model; there are {}", names(all)))),
            };
        };
        let found = self.0.named(name)?.ok_or_else(|| {
            InferError::not_found(format!("model '{}' does not exist; there are {}", shown(name), names(&all())))
        })?;
        if found.capabilities.tasks.keys().all(|task| task.is_tokenizers()) {
            let message = format!("model '{name}' does nothing with texts; models that do: {}", names(&all()));
            return Err(InferError::invalid_arg(message));
        }
        Ok(TextModel::of(name, &found, self.origin(&found)))
    }

    /// The origin of a model's vectors, or else of the answers of its first operation.
    fn origin(&self, model: &Pipeline) -> Origin {
        let tasks = &model.capabilities.tasks;
        let outputs = tasks.get(&Task::Embed).or_else(|| tasks.values().next());
        self.0.origin(model, outputs.map_or(&[], Vec::as_slice))
    }

    /// The model that does `task` for this request.
    fn find_for(&self, task: Task, ask: &OperationRequest) -> Result<Found, InferError> {
        Ok(Found { pipeline: self.0.offering(task, ask.model.as_deref())?, task })
    }

    /// Runs texts, or pairs of texts, through a model. Gives the tensors of the result in the operation's order, with a row for each text.
    async fn run_texts(
        &self,
        found: &Found,
        texts: &[impl AsRef<[u8]>],
        pairs: Option<&[impl AsRef<[u8]>]>,
        ask: &OperationRequest,
    ) -> Result<(Vec<Tensor>, Ledger), InferError> {
        let Answered { tensors, windows, ledger } = self.run_windows(found, texts, pairs, ask).await?;
        match windows.as_deref().and_then(second_window) {
            None => Ok((tensors, ledger)),
            Some(Window { text, .. }) => Err(InferError::unsupported(format!(
                "model '{}' keeps a row for each window of text {text}, expected one for the text: /openai/v1/embeddings answers them \
                 all, and a model whose configuration says 'fold:mean' makes one of them",
                found.pipeline.name
            ))),
        }
    }

    /// Likewise, with a row for each window of a text where the request or the model keeps them.
    async fn run_windows(
        &self,
        found: &Found,
        texts: &[impl AsRef<[u8]>],
        pairs: Option<&[impl AsRef<[u8]>]>,
        ask: &OperationRequest,
    ) -> Result<Answered, InferError> {
        let pipeline = &found.pipeline;
        let mut parameters = ask.options.parameters(&pipeline.capabilities)?;
        if let Some(most) = ask.options.max_windows.filter(|_| pipeline.folds()) {
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            parameters.insert("windows".to_owned(), ParameterValue::Bool(most > 1));
            parameters.insert("max_windows".to_owned(), ParameterValue::Int64(most));
        }
        if !parameters.is_empty() || ask.options.wants_whole {
            let backends: Vec<&str> = pipeline.steps.iter().map(|step| step.backend.as_str()).collect();
            if ask.options.wants_whole && backends.contains(&TOKENIZER) {
                parameters.entry("truncate".to_owned()).or_insert(ParameterValue::Bool(false));
            }
            options::check_read(&pipeline.name, &parameters, &backends)?;
        }
        // A query goes along with each of its documents.
        ask.context.permit().take(size_of(texts) + pairs.map_or(0, size_of)).map_err(InferError::from)?;
        let mut inputs = Vec::with_capacity(2);
        let specs = &pipeline.capabilities.inputs;
        inputs.push(found.input(specs.first().map(|spec| (&spec.name, &spec.shape)), texts)?);
        if let Some(pairs) = pairs {
            inputs.push(found.input(specs.get(1).map(|spec| (&spec.name, &spec.shape)), pairs)?);
        }
        let outputs = found.outputs();
        // The request's own parameters replace those of its headers.
        let parameters = ask.parameters.clone().into_iter().chain(parameters).collect();
        let request = InferRequest {
            id: ask.request_id.clone(),
            model: pipeline.name.clone(),
            parameters,
            inputs,
            outputs: outputs.iter().map(|name| RequestedOutput { name: name.clone(), classification: 0 }).collect(),
            ..InferRequest::default()
        };
        let answered = self.0.infer(request, ask, found.task).await;
        let InferResponse { outputs: mut tensors, ledger, .. } = answered?;
        // The code below reads and writes the tensors, as digits in most answers.
        work::much(DIGITS * tensors.iter().map(|tensor| tensor.data().len()).sum::<usize>()).await;
        let windows =
            tensors.iter().position(|tensor| tensor.name() == WINDOWS && !outputs.iter().any(|own| own == WINDOWS));
        let windows = windows.map(|place| Window::read(&tensors.swap_remove(place))).transpose()?;
        let rows = windows.as_ref().map_or(texts.len(), Vec::len);
        let tensors = outputs.iter().map(|name| found.output(&mut tensors, name, rows)).collect::<Result<_, _>>()?;
        Ok(Answered { tensors, windows, ledger })
    }
}

/// The first window that is not the only one of its text.
fn second_window(windows: &[Window]) -> Option<&Window> {
    windows.iter().find(|window| window.number > 0)
}

/// Bytes of texts as a tensor.
fn size_of(texts: &[impl AsRef<[u8]>]) -> u64 {
    texts.iter().map(|text| text.as_ref().len() as u64 + 4).sum()
}

// === impl TextModel ===

impl TextModel {
    fn of(name: &str, pipeline: &Pipeline, origin: Origin) -> TextModel {
        let parameter = |backend: &str, name: &str| {
            let mut of_backend = pipeline.steps.iter().filter(|step| step.backend == backend);
            of_backend.find_map(|step| step.parameters.get(name).cloned())
        };
        let ops = parameter("postprocess", "ops").unwrap_or_default();
        let batches = pipeline.steps.iter().map(|step| u64::from(step.max_batch_size));
        TextModel {
            name: name.to_owned(),
            tasks: pipeline.capabilities.tasks.keys().copied().collect(),
            labels: pipeline.capabilities.labels.clone(),
            max_length: parameter(TOKENIZER, "max_length").and_then(|length| length.trim().parse().ok()),
            max_batch: batches.filter(|&rows| rows > 0).min(),
            pooling: ops.split(',').find_map(|op| op.trim().strip_prefix("pool:")).unwrap_or("mean").to_owned(),
            origin,
        }
    }
}

// === impl Found ===

impl Found {
    /// The names of the outputs that hold the result.
    fn outputs(&self) -> &[String] {
        self.pipeline.capabilities.tasks.get(&self.task).map_or(&[], Vec::as_slice)
    }

    /// Texts as an input of this name and declared shape, one a row.
    fn input(&self, spec: Option<(&Name, &Shape)>, texts: &[impl AsRef<[u8]>]) -> Result<UncheckedTensor, InferError> {
        let Some((name, shape)) = spec else {
            return Err(InferError::invalid_arg(format!(
                "model '{}' takes single texts, not pairs: it has one TYPE_STRING input",
                self.pipeline.name
            )));
        };
        let rows = texts.len() as i64;
        let shape: &[i64] = if shape.len() == 2 { &[rows, 1] } else { &[rows] };
        let mut data = Vec::with_capacity(size_of(texts) as usize);
        for text in texts {
            let text = text.as_ref();
            let length = u32::try_from(text.len()).map_err(|_| InferError::invalid_arg("a text is 4 GiB or longer"))?;
            data.extend_from_slice(&length.to_le_bytes());
            data.extend_from_slice(text);
        }
        Ok(UncheckedTensor {
            name: name.as_str().into(),
            datatype: DataType::Bytes,
            shape: shape.into(),
            data: Bytes::from(data),
        })
    }

    /// Takes an output of a response, if it has so many rows: one for each text or window.
    fn output(&self, outputs: &mut Vec<Tensor>, name: &str, expected: usize) -> Result<Tensor, InferError> {
        let place = outputs.iter().position(|tensor| tensor.name() == name);
        let place = place.ok_or_else(|| self.fault(format!("gave no output '{name}'")))?;
        let tensor = outputs.swap_remove(place);
        match tensor.shape().first() {
            Some(&rows) if rows == expected as i64 => Ok(tensor),
            _ => Err(self.fault(format!(
                "gave output '{name}' of shape {} for {expected} texts, expected a row for each",
                tensor.shape()
            ))),
        }
    }

    /// The numbers of an output, if they are numbers, with the size of a row.
    fn numbers<'a>(&self, tensor: &'a Tensor) -> Result<(std::borrow::Cow<'a, [f32]>, usize), InferError> {
        let rows = tensor.shape().first().map_or(0, |&rows| rows as usize);
        let values = tensor.values::<f32>().map_err(|error| self.fault(format!("gave a result that {error}")))?;
        let width = values.len().checked_div(rows).unwrap_or_default();
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok((values, width)),
            Some(at) => Err(self.fault(format!(
                "gave {} in output '{}' for text {}, expected a finite number",
                values[at],
                tensor.name(),
                at / width.max(1)
            ))),
        }
    }

    fn fault(&self, what: String) -> InferError {
        InferError::internal(format!("model '{}' {what}", self.pipeline.name))
    }
}
