//! Jina: `/v1/rerank`, `/v1/embeddings` and `/v1/multi-vector`.
//!
//! `task` (and `input_type` of `/v1/multi-vector`) chooses the prompt: queries and passages have the model's prompts for queries and
//! documents, other tasks are prompts of that name where the model has them. Images and late chunking are refused.

use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::answer;
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::input::{self, Document, OneOrMany};
use super::quantize::EmbeddingType;
use super::refusal::{Kind, Refusal};
use crate::handlers::operations::{Prompt, TextOptions};
use crate::http::openapi::schema;

pub(super) static DIALECT: Dialect = Dialect {
    name: "jina",
    routes: &[
        DialectRoute::post("/v1/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes::<Rerank>()
            .gives(rerank_answer),
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(embeddings(call)))
            .takes::<Embeddings>()
            .gives(embeddings_answer)
            .marked(&["task", "late_chunking", "embedding_type", "normalized", "truncate", "return_multivector"]),
        DialectRoute::post("/v1/multi-vector", "Embeds each token of texts", |call| Box::pin(multi_vector(call)))
            .takes::<Embeddings>()
            .gives(multi_vector_answer),
    ],
    refuse,
    refusals,
    model_in_path: false,
};

/// The field of an object that is its text.
const TEXT: [&str; 1] = ["text"];

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JinaEmbeddings)]
struct Embeddings {
    model: String,
    #[schema(schema_with = input::one_or_many::<Document>)]
    input: OneOrMany<Document>,
    task: Option<String>,
    input_type: Option<String>,
    dimensions: Option<u64>,
    normalized: Option<bool>,
    late_chunking: Option<bool>,
    #[schema(required = false, schema_with = input::one_or_many::<EmbeddingType>)]
    embedding_type: Option<OneOrMany<EmbeddingType>>,
    truncate: Option<bool>,
    return_multivector: Option<bool>,
    /// Ours: what the model shall do with the texts.
    instruction: Option<String>,
    #[serde(rename = "user")]
    _user: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JinaRerank)]
struct Rerank {
    model: String,
    query: Document,
    documents: Vec<Document>,
    top_n: Option<u64>,
    return_documents: Option<bool>,
    truncation: Option<bool>,
    return_embeddings: Option<bool>,
    /// Ours: by what the model shall judge.
    instruction: Option<String>,
}

impl Embeddings {
    /// The texts, the form of their vectors, the model and the options.
    fn read(body: &[u8]) -> Result<(Vec<String>, Vec<EmbeddingType>, String, TextOptions), Refusal> {
        let body: Embeddings = input::read(body)?;
        if body.late_chunking == Some(true) {
            return Err(Refusal::unsupported("late_chunking", "is true: each text is embedded by itself here"));
        }
        if body.return_multivector == Some(true) {
            return Err(Refusal::unsupported("return_multivector", "is true: /v1/multi-vector does that"));
        }
        let texts = Document::texts(body.input.into_list(), "input", &TEXT)?;
        if texts.is_empty() {
            return Err(Refusal::empty("input"));
        }
        let prompt = match body.task.or(body.input_type).as_deref() {
            None => Prompt::Default,
            Some("retrieval.query" | "nl2code.query" | "code.query" | "query") => Prompt::Query,
            Some("retrieval.passage" | "nl2code.passage" | "code.passage" | "document" | "passage") => Prompt::Document,
            Some("text-matching") => Prompt::IfThere("text-matching"),
            Some("classification") => Prompt::IfThere("classification"),
            Some("separation") => Prompt::IfThere("separation"),
            Some(other) => {
                return Err(Refusal::field(
                    "task",
                    format!(
                        "is '{other}', expected retrieval.query, retrieval.passage, text-matching, classification or separation"
                    ),
                ));
            }
        };
        let types = body.embedding_type.map_or_else(|| vec![EmbeddingType::Float], OneOrMany::into_list);
        let options = TextOptions {
            prompt,
            instruction: body.instruction,
            truncate: body.truncate,
            normalize: Some(body.normalized.unwrap_or(true)),
            dimensions: body.dimensions,
            ..TextOptions::default()
        };
        Ok((texts, types, body.model, options))
    }
}

async fn embeddings(call: DialectCall) -> Result<Response, Refusal> {
    let (texts, types, model, options) = Embeddings::read(&call.body)?;
    let &[form] = types.as_slice() else {
        return Err(Refusal::unsupported("embedding_type", "names several types, expected one"));
    };
    let vectors = call.handlers.embed(&texts, &call.ask(Some(&model), options)).await?;
    let numbers = vectors.numbers();
    form.check(&numbers)?;
    Ok(answer::told(&vectors.ledger, 512 + numbers.len() * 13, |out| {
        out.object(|out| {
            out.name("model").string(&model);
            out.name("object").string("list");
            answer::usage(out, &vectors.ledger);
            out.name("data").array(|out| {
                for (index, row) in numbers.chunks_exact(vectors.width.max(1)).enumerate() {
                    out.object(|out| {
                        out.name("object").string("embedding");
                        out.name("index").integer(index);
                        form.write(out.name("embedding"), row);
                    });
                }
            });
        });
    }))
}

