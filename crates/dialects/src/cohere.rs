//! Cohere: `/v1/embed`, `/v2/embed`, `/v1/rerank`, `/v2/rerank`, `/v1/tokenize`, `/v1/detokenize`, `/v1/models`, `/v1/check-api-key`.
//!
//! `input_type` chooses the prompt: `search_query` and `search_document` are the model's prompts for queries and documents,
//! `classification` and `clustering` are prompts of that name where the model has them. Images are refused.

mod about;

use std::collections::HashSet;

use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer};
use trireme_inference::{Ledger, MOST_WINDOWS};
use trireme_operations::{Prompt, Side, TextOptions};
use trireme_server::http::schema;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::answer::{self, EncodingFormat, Ranked};
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::fields::{self, Field, Forms, idle, only, ours, read};
use super::input::Document;
use super::quantize::{EmbeddingType, Vector};
use super::refusal::{Kind, Refusal};

pub(super) static DIALECT: Dialect = Dialect {
    name: "cohere",
    routes: &[
        DialectRoute::post("/v2/embed", "Embeds texts", |call| Box::pin(embed(call, Version::V2)))
            .takes::<Embed>(&[EMBED])
            .gives(embed_answer),
        DialectRoute::post("/v1/embed", "Embeds texts", |call| Box::pin(embed(call, Version::V1)))
            .takes::<Embed>(&[EMBED])
            .gives(embed_answer),
        DialectRoute::post("/v2/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call, Version::V2)))
            .takes::<Rerank>(&[RERANK])
            .gives(schema::answer::<RerankAnswer<'_>>),
        DialectRoute::post("/v1/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call, Version::V1)))
            .takes::<Rerank>(&[RERANK])
            .gives(schema::answer::<RerankAnswer<'_>>),
        DialectRoute::post("/v1/tokenize", "The tokens of a text", |call| Box::pin(about::tokenize(call)))
            .takes::<about::Tokenize>(&[about::TOKENIZE])
            .gives(schema::answer::<about::TokenizeAnswer<'_>>),
        DialectRoute::post("/v1/detokenize", "The text of tokens", |call| Box::pin(about::detokenize(call)))
            .takes::<about::Detokenize>(&[about::DETOKENIZE])
            .gives(schema::answer::<about::DetokenizeAnswer<'_>>),
        DialectRoute::get("/v1/models", "The models that do something with texts", |call| {
            Box::pin(about::models(call))
        })
        .asks::<about::ModelsQuery>()
        .gives(schema::answer::<about::ModelList<'_>>)
        .behind_name(),
        DialectRoute::get("/v1/models/{*rest}", "A model", |call| Box::pin(about::model(call)))
            .gives(schema::answer::<about::Model<'_>>)
            .behind_name(),
        DialectRoute::post("/v1/check-api-key", "Whether the key is valid", |call| Box::pin(about::check_key(call)))
            .gives(schema::answer::<about::KeyCheck>),
    ],
    refuse,
    refusals: schema::answer::<Error<'_>>,
    is_strict: true,
    cut: "set 'truncate' to \"END\"",
    model_in_path: false,
};

/// Parts of the fields' table: texts of a chat's form.
const INPUTS: Forms = &[r#"[{"content": [{"type": "text", "text": "a"}]}]"#];

/// Also of vLLM's `/v2/embed`.
pub(super) const EMBED: &[Field] = &[
    read("model", fields::TEXT),
    read("texts", fields::TEXTS),
    only("images", fields::TEXTS, &[], "models here take texts: send 'texts'"),
    read("inputs", INPUTS),
    read("input_type", &[r#""search_query""#]),
    read("embedding_types", &[r#"["float"]"#]),
    read("output_dimension", fields::NUMBER),
    read("truncate", &[r#""END""#]),
    read("max_tokens", fields::NUMBER),
    idle("priority", fields::NUMBER, "orders the requests of one customer"),
    ours("instruction", fields::TEXT),
];

const RERANK: &[Field] = &[
    read("model", fields::TEXT),
    read("query", fields::TEXT),
    read("documents", fields::DOCUMENTS),
    read("top_n", fields::NUMBER),
    read("rank_fields", fields::TEXTS),
    read("return_documents", fields::FLAG),
    read("max_chunks_per_doc", fields::NUMBER),
    read("max_tokens_per_doc", fields::NUMBER),
    idle("priority", fields::NUMBER, "orders the requests of one customer"),
    ours("instruction", fields::TEXT),
];

/// The error of a request without the field, for a model that treats queries and documents differently.
const INPUT_TYPES: &str =
    "'input_type' is missing, expected search_query, search_document, classification or clustering";

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Version {
    V1,
    V2,
    /// The second one as vLLM has it, where neither the model nor `input_type` need be named.
    Vllm,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schema(as = CohereTruncate)]
enum Truncate {
    None,
    Start,
    End,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = CohereEmbed)]
pub(super) struct Embed {
    model: Option<String>,
    texts: Option<Vec<String>>,
    inputs: Option<Vec<Contents>>,
    input_type: Option<String>,
    embedding_types: Option<Vec<EmbeddingType>>,
    output_dimension: Option<u64>,
    truncate: Option<Truncate>,
    max_tokens: Option<u64>,
    /// Ours: what the model shall do with the texts.
    instruction: Option<String>,
}

/// An input of several parts, as requests with images have it.
#[derive(Deserialize, ToSchema)]
#[schema(as = CohereContents)]
struct Contents {
    content: Vec<Part>,
}

#[derive(Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = CoherePart)]
enum Part {
    Text { text: String },
    ImageUrl {},
}

/// A body of both versions: clients of the second one send fields of the first (LiteLLM `return_documents`).
#[derive(Deserialize, ToSchema)]
#[schema(as = CohereRerank)]
struct Rerank {
    model: Option<String>,
    query: String,
    documents: Vec<Document>,
    top_n: Option<u64>,
    rank_fields: Option<Vec<String>>,
    #[serde(default)]
    return_documents: bool,
    /// Of the first version: chunks that a long document has at most; the best one counts.
    max_chunks_per_doc: Option<u64>,
    max_tokens_per_doc: Option<u64>,
    /// Ours: by what the model shall judge.
    instruction: Option<String>,
}

/// The vectors of the texts of a request, and these texts.
#[derive(Serialize, ToSchema)]
pub(super) struct EmbedAnswer<'a> {
    id: String,
    response_type: &'static str,
    #[schema(inline)]
    embeddings: Embeddings<'a>,
    texts: &'a [String],
    #[schema(inline)]
    meta: Meta,
}

/// The vectors alone, or by type where the request names types.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Embeddings<'a> {
    Floats(Vec<&'a [f32]>),
    #[schema(value_type = Object)]
    ByType(ByType<'a>),
}

/// The vectors in each of these types, under the name of the type.
struct ByType<'a> {
    types: Vec<EmbeddingType>,
    rows: Vec<&'a [f32]>,
}

/// The best documents.
#[derive(Serialize, ToSchema)]
struct RerankAnswer<'a> {
    id: String,
    #[schema(inline)]
    results: Vec<Ranked<'a>>,
    #[schema(inline)]
    meta: Meta,
}

/// The member `meta` of the answers of models.
#[derive(Serialize, ToSchema)]
struct Meta {
    #[schema(inline)]
    api_version: about::ApiVersion,
    #[schema(inline)]
    billed_units: BilledUnits,
    #[schema(inline)]
    tokens: Tokens,
}

/// The units in which the original bills a request.
#[derive(Default, Serialize, ToSchema)]
struct BilledUnits {
    #[serde(skip_serializing_if = "Option::is_none")]
    input_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    search_units: Option<u64>,
    // vLLM's answers have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    image_tokens: Option<u64>,
}

/// The tokens of a request.
#[derive(Serialize, ToSchema)]
struct Tokens {
    input_tokens: u64,
}

/// Cohere's errors.
#[derive(Serialize, ToSchema)]
struct Error<'a> {
    id: String,
    message: &'a str,
}

// === impl Contents ===

impl Contents {
    /// The text of all parts, a line each.
    fn text(self, index: usize) -> Result<String, Refusal> {
        let text = |part: Part| match part {
            Part::Text { text } => Ok(text),
            Part::ImageUrl {} => {
                Err(Refusal::unsupported("inputs", format!("holds an image at {index}: models here take texts")))
            }
        };
        Ok(self.content.into_iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n"))
    }
}

// === impl ByType ===

impl Serialize for ByType<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let vectors = |elements: EmbeddingType| {
            let vector = |&numbers| Vector { numbers, elements, format: EncodingFormat::Float };
            self.rows.iter().map(vector).collect::<Vec<_>>()
        };
        serializer.collect_map(self.types.iter().map(|&elements| (elements.name(), vectors(elements))))
    }
}

// === impl Meta ===

impl Meta {
    fn of(version: Version, ledger: &Ledger, billed_units: BilledUnits) -> Meta {
        let version = if version == Version::V1 { "1" } else { "2" };
        let tokens = Tokens { input_tokens: answer::tokens(ledger) };
        Meta { api_version: about::ApiVersion { version }, billed_units, tokens }
    }
}

pub(super) async fn embed(call: DialectCall, version: Version) -> Result<Response, Refusal> {
    let body: Embed = call.read()?;
    let prompt = prompt(body.input_type.as_deref(), version)?;
    if version == Version::V2 && body.model.is_none() {
        return Err(Refusal::field("model", "is missing"));
    }
    let texts = match (body.texts, body.inputs) {
        (Some(_), Some(_)) => return Err(Refusal::field("inputs", "comes with 'texts', expected one of them")),
        (None, Some(inputs)) => {
            let inputs = inputs.into_iter().enumerate();
            inputs.map(|(index, contents)| contents.text(index)).collect::<Result<_, _>>()?
        }
        (texts, None) => texts.unwrap_or_default(),
    };
    if texts.is_empty() {
        return Err(Refusal::empty("texts"));
    }
    let (truncate, side) = match body.truncate.unwrap_or(Truncate::End) {
        Truncate::None => (false, None),
        Truncate::Start => (true, Some(Side::Left)),
        Truncate::End => (true, Some(Side::Right)),
    };
    let options = TextOptions {
        prompt,
        truncate: Some(truncate),
        truncation_side: side,
        max_tokens: body.max_tokens,
        instruction: body.instruction,
        dimensions: body.output_dimension,
        ..TextOptions::default()
    };
    let vectors = call.operations.embed(&texts, &call.ask(body.model.as_deref(), options)).await?;
    let numbers = vectors.numbers();
    // The first version answers with the vectors alone where it is asked for no types.
    let types = match (body.embedding_types, version) {
        (None, Version::V1) => None,
        (None, Version::V2 | Version::Vllm) => Some(vec![EmbeddingType::Float]),
        (Some(types), _) if types.is_empty() => {
            return Err(Refusal::field("embedding_types", "is empty, expected at least one type"));
        }
        (Some(types), _) => Some(types),
    };
    for form in types.iter().flatten() {
        form.check("embedding_types", &numbers)?;
    }
    let rows = numbers.chunks_exact(vectors.width.max(1)).collect();
    let (response_type, embeddings) = match types {
        None => ("embeddings_floats", Embeddings::Floats(rows)),
        Some(mut types) => {
            // A request may name a type more than once.
            let mut named = HashSet::new();
            types.retain(|&elements| named.insert(elements));
            ("embeddings_by_type", Embeddings::ByType(ByType { types, rows }))
        }
    };
    let billed = BilledUnits {
        input_tokens: Some(answer::tokens(&vectors.ledger)),
        image_tokens: (version == Version::Vllm).then_some(0),
        ..BilledUnits::default()
    };
    let meta = Meta::of(version, &vectors.ledger, billed);
    let embedded = EmbedAnswer { id: answer::id(), response_type, embeddings, texts: &texts, meta };
    Ok(answer::told(&vectors.ledger, &embedded))
}

/// The prompt that an `input_type` chooses: one of Cohere's words, or in vLLM's dialect the name of a prompt of the model.
fn prompt(input_type: Option<&str>, version: Version) -> Result<Prompt, Refusal> {
    Ok(match (input_type, version) {
        (None, Version::V2) => Prompt::Needed(INPUT_TYPES),
        (None, Version::V1 | Version::Vllm) => Prompt::Default,
        (Some(name), Version::Vllm) => Prompt::OfInputType(name.to_owned()),
        (Some("search_query"), _) => Prompt::Query,
        (Some("search_document"), _) => Prompt::Document,
        (Some("classification"), _) => Prompt::IfThere("classification"),
        (Some("clustering"), _) => Prompt::IfThere("clustering"),
        (Some("image"), _) => {
            return Err(Refusal::unsupported("input_type", "is \"image\": models here take texts"));
        }
        (Some(other), _) => {
            let expected = "expected search_query, search_document, classification or clustering";
            return Err(Refusal::field("input_type", format!("is {other:?}, {expected}")));
        }
    })
}

async fn rerank(call: DialectCall, version: Version) -> Result<Response, Refusal> {
    let body: Rerank = call.read()?;
    if version == Version::V2 && body.model.is_none() {
        return Err(Refusal::field("model", "is missing"));
    }
    if body.documents.is_empty() {
        return Err(Refusal::empty("documents"));
    }
    if body.top_n == Some(0) {
        return Err(Refusal::field("top_n", "is 0, expected at least 1"));
    }
    if body.max_chunks_per_doc == Some(0) {
        return Err(Refusal::field("max_chunks_per_doc", "is 0, expected at least 1"));
    }
    // As many tokens of a document are read as are asked for, in several windows where a row has no room for them.
    let most = body.max_chunks_per_doc.or(body.max_tokens_per_doc.map(|_| MOST_WINDOWS as u64));
    let fields = body.rank_fields.unwrap_or_else(|| vec!["text".to_owned()]);
    let documents = Document::texts(body.documents, "documents", &fields)?;
    let options = TextOptions {
        max_pair_tokens: body.max_tokens_per_doc,
        max_windows: most.map(|most| most.min(MOST_WINDOWS as u64)),
        instruction: body.instruction,
        ..TextOptions::default()
    };
    let ask = call.ask(body.model.as_deref(), options);
    let scores = call.operations.rerank(&body.query, &documents, &ask).await?;
    let returned = body.return_documents.then_some(&documents[..]);
    let billed = BilledUnits { search_units: Some(1), ..BilledUnits::default() };
    let meta = Meta::of(version, &scores.ledger, billed);
    let ranked = RerankAnswer { id: answer::id(), results: Ranked::of(&scores, body.top_n, returned), meta };
    Ok(answer::told(&scores.ledger, &ranked))
}

/// The table of errors. The SDK chooses its exception by the status.
fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let status = match refusal.kind {
        Kind::Field => 422,
        kind => kind.status(),
    };
    (status, answer::body(&Error { id: answer::id(), message: &refusal.message }))
}

/// The schema of the answer of `embed`.
pub(super) fn embed_answer() -> Schema {
    schema::answer::<EmbedAnswer<'_>>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{Members, Others};

    #[test]
    fn unknown_fields_are_422_and_named() {
        let body = Members::of(br#"{"model": "m", "query": "q", "documents": [], "topn": 3}"#);
        let refusal = body.check(&[RERANK], Others::Refused).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("topn"));
        let (status, body) = refuse(&refusal);
        assert_eq!(status, 422);
        assert!(str::from_utf8(&body).unwrap().contains("'topn' is unknown"));
    }
}
