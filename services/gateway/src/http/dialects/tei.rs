//! Text Embeddings Inference: `/embed`, `/embed_all`, `/embed_sparse`, `/rerank`, `/predict`, `/similarity`, `/tokenize`,
//! `/decode`, `/info`, `/health`,
//! and `POST /`, which is the route of what the model does.
//!
//! Bodies name no model: `/tei/MODEL/embed` does, and so may a field `model`; without either it is the only model that does
//! it. As in the original, fields that are not known are passed over, and token ids are the model's.

mod answers;
mod inputs;
mod tokens;

use std::time::Instant;

use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;
use trireme_inference::Ledger;
use trireme_protocol::json::{self, Writer};
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::answer;
use super::input::{self, Input};
use super::refusal::{Kind, Refusal};
use super::{Call, Dialect, Route};
use crate::handlers::operations::{Prompt, ScoredLabel, Side, TextOptions};
use crate::http::openapi::schema;
use crate::registry::Task;
use inputs::{Direction, Pair, PredictInput};

pub(super) static DIALECT: Dialect = Dialect {
    name: "tei",
    routes: &[
        Route::post("/embed", "Embeds texts", |call| Box::pin(embed(call)))
            .takes_both::<Embed, Treatment>()
            .gives(answers::vectors),
        Route::post("/embed_all", "Embeds each token of texts", |call| Box::pin(embed_all(call)))
            .takes_both::<Embed, Treatment>()
            .gives(answers::token_vectors),
        Route::post("/embed_sparse", "Embeds texts in sparse vectors", |call| Box::pin(embed_sparse(call)))
            .takes_both::<Embed, Treatment>()
            .gives(answers::sparse_vectors),
        Route::post("/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes_both::<Rerank, Treatment>()
            .gives(answers::ranks)
            .marked(&["texts", "return_text"]),
        Route::post("/predict", "Classifies texts", |call| Box::pin(predict(call)))
            .takes_both::<Predict, Treatment>()
            .gives(answers::predictions),
        Route::post("/similarity", "Compares a text with others", |call| Box::pin(similarity(call)))
            .takes::<Similarity>()
            .gives(answers::numbers),
        Route::post("/tokenize", "The tokens of texts", |call| Box::pin(tokens::tokenize(call)))
            .takes::<tokens::Tokenize>()
            .gives(answers::token_lists),
        Route::post("/decode", "The texts of tokens", |call| Box::pin(tokens::decode(call)))
            .takes::<tokens::Decode>()
            .gives(answers::texts),
        Route::post("/", "Does what the model does", |call| Box::pin(root(call)))
            .takes::<Root>()
            .gives(answers::anything),
        Route::get("/info", "The model's name, kind and labels", |call| Box::pin(info(call))).gives(answers::info),
        Route::get("/health", "Whether all models are ready", |call| Box::pin(health(call))),
    ],
    refuse,
    refusals,
    model_in_path: true,
};

/// What most bodies may say of how texts are treated.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = TeiTreatment)]
struct Treatment {
    model: Option<String>,
    truncate: Option<bool>,
    truncation_direction: Option<Direction>,
    prompt_name: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = TeiEmbed)]
struct Embed {
    inputs: Input,
    normalize: Option<bool>,
    dimensions: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = TeiRerank)]
struct Rerank {
    query: String,
    texts: Vec<String>,
    raw_scores: Option<bool>,
    return_text: Option<bool>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = TeiPredict)]
struct Predict {
    inputs: PredictInput,
    raw_scores: Option<bool>,
    /// Of huggingface_hub's clients.
    parameters: Option<PredictParameters>,
}

#[derive(Default, Deserialize, ToSchema)]
#[schema(as = TeiPredictParameters)]
struct PredictParameters {
    top_k: Option<usize>,
    function_to_apply: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = TeiSimilarity)]
struct Similarity {
    inputs: SimilarityInputs,
    parameters: Option<Treatment>,
    model: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = TeiSimilarityInputs)]
struct SimilarityInputs {
    source_sentence: String,
    sentences: Vec<String>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = TeiTokenClassify)]
struct TokenClassify {
    inputs: Input,
    parameters: Option<TokenClassifyParameters>,
}

#[derive(Default, Deserialize, ToSchema)]
#[schema(as = TeiTokenClassifyParameters)]
struct TokenClassifyParameters {
    aggregation_strategy: Option<String>,
}

