//! Text Embeddings Inference: `/embed`, `/embed_all`, `/embed_sparse`, `/rerank`, `/predict`, `/similarity`, `/tokenize`,
//! `/decode`, `/info`, `/health`, `/v1/embeddings`,
//! and `POST /`, which is the route of the model's own task.
//!
//! Bodies name no model: `/tei/MODEL/embed` does, and so may a field `model`; without either it is the only model for the
//! task. As in the original, fields that are not known are passed over, and token ids are the model's.

mod classify;
mod compatible;
mod embed;
mod errors;
mod inputs;
mod timing;
mod tokens;
mod treatment;
mod zero_shot;

use std::time::Instant;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer};
use trireme_operations::{Task, TextOptions};
use trireme_protocol::json;
use trireme_server::http::schema;
use utoipa::ToSchema;

use super::answer;
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::extras::{self, Extras};
use super::fields::{self, Field, ours, read};
use super::openai::EmbeddingList;
use super::refusal::{Kind, Refusal};
use timing::timed;
use treatment::{Treatment, ask};

pub(super) static DIALECT: Dialect = Dialect {
    name: "tei",
    routes: &[
        DialectRoute::post("/embed", "Embeds texts", |call| Box::pin(embed::embed(call)))
            .takes_both::<embed::Embed, Treatment>(&[embed::EMBED, treatment::FIELDS])
            .gives(schema::answer::<embed::Vectors<'_>>),
        DialectRoute::post("/embed_all", "Embeds each token of texts", |call| Box::pin(embed::embed_all(call)))
            .takes_both::<embed::Inputs, Treatment>(&[embed::INPUTS, treatment::FIELDS])
            .gives(schema::answer::<embed::TokenVectors<'_>>),
        DialectRoute::post("/embed_sparse", "Embeds texts in sparse vectors", |call| {
            Box::pin(embed::embed_sparse(call))
        })
        .takes_both::<embed::Inputs, Treatment>(&[embed::INPUTS, treatment::FIELDS])
        .gives(schema::answer::<embed::SparseVectors>),
        DialectRoute::post("/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes_both::<Rerank, Treatment>(&[RERANK, treatment::FIELDS])
            .gives(schema::answer::<Vec<Rank<'_>>>),
        DialectRoute::post("/predict", "Classifies texts", |call| Box::pin(classify::predict(call)))
            .takes_both::<classify::Predict, Treatment>(&[classify::PREDICT, treatment::FIELDS])
            .gives(schema::answer::<classify::Predictions<'_>>),
        DialectRoute::post("/similarity", "Compares a text with others", |call| Box::pin(similarity(call)))
            .takes::<Similarity>(&[SIMILARITY])
            .gives(schema::answer::<Vec<f32>>),
        DialectRoute::post("/tokenize", "The tokens of texts", |call| Box::pin(tokens::tokenize(call)))
            .takes::<tokens::Tokenize>(&[tokens::TOKENIZE])
            .gives(schema::answer::<Vec<Vec<tokens::Token>>>),
        DialectRoute::post("/decode", "The texts of tokens", |call| Box::pin(tokens::decode(call)))
            .takes::<tokens::Decode>(&[tokens::DECODE])
            .gives(schema::answer::<Vec<String>>),
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(compatible::embeddings(call)))
            .takes_both::<compatible::Embeddings, Extras>(&[compatible::EMBEDDINGS, extras::FIELDS])
            .gives(schema::answer::<EmbeddingList<'_>>)
            .refuses(compatible::refuse, schema::answer::<compatible::Error<'_>>)
            .behind_name(),
        DialectRoute::post("/embeddings", "Embeds texts", |call| Box::pin(compatible::embeddings(call)))
            .takes_both::<compatible::Embeddings, Extras>(&[compatible::EMBEDDINGS, extras::FIELDS])
            .gives(schema::answer::<EmbeddingList<'_>>)
            .refuses(compatible::refuse, schema::answer::<compatible::Error<'_>>)
            .behind_name(),
        DialectRoute::post("/", "Does what the model does", |call| Box::pin(root(call)))
            .takes::<Root>(&[ROOT])
            .gives(schema::anything)
            .into_another(),
        DialectRoute::post("/invocations", "Does what the model does", |call| Box::pin(root(call)))
            .takes::<Root>(&[ROOT])
            .gives(schema::anything)
            .into_another()
            .behind_name(),
        DialectRoute::get("/info", "The model's name, kind, labels and limits", |call| Box::pin(info(call)))
            .gives(schema::answer::<Info<'_>>),
        // Infinity's clients read a body, which those of others pass over.
        DialectRoute::get("/health", "Whether all models are ready, or the one", |call| Box::pin(health(call)))
            .behind_name()
            .checks_health(),
        DialectRoute::get("/ping", "Whether all models are ready, or the one", |call| Box::pin(health(call)))
            .behind_name()
            .checks_health(),
        DialectRoute::get("/", "Whether all models are ready, or the one", |call| Box::pin(health(call)))
            .behind_name()
            .checks_health(),
    ],
    refuse,
    refusals: schema::answer::<Error<'_>>,
    is_strict: false,
    cut: "set 'truncate' to true",
    model_in_path: true,
};

const RERANK: &[Field] = &[
    read("query", fields::TEXT),
    read("texts", fields::TEXTS),
    read("raw_scores", fields::FLAG),
    read("return_text", fields::FLAG),
    ours("top_n", fields::NUMBER),
];

const SIMILARITY: &[Field] = &[
    read("inputs", &[r#"{"source_sentence": "a", "sentences": ["b"]}"#]),
    read("parameters", fields::OBJECT).with(&[treatment::FIELDS]),
    ours("model", fields::TEXT),
];

/// Each route that the model may mean checks its own fields.
const ROOT: &[Field] = &[read("inputs", &[r#""a""#, r#"["a"]"#, "{}", "[1]", "[[1]]"]), ours("model", fields::TEXT)];

#[derive(Deserialize, ToSchema)]
#[schema(as = TeiRerank)]
struct Rerank {
    query: String,
    texts: Vec<String>,
    raw_scores: Option<bool>,
    return_text: Option<bool>,
    /// Of LiteLLM.
    top_n: Option<usize>,
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

/// A body of `POST /`, which is up to the model.
#[derive(ToSchema)]
#[schema(as = TeiRoot)]
#[allow(dead_code, reason = "for the document: each route reads its own fields")]
struct Root {
    #[schema(value_type = Option<serde_json::Value>)]
    inputs: (),
    model: Option<String>,
}

/// A document's place and score.
#[derive(Serialize, ToSchema)]
struct Rank<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    score: f32,
}

/// A model's name, kind, labels and limits.
#[derive(Serialize, ToSchema)]
struct Info<'a> {
    model_id: &'a str,
    model_sha: Option<&'static str>,
    model_dtype: &'static str,
    served_model_name: &'a str,
    #[schema(inline)]
    model_type: ModelType<'a>,
    max_concurrent_requests: u64,
    max_input_length: u64,
    max_batch_tokens: u64,
    // As in the original, it is null for a model whose executions have no limit of rows.
    max_batch_requests: Option<u64>,
    max_client_batch_size: u64,
    auto_truncate: bool,
    tokenization_workers: u64,
    version: &'static str,
    sha: Option<&'static str>,
    docker_label: Option<&'static str>,
}

/// The kind of a model.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ModelType<'a> {
    Classifier(#[schema(inline)] Labels<'a>),
    Reranker(#[schema(inline)] Labels<'a>),
    Embedding(#[schema(inline)] Pooling<'a>),
}

/// The classes of a model.
#[derive(Serialize, ToSchema)]
struct Labels<'a> {
    #[serde(serialize_with = "by_id")]
    #[schema(value_type = BTreeMap<String, String>)]
    id2label: &'a [String],
    #[serde(serialize_with = "by_label")]
    #[schema(value_type = BTreeMap<String, u64>)]
    label2id: &'a [String],
}

/// How the vectors of tokens become one.
#[derive(Serialize, ToSchema)]
struct Pooling<'a> {
    pooling: &'a str,
}

/// TEI's errors.
#[derive(Serialize, ToSchema)]
struct Error<'a> {
    error: &'a str,
    error_type: &'static str,
}

/// Writes the names of classes by their ids.
fn by_id<S: Serializer>(labels: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(labels.iter().enumerate())
}

/// Writes the ids of classes by their names, in the order of the ids.
fn by_label<S: Serializer>(labels: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(labels.iter().enumerate().map(|(id, label)| (label, id)))
}

async fn rerank(call: DialectCall) -> Result<Response, Refusal> {
    let started = Instant::now();
    let body: Rerank = call.read()?;
    let treatment: Treatment = call.read()?;
    if body.texts.is_empty() {
        return Err(Refusal::empty("texts"));
    }
    let options = TextOptions { raw_scores: body.raw_scores, ..treatment.options() };
    let ask = ask(&call, treatment.model.as_deref(), options);
    let scores = call.operations.rerank(&body.query, &body.texts, &ask).await?;
    let shown = |index: usize| (body.return_text == Some(true)).then(|| body.texts[index].as_str());
    let ranked = scores.ranked(body.top_n).into_iter();
    let ranks: Vec<Rank<'_>> = ranked.map(|(index, score)| Rank { index, text: shown(index), score }).collect();
    Ok(timed(&scores.ledger, started, &body.texts, &ranks))
}

async fn similarity(call: DialectCall) -> Result<Response, Refusal> {
    let started = Instant::now();
    let body: Similarity = call.read()?;
    let SimilarityInputs { source_sentence, sentences } = body.inputs;
    if sentences.is_empty() {
        return Err(Refusal::empty("sentences"));
    }
    let treatment = body.parameters.unwrap_or_default();
    let ask = ask(&call, treatment.model.as_deref().or(body.model.as_deref()), treatment.options());
    let (cosines, ledger) = call.operations.similarity(&source_sentence, &sentences, &ask).await?;
    Ok(timed(&ledger, started, &sentences, &cosines))
}

/// `POST /`: a body that only one route takes goes to that route, others to the route of the model's first task.
async fn root(call: DialectCall) -> Result<Response, Refusal> {
    let (is_ranking, is_comparison, brings_labels, named) = {
        let parsed = json::parse(&call.body).map_err(|error| Refusal::new(Kind::Malformed, error.to_string()))?;
        let [inputs, query, model, parameters] = parsed.pick(["inputs", "query", "model", "parameters"]);
        let labels = parameters.and_then(|parameters| {
            let [labels] = parameters.pick(["candidate_labels"]);
            labels
        });
        let named = model.as_ref().and_then(|model| model.as_text().ok().map(std::borrow::Cow::into_owned));
        (query.is_some(), matches!(inputs, Some(json::Value::Object(_))), labels.is_some(), named)
    };
    if is_ranking {
        return call.run_as(&DIALECT, "/rerank").await;
    }
    if is_comparison {
        return call.run_as(&DIALECT, "/similarity").await;
    }
    if brings_labels {
        return zero_shot::zero_shot(call).await;
    }
    let model = treatment::model(&call, named.as_deref());
    let task = call.operations.text_model(model.as_deref())?.tasks.first().copied();
    match task {
        Some(Task::Classify) => call.run_as(&DIALECT, "/predict").await,
        Some(Task::TokenClassify) => classify::token_classify(call).await,
        Some(Task::Sparse) => call.run_as(&DIALECT, "/embed_sparse").await,
        Some(Task::MultiVector) => call.run_as(&DIALECT, "/embed_all").await,
        Some(Task::Rerank) => call.run_as(&DIALECT, "/rerank").await,
        Some(Task::ZeroShot) => zero_shot::zero_shot(call).await,
        Some(Task::Embed | Task::Extract | Task::Generate | Task::Tokenize | Task::Decode) | None => {
            call.run_as(&DIALECT, "/embed").await
        }
    }
}

async fn info(call: DialectCall) -> Result<Response, Refusal> {
    let model = call.operations.text_model(call.model.as_deref())?;
    let length = model.max_length.unwrap_or(UNKNOWN_LENGTH);
    let labels = Labels { id2label: &model.labels, label2id: &model.labels };
    let pooling = if model.pooling == "last" { "last_token" } else { model.pooling.as_str() };
    Ok(answer::plain(&Info {
        model_id: &model.name,
        model_sha: None,
        model_dtype: "float32",
        served_model_name: &model.name,
        model_type: match model.tasks.first() {
            Some(Task::Classify | Task::ZeroShot | Task::TokenClassify) => ModelType::Classifier(labels),
            Some(Task::Rerank) => ModelType::Reranker(labels),
            _ => ModelType::Embedding(Pooling { pooling }),
        },
        max_concurrent_requests: MOST_TEXTS,
        max_input_length: length,
        max_batch_tokens: model.max_batch.unwrap_or(MOST_TEXTS) * length,
        max_batch_requests: model.max_batch,
        max_client_batch_size: MOST_TEXTS,
        auto_truncate: true,
        tokenization_workers: 1,
        version: env!("CARGO_PKG_VERSION"),
        sha: None,
        docker_label: None,
    }))
}

/// Texts of a request that clients may send at once: any number is taken, and clients that batch by it read a number.
const MOST_TEXTS: u64 = 1024;

/// The length of a text that clients read where the tokenizer's configuration has no `max_length`.
const UNKNOWN_LENGTH: u64 = 512;

async fn health(call: DialectCall) -> Result<Response, Refusal> {
    match call.model.as_deref() {
        Some(model) => drop(call.operations.text_model(Some(model))?),
        None => call.ready()?,
    }
    Ok(().into_response())
}

/// The body of an error.
fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let (status, error_type) = errors::of(refusal);
    (status, answer::body(&Error { error: &refusal.message, error_type }))
}
