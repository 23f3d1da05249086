//! `/v1/embeddings` and `/pooling`: the vectors, token vectors or scores of a model. Token ids are the model's own.

use axum::response::Response;
use serde::Deserialize;
use trireme_inference::Ledger;
use trireme_operations::{OperationRequest, Task, TextOptions};
use utoipa::ToSchema;

use super::super::dialect::DialectCall;
use super::super::fields::{self, Field, only, read};
use super::super::input::Input;
use super::super::refusal::{Kind, Refusal};
use super::encoding::{Dtype, Encoding, Endianness, Format, Route, Rows};
use super::late_chunking::LateChunking;
use super::treatment::{Conversations, Treatment};

/// The fields of both routes besides those of the encoding, the input and all bodies.
pub(super) const FIELDS: &[Field] = &[
    read("normalize", fields::FLAG),
    // The name of `normalize` in newer versions.
    read("use_activation", fields::FLAG),
    only("media_io_kwargs", fields::OBJECT, &["{}"], "models here take texts"),
];

/// The field that only `/pooling` has, and one that only `/v1/embeddings` takes.
pub(super) const TASK: &[Field] = &[
    read("task", &[r#""embed""#]),
    only("late_chunking_params", fields::OBJECT, &[], "chunks are answered at /v1/embeddings"),
];

/// The field that only `/v1/embeddings` takes.
pub(super) const LATE: &[Field] = &[read("late_chunking_params", &[r#"{"chunk_size": 1}"#])];

#[derive(Deserialize, ToSchema)]
#[schema(as = VllmVectors)]
pub(super) struct Vectors {
    input: Option<Input>,
    #[schema(value_type = Option<Vec<Object>>)]
    messages: Option<Conversations>,
    normalize: Option<bool>,
    encoding_format: Option<Format>,
    embed_dtype: Option<Dtype>,
    endianness: Option<Endianness>,
    dimensions: Option<u64>,
    late_chunking_params: Option<LateChunking>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = VllmPoolingTask)]
pub(super) struct PoolingTask {
    task: Option<String>,
}

pub(super) async fn embeddings(call: DialectCall) -> Result<Response, Refusal> {
    // As in the original, a model with a vector for each token gives these.
    answer(call, None, Task::Embed, Route::Embeddings).await
}

pub(super) async fn pooling(call: DialectCall) -> Result<Response, Refusal> {
    let PoolingTask { task } = call.read()?;
    answer(call, task, Task::MultiVector, Route::Pooling).await
}

/// The answer with the result of `task`, in the original's words; without it that of `first`, where the model does that, else that of the
/// model's first task.
async fn answer(call: DialectCall, task: Option<String>, first: Task, route: Route) -> Result<Response, Refusal> {
    let body: Vectors = call.read()?;
    let treatment: Treatment = call.read()?;
    let (texts, options) = treatment.rows(&call, body.input, body.messages)?;
    let normalize = body.normalize.or(treatment.use_activation);
    let options = TextOptions { dimensions: body.dimensions, normalize, ..options };
    let ask = call.ask(treatment.model.as_deref(), options);
    let encoding = Encoding::of(body.encoding_format, body.embed_dtype, body.endianness);
    if let Some(late) = body.late_chunking_params {
        let chunked = late.of(&call, &texts, &ask, normalize.unwrap_or(true)).await?;
        return Ok(encoding.answer(Rows {
            id: treatment.id(route.word()),
            route,
            model: treatment.model.as_deref().unwrap_or(&chunked.model),
            rows: chunked.rows.iter().map(Vec::as_slice).collect(),
            width: Some(chunked.width),
            chunks: Some(&chunked.ranges),
            ledger: &chunked.ledger,
        }));
    }
    let pooled = Pooled::of(&call, &texts, &ask, task.as_deref(), first).await?;
    let (numbers, rows);
    match &pooled.result {
        Numbers::Vectors(vectors) => {
            numbers = vectors.numbers();
            rows = numbers.chunks_exact(vectors.width.max(1)).collect();
        }
        Numbers::Rows(all) => rows = all.iter().map(Vec::as_slice).collect(),
    }
    Ok(encoding.answer(Rows {
        id: treatment.id(route.word()),
        route,
        model: treatment.model.as_deref().unwrap_or(&pooled.model),
        rows,
        width: pooled.width,
        chunks: None,
        ledger: &pooled.ledger,
    }))
}

/// The original's words for operations. No model here has plugins.
const TASKS: [(&str, Task); 4] = [
    ("embed", Task::Embed),
    ("classify", Task::Classify),
    ("token_embed", Task::MultiVector),
    ("token_classify", Task::TokenClassify),
];

fn named(word: &str) -> Option<Task> {
    TASKS.iter().find(|(name, _)| *name == word).map(|(_, task)| *task)
}

/// The task of this name, if the model does it.
fn offered(word: &str, tasks: &[Task]) -> Result<Task, Refusal> {
    if let Some(task) = named(word).filter(|task| tasks.contains(task)) {
        return Ok(task);
    }
    let does = TASKS.iter().filter(|(_, task)| tasks.contains(task)).map(|(word, _)| format!("'{word}'"));
    let does = does.collect::<Vec<_>>().join(", ");
    let message = match word {
        "plugin" => format!("No IOProcessor plugin installed. The model does {does}"),
        // The original would give the vector or the scores of each token, were it started for that.
        "token_embed" if tasks.contains(&Task::Embed) => {
            format!("Try switching the model's pooling_task via parameter 'task' of its configuration; it does {does}")
        }
        "token_classify" if tasks.contains(&Task::Classify) || tasks.contains(&Task::Rerank) => {
            format!(
                "Try switching the model's pooling_task via another model that scores each token; this one does {does}"
            )
        }
        "classify" if tasks.contains(&Task::TokenClassify) => {
            format!("Try switching the model's pooling_task via another model that scores texts; this one does {does}")
        }
        _ => format!("Unsupported task: '{word}' Supported tasks: {does}"),
    };
    Err(Refusal { field: Some("task".to_owned()), ..Refusal::new(Kind::Unsupported, message) })
}

/// The vectors or scores of a model for texts.
struct Pooled {
    model: String,
    result: Numbers,
    /// The width of the vectors that each row consists of; `None`: a row is one vector.
    width: Option<usize>,
    ledger: Ledger,
}

/// By text, numbers.
enum Numbers {
    Vectors(trireme_operations::Vectors),
    Rows(Vec<Vec<f32>>),
}

// === impl Pooled ===

impl Pooled {
    async fn of(
        call: &DialectCall,
        texts: &[String],
        ask: &OperationRequest,
        task: Option<&str>,
        first: Task,
    ) -> Result<Pooled, Refusal> {
        let tasks = match ask.model.as_deref() {
            Some(name) => call.operations.text_model(Some(name))?.tasks,
            None => match call.operations.text_model(None) {
                Ok(model) => model.tasks,
                // The only one that embeds, or does what the request asks for.
                Err(_) => task.and_then(named).or(Some(Task::Embed)).into_iter().collect(),
            },
        };
        let task = match task {
            Some(word) => Some(offered(word, &tasks)?),
            None if tasks.contains(&first) => Some(first),
            // Scores are no embeddings: the operation says what the model does.
            None if first == Task::Embed && !tasks.contains(&Task::MultiVector) => Some(first),
            None if first == Task::Embed => Some(Task::MultiVector),
            None => tasks.first().copied(),
        };
        if let (Some(Task::Classify | Task::TokenClassify), Some(dimensions)) = (task, ask.options.dimensions) {
            let why = format!("is {dimensions}, but the model gives scores: leave it out");
            return Err(Refusal::unsupported("dimensions", why));
        }
        match task {
            Some(Task::Classify) => {
                let classified = call.operations.classify(texts, None, ask).await?;
                let result = Numbers::Rows(classified.rows);
                Ok(Pooled { model: classified.model, result, width: None, ledger: classified.ledger })
            }
            Some(Task::MultiVector) => {
                let vectors = call.operations.multi_vector(texts, ask).await?;
                let (width, result) = (Some(vectors.width), Numbers::Rows(vectors.rows));
                Ok(Pooled { model: vectors.model, result, width, ledger: vectors.ledger })
            }
            Some(Task::TokenClassify) => {
                let scores = call.operations.token_scores(texts, ask).await?;
                let (width, result) = (Some(scores.width), Numbers::Rows(scores.rows));
                Ok(Pooled { model: scores.model, result, width, ledger: scores.ledger })
            }
            _ => {
                let vectors = call.operations.embed(texts, ask).await?;
                let (model, ledger) = (vectors.model.clone(), vectors.ledger.clone());
                Ok(Pooled { model, result: Numbers::Vectors(vectors), width: None, ledger })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_a_model_does_not_do_are_refused_in_the_words_of_the_original() {
        let refused = |word: &str, tasks: &[Task]| offered(word, tasks).unwrap_err().message;
        assert_eq!(offered("embed", &[Task::Embed]), Ok(Task::Embed));
        assert_eq!(refused("classify", &[Task::Embed]), "Unsupported task: 'classify' Supported tasks: 'embed'");
        assert!(refused("token_embed", &[Task::Embed]).starts_with("Try switching the model's pooling_task via"));
        assert!(refused("token_classify", &[Task::Classify]).starts_with("Try switching the model's pooling_task via"));
        assert!(refused("classify", &[Task::TokenClassify]).starts_with("Try switching the model's pooling_task via"));
        assert!(refused("embed", &[Task::MultiVector]).starts_with("Unsupported task: 'embed'"));
        assert!(refused("plugin", &[Task::Embed]).starts_with("No IOProcessor plugin installed."));
    }
}