async fn multi_vector(call: DialectCall) -> Result<Response, Refusal> {
    let (texts, types, model, options) = Embeddings::read(&call.body)?;
    if types != [EmbeddingType::Float] {
        return Err(Refusal::unsupported("embedding_type", "expected 'float'"));
    }
    let vectors = call.handlers.multi_vector(&texts, &call.ask(Some(&model), options)).await?;
    let numbers: usize = vectors.rows.iter().map(Vec::len).sum();
    Ok(answer::told(&vectors.ledger, 512 + numbers * 13, |out| {
        out.object(|out| {
            out.name("model").string(&model);
            out.name("object").string("list");
            answer::usage(out, &vectors.ledger);
            out.name("data").array(|out| {
                for (index, row) in vectors.rows.iter().enumerate() {
                    out.object(|out| {
                        out.name("object").string("embeddings");
                        out.name("index").integer(index);
                        out.name("embeddings").array(|out| {
                            row.chunks_exact(vectors.width.max(1)).for_each(|token| answer::floats(out, token));
                        });
                    });
                }
            });
        });
    }))
}

async fn rerank(call: DialectCall) -> Result<Response, Refusal> {
    let body: Rerank = input::read(&call.body)?;
    if body.documents.is_empty() {
        return Err(Refusal::empty("documents"));
    }
    if body.top_n == Some(0) {
        return Err(Refusal::field("top_n", "is 0, expected at least 1"));
    }
    if body.return_embeddings == Some(true) {
        return Err(Refusal::unsupported("return_embeddings", "is true: pairs have no vectors"));
    }
    let query = body.query.text(&TEXT).ok_or_else(|| Refusal::field("query", "holds no text in 'text'"))?;
    let documents = Document::texts(body.documents, "documents", &TEXT)?;
    let options = TextOptions { truncate: body.truncation, instruction: body.instruction, ..TextOptions::default() };
    let scores = call.handlers.rerank(&query, &documents, &call.ask(Some(&body.model), options)).await?;
    let most = body.top_n.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
    let tokens = answer::tokens(&scores.ledger);
    Ok(answer::told(&scores.ledger, 512 + 64 * documents.len(), |out| {
        out.object(|out| {
            out.name("model").string(&body.model);
            out.name("object").string("list");
            out.name("usage").object(|out| out.name("total_tokens").integer(tokens));
            out.name("results").array(|out| {
                for (index, score) in scores.ranked(most) {
                    out.object(|out| {
                        out.name("index").integer(index);
                        out.name("relevance_score").float(score);
                        if body.return_documents.unwrap_or(true) {
                            out.name("document").object(|out| out.name("text").string(&documents[index]));
                        }
                    });
                }
            });
        });
    }))
}

/// The table of errors.
fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let status = match refusal.kind {
        Kind::Malformed | Kind::Empty | Kind::Invalid | Kind::Unsupported => 400,
        Kind::Key => 401,
        Kind::Forbidden => 403,
        Kind::NoModel => 404,
        Kind::TooLarge => 413,
        Kind::Field => 422,
        Kind::Overloaded => 429,
        Kind::Internal => 500,
        Kind::Unavailable => 503,
    };
    (status, answer::object(|out| out.name("detail").string(&refusal.message)))
}

fn refusals() -> Schema {
    schema::object([("detail", schema::text())])
}

fn embeddings_answer() -> Schema {
    answer::embeddings_schema()
}

fn multi_vector_answer() -> Schema {
    let vectors = schema::list(schema::list(schema::number()));
    let row = schema::object([("object", schema::text()), ("index", schema::integer()), ("embeddings", vectors)]);
    schema::object([
        ("model", schema::text()),
        ("object", schema::text()),
        ("usage", answer::usage_schema()),
        ("data", schema::list(row)),
    ])
}

fn rerank_answer() -> Schema {
    let document = ("document", schema::object([("text", schema::text())]));
    let result = [("index", schema::integer()), ("relevance_score", schema::number())];
    schema::object([
        ("model", schema::text()),
        ("usage", schema::object([("total_tokens", schema::integer())])),
        ("results", schema::list(schema::object_with(result, [document]))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_as_they_are_or_as_objects() {
        let read = |text: &str| Embeddings::read(text.as_bytes());
        let (texts, types, model, options) = read(
            r#"{"model": "m", "input": ["a", {"text": "b"}], "task": "retrieval.query", "embedding_type": "binary"}"#,
        )
        .unwrap();
        assert_eq!(
            (texts, types, model.as_str()),
            (vec!["a".to_owned(), "b".to_owned()], vec![EmbeddingType::Binary], "m")
        );
        assert_eq!(options.prompt, Prompt::Query);
        let refusal = |text| read(text).unwrap_err();
        assert_eq!(refusal(r#"{"model": "m", "input": []}"#).kind, Kind::Empty);
        assert_eq!(refusal(r#"{"model": "m", "input": "a", "late_chunking": true}"#).kind, Kind::Unsupported);
        assert!(refusal(r#"{"model": "m", "input": "a", "task": "x"}"#).message.contains("expected retrieval.query"));
    }
}
