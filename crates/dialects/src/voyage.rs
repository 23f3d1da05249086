//! Voyage: `/v1/rerank` with `top_k`, and `/v1/embeddings`, which is OpenAI's with fields of its own ([`extras`](super::extras)).
//!
//! A model that is not named is the only one that does it. Fields that no API has are passed over.

use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use trireme_operations::TextOptions;
use trireme_server::http::schema;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::answer;
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::extras::{self, Extras};
use super::fields::{self, Field, ours, read};
use super::openai;
use super::refusal::{Kind, Refusal};

pub(super) static DIALECT: Dialect = Dialect {
    name: "voyage",
    routes: &[
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(openai::embeddings(call)))
            .takes_both::<openai::Embeddings, Extras>(&[openai::EMBEDDINGS, extras::FIELDS])
            .gives(answer::embeddings_schema)
            .behind_name(),
        DialectRoute::post("/v1/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes::<Rerank>(&[RERANK])
            .gives(rerank_answer),
    ],
    refuse,
    refusals,
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
    let tokens = answer::tokens(&scores.ledger);
    Ok(answer::told_by(&scores.ledger, 512 + 64 * body.documents.len(), |out| {
        out.object(|out| {
            out.name("object").string("list");
            out.name("id").string(answer::id());
            out.name("data").array(|out| {
                for (index, score) in scores.ranked(body.top_k) {
                    out.object(|out| {
                        out.name("relevance_score").float(score);
                        out.name("index").integer(index);
                        if body.return_documents {
                            out.name("document").string(&body.documents[index]);
                        }
                    });
                }
            });
            out.name("model").string(body.model.as_deref().unwrap_or(&scores.model));
            out.name("usage").object(|out| out.name("total_tokens").integer(tokens));
        });
    }))
}

/// The table of errors.
fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let status = match refusal.kind {
        Kind::Malformed | Kind::Field | Kind::Empty | Kind::Invalid | Kind::TooLong | Kind::Unsupported => 400,
        Kind::Key => 401,
        Kind::Forbidden => 403,
        Kind::NoModel | Kind::NoRoute => 404,
        Kind::NoMethod => 405,
        Kind::OtherSpace => 412,
        Kind::TooLarge => 413,
        Kind::Overloaded | Kind::OwnerLimit => 429,
        Kind::Internal => 500,
        Kind::Unavailable => 503,
    };
    (status, answer::object(|out| out.name("detail").string(&refusal.message)))
}

fn refusals() -> Schema {
    schema::object([("detail", schema::text())])
}

fn rerank_answer() -> Schema {
    let row = [("relevance_score", schema::number()), ("index", schema::integer())];
    schema::object([
        ("object", schema::text()),
        ("data", schema::list(schema::object_with(row, [("document", schema::text())]))),
        ("model", schema::text()),
        ("usage", schema::object([("total_tokens", schema::integer())])),
    ])
}
