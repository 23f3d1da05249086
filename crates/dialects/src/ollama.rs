//! Ollama: `/api/embed`, `/api/embeddings`, `/api/tags`, `/api/show`, `/api/ps`, `/api/version`; OpenAI's `/v1/embeddings`, `/v1/models`.
//!
//! Clients put a tag behind a model's name by themselves: `NAME:latest` is the model `NAME`. As in the original, fields that are not known
//! are passed over, also `keep_alive` and all `options` but `num_ctx`, which are about how a model is loaded.

use std::time::Instant;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;
use trireme_operations::{Task, TextModel, TextOptions};
use trireme_protocol::json::Writer;
use trireme_server::http::schema;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

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
            .gives(embed_answer),
        DialectRoute::post("/api/embeddings", "Embeds a text", |call| Box::pin(embeddings(call)))
            .takes::<Embeddings>(&[EMBEDDINGS])
            .gives(embeddings_answer),
        DialectRoute::get("/api/tags", "The models that do something with texts", |call| Box::pin(tags(call)))
            .gives(tags_answer),
        DialectRoute::get("/api/ps", "The models that are loaded", |call| Box::pin(tags(call))).gives(tags_answer),
        DialectRoute::post("/api/show", "A model", |call| Box::pin(show(call)))
            .takes::<Show>(&[SHOW])
            .gives(show_answer),
        DialectRoute::get("/api/version", "The version", |call| Box::pin(version(call))).gives(version_answer),
        DialectRoute::get("/", "Whether the server runs", |call| Box::pin(runs(call))).behind_name().checks_health(),
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(openai::embeddings(call)))
            .takes_both::<openai::Embeddings, Extras>(&[openai::EMBEDDINGS, extras::FIELDS])
            .gives(answer::embeddings_schema)
            .refuses(openai::refuse, answer::nested_schema)
            .behind_name(),
        DialectRoute::get("/v1/models", "The models that do something with texts", |call| {
            Box::pin(openai::models(call))
        })
        .gives(openai::models_answer)
        .refuses(openai::refuse, answer::nested_schema)
        .behind_name(),
    ],
    refuse,
    refusals,
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
        return Ok(answer::json(answer::object(|out| {
            out.name("model").string(&body.model);
            out.name("embeddings").array(|_| {});
        })));
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
    Ok(answer::told_by(&vectors.ledger, 512 + numbers.len() * 13, |out| {
        out.object(|out| {
            out.name("model").string(&body.model);
            out.name("embeddings").array(|out| {
                numbers.chunks_exact(vectors.width.max(1)).for_each(|row| answer::floats(out, row));
            });
            out.name("total_duration").integer(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
            out.name("load_duration").integer(0);
            out.name("prompt_eval_count").integer(answer::tokens(&vectors.ledger));
        });
    }))
}

async fn embeddings(call: DialectCall) -> Result<Response, Refusal> {
    let body: Embeddings = call.read()?;
    let name = untagged(&body.model);
    if body.prompt.is_empty() {
        call.operations.text_model(Some(name))?;
        return Ok(answer::json(answer::object(|out| out.name("embedding").array(|_| {}))));
    }
    let max_tokens = body.options.num_ctx.filter(|&tokens| tokens > 0);
    let options = TextOptions { truncate: Some(true), max_tokens, ..TextOptions::default() };
    let vectors = call.operations.embed(&[body.prompt], &call.ask(Some(name), options)).await?;
    let numbers = vectors.numbers();
    Ok(answer::told_by(&vectors.ledger, 512 + numbers.len() * 13, |out| {
        out.object(|out| answer::floats(out.name("embedding"), &numbers));
    }))
}

async fn tags(call: DialectCall) -> Result<Response, Refusal> {
    let models = call.operations.text_models();
    Ok(answer::json(answer::object(|out| {
        out.name("models").array(|out| {
            for model in &models {
                out.object(|out| {
                    out.name("name").string(&model.name);
                    out.name("model").string(&model.name);
                    out.name("modified_at").string(EPOCH);
                    out.name("size").integer(0);
                    out.name("digest").string("");
                    details(out);
                });
            }
        });
    })))
}

async fn show(call: DialectCall) -> Result<Response, Refusal> {
    let body: Show = call.read()?;
    let model = call.operations.text_model(Some(untagged(&body.model)))?;
    Ok(answer::json(answer::object(|out| {
        details(out);
        out.name("model_info").object(|out| out.name("general.architecture").string("onnx"));
        out.name("capabilities").array(|out| capabilities(&model).for_each(|word| out.string(word)));
        out.name("modified_at").string(EPOCH);
    })))
}

/// The member `details`, the same for every model.
fn details(out: &mut Writer) {
    out.name("details").object(|out| {
        out.name("format").string("onnx");
        out.name("family").string("");
        out.name("families").array(|_| {});
        out.name("parameter_size").string("");
        out.name("quantization_level").string("");
    });
}

/// The original's words for what a model does.
fn capabilities(model: &TextModel) -> impl Iterator<Item = &'static str> {
    model.tasks.contains(&Task::Embed).then_some("embedding").into_iter()
}

async fn runs(_: DialectCall) -> Result<Response, Refusal> {
    Ok("Ollama is running".into_response())
}

async fn version(_: DialectCall) -> Result<Response, Refusal> {
    Ok(answer::json(answer::object(|out| out.name("version").string(env!("CARGO_PKG_VERSION")))))
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
        Kind::OwnerLimit => 429,
        Kind::Internal => 500,
        Kind::Overloaded | Kind::Unavailable => 503,
    };
    // Clients look for these words, and offer to fetch the model.
    let message = match refusal.kind {
        Kind::NoModel => format!("model not found: {}", refusal.message),
        _ => refusal.message.clone(),
    };
    (status, answer::object(|out| out.name("error").string(message)))
}

fn refusals() -> Schema {
    schema::object([("error", schema::text())])
}

fn embed_answer() -> Schema {
    schema::object_with(
        [("model", schema::text()), ("embeddings", schema::list(schema::list(schema::number())))],
        ["total_duration", "load_duration", "prompt_eval_count"].map(|name| (name, schema::integer())),
    )
}

fn embeddings_answer() -> Schema {
    schema::object([("embedding", schema::list(schema::number()))])
}

fn details_schema() -> Schema {
    schema::object([
        ("format", schema::text()),
        ("family", schema::text()),
        ("families", schema::list(schema::text())),
        ("parameter_size", schema::text()),
        ("quantization_level", schema::text()),
    ])
}

fn tags_answer() -> Schema {
    let model = schema::object([
        ("name", schema::text()),
        ("model", schema::text()),
        ("modified_at", schema::text()),
        ("size", schema::integer()),
        ("digest", schema::text()),
        ("details", details_schema()),
    ]);
    schema::object([("models", schema::list(model))])
}

fn show_answer() -> Schema {
    schema::object([
        ("details", details_schema()),
        ("model_info", schema::object([])),
        ("capabilities", schema::list(schema::text())),
        ("modified_at", schema::text()),
    ])
}

fn version_answer() -> Schema {
    schema::object([("version", schema::text())])
}
