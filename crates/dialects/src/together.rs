//! Together: `/v1/rerank` with `rank_fields`; `/v1/embeddings` is OpenAI's ([`openai`](super::openai)).
//!
//! All is behind the dialect's name: without it the same fields at `/v1/rerank` are Jina's and Cohere's, who rank documents by `text` where
//! the request does not say by what.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use trireme_operations::TextOptions;
use trireme_server::http::schema;
use utoipa::ToSchema;

use super::answer::{self, Ranked};
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::extras::{self, Extras};
use super::fields::{self, Field, ours, read};
use super::input::Document;
use super::openai;
use super::refusal::Refusal;

pub(super) static DIALECT: Dialect = Dialect {
    name: "together",
    routes: &[
        DialectRoute::post("/v1/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes::<Rerank>(&[RERANK])
            .gives(schema::answer::<Ranking<'_>>)
            .behind_name(),
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(openai::embeddings(call)))
            .takes_both::<openai::Embeddings, Extras>(&[openai::EMBEDDINGS, extras::FIELDS])
            .gives(schema::answer::<openai::EmbeddingList<'_>>)
            .behind_name(),
    ],
    refuse: openai::refuse,
    refusals: schema::answer::<openai::Error<'_>>,
    is_strict: false,
    cut: "send a shorter one",
    model_in_path: false,
};

const RERANK: &[Field] = &[
    read("model", fields::TEXT),
    read("query", fields::TEXT),
    read("documents", fields::DOCUMENTS),
    read("top_n", fields::NUMBER),
    read("return_documents", fields::FLAG),
    read("rank_fields", fields::TEXTS),
    ours("instruction", fields::TEXT),
];

#[derive(Deserialize, ToSchema)]
#[schema(as = TogetherRerank)]
struct Rerank {
    model: Option<String>,
    query: String,
    documents: Vec<Document>,
    top_n: Option<u64>,
    return_documents: Option<bool>,
    rank_fields: Option<Vec<String>>,
    /// Ours: by what the model shall judge.
    instruction: Option<String>,
}

/// Documents in the order of their scores.
#[derive(Serialize, ToSchema)]
struct Ranking<'a> {
    id: String,
    object: &'static str,
    model: &'a str,
    #[schema(inline)]
    results: Vec<Ranked<'a>>,
    #[schema(inline)]
    usage: Tokens,
}

#[derive(Serialize, ToSchema)]
struct Tokens {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
}

async fn rerank(call: DialectCall) -> Result<Response, Refusal> {
    let body: Rerank = call.read()?;
    if body.documents.is_empty() {
        return Err(Refusal::empty("documents"));
    }
    if body.top_n == Some(0) {
        return Err(Refusal::field("top_n", "is 0, expected at least 1"));
    }
    let documents = match body.rank_fields {
        Some(names) => Document::texts(body.documents, "documents", &names)?,
        None => Document::whole_texts(body.documents, "documents")?,
    };
    let options = TextOptions { instruction: body.instruction, ..TextOptions::default() };
    let ask = call.ask(body.model.as_deref(), options);
    let scores = call.operations.rerank(&body.query, &documents, &ask).await?;
    // The SDK reads no result without its document.
    let returned = body.return_documents.unwrap_or(true).then_some(&documents[..]);
    let tokens = answer::tokens(&scores.ledger);
    let ranking = Ranking {
        id: answer::id(),
        object: "rerank",
        model: body.model.as_deref().unwrap_or(&scores.model),
        results: Ranked::of(&scores, body.top_n, returned),
        usage: Tokens { prompt_tokens: tokens, completion_tokens: 0, total_tokens: tokens },
    };
    Ok(answer::told(&scores.ledger, &ranking))
}