impl Treatment {
    fn options(&self) -> TextOptions {
        TextOptions {
            prompt: self.prompt_name.clone().map_or(Prompt::Default, Prompt::Named),
            truncate: self.truncate,
            truncation_side: self.truncation_direction.map(|direction| match direction {
                Direction::Left => Side::Left,
                Direction::Right => Side::Right,
            }),
            ..TextOptions::default()
        }
    }
}

/// A body of `POST /`, which is up to the model.
#[derive(ToSchema)]
#[schema(as = TeiRoot)]
#[allow(dead_code, reason = "for the document: each route reads its own fields")]
struct Root {
    #[schema(value_type = Option<serde_json::Value>)]
    inputs: (),
    model: Option<String>,
}

async fn embed(call: Call) -> Result<Response, Refusal> {
    let started = Instant::now();
    let body: Embed = input::read(&call.body)?;
    let treatment: Treatment = input::read(&call.body)?;
    let (texts, _, token_ids) = body.inputs.texts_or_ids("inputs")?;
    let options = TextOptions {
        normalize: Some(body.normalize.unwrap_or(true)),
        dimensions: body.dimensions,
        token_ids,
        ..treatment.options()
    };
    let vectors = call.handlers.embed(&texts, &call.ask(treatment.model.as_deref(), options)).await?;
    let numbers = vectors.numbers();
    Ok(timed(&vectors.ledger, started, &texts, 64 + numbers.len() * 13, |out| {
        out.array(|out| numbers.chunks_exact(vectors.width.max(1)).for_each(|row| answer::floats(out, row)));
    }))
}

async fn embed_all(call: Call) -> Result<Response, Refusal> {
    let started = Instant::now();
    let body: Embed = input::read(&call.body)?;
    let treatment: Treatment = input::read(&call.body)?;
    let (texts, _, token_ids) = body.inputs.texts_or_ids("inputs")?;
    let options = TextOptions { token_ids, ..treatment.options() };
    let ask = call.ask(treatment.model.as_deref(), options);
    let vectors = call.handlers.multi_vector(&texts, &ask).await?;
    let numbers: usize = vectors.rows.iter().map(Vec::len).sum();
    Ok(timed(&vectors.ledger, started, &texts, 64 + numbers * 13, |out| {
        out.array(|out| {
            for row in &vectors.rows {
                out.array(|out| {
                    row.chunks_exact(vectors.width.max(1)).for_each(|token| answer::floats(out, token));
                });
            }
        });
    }))
}

async fn embed_sparse(call: Call) -> Result<Response, Refusal> {
    let started = Instant::now();
    let body: Embed = input::read(&call.body)?;
    let treatment: Treatment = input::read(&call.body)?;
    let (texts, _, token_ids) = body.inputs.texts_or_ids("inputs")?;
    let options = TextOptions { token_ids, ..treatment.options() };
    let ask = call.ask(treatment.model.as_deref(), options);
    let vectors = call.handlers.sparse(&texts, &ask).await?;
    let entries: usize = vectors.rows.iter().map(Vec::len).sum();
    Ok(timed(&vectors.ledger, started, &texts, 64 + entries * 32, |out| {
        out.array(|out| {
            for row in &vectors.rows {
                out.array(|out| {
                    for &(index, value) in row {
                        out.object(|out| {
                            out.name("index").integer(index);
                            out.name("value").float(value);
                        });
                    }
                });
            }
        });
    }))
}

async fn rerank(call: Call) -> Result<Response, Refusal> {
    let started = Instant::now();
    let body: Rerank = input::read(&call.body)?;
    let treatment: Treatment = input::read(&call.body)?;
    if body.texts.is_empty() {
        return Err(Refusal::empty("texts"));
    }
    let options = TextOptions { raw_scores: body.raw_scores, ..treatment.options() };
    let ask = call.ask(treatment.model.as_deref(), options);
    let scores = call.handlers.rerank(&body.query, &body.texts, &ask).await?;
    Ok(timed(&scores.ledger, started, &body.texts, 64 * body.texts.len(), |out| {
        out.array(|out| {
            for (index, score) in scores.ranked(None) {
                out.object(|out| {
                    out.name("index").integer(index);
                    if body.return_text == Some(true) {
                        out.name("text").string(&body.texts[index]);
                    }
                    out.name("score").float(score);
                });
            }
        });
    }))
}

