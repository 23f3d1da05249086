//! Voyage: `/v1/rerank` with `top_k`, and `/v1/embeddings`, which is OpenAI's with fields of its own ([`extras`](super::extras)).
//!
//! A model that is not named is the only one that does it. Fields that no API has are passed over.

use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use trireme_operations::TextOptions;
use trireme_server::http::schema;
use utoipa::ToSchema;

use super::answer;
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::extras::{self, Extras};
use super::fields::{self, Field, ours, read};
use super::openai;
use super::refusal::Refusal;

pub(super) static DIALECT: Dialect = Dialect {
    name: "voyage",
    routes: &[
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(openai::embeddings(call)))
            .takes_both::<openai::Embeddings, Extras>(&[openai::EMBEDDINGS, extras::FIELDS])
            .gives(schema::answer::<openai::EmbeddingList<'_>>)
            .behind_name(),
        DialectRoute::post("/v1/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes::<Rerank>(&[RERANK])
            .gives(schema::answer::<Ranking<'_>>),
    ],
    refuse,
    refusals: schema::answer::<Detail<'_>>,
    is_strict: false,
    cut: "set 'truncation' to true",
    model_in_path: false,
};

const RERANK: &[Field] = &[
    read("model", fields::TEXT),
    read("query", fields::TEXT),
    read("documents", fields::TEXTS),
    read("top_k", fields::NUMBER),
    read("return_documents", fields::FLAG),
    read("truncation", fields::FLAG),
    ours("instruction", fields::TEXT),
];

#[derive(Deserialize, ToSchema)]
#[schema(as = VoyageRerank)]
struct Rerank {
    model: Option<String>,
    query: String,
    documents: Vec<String>,
    top_k: Option<usize>,
    #[serde(default)]
    return_documents: bool,
    truncation: Option<bool>,
    /// Ours: by what the model shall judge.
    instruction: Option<String>,
}

/// Documents in the order of their scores.
#[derive(Serialize, ToSchema)]
struct Ranking<'a> {
    object: &'static str,
    id: String,
    #[schema(inline)]
    data: Vec<Ranked<'a>>,
    model: &'a str,
    #[schema(inline)]
    usage: Tokens,
}

#[derive(Serialize, ToSchema)]
struct Ranked<'a> {
    relevance_score: f32,
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<&'a str>,
}

#[derive(Serialize, ToSchema)]
struct Tokens {
    total_tokens: u64,
}

/// An error.
#[derive(Serialize, ToSchema)]
struct Detail<'a> {
    detail: &'a str,
}

async fn rerank(call: DialectCall) -> Result<Response, Refusal> {
    let body: Rerank = call.read()?;
    if body.documents.is_empty() {
        return Err(Refusal::empty("documents"));
    }
    if body.top_k == Some(0) {
        return Err(Refusal::field("top_k", "is 0, expected at least 1"));
    }
    let options = TextOptions { truncate: body.truncation, instruction: body.instruction, ..TextOptions::default() };
    let ask = call.ask(body.model.as_deref(), options);
    let scores = call.operations.rerank(&body.query, &body.documents, &ask).await?;
    let document = |index: usize| body.return_documents.then(|| &*body.documents[index]);
    let ranked = scores.ranked(body.top_k).into_iter();
    let ranking = Ranking {
        object: "list",
        id: answer::id(),
        data: ranked
            .map(|(index, relevance_score)| Ranked { relevance_score, index, document: document(index) })
            .collect(),
        model: body.model.as_deref().unwrap_or(&scores.model),
        usage: Tokens { total_tokens: answer::tokens(&scores.ledger) },
    };
    Ok(answer::told(&scores.ledger, &ranking))
}

/// The table of errors.
fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    (refusal.kind.status(), answer::body(&Detail { detail: &refusal.message }))
}
