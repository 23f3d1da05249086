//! Jina: `/v1/rerank`, `/v1/embeddings`, `/v1/multi-vector` and `/v1/models`.
//!
//! `task` (and `input_type` of `/v1/multi-vector`) chooses the prompt: queries and passages have the model's prompts for queries and
//! documents, other tasks are prompts of that name where the model has them. Images are refused.

mod late_chunking;

use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use trireme_inference::Ledger;
use trireme_operations::{Prompt, TextOptions, TokenVectors};
use trireme_server::http::schema;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::answer::{self, EncodingFormat, Ranked, Usage};
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::fields::{self, Field, idle, only, ours, read};
use super::input::{self, Document, OneOrMany};
use super::openai;
use super::quantize::{EmbeddingType, Vector};
use super::refusal::{Kind, Refusal};
use late_chunking::LateChunks;

pub(super) static DIALECT: Dialect = Dialect {
    name: "jina",
    routes: &[
        DialectRoute::post("/v1/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes::<Rerank>(&[RERANK])
            .gives(schema::answer::<RerankAnswer<'_>>),
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(embeddings(call)))
            .takes::<Embeddings>(&[EMBEDDINGS])
            .gives(embeddings_answer),
        DialectRoute::post("/v1/multi-vector", "Embeds each token of texts", |call| Box::pin(multi_vector(call)))
            .takes_both::<Embeddings, Side>(&[EMBEDDINGS, SIDE])
            .gives(schema::answer::<EmbeddingList<'_, TokenEmbeddings<'_>>>),
        DialectRoute::get("/v1/models", "The models that do something with texts", |call| {
            Box::pin(openai::models(call))
        })
        .gives(schema::answer::<openai::ModelList<'_>>)
        .behind_name(),
    ],
    refuse,
    refusals: schema::answer::<Error<'_>>,
    is_strict: false,
    cut: "set 'truncate' to true",
    model_in_path: false,
};

const EMBEDDINGS: &[Field] = &[
    read("model", fields::TEXT),
    read("input", fields::DOCUMENT_OR_DOCUMENTS),
    read("task", &[r#""text-matching""#]),
    read("dimensions", fields::NUMBER),
    read("normalized", fields::FLAG),
    read("late_chunking", fields::FLAG),
    read("embedding_type", &[r#""float""#, r#"["float"]"#]),
    read("encoding_type", &[r#""float""#, r#"["float"]"#]),
    read("encoding_format", &[r#""float""#]),
    read("truncate", fields::FLAG),
    read("return_multivector", fields::FLAG),
    idle("user", fields::TEXT, "names the author of the texts"),
    ours("instruction", fields::TEXT),
];

/// Of `/v1/multi-vector`.
const SIDE: &[Field] = &[read("input_type", &[r#""query""#])];

const RERANK: &[Field] = &[
    read("model", fields::TEXT),
    read("query", &[r#""a""#, r#"{"text": "a"}"#]),
    read("documents", fields::DOCUMENTS),
    read("top_n", fields::NUMBER),
    read("return_documents", fields::FLAG),
    read("truncation", fields::FLAG),
    only("return_embeddings", fields::FLAG, &["false"], "pairs have no vectors"),
    ours("instruction", fields::TEXT),
];

/// The field of an object that is its text.
const TEXT: [&str; 1] = ["text"];

#[derive(Deserialize, ToSchema)]
#[schema(as = JinaEmbeddings)]
struct Embeddings {
    model: String,
    #[schema(schema_with = input::one_or_many::<Document>)]
    input: OneOrMany<Document>,
    task: Option<String>,
    dimensions: Option<u64>,
    normalized: Option<bool>,
    /// Clients of other servers name it by their own words.
    #[serde(alias = "encoding_type", alias = "encoding_format")]
    #[schema(required = false, schema_with = input::one_or_many::<EmbeddingType>)]
    embedding_type: Option<OneOrMany<EmbeddingType>>,
    truncate: Option<bool>,
    /// Whether the texts are parts of one document, which the model reads as one text.
    #[serde(default)]
    late_chunking: bool,
    return_multivector: Option<bool>,
    /// Ours: what the model shall do with the texts.
    instruction: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = JinaSide)]
struct Side {
    input_type: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = JinaRerank)]
struct Rerank {
    model: String,
    query: Document,
    documents: Vec<Document>,
    top_n: Option<u64>,
    return_documents: Option<bool>,
    truncation: Option<bool>,
    /// Ours: by what the model shall judge.
    instruction: Option<String>,
}

/// The texts of a body, and how they are embedded.
struct EmbedRequest {
    texts: Vec<String>,
    types: Vec<EmbeddingType>,
    model: String,
    is_late: bool,
    /// Whether each token has a vector, if the body says it.
    is_multi_vector: Option<bool>,
    /// Whether vectors get length 1, if the body says it.
    normalized: Option<bool>,
    options: TextOptions,
}

/// A list with a vector, or the vectors of its tokens, for each text.
#[derive(Serialize, ToSchema)]
struct EmbeddingList<'a, T: ToSchema> {
    model: &'a str,
    object: &'static str,
    id: String,
    #[schema(inline)]
    usage: Usage,
    #[schema(inline)]
    data: Vec<T>,
}

/// The vector of the text with this index.
#[derive(Serialize, ToSchema)]
struct Embedding<'a> {
    object: &'static str,
    index: usize,
    #[schema(inline)]
    embedding: Vector<'a>,
}

/// The vectors of the tokens of the text with this index.
#[derive(Serialize, ToSchema)]
struct TokenEmbeddings<'a> {
    object: &'static str,
    index: usize,
    embeddings: Vec<&'a [f32]>,
}

/// The best documents.
#[derive(Serialize, ToSchema)]
struct RerankAnswer<'a> {
    model: &'a str,
    object: &'static str,
    id: String,
    #[schema(inline)]
    usage: RerankUsage,
    #[schema(inline)]
    results: Vec<Ranked<'a>>,
}

/// The tokens of a query and its documents.
#[derive(Serialize, ToSchema)]
struct RerankUsage {
    total_tokens: u64,
}

/// Jina's errors.
#[derive(Serialize, ToSchema)]
struct Error<'a> {
    detail: &'a str,
}

// === impl EmbedRequest ===

impl EmbedRequest {
    fn read(body: &[u8]) -> Result<EmbedRequest, Refusal> {
        EmbedRequest::of(input::read(body)?, None)
    }

    fn of(body: Embeddings, side: Option<String>) -> Result<EmbedRequest, Refusal> {
        let texts = Document::texts(body.input.into_list(), "input", &TEXT)?;
        if texts.is_empty() {
            return Err(Refusal::empty("input"));
        }
        let prompt = match body.task.or(side).as_deref() {
            None => Prompt::Default,
            Some("retrieval.query" | "nl2code.query" | "code.query" | "query") => Prompt::Query,
            Some("retrieval.passage" | "nl2code.passage" | "code.passage" | "document" | "passage") => Prompt::Document,
            Some("text-matching") => Prompt::IfThere("text-matching"),
            Some("classification") => Prompt::IfThere("classification"),
            Some("separation") => Prompt::IfThere("separation"),
            Some("clustering") => Prompt::IfThere("clustering"),
            Some(other) => {
                return Err(Refusal::field(
                    "task",
                    format!(
                        "is '{other}', expected retrieval.query, retrieval.passage, text-matching, classification, clustering or separation"
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
        let (is_late, is_multi_vector, normalized) = (body.late_chunking, body.return_multivector, body.normalized);
        Ok(EmbedRequest { texts, types, model: body.model, is_late, is_multi_vector, normalized, options })
    }
}

// === impl EmbeddingList ===

impl<T: Serialize + ToSchema> EmbeddingList<'_, T> {
    /// The answer with these vectors.
    fn answer(model: &str, ledger: &Ledger, data: Vec<T>) -> Response {
        let usage = Usage::of(ledger);
        answer::told(ledger, &EmbeddingList { model, object: "list", id: answer::id(), usage, data })
    }
}

async fn embeddings(call: DialectCall) -> Result<Response, Refusal> {
    let asked = EmbedRequest::read(&call.body)?;
    if asked.is_multi_vector == Some(true) {
        return token_vectors(call, asked).await;
    }
    let EmbedRequest { texts, types, model, is_late, normalized, options, .. } = asked;
    let &[form] = types.as_slice() else {
        return Err(Refusal::unsupported("embedding_type", "names several types, expected one"));
    };
    if is_late {
        let ask = call.ask(Some(&model), TextOptions { normalize: Some(false), ..options });
        let chunks = LateChunks::of(&call, &texts, &ask).await?;
        return text_vectors(&model, &chunks.ledger, form, &chunks.means(normalized.unwrap_or(true)));
    }
    let vectors = call.operations.embed(&texts, &call.ask(Some(&model), options)).await?;
    let numbers = vectors.numbers();
    let rows: Vec<&[f32]> = numbers.chunks_exact(vectors.width.max(1)).collect();
    text_vectors(&model, &vectors.ledger, form, &rows)
}

/// The answer with a vector for each text.
fn text_vectors(
    model: &str,
    ledger: &Ledger,
    form: EmbeddingType,
    rows: &[impl AsRef<[f32]>],
) -> Result<Response, Refusal> {
    rows.iter().try_for_each(|row| form.check("embedding_type", row.as_ref()))?;
    let data = rows.iter().enumerate().map(|(index, row)| {
        let embedding = Vector { numbers: row.as_ref(), elements: form, format: EncodingFormat::Float };
        Embedding { object: "embedding", index, embedding }
    });
    Ok(EmbeddingList::answer(model, ledger, data.collect()))
}

async fn multi_vector(call: DialectCall) -> Result<Response, Refusal> {
    let Side { input_type } = call.read()?;
    let asked = EmbedRequest::of(call.read()?, input_type)?;
    if asked.is_multi_vector == Some(false) {
        return Err(Refusal::field(
            "return_multivector",
            "is false, expected true: /v1/embeddings gives a vector for each text",
        ));
    }
    token_vectors(call, asked).await
}

async fn token_vectors(call: DialectCall, asked: EmbedRequest) -> Result<Response, Refusal> {
    let EmbedRequest { texts, types, model, is_late, normalized, options, .. } = asked;
    // Vectors of tokens are as the model makes them, unless the body says otherwise.
    let options = TextOptions { normalize: normalized, ..options };
    if types != [EmbeddingType::Float] {
        return Err(Refusal::unsupported("embedding_type", "expected 'float'"));
    }
    let ask = call.ask(Some(&model), options);
    let LateChunks { width, rows, ledger } = match is_late {
        true => LateChunks::of(&call, &texts, &ask).await?,
        false => {
            let TokenVectors { width, rows, ledger, .. } = call.operations.multi_vector(&texts, &ask).await?;
            LateChunks { width: width.max(1), rows, ledger }
        }
    };
    let data = rows.iter().enumerate().map(|(index, row)| {
        let embeddings = row.chunks_exact(width).collect();
        TokenEmbeddings { object: "embeddings", index, embeddings }
    });
    Ok(EmbeddingList::answer(&model, &ledger, data.collect()))
}

async fn rerank(call: DialectCall) -> Result<Response, Refusal> {
    let body: Rerank = call.read()?;
    if body.documents.is_empty() {
        return Err(Refusal::empty("documents"));
    }
    if body.top_n == Some(0) {
        return Err(Refusal::field("top_n", "is 0, expected at least 1"));
    }
    let query = body.query.text(&TEXT).ok_or_else(|| Refusal::field("query", "holds no text in 'text'"))?;
    let documents = Document::texts(body.documents, "documents", &TEXT)?;
    let options = TextOptions { truncate: body.truncation, instruction: body.instruction, ..TextOptions::default() };
    let scores = call.operations.rerank(&query, &documents, &call.ask(Some(&body.model), options)).await?;
    let returned = body.return_documents.unwrap_or(true).then_some(&documents[..]);
    let ranked = RerankAnswer {
        model: &body.model,
        object: "list",
        id: answer::id(),
        usage: RerankUsage { total_tokens: answer::tokens(&scores.ledger) },
        results: Ranked::of(&scores, body.top_n, returned),
    };
    Ok(answer::told(&scores.ledger, &ranked))
}

/// The table of errors.
fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let status = match refusal.kind {
        Kind::Field => 422,
        kind => kind.status(),
    };
    (status, answer::body(&Error { detail: &refusal.message }))
}

/// The schema of the answer of `/v1/embeddings`: with a vector for each text, or for each token.
fn embeddings_answer() -> Schema {
    schema::any_of([
        schema::answer::<EmbeddingList<'_, Embedding<'_>>>(),
        schema::answer::<EmbeddingList<'_, TokenEmbeddings<'_>>>(),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_as_they_are_or_as_objects() {
        let read = |text: &str| EmbedRequest::read(text.as_bytes());
        let asked = read(
            r#"{"model": "m", "input": ["a", {"text": "b"}], "task": "retrieval.query", "encoding_type": "binary"}"#,
        )
        .unwrap_or_else(|refusal| panic!("{refusal:?}"));
        assert_eq!((asked.texts, asked.types), (vec!["a".to_owned(), "b".to_owned()], vec![EmbeddingType::Binary]));
        assert_eq!((asked.model.as_str(), asked.options.prompt), ("m", Prompt::Query));
        let refusal = |text| read(text).err().expect("a refusal");
        assert_eq!(refusal(r#"{"model": "m", "input": []}"#).kind, Kind::Empty);
        assert!(refusal(r#"{"model": "m", "input": "a", "task": "x"}"#).message.contains("expected retrieval.query"));
    }
}