async fn predict(call: Call) -> Result<Response, Refusal> {
    let started = Instant::now();
    let body: Predict = input::read(&call.body)?;
    let treatment: Treatment = input::read(&call.body)?;
    let (inputs, one) = match body.inputs {
        PredictInput::One(pair) => (vec![pair], true),
        PredictInput::Many(pairs) if pairs.is_empty() => return Err(Refusal::empty("inputs")),
        PredictInput::Many(pairs) => (pairs, false),
    };
    let has_pairs = inputs.iter().filter(|pair| pair.second.is_some()).count();
    if has_pairs != 0 && has_pairs != inputs.len() {
        return Err(Refusal::field("inputs", "holds both texts and pairs of texts, expected one kind"));
    }
    let (texts, seconds): (Vec<String>, Vec<Option<String>>) =
        inputs.into_iter().map(|Pair { first, second }| (first, second)).unzip();
    let pairs: Option<Vec<String>> = seconds.into_iter().collect();
    // huggingface_hub, which sends it always, reads a list of lists.
    let flat = one && body.parameters.is_none();
    let parameters = body.parameters.unwrap_or_default();
    let raw = body.raw_scores.or((parameters.function_to_apply.as_deref() == Some("none")).then_some(true));
    let options = TextOptions { raw_scores: raw, ..treatment.options() };
    let ask = call.ask(treatment.model.as_deref(), options);
    let classified = call.handlers.classify(&texts, pairs.as_deref(), &ask).await?;
    let most = parameters.top_k.unwrap_or(usize::MAX);
    Ok(timed(&classified.ledger, started, &texts, 64 * classified.labels.len() * texts.len(), |out| {
        let write = |out: &mut Writer, row: &Vec<f32>| {
            out.array(|out| classified.best_first(row).iter().take(most).for_each(|scored| label(out, scored)));
        };
        match classified.rows.as_slice() {
            [row] if flat => write(out, row),
            rows => out.array(|out| rows.iter().for_each(|row| write(out, row))),
        }
    }))
}

fn label(out: &mut Writer, scored: &ScoredLabel<'_>) {
    out.object(|out| {
        out.name("score").float(scored.score);
        out.name("label").string(scored.label);
    });
}

async fn similarity(call: Call) -> Result<Response, Refusal> {
    let started = Instant::now();
    let body: Similarity = input::read(&call.body)?;
    let SimilarityInputs { source_sentence, sentences } = body.inputs;
    if sentences.is_empty() {
        return Err(Refusal::empty("sentences"));
    }
    let treatment = body.parameters.unwrap_or_default();
    let ask = call.ask(treatment.model.as_deref().or(body.model.as_deref()), treatment.options());
    let (cosines, ledger) = call.handlers.similarity(&source_sentence, &sentences, &ask).await?;
    Ok(timed(&ledger, started, &sentences, 16 * cosines.len(), |out| answer::floats(out, &cosines)))
}

async fn token_classify(call: Call) -> Result<Response, Refusal> {
    let started = Instant::now();
    let body: TokenClassify = input::read(&call.body)?;
    let treatment: Treatment = input::read(&call.body)?;
    let (texts, one) = body.inputs.texts("inputs", "send texts")?;
    let aggregation_strategy = body.parameters.unwrap_or_default().aggregation_strategy;
    let options = TextOptions { aggregation_strategy, ..treatment.options() };
    let ask = call.ask(treatment.model.as_deref(), options);
    let entities = call.handlers.token_classify(&texts, &ask).await?;
    let size = entities.rows.iter().map(|row| row.len() + 1).sum();
    Ok(timed(&entities.ledger, started, &texts, size, |out| match entities.rows.as_slice() {
        [row] if one => out.raw(row),
        rows => out.array(|out| rows.iter().for_each(|row| out.raw(row))),
    }))
}

