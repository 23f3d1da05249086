//! NVIDIA NIM (NeMo Retriever): `/v1/embeddings` with `input_type`, `/v1/ranking`, `/v1/retrieval/MODEL/reranking`, `/v1/models`,
//! `/v1/health/live`, `/v1/health/ready`, `/v1/metadata`, `/v1/version`.
//!
//! `input_type` chooses the prompt; so does `-query` or `-passage` at the end of a model's name, for clients that can send nothing else. A
//! text that is too long is an error unless `truncate` says where to cut it. Fields that are not known are passed over.

use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use trireme_operations::{Prompt, Side, TextOptions};
use trireme_server::http::schema;
use utoipa::ToSchema;

use super::answer::{self, EncodingFormat, NoMembers, Usage};
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::extras::{self, Form};
use super::fields::{self, Field, Forms, idle, ours, read};
use super::input::{self, Input, OneOrMany};
use super::openai;
use super::quantize::EmbeddingType;
use super::refusal::{Kind, Refusal};

pub(super) static DIALECT: Dialect = Dialect {
    name: "nim",
    routes: &[
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(embeddings(call)))
            .takes::<Embeddings>(&[EMBEDDINGS])
            .gives(schema::answer::<openai::EmbeddingList<'_>>),
        DialectRoute::post("/v1/ranking", "Ranks passages by a query", |call| Box::pin(ranking(call)))
            .takes::<Ranking>(&[RANKING])
            .gives(schema::answer::<Rankings>),
        DialectRoute::post(
            "/v1/retrieval/{*rest}",
            "Ranks passages by a query, as NVIDIA's hosted models do",
            |call| Box::pin(hosted_ranking(call)),
        )
        .takes::<Ranking>(&[RANKING])
        .gives(schema::answer::<Rankings>)
        .behind_name(),
        DialectRoute::get("/v1/models", "The models that do something with texts", |call| {
            Box::pin(openai::models(call))
        })
        .gives(schema::answer::<openai::ModelList<'_>>),
        DialectRoute::get("/v1/health/live", "Whether the server runs", |call| Box::pin(live(call)))
            .gives(schema::answer::<Health>)
            .checks_health(),
        DialectRoute::get("/v1/health/ready", "Whether all models are ready", |call| Box::pin(ready(call)))
            .gives(schema::answer::<Health>)
            .checks_health(),
        DialectRoute::get("/v1/metadata", "The version and the models", |call| Box::pin(metadata(call)))
            .gives(schema::answer::<Metadata<'_>>),
        DialectRoute::get("/v1/version", "The version", |call| Box::pin(version(call)))
            .gives(schema::answer::<Version>),
    ],
    refuse,
    refusals: schema::answer::<Error<'_>>,
    is_strict: false,
    cut: "set 'truncate' to \"END\"",
    model_in_path: true,
};

const MODALITIES: Forms = &[r#""text""#, r#"["text"]"#];

const EMBEDDINGS: &[Field] = &[
    read("input", &[r#""a""#, r#"["a"]"#]),
    read("model", fields::TEXT),
    read("input_type", &[r#""query""#]),
    read("truncate", &[r#""END""#]),
    read("encoding_format", &[r#""float""#]),
    read("embedding_type", &[r#""float""#, r#""int8""#]),
    read("dimensions", fields::NUMBER),
    read("modality", MODALITIES),
    idle("user", fields::TEXT, "names the author of the texts"),
];

const RANKING: &[Field] = &[
    read("model", fields::TEXT),
    read("query", &[r#"{"text": "a"}"#]),
    read("passages", &[r#"[{"text": "a"}]"#]),
    read("truncate", &[r#""END""#]),
    ours("top_k", fields::NUMBER),
];

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = NimInputType)]
enum InputType {
    Query,
    /// Clients of other servers say `document`.
    #[serde(alias = "document")]
    Passage,
}

#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schema(as = NimTruncate)]
enum Truncate {
    #[default]
    None,
    Start,
    End,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = NimEmbeddings)]
struct Embeddings {
    input: Input,
    model: Option<String>,
    input_type: Option<InputType>,
    #[serde(default)]
    truncate: Truncate,
    encoding_format: Option<EncodingFormat>,
    embedding_type: Option<EmbeddingType>,
    dimensions: Option<u64>,
    #[schema(required = false, schema_with = input::one_or_many::<String>)]
    modality: Option<OneOrMany<String>>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = NimText)]
struct Text {
    text: String,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = NimRanking)]
struct Ranking {
    model: Option<String>,
    query: Text,
    passages: Vec<Text>,
    #[serde(default)]
    truncate: Truncate,
    /// Ours: how many of the best.
    top_k: Option<usize>,
}

/// The passages, the best first.
#[derive(Serialize, ToSchema)]
struct Rankings {
    #[schema(inline)]
    rankings: Vec<Rank>,
    #[schema(inline)]
    usage: Usage,
}

/// A passage's place and score.
#[derive(Serialize, ToSchema)]
struct Rank {
    index: usize,
    logit: f32,
}

/// The health of the server.
#[derive(Serialize, ToSchema)]
struct Health {
    object: &'static str,
    message: &'static str,
    status: &'static str,
}

/// The server and its models.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    version: &'static str,
    #[schema(inline)]
    model_info: Vec<ModelInfo<'a>>,
    asset_info: [&'static str; 0],
    #[schema(inline)]
    license_info: LicenseInfo,
    #[serde(rename = "repository_override")]
    repository_override: &'static str,
    selected_model_profile_id: &'static str,
}

/// A model.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ModelInfo<'a> {
    short_name: &'a str,
    model_url: &'a str,
}

/// The licence of the server.
#[derive(Default, Serialize, ToSchema)]
struct LicenseInfo {
    name: &'static str,
    path: &'static str,
    sha: &'static str,
    url: &'static str,
    r#type: &'static str,
    content: &'static str,
    size: u64,
}

/// The version of the server.
#[derive(Serialize, ToSchema)]
struct Version {
    release: &'static str,
    api: &'static str,
}

/// NIM's errors.
#[derive(Serialize, ToSchema)]
struct Error<'a> {
    object: &'static str,
    message: &'a str,
    #[schema(inline)]
    detail: NoMembers,
    r#type: &'static str,
}

// === impl Truncate ===

impl Truncate {
    fn options(self) -> TextOptions {
        let (truncate, truncation_side) = match self {
            Truncate::None => (false, None),
            Truncate::Start => (true, Some(Side::Left)),
            Truncate::End => (true, Some(Side::Right)),
        };
        TextOptions { truncate: Some(truncate), truncation_side, ..TextOptions::default() }
    }
}

async fn embeddings(call: DialectCall) -> Result<Response, Refusal> {
    let body: Embeddings = call.read()?;
    let modalities = body.modality.map(OneOrMany::into_list).unwrap_or_default();
    if let Some(other) = modalities.iter().find(|modality| *modality != "text") {
        return Err(Refusal::unsupported("modality", format!("is '{other}', expected 'text'")));
    }
    let texts = body.input.texts("input", "send texts")?.0;
    let (model, of_name) = body.model.as_deref().map(|name| extras::named(&call, name)).unzip();
    let options = TextOptions {
        prompt: match body.input_type {
            Some(InputType::Query) => Prompt::Query,
            Some(InputType::Passage) => Prompt::Document,
            None => of_name.flatten().unwrap_or_default(),
        },
        dimensions: body.dimensions,
        ..body.truncate.options()
    };
    let elements = body.embedding_type.unwrap_or(EmbeddingType::Float);
    let form = Form { field: "embedding_type", elements, format: body.encoding_format.unwrap_or_default() };
    let vectors = call.operations.embed(&texts, &call.ask(model, options)).await?;
    openai::EmbeddingList::answer(&vectors, body.model.as_deref(), form)
}

async fn ranking(call: DialectCall) -> Result<Response, Refusal> {
    rank(call, None).await
}

/// At `/v1/retrieval/MODEL/reranking`. The body's name of the model comes before the path's, where an underscore stands for a dot.
async fn hosted_ranking(call: DialectCall) -> Result<Response, Refusal> {
    let Some(model) = call.rest.strip_suffix("/reranking").map(str::to_owned) else {
        let path = format!("there is no route '/v1/retrieval/{}', expected '/v1/retrieval/MODEL/reranking'", call.rest);
        return Err(Refusal::new(Kind::NoRoute, path));
    };
    rank(call, Some(model)).await
}

async fn rank(call: DialectCall, model_of_path: Option<String>) -> Result<Response, Refusal> {
    let body: Ranking = call.read()?;
    if body.passages.is_empty() {
        return Err(Refusal::empty("passages"));
    }
    if body.top_k == Some(0) {
        return Err(Refusal::field("top_k", "is 0, expected at least 1"));
    }
    let passages: Vec<String> = body.passages.into_iter().map(|passage| passage.text).collect();
    let options = TextOptions { raw_scores: Some(true), ..body.truncate.options() };
    let model = body.model.or(model_of_path);
    let scores = call.operations.rerank(&body.query.text, &passages, &call.ask(model.as_deref(), options)).await?;
    let ranked = scores.ranked(body.top_k).into_iter();
    let rankings = ranked.map(|(index, logit)| Rank { index, logit }).collect();
    Ok(answer::told(&scores.ledger, &Rankings { rankings, usage: Usage::of(&scores.ledger) }))
}

async fn live(_: DialectCall) -> Result<Response, Refusal> {
    Ok(health("live", "Service is live."))
}

async fn ready(call: DialectCall) -> Result<Response, Refusal> {
    call.ready()?;
    Ok(health("ready", "Service is ready."))
}

async fn metadata(call: DialectCall) -> Result<Response, Refusal> {
    let models = call.operations.text_models();
    let infos = models.iter().map(|model| ModelInfo { short_name: &model.name, model_url: &model.name });
    Ok(answer::plain(&Metadata {
        version: env!("CARGO_PKG_VERSION"),
        model_info: infos.collect(),
        asset_info: [],
        license_info: LicenseInfo { name: env!("CARGO_PKG_LICENSE"), ..LicenseInfo::default() },
        repository_override: "",
        selected_model_profile_id: "",
    }))
}

async fn version(_: DialectCall) -> Result<Response, Refusal> {
    Ok(answer::plain(&Version { release: env!("CARGO_PKG_VERSION"), api: "1" }))
}

fn health(status: &'static str, message: &'static str) -> Response {
    answer::plain(&Health { object: "health.response", message, status })
}

/// The table of errors.
fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let status = if refusal.kind == Kind::Field { 422 } else { refusal.kind.status() };
    let kind = match refusal.kind {
        Kind::Key => "authentication_error",
        Kind::Forbidden => "permission_error",
        Kind::NoModel | Kind::NoRoute => "not_found_error",
        Kind::Overloaded | Kind::OwnerLimit => "rate_limit_error",
        Kind::Internal => "internal_server_error",
        Kind::Unavailable => "service_unavailable_error",
        _ => "invalid_request_error",
    };
    let error = Error { object: "error", message: &refusal.message, detail: NoMembers {}, r#type: kind };
    (status, answer::body(&error))
}
