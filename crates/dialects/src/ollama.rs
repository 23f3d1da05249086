//! Ollama: `/api/embed`, `/api/embeddings`, `/api/tags`, `/api/show`, `/api/ps`, `/api/version`; OpenAI's `/v1/embeddings`, `/v1/models`.
//!
//! Clients put a tag behind a model's name by themselves: `NAME:latest` is the model `NAME`. As in the original, fields that are not known
//! are passed over, also `keep_alive` and all `options` but `num_ctx`, which are about how a model is loaded.

use std::time::Instant;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use trireme_operations::{Task, TextModel, TextOptions};
use trireme_server::http::schema;
use utoipa::ToSchema;

use super::answer;
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::extras::{self, Extras};
use super::fields::{self, Field, idle, read};
use super::input::Input;
use super::openai;
use super::refusal::{Kind, Refusal};

pub(super) static DIALECT: Dialect = Dialect {
    name: "ollama",
    routes: &[
        DialectRoute::post("/api/embed", "Embeds texts", |call| Box::pin(embed(call)))
            .takes::<Embed>(&[EMBED])
            .gives(schema::answer::<EmbedAnswer<'_>>),
        DialectRoute::post("/api/embeddings", "Embeds a text", |call| Box::pin(embeddings(call)))
            .takes::<Embeddings>(&[EMBEDDINGS])
            .gives(schema::answer::<EmbeddingAnswer<'_>>),
        DialectRoute::get("/api/tags", "The models that do something with texts", |call| Box::pin(tags(call)))
            .gives(schema::answer::<ModelList<'_>>),
        DialectRoute::get("/api/ps", "The models that are loaded", |call| Box::pin(tags(call)))
            .gives(schema::answer::<ModelList<'_>>),
        DialectRoute::post("/api/show", "A model", |call| Box::pin(show(call)))
            .takes::<Show>(&[SHOW])
            .gives(schema::answer::<ShowAnswer>),
        DialectRoute::get("/api/version", "The version", |call| Box::pin(version(call)))
            .gives(schema::answer::<Version>),
        DialectRoute::get("/", "Whether the server runs", |call| Box::pin(runs(call))).behind_name().checks_health(),
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(openai::embeddings(call)))
            .takes_both::<openai::Embeddings, Extras>(&[openai::EMBEDDINGS, extras::FIELDS])
            .gives(schema::answer::<openai::EmbeddingList<'_>>)
            .refuses(openai::refuse, schema::answer::<openai::Error<'_>>)
            .behind_name(),
        DialectRoute::get("/v1/models", "The models that do something with texts", |call| {
            Box::pin(openai::models(call))
        })
        .gives(schema::answer::<openai::ModelList<'_>>)
        .refuses(openai::refuse, schema::answer::<openai::Error<'_>>)
        .behind_name(),
    ],
    refuse,
    refusals: schema::answer::<Error>,
    is_strict: false,
    cut: "set 'truncate' to true",
    model_in_path: false,
};

const KEEP_ALIVE: Field =
    idle("keep_alive", &[r#""5m""#, "1"], "the operator decides which models stay loaded (--keep-alive)");
/// Of them `num_ctx` is read; the others are about how a model is loaded, and about generated texts.
const OPTIONS: Field = read("options", fields::OBJECT);

const EMBED: &[Field] = &[
    read("model", fields::TEXT),
    read("input", &[r#""a""#, r#"["a"]"#]),
    read("truncate", fields::FLAG),
    read("dimensions", fields::NUMBER),
    KEEP_ALIVE,
    OPTIONS,
];

const EMBEDDINGS: &[Field] = &[read("model", fields::TEXT), read("prompt", fields::TEXT), KEEP_ALIVE, OPTIONS];

const SHOW: &[Field] = &[
    read("model", fields::TEXT),
    read("name", fields::TEXT),
    idle("verbose", fields::FLAG, "there is no more to tell"),
];

/// The tag that Ollama's clients add to a name without one.
const TAG: &str = ":latest";

/// When models were changed: nobody here knows, and clients read a time.
const EPOCH: &str = "1970-01-01T00:00:00Z";

#[derive(Deserialize, ToSchema)]
#[schema(as = OllamaEmbed)]
struct Embed {
    model: String,
    input: Option<Input>,
    truncate: Option<bool>,
    dimensions: Option<u64>,
    #[serde(default)]
    options: Options,
}

#[derive(Default, Deserialize, ToSchema)]
#[schema(as = OllamaOptions)]
struct Options {
    /// Most tokens of a text.
    num_ctx: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = OllamaEmbeddings)]
struct Embeddings {
    model: String,
    #[serde(default)]
    prompt: String,
    #[serde(default)]
    options: Options,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = OllamaShow)]
struct Show {
    #[serde(alias = "name")]
    model: String,
}

/// The vectors of texts, with counts where there are texts: without them the model is only loaded.
#[derive(Default, Serialize, ToSchema)]
struct EmbedAnswer<'a> {
    model: &'a str,
    embeddings: Vec<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_duration: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    load_duration: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_eval_count: Option<u64>,
}

/// The vector of a text.
#[derive(Serialize, ToSchema)]
struct EmbeddingAnswer<'a> {
    embedding: &'a [f32],
}

/// The models of a server.
#[derive(Serialize, ToSchema)]
struct ModelList<'a> {
    #[schema(inline)]
    models: Vec<Model<'a>>,
}

/// A model in the list.
#[derive(Serialize, ToSchema)]
struct Model<'a> {
    name: &'a str,
    model: &'a str,
    modified_at: &'static str,
    size: u64,
    digest: &'static str,
    #[schema(inline)]
    details: Details,
}

/// The format of a model, the same for every model.
#[derive(Serialize, ToSchema)]
struct Details {
    format: &'static str,
    family: &'static str,
    families: [&'static str; 0],
    parameter_size: &'static str,
    quantization_level: &'static str,
}

/// A model by itself.
#[derive(Serialize, ToSchema)]
struct ShowAnswer {
    #[schema(inline)]
    details: Details,
    #[schema(inline)]
    model_info: ModelInfo,
    capabilities: Vec<&'static str>,
    modified_at: &'static str,
}

/// The architecture of a model.
#[derive(Serialize, ToSchema)]
struct ModelInfo {
    #[serde(rename = "general.architecture")]
    architecture: &'static str,
}

/// The version of the server.
#[derive(Serialize, ToSchema)]
struct Version {
    version: &'static str,
}

/// Ollama's errors.
#[derive(Serialize, ToSchema)]
struct Error {
    error: String,
}

const DETAILS: Details =
    Details { format: "onnx", family: "", families: [], parameter_size: "", quantization_level: "" };

// === impl Model ===

impl Model<'_> {
    fn of(model: &TextModel) -> Model<'_> {
        let name = &model.name;
        Model { name, model: name, modified_at: EPOCH, size: 0, digest: "", details: DETAILS }
    }
}

/// A model's name without the tag that clients add.
fn untagged(name: &str) -> &str {
    name.strip_suffix(TAG).unwrap_or(name)
}

async fn embed(call: DialectCall) -> Result<Response, Refusal> {
    let begun = Instant::now();
    let body: Embed = call.read()?;
    let name = untagged(&body.model);
    let texts = match body.input {
        // Without texts the original loads the model.
        None => Vec::new(),
        Some(Input::One(text)) if text.is_empty() => Vec::new(),
        Some(Input::Many(texts)) if texts.is_empty() => texts,
        Some(input) => input.texts("input", "send texts")?.0,
    };
    if texts.is_empty() {
        call.operations.text_model(Some(name))?;
        return Ok(answer::plain(&EmbedAnswer { model: &body.model, ..EmbedAnswer::default() }));
    }
    let options = TextOptions {
        truncate: Some(body.truncate.unwrap_or(true)),
        normalize: Some(true),
        dimensions: body.dimensions.filter(|&dimensions| dimensions > 0),
        max_tokens: body.options.num_ctx.filter(|&tokens| tokens > 0),
        ..TextOptions::default()
    };
    let vectors = call.operations.embed(&texts, &call.ask(Some(name), options)).await?;
    let numbers = vectors.numbers();
    let embedded = EmbedAnswer {
        model: &body.model,
        embeddings: numbers.chunks_exact(vectors.width.max(1)).collect(),
        total_duration: Some(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)),
        load_duration: Some(0),
        prompt_eval_count: Some(answer::tokens(&vectors.ledger)),
    };
    Ok(answer::told(&vectors.ledger, &embedded))
}

async fn embeddings(call: DialectCall) -> Result<Response, Refusal> {
    let body: Embeddings = call.read()?;
    let name = untagged(&body.model);
    if body.prompt.is_empty() {
        call.operations.text_model(Some(name))?;
        return Ok(answer::plain(&EmbeddingAnswer { embedding: &[] }));
    }
    let max_tokens = body.options.num_ctx.filter(|&tokens| tokens > 0);
    let options = TextOptions { truncate: Some(true), max_tokens, ..TextOptions::default() };
    let vectors = call.operations.embed(&[body.prompt], &call.ask(Some(name), options)).await?;
    Ok(answer::told(&vectors.ledger, &EmbeddingAnswer { embedding: &vectors.numbers() }))
}

async fn tags(call: DialectCall) -> Result<Response, Refusal> {
    let models = call.operations.text_models();
    Ok(answer::plain(&ModelList { models: models.iter().map(Model::of).collect() }))
}

async fn show(call: DialectCall) -> Result<Response, Refusal> {
    let body: Show = call.read()?;
    let model = call.operations.text_model(Some(untagged(&body.model)))?;
    Ok(answer::plain(&ShowAnswer {
        details: DETAILS,
        model_info: ModelInfo { architecture: "onnx" },
        capabilities: capabilities(&model).collect(),
        modified_at: EPOCH,
    }))
}

/// The original's words for what a model does.
fn capabilities(model: &TextModel) -> impl Iterator<Item = &'static str> {
    model.tasks.contains(&Task::Embed).then_some("embedding").into_iter()
}

async fn runs(_: DialectCall) -> Result<Response, Refusal> {
    Ok("Ollama is running".into_response())
}

async fn version(_: DialectCall) -> Result<Response, Refusal> {
    Ok(answer::plain(&Version { version: env!("CARGO_PKG_VERSION") }))
}

/// The table of errors.
fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let status = match refusal.kind {
        Kind::Overloaded => 503,
        kind => kind.status(),
    };
    // Clients look for these words, and offer to fetch the model.
    let error = match refusal.kind {
        Kind::NoModel => format!("model not found: {}", refusal.message),
        _ => refusal.message.clone(),
    };
    (status, answer::body(&Error { error }))
}