/// `POST /`: what the model does; a body that only one route could have is for that one.
async fn root(call: Call) -> Result<Response, Refusal> {
    let (is_ranking, is_comparison, named) = {
        let parsed = json::parse(&call.body).map_err(|error| Refusal::new(Kind::Malformed, error.to_string()))?;
        let [inputs, query, model] = parsed.pick(["inputs", "query", "model"]);
        let named = model.as_ref().and_then(|model| model.as_text().ok().map(std::borrow::Cow::into_owned));
        (query.is_some(), matches!(inputs, Some(json::Value::Object(_))), named)
    };
    if is_ranking {
        return rerank(call).await;
    }
    if is_comparison {
        return similarity(call).await;
    }
    let task = call.handlers.text_model(call.model.as_deref().or(named.as_deref()))?.tasks.first().copied();
    match task {
        Some(Task::Classify) => predict(call).await,
        Some(Task::TokenClassify) => token_classify(call).await,
        Some(Task::Sparse) => embed_sparse(call).await,
        Some(Task::MultiVector) => embed_all(call).await,
        Some(Task::Rerank) => rerank(call).await,
        Some(Task::Embed | Task::Generate | Task::Tokenize | Task::Decode) | None => embed(call).await,
    }
}

async fn info(call: Call) -> Result<Response, Refusal> {
    let model = call.handlers.text_model(call.model.as_deref())?;
    let labels = |out: &mut Writer| {
        out.object(|out| {
            out.name("id2label").object(|out| {
                model.labels.iter().enumerate().for_each(|(id, label)| out.name(&id.to_string()).string(label));
            });
            out.name("label2id").object(|out| {
                model.labels.iter().enumerate().for_each(|(id, label)| out.name(label).integer(id));
            });
        });
    };
    Ok(answer::json(answer::object(|out| {
        out.name("model_id").string(&model.name);
        out.name("model_sha").null();
        out.name("model_dtype").string("float32");
        out.name("served_model_name").string(&model.name);
        out.name("model_type").object(|out| match model.tasks.first() {
            Some(Task::Classify | Task::TokenClassify) => labels(out.name("classifier")),
            Some(Task::Rerank) => labels(out.name("reranker")),
            _ => out.name("embedding").object(|out| out.name("pooling").null()),
        });
        out.name("auto_truncate").bool(true);
        out.name("version").string(env!("CARGO_PKG_VERSION"));
    })))
}

async fn health(call: Call) -> Result<Response, Refusal> {
    match call.handlers.server_ready() {
        Ok(true) => Ok(().into_response()),
        _ => Err(Refusal::new(Kind::Unavailable, "not every model is ready")),
    }
}

/// An answer with the headers that say what it took.
fn timed(
    ledger: &Ledger,
    started: Instant,
    texts: &[String],
    capacity: usize,
    fill: impl FnOnce(&mut Writer),
) -> Response {
    let mut response = answer::told(ledger, capacity, fill);
    let hops = || ledger.0.iter();
    let compute = |hop: &trireme_inference::Hop| hop.compute_input_us + hop.compute_infer_us + hop.compute_output_us;
    let tokenization: u64 = hops().filter(|hop| hop.texts.is_some()).map(compute).sum();
    let inference: u64 = hops().filter(|hop| hop.texts.is_none()).map(compute).sum();
    let queue: u64 = hops().map(|hop| hop.transit_us + hop.queue_us).sum();
    let total = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let values = [
        ("x-compute-type", None),
        ("x-compute-characters", Some(texts.iter().map(|text| text.chars().count() as u64).sum())),
        ("x-compute-tokens", Some(answer::tokens(ledger))),
        ("x-total-time", Some(total)),
        ("x-tokenization-time", Some(tokenization / 1000)),
        ("x-queue-time", Some(queue / 1000)),
        ("x-inference-time", Some(inference / 1000)),
    ];
    for (name, value) in values {
        let value = value.map_or(HeaderValue::from_static("trireme"), HeaderValue::from);
        response.headers_mut().insert(name, value);
    }
    response
}

/// The table of errors.
fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let (status, kind) = match refusal.kind {
        Kind::Empty => (400, "Empty"),
        Kind::Key => (401, "Unauthorized"),
        Kind::Forbidden => (403, "Forbidden"),
        Kind::NoModel => (404, "NotFound"),
        Kind::TooLarge => (413, "Validation"),
        Kind::Malformed | Kind::Field | Kind::Invalid | Kind::Unsupported => (422, "Validation"),
        Kind::Internal => (424, "Backend"),
        Kind::Overloaded => (429, "Overloaded"),
        Kind::Unavailable => (503, "Unhealthy"),
    };
    let body = answer::object(|out| {
        out.name("error").string(&refusal.message);
        out.name("error_type").string(kind);
    });
    (status, body)
}

fn refusals() -> Schema {
    schema::object([("error", schema::text()), ("error_type", schema::text())])
}
