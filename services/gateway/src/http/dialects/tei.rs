//! Text Embeddings Inference: `/embed`, `/embed_all`, `/embed_sparse`, `/rerank`, `/predict`, `/similarity`, `/tokenize`,
//! `/decode`, `/info`, `/health`,
//! and `POST /`, which is the route of what the model does.
//!
//! Bodies name no model: `/tei/MODEL/embed` does, and so may a field `model`; without either it is the only model that does
//! it. As in the original, fields that are not known are passed over, and token ids are the model's.

mod answers;
mod classify;
mod embed;
mod inputs;
mod timing;
mod tokens;
mod treatment;

use std::time::Instant;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;
use trireme_protocol::json::{self, Writer};
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::answer;
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::input;
use super::refusal::{Kind, Refusal};
use crate::handlers::operations::TextOptions;
use crate::http::openapi::schema;
use crate::registry::Task;
use timing::timed;
use treatment::Treatment;

pub(super) static DIALECT: Dialect = Dialect {
    name: "tei",
    routes: &[
        DialectRoute::post("/embed", "Embeds texts", |call| Box::pin(embed::embed(call)))
            .takes_both::<embed::Embed, Treatment>()
            .gives(answers::vectors),
        DialectRoute::post("/embed_all", "Embeds each token of texts", |call| Box::pin(embed::embed_all(call)))
            .takes_both::<embed::Embed, Treatment>()
            .gives(answers::token_vectors),
        DialectRoute::post("/embed_sparse", "Embeds texts in sparse vectors", |call| {
            Box::pin(embed::embed_sparse(call))
        })
        .takes_both::<embed::Embed, Treatment>()
        .gives(answers::sparse_vectors),
        DialectRoute::post("/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes_both::<Rerank, Treatment>()
            .gives(answers::ranks)
            .marked(&["texts", "return_text"]),
        DialectRoute::post("/predict", "Classifies texts", |call| Box::pin(classify::predict(call)))
            .takes_both::<classify::Predict, Treatment>()
            .gives(answers::predictions),
        DialectRoute::post("/similarity", "Compares a text with others", |call| Box::pin(similarity(call)))
            .takes::<Similarity>()
            .gives(answers::numbers),
        DialectRoute::post("/tokenize", "The tokens of texts", |call| Box::pin(tokens::tokenize(call)))
            .takes::<tokens::Tokenize>()
            .gives(answers::token_lists),
        DialectRoute::post("/decode", "The texts of tokens", |call| Box::pin(tokens::decode(call)))
            .takes::<tokens::Decode>()
            .gives(answers::texts),
        DialectRoute::post("/", "Does what the model does", |call| Box::pin(root(call)))
            .takes::<Root>()
            .gives(answers::anything),
        DialectRoute::get("/info", "The model's name, kind and labels", |call| Box::pin(info(call)))
            .gives(answers::info),
        DialectRoute::get("/health", "Whether all models are ready", |call| Box::pin(health(call))),
    ],
    refuse,
    refusals,
    model_in_path: true,
};

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

/// `POST /`: what the model does; a body that only one route could have is for that one.
async fn root(call: DialectCall) -> Result<Response, Refusal> {
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
        Some(Task::Classify) => classify::predict(call).await,
        Some(Task::TokenClassify) => classify::token_classify(call).await,
        Some(Task::Sparse) => embed::embed_sparse(call).await,
        Some(Task::MultiVector) => embed::embed_all(call).await,
        Some(Task::Rerank) => rerank(call).await,
        Some(Task::Embed | Task::Generate | Task::Tokenize | Task::Decode) | None => embed::embed(call).await,
    }
}

async fn info(call: DialectCall) -> Result<Response, Refusal> {
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

async fn health(call: DialectCall) -> Result<Response, Refusal> {
    match call.handlers.server_ready() {
        Ok(true) => Ok(().into_response()),
        _ => Err(Refusal::new(Kind::Unavailable, "not every model is ready")),
    }
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
