//! Infinity: `/embeddings`, `/rerank`, `/classify`, `/models`, `/health`.
//!
//! A model that is not named is the only one that does it. As in the original, fields that are not known are passed over.

use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use trireme_inference::Ledger;
use trireme_operations::{Task, TextOptions};
use trireme_protocol::json::Writer;
use trireme_server::http::schema;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::answer::{self, EncodingFormat};
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::extras::{self, Extras};
use super::fields::{self, Field, idle, only, read};
use super::input::Input;
use super::openai::{self, error};
use super::refusal::{Kind, Refusal};

pub(super) static DIALECT: Dialect = Dialect {
    name: "infinity",
    routes: &[
        DialectRoute::post("/embeddings", "Embeds texts", |call| Box::pin(embeddings(call)))
            .takes_both::<Embeddings, Extras>(&[EMBEDDINGS, extras::FIELDS])
            .gives(embeddings_answer),
        DialectRoute::post("/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes::<Rerank>(&[RERANK])
            .gives(rerank_answer),
        DialectRoute::post("/classify", "Classifies texts", |call| Box::pin(classify(call)))
            .takes::<Classify>(&[CLASSIFY])
            .gives(classify_answer),
        DialectRoute::get("/models", "The models that do something with texts", |call| Box::pin(models(call)))
            .gives(models_answer),
        DialectRoute::get("/health", "Whether all models are ready", |call| Box::pin(health(call)))
            .gives(health_answer)
            .checks_health(),
        DialectRoute::get("/", "Whether all models are ready", |call| Box::pin(health(call)))
            .gives(health_answer)
            .behind_name()
            .checks_health(),
    ],
    refuse,
    refusals,
    is_strict: false,
    cut: "send a shorter one",
    model_in_path: false,
};

const EMBEDDINGS: &[Field] = &[
    read("input", fields::TEXT_OR_TEXTS),
    read("model", fields::TEXT),
    read("encoding_format", &[r#""float""#]),
    read("dimensions", fields::NUMBER),
    only("modality", &[r#""text""#], &[r#""text""#], "models here take texts, expected \"text\""),
    idle("user", fields::TEXT, "names the author of the texts"),
];

const RERANK: &[Field] = &[
    read("query", fields::TEXT),
    read("documents", fields::TEXTS),
    read("model", fields::TEXT),
    read("return_documents", fields::FLAG),
    read("raw_scores", fields::FLAG),
    read("top_n", fields::NUMBER),
];

const CLASSIFY: &[Field] =
    &[read("input", fields::TEXTS), read("model", fields::TEXT), read("raw_scores", fields::FLAG)];

/// The model's name in requests of clients that have none.
const UNNAMED: &str = "default/not-specified";

#[derive(Deserialize, ToSchema)]
#[schema(as = InfinityEmbeddings)]
struct Embeddings {
    input: Input,
    model: Option<String>,
    encoding_format: Option<EncodingFormat>,
    dimensions: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = InfinityRerank)]
struct Rerank {
    query: String,
    documents: Vec<String>,
    model: Option<String>,
    #[serde(default)]
    return_documents: bool,
    #[serde(default)]
    raw_scores: bool,
    top_n: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = InfinityClassify)]
struct Classify {
    input: Vec<String>,
    model: Option<String>,
    #[serde(default)]
    raw_scores: bool,
}

/// The model's name, where it is one.
fn named(model: Option<&str>) -> Option<&str> {
    model.filter(|name| *name != UNNAMED)
}

async fn embeddings(call: DialectCall) -> Result<Response, Refusal> {
    let body: Embeddings = call.read()?;
    let extras: Extras = call.read()?;
    let texts = body.input.texts("input", "send texts")?.0;
    let form = extras.form(body.encoding_format);
    // 0 is how the original says all of them.
    let options = extras.options(body.dimensions.filter(|&d| d > 0))?;
    let vectors = call.operations.embed_windows(&texts, &call.ask(named(body.model.as_deref()), options)).await?;
    form.check(&vectors)?;
    Ok(answer::told_by(&vectors.ledger, answer::capacity(form.format, vectors.numbers().len()), |out| {
        out.object(|out| {
            out.name("object").string("list");
            openai::data(out, &vectors, form);
            tail(out, named(body.model.as_deref()).unwrap_or(&vectors.model), &vectors.ledger);
        });
    }))
}

async fn rerank(call: DialectCall) -> Result<Response, Refusal> {
    let body: Rerank = call.read()?;
    if body.documents.is_empty() {
        return Err(Refusal::empty("documents"));
    }
    if body.top_n == Some(0) {
        return Err(Refusal::field("top_n", "is 0, expected at least 1"));
    }
    let options = TextOptions { raw_scores: Some(body.raw_scores), ..TextOptions::default() };
    let ask = call.ask(named(body.model.as_deref()), options);
    let scores = call.operations.rerank(&body.query, &body.documents, &ask).await?;
    let most = body.top_n.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
    Ok(answer::told_by(&scores.ledger, 512 + 64 * body.documents.len(), |out| {
        out.object(|out| {
            out.name("object").string("rerank");
            out.name("results").array(|out| {
                for (index, score) in scores.ranked(most) {
                    out.object(|out| {
                        out.name("relevance_score").float(score);
                        out.name("index").integer(index);
                        match body.return_documents {
                            true => out.name("document").string(&body.documents[index]),
                            false => out.name("document").null(),
                        }
                    });
                }
            });
            tail(out, named(body.model.as_deref()).unwrap_or(&scores.model), &scores.ledger);
        });
    }))
}

async fn classify(call: DialectCall) -> Result<Response, Refusal> {
    let body: Classify = call.read()?;
    if body.input.is_empty() {
        return Err(Refusal::empty("input"));
    }
    let options = TextOptions { raw_scores: Some(body.raw_scores), ..TextOptions::default() };
    let ask = call.ask(named(body.model.as_deref()), options);
    let classified = call.operations.classify(&body.input, None, &ask).await?;
    Ok(answer::told_by(&classified.ledger, 512 + 64 * classified.labels.len() * body.input.len(), |out| {
        out.object(|out| {
            out.name("object").string("classify");
            out.name("data").array(|out| {
                for row in &classified.rows {
                    out.array(|out| {
                        for scored in classified.best_first(row) {
                            out.object(|out| {
                                out.name("score").float(scored.score);
                                out.name("label").string(scored.label);
                            });
                        }
                    });
                }
            });
            tail(out, named(body.model.as_deref()).unwrap_or(&classified.model), &classified.ledger);
        });
    }))
}

/// The members that all answers end with.
fn tail(out: &mut Writer, model: &str, ledger: &Ledger) {
    out.name("model").string(model);
    answer::usage(out, ledger);
    out.name("id").string(format!("infinity-{}", answer::id()));
    out.name("created").integer(answer::now());
}

async fn models(call: DialectCall) -> Result<Response, Refusal> {
    let models = call.operations.text_models();
    Ok(answer::json(answer::object(|out| {
        out.name("object").string("list");
        out.name("data").array(|out| {
            for model in &models {
                out.object(|out| {
                    out.name("id").string(&model.name);
                    out.name("stats").object(|_| {});
                    out.name("object").string("model");
                    out.name("owned_by").string("infinity");
                    out.name("created").integer(model.origin.files_at.unwrap_or_else(answer::now));
                    answer::spaces(out, model);
                    out.name("backend").string("trireme");
                    out.name("capabilities").array(|out| {
                        model.tasks.iter().filter_map(capability).for_each(|word| out.string(word));
                    });
                });
            }
        });
    })))
}

async fn health(call: DialectCall) -> Result<Response, Refusal> {
    call.ready()?;
    Ok(answer::json(answer::object(|out| out.name("unix").integer(answer::now()))))
}

fn health_answer() -> Schema {
    schema::object([("unix", schema::number())])
}

/// The original's word for an operation.
fn capability(task: &Task) -> Option<&'static str> {
    match task {
        Task::Embed => Some("embed"),
        Task::Rerank => Some("rerank"),
        Task::Classify => Some("classify"),
        Task::Sparse
        | Task::MultiVector
        | Task::ZeroShot
        | Task::TokenClassify
        | Task::Generate
        | Task::Tokenize
        | Task::Decode => None,
    }
}

/// The table of errors: faults of a body as FastAPI has them, others as OpenAI.
fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let (status, kind) = match refusal.kind {
        Kind::Malformed | Kind::Field | Kind::Empty => {
            return (422, answer::faulty_body(refusal.field.as_deref(), &refusal.message));
        }
        Kind::Invalid | Kind::TooLong | Kind::Unsupported => (400, "BadRequestError"),
        Kind::Key => (401, "AuthenticationError"),
        Kind::Forbidden => (403, "PermissionDeniedError"),
        // As the original.
        Kind::NoModel => (400, "ModelNotFound"),
        Kind::NoRoute => (404, "NotFound"),
        Kind::NoMethod => (405, "MethodNotAllowed"),
        Kind::OtherSpace => (412, "PreconditionFailedError"),
        Kind::TooLarge => (413, "BadRequestError"),
        Kind::Overloaded | Kind::OwnerLimit => (429, "RateLimitError"),
        Kind::Internal => (500, "InternalServerError"),
        Kind::Unavailable => (503, "ServiceUnavailableError"),
    };
    let body = answer::object(|out| {
        // As FastAPI has it.
        match refusal.kind {
            Kind::Key => out.name("detail").string("Unauthorized"),
            Kind::NoRoute => out.name("detail").string("Not Found"),
            Kind::NoMethod => out.name("detail").string("Method Not Allowed"),
            _ => {}
        }
        error(out, refusal, kind, |out| out.integer(status));
    });
    (status, body)
}

fn refusals() -> Schema {
    schema::any_of([answer::faulty_body_schema(), answer::nested_schema()])
}

fn embeddings_answer() -> Schema {
    answer::embeddings_schema()
}

fn rerank_answer() -> Schema {
    let result = schema::object([
        ("index", schema::integer()),
        ("relevance_score", schema::number()),
        ("document", schema::nullable(schema::text())),
    ]);
    schema::object([
        ("object", schema::text()),
        ("results", schema::list(result)),
        ("model", schema::text()),
        ("usage", answer::usage_schema()),
    ])
}

fn classify_answer() -> Schema {
    let scored = schema::object([("score", schema::number()), ("label", schema::text())]);
    schema::object([
        ("object", schema::text()),
        ("data", schema::list(schema::list(scored))),
        ("model", schema::text()),
        ("usage", answer::usage_schema()),
    ])
}

fn models_answer() -> Schema {
    let always = [
        ("id", schema::text()),
        ("stats", schema::object([])),
        ("backend", schema::text()),
        ("capabilities", schema::list(schema::text())),
    ];
    let model = schema::object_with(always, answer::spaces_schema());
    schema::object([("object", schema::text()), ("data", schema::list(model))])
}
