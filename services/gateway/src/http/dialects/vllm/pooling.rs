//! `/pooling`: the vectors, token vectors or scores of a model, whatever it does.

use axum::response::Response;
use serde::Deserialize;
use trireme_inference::Ledger;
use utoipa::ToSchema;

use super::super::dialect::DialectCall;
use super::super::fields::{Field, read};
use super::super::input::Input;
use super::super::refusal::{Kind, Refusal};
use super::encoding::{Dtype, Encoding, Endianness, Format, Rows};
use super::treatment::Treatment;
use crate::handlers::operations::{Ask, TextOptions};
use crate::registry::Task;

/// The fields besides those of vectors, of their encoding, of scores, of the input and of all bodies.
pub(super) const FIELDS: &[Field] = &[read("task", &[r#""embed""#])];

#[derive(Deserialize, ToSchema)]
#[schema(as = VllmPooling)]
pub(super) struct Pooling {
    input: Input,
    task: Option<String>,
    normalize: Option<bool>,
    encoding_format: Option<Format>,
    embed_dtype: Option<Dtype>,
    endianness: Option<Endianness>,
    dimensions: Option<u64>,
}

pub(super) async fn pooling(call: DialectCall) -> Result<Response, Refusal> {
    let body: Pooling = call.read()?;
    let treatment: Treatment = call.read()?;
    let (texts, _, token_ids) = body.input.texts_or_ids("input")?;
    let options = TextOptions {
        dimensions: body.dimensions,
        normalize: body.normalize.or(treatment.use_activation),
        token_ids,
        ..treatment.options(&call)?
    };
    let ask = call.ask(treatment.model.as_deref(), options);
    let pooled = Pooled::of(&call, &texts, &ask, body.task.as_deref()).await?;
    let encoding = Encoding::of(body.encoding_format, body.embed_dtype, body.endianness);
    Ok(encoding.answer(Rows {
        id: treatment.id("pool"),
        object: "pooling",
        member: "data",
        model: treatment.model.as_deref().unwrap_or(&pooled.model),
        rows: pooled.rows.iter().map(Vec::as_slice).collect(),
        width: pooled.width,
        ledger: &pooled.ledger,
    }))
}

/// The original's words for operations. A vector or scores for each token it calls `token_embed` and `token_classify`; the latter, and
/// plugins, no model here does.
const TASKS: [(&str, Task); 3] =
    [("embed", Task::Embed), ("classify", Task::Classify), ("token_embed", Task::MultiVector)];

fn named(word: &str) -> Option<Task> {
    TASKS.iter().find(|(name, _)| *name == word).map(|(_, task)| *task)
}

/// The vectors or scores of a model for texts.
struct Pooled {
    model: String,
    rows: Vec<Vec<f32>>,
    /// The width of the vectors that each row consists of; `None`: a row is one vector.
    width: Option<usize>,
    ledger: Ledger,
}

impl Pooled {
    async fn of(call: &DialectCall, texts: &[String], ask: &Ask, task: Option<&str>) -> Result<Pooled, Refusal> {
        let offered = match ask.model.as_deref() {
            Some(name) => call.handlers.text_model(Some(name))?.tasks,
            None => match call.handlers.text_model(None) {
                Ok(model) => model.tasks,
                // The only one that embeds, or does what the request asks for.
                Err(_) => task.and_then(named).or(Some(Task::Embed)).into_iter().collect(),
            },
        };
        let does = |task: Task| offered.contains(&task);
        let task = match task {
            Some(word) => Some(named(word).filter(|&task| does(task)).ok_or_else(|| {
                let offered = TASKS.iter().filter(|(_, task)| does(*task)).map(|(word, _)| format!("'{word}'"));
                let offered: Vec<_> = offered.collect();
                let message = format!("Unsupported task: '{word}', the model does {}", offered.join(", "));
                Refusal { field: Some("task".to_owned()), ..Refusal::new(Kind::Unsupported, message) }
            })?),
            // As the original chooses.
            None if does(Task::MultiVector) => Some(Task::MultiVector),
            None => offered.first().copied(),
        };
        match task {
            Some(Task::Classify) => {
                let classified = call.handlers.classify(texts, None, ask).await?;
                Ok(Pooled { model: classified.model, rows: classified.rows, width: None, ledger: classified.ledger })
            }
            Some(Task::MultiVector) => {
                let vectors = call.handlers.multi_vector(texts, ask).await?;
                let width = Some(vectors.width);
                Ok(Pooled { model: vectors.model, rows: vectors.rows, width, ledger: vectors.ledger })
            }
            _ => {
                let vectors = call.handlers.embed(texts, ask).await?;
                let rows = vectors.numbers().chunks_exact(vectors.width.max(1)).map(<[f32]>::to_vec).collect();
                Ok(Pooled { rows, model: vectors.model, width: None, ledger: vectors.ledger })
            }
        }
    }
}
