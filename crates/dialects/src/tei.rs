//! Text Embeddings Inference: `/embed`, `/embed_all`, `/embed_sparse`, `/rerank`, `/predict`, `/similarity`, `/tokenize`,
//! `/decode`, `/info`, `/health`, `/v1/embeddings`,
//! and `POST /`, which is the route of what the model does.
//!
//! Bodies name no model: `/tei/MODEL/embed` does, and so may a field `model`; without either it is the only model that does
//! it. As in the original, fields that are not known are passed over, and token ids are the model's.

mod answers;
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
use serde::Deserialize;
use trireme_operations::{Task, TextOptions};
use trireme_protocol::json::{self, Writer};
use trireme_server::http::schema;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::answer;
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::extras::{self, Extras};
use super::fields::{self, Field, ours, read};
use super::refusal::{Kind, Refusal};
use timing::timed;
use treatment::{Treatment, ask};

pub(super) static DIALECT: Dialect = Dialect {
    name: "tei",
    routes: &[
        DialectRoute::post("/embed", "Embeds texts", |call| Box::pin(embed::embed(call)))
            .takes_both::<embed::Embed, Treatment>(&[embed::EMBED, treatment::FIELDS])
            .gives(answers::vectors),
        DialectRoute::post("/embed_all", "Embeds each token of texts", |call| Box::pin(embed::embed_all(call)))
            .takes_both::<embed::Inputs, Treatment>(&[embed::INPUTS, treatment::FIELDS])
            .gives(answers::token_vectors),
        DialectRoute::post("/embed_sparse", "Embeds texts in sparse vectors", |call| {
            Box::pin(embed::embed_sparse(call))
        })
        .takes_both::<embed::Inputs, Treatment>(&[embed::INPUTS, treatment::FIELDS])
        .gives(answers::sparse_vectors),
        DialectRoute::post("/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes_both::<Rerank, Treatment>(&[RERANK, treatment::FIELDS])
            .gives(answers::ranks),
        DialectRoute::post("/predict", "Classifies texts", |call| Box::pin(classify::predict(call)))
            .takes_both::<classify::Predict, Treatment>(&[classify::PREDICT, treatment::FIELDS])
            .gives(answers::predictions),
        DialectRoute::post("/similarity", "Compares a text with others", |call| Box::pin(similarity(call)))
            .takes::<Similarity>(&[SIMILARITY])
            .gives(answers::numbers),
        DialectRoute::post("/tokenize", "The tokens of texts", |call| Box::pin(tokens::tokenize(call)))
            .takes::<tokens::Tokenize>(&[tokens::TOKENIZE])
            .gives(answers::token_lists),
        DialectRoute::post("/decode", "The texts of tokens", |call| Box::pin(tokens::decode(call)))
            .takes::<tokens::Decode>(&[tokens::DECODE])
            .gives(answers::texts),
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(compatible::embeddings(call)))
            .takes_both::<compatible::Embeddings, Extras>(&[compatible::EMBEDDINGS, extras::FIELDS])
            .gives(answer::embeddings_schema)
            .refuses(compatible::refuse, compatible::refusals)
            .behind_name(),
        DialectRoute::post("/embeddings", "Embeds texts", |call| Box::pin(compatible::embeddings(call)))
            .takes_both::<compatible::Embeddings, Extras>(&[compatible::EMBEDDINGS, extras::FIELDS])
            .gives(answer::embeddings_schema)
            .refuses(compatible::refuse, compatible::refusals)
            .behind_name(),
        DialectRoute::post("/", "Does what the model does", |call| Box::pin(root(call)))
            .takes::<Root>(&[ROOT])
            .gives(answers::anything)
            .into_another(),
        DialectRoute::post("/invocations", "Does what the model does", |call| Box::pin(root(call)))
            .takes::<Root>(&[ROOT])
            .gives(answers::anything)
            .into_another()
            .behind_name(),
        DialectRoute::get("/info", "The model's name, kind, labels and limits", |call| Box::pin(info(call)))
            .gives(answers::info),
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
    refusals,
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
    Ok(timed(&scores.ledger, started, &body.texts, 64 * body.texts.len(), |out| {
        out.array(|out| {
            for (index, score) in scores.ranked(body.top_n) {
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
    Ok(timed(&ledger, started, &sentences, 16 * cosines.len(), |out| answer::floats(out, &cosines)))
}

/// `POST /`: what the model does; a body that only one route could have is for that one.
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
        Some(Task::Embed | Task::Generate | Task::Tokenize | Task::Decode) | None => {
            call.run_as(&DIALECT, "/embed").await
        }
    }
}

async fn info(call: DialectCall) -> Result<Response, Refusal> {
    let model = call.operations.text_model(call.model.as_deref())?;
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
            Some(Task::Classify | Task::ZeroShot | Task::TokenClassify) => labels(out.name("classifier")),
            Some(Task::Rerank) => labels(out.name("reranker")),
            _ => out.name("embedding").object(|out| {
                out.name("pooling").string(if model.pooling == "last" { "last_token" } else { &model.pooling })
            }),
        });
        out.name("max_concurrent_requests").integer(MOST_TEXTS);
        out.name("max_input_length").integer(model.max_length.unwrap_or(UNKNOWN_LENGTH));
        let length = model.max_length.unwrap_or(UNKNOWN_LENGTH);
        out.name("max_batch_tokens").integer(model.max_batch.unwrap_or(MOST_TEXTS) * length);
        // As in the original, it is null for a model whose executions have no limit of rows.
        match model.max_batch {
            Some(rows) => out.name("max_batch_requests").integer(rows),
            None => out.name("max_batch_requests").null(),
        }
        out.name("max_client_batch_size").integer(MOST_TEXTS);
        out.name("auto_truncate").bool(true);
        out.name("tokenization_workers").integer(1);
        out.name("version").string(env!("CARGO_PKG_VERSION"));
        out.name("sha").null();
        out.name("docker_label").null();
    })))
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
    let (status, kind) = errors::of(refusal);
    let body = answer::object(|out| {
        out.name("error").string(&refusal.message);
        out.name("error_type").string(kind);
    });
    (status, body)
}

fn refusals() -> Schema {
    schema::object([("error", schema::text()), ("error_type", schema::text())])
}
