//! Together: `/v1/rerank` with `rank_fields`; `/v1/embeddings` is OpenAI's ([`openai`](super::openai)).
//!
//! All is behind the dialect's name: without it the same fields at `/v1/rerank` are Jina's and Cohere's, who rank documents by `text` where
//! the request does not say by what.

use axum::response::Response;
use serde::Deserialize;
use trireme_operations::TextOptions;
use trireme_server::http::schema;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::answer;
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
            .gives(rerank_answer)
            .behind_name(),
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(openai::embeddings(call)))
            .takes_both::<openai::Embeddings, Extras>(&[openai::EMBEDDINGS, extras::FIELDS])
            .gives(answer::embeddings_schema)
            .behind_name(),
    ],
    refuse: openai::refuse,
    refusals: answer::nested_schema,
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
    Ok(answer::told_by(&scores.ledger, 512 + 64 * documents.len(), |out| {
        out.object(|out| {
            out.name("id").string(answer::id());
            out.name("object").string("rerank");
            out.name("model").string(body.model.as_deref().unwrap_or(&scores.model));
            answer::results(out, &scores, body.top_n, returned);
            out.name("usage").object(|out| {
                out.name("prompt_tokens").integer(tokens);
                out.name("completion_tokens").integer(0);
                out.name("total_tokens").integer(tokens);
            });
        });
    }))
}

fn rerank_answer() -> Schema {
    let tokens = ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| (name, schema::integer()));
    schema::object([
        ("id", schema::text()),
        ("object", schema::text()),
        ("model", schema::text()),
        ("results", answer::results_schema()),
        ("usage", schema::object(tokens)),
    ])
}
