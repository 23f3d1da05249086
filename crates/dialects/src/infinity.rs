//! Infinity: `/embeddings`, `/rerank`, `/classify`, `/models`, `/health`.
//!
//! A model that is not named is the only one that does it. As in the original, fields that are not known are passed over.

use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use trireme_inference::Ledger;
use trireme_operations::{Task, TextModel, TextOptions};
use trireme_server::http::schema;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::answer::{self, EncodingFormat, FaultyBody, Labelled, NestedError, NoMembers, Spaces, Usage};
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::extras::{self, Extras};
use super::fields::{self, Field, idle, only, read};
use super::input::Input;
use super::openai::Embedding;
use super::refusal::{Kind, Refusal};

pub(super) static DIALECT: Dialect = Dialect {
    name: "infinity",
    routes: &[
        DialectRoute::post("/embeddings", "Embeds texts", |call| Box::pin(embeddings(call)))
            .takes_both::<Embeddings, Extras>(&[EMBEDDINGS, extras::FIELDS])
            .gives(schema::answer::<List<'_, Embedding<'_>>>),
        DialectRoute::post("/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes::<Rerank>(&[RERANK])
            .gives(schema::answer::<Ranking<'_>>),
        DialectRoute::post("/classify", "Classifies texts", |call| Box::pin(classify(call)))
            .takes::<Classify>(&[CLASSIFY])
            .gives(schema::answer::<List<'_, Vec<Labelled<'_>>>>),
        DialectRoute::get("/models", "The models that do something with texts", |call| Box::pin(models(call)))
            .gives(schema::answer::<ModelList<'_>>),
        DialectRoute::get("/health", "Whether all models are ready", |call| Box::pin(health(call)))
            .gives(schema::answer::<Health>)
            .checks_health(),
        DialectRoute::get("/", "Whether all models are ready", |call| Box::pin(health(call)))
            .gives(schema::answer::<Health>)
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

/// A row for each text: a vector, or all labels, the best first.
#[derive(Serialize, ToSchema)]
struct List<'a, R> {
    object: &'static str,
    #[schema(inline)]
    data: Vec<R>,
    model: &'a str,
    #[schema(inline)]
    usage: Usage,
    id: String,
    created: u64,
}

/// Documents in the order of their scores.
#[derive(Serialize, ToSchema)]
struct Ranking<'a> {
    object: &'static str,
    #[schema(inline)]
    results: Vec<Ranked<'a>>,
    model: &'a str,
    #[schema(inline)]
    usage: Usage,
    id: String,
    created: u64,
}

#[derive(Serialize, ToSchema)]
struct Ranked<'a> {
    relevance_score: f32,
    index: usize,
    document: Option<&'a str>,
}

/// The models that do something with texts.
#[derive(Serialize, ToSchema)]
struct ModelList<'a> {
    object: &'static str,
    #[schema(inline)]
    data: Vec<Model<'a>>,
}

#[derive(Serialize, ToSchema)]
struct Model<'a> {
    id: &'a str,
    #[schema(inline)]
    stats: NoMembers,
    object: &'static str,
    owned_by: &'static str,
    created: u64,
    #[serde(flatten)]
    #[schema(inline)]
    spaces: Spaces<'a>,
    backend: &'static str,
    capabilities: Vec<&'static str>,
}

/// The time at which the server was ready, in seconds since 1970.
#[derive(Serialize, ToSchema)]
struct Health {
    unix: u64,
}

/// An error that is not about a body: OpenAI's, with FastAPI's `detail` where FastAPI answers.
#[derive(Serialize, ToSchema)]
struct Error<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'static str>,
    #[schema(inline)]
    error: NestedError<'a, u16>,
}

// === impl List ===

impl<R: Serialize> List<'_, R> {
    /// The answer with these rows.
    fn answer(object: &'static str, data: Vec<R>, model: &str, ledger: &Ledger) -> Response {
        let usage = Usage::of(ledger);
        answer::told(ledger, &List { object, data, model, usage, id: id(), created: answer::now() })
    }
}

/// The model's name, where it is one.
fn named(model: Option<&str>) -> Option<&str> {
    model.filter(|name| *name != UNNAMED)
}

/// The id of an answer.
fn id() -> String {
    format!("infinity-{}", answer::id())
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
    let numbers = vectors.numbers();
    let data = Embedding::all(&vectors, &numbers, form);
    let model = named(body.model.as_deref()).unwrap_or(&vectors.model);
    Ok(List::answer("list", data, model, &vectors.ledger))
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
    let document = |index: usize| body.return_documents.then(|| &*body.documents[index]);
    let ranked = scores.ranked(most).into_iter();
    let ranking = Ranking {
        object: "rerank",
        results: ranked
            .map(|(index, relevance_score)| Ranked { relevance_score, index, document: document(index) })
            .collect(),
        model: named(body.model.as_deref()).unwrap_or(&scores.model),
        usage: Usage::of(&scores.ledger),
        id: id(),
        created: answer::now(),
    };
    Ok(answer::told(&scores.ledger, &ranking))
}

async fn classify(call: DialectCall) -> Result<Response, Refusal> {
    let body: Classify = call.read()?;
    if body.input.is_empty() {
        return Err(Refusal::empty("input"));
    }
    let options = TextOptions { raw_scores: Some(body.raw_scores), ..TextOptions::default() };
    let ask = call.ask(named(body.model.as_deref()), options);
    let classified = call.operations.classify(&body.input, None, &ask).await?;
    let data = classified.rows.iter().map(|row| Labelled::best_first(&classified, row)).collect();
    let model = named(body.model.as_deref()).unwrap_or(&classified.model);
    Ok(List::answer("classify", data, model, &classified.ledger))
}

async fn models(call: DialectCall) -> Result<Response, Refusal> {
    let models = call.operations.text_models();
    Ok(answer::plain(&ModelList { object: "list", data: models.iter().map(Model::of).collect() }))
}

async fn health(call: DialectCall) -> Result<Response, Refusal> {
    call.ready()?;
    Ok(answer::plain(&Health { unix: answer::now() }))
}

// === impl Model ===

impl Model<'_> {
    fn of(model: &TextModel) -> Model<'_> {
        Model {
            id: &model.name,
            stats: NoMembers {},
            object: "model",
            owned_by: "infinity",
            created: model.origin.files_at.unwrap_or_else(answer::now),
            spaces: Spaces::of(model),
            backend: "trireme",
            capabilities: model.tasks.iter().filter_map(capability).collect(),
        }
    }
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
        | Task::Extract
        | Task::Generate
        | Task::Tokenize
        | Task::Decode => None,
    }
}

/// The table of errors: faults of a body as FastAPI has them, others as OpenAI.
fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let (status, kind, detail) = match refusal.kind {
        Kind::Malformed | Kind::Field | Kind::Empty => return (422, answer::body(&FaultyBody::of(refusal))),
        Kind::Invalid | Kind::TooLong | Kind::Unsupported => (400, "BadRequestError", None),
        Kind::Key => (401, "AuthenticationError", Some("Unauthorized")),
        Kind::Forbidden => (403, "PermissionDeniedError", None),
        // As the original.
        Kind::NoModel => (400, "ModelNotFound", None),
        Kind::NoRoute => (404, "NotFound", Some("Not Found")),
        Kind::NoMethod => (405, "MethodNotAllowed", Some("Method Not Allowed")),
        Kind::OtherSpace => (412, "PreconditionFailedError", None),
        Kind::TooLarge => (413, "BadRequestError", None),
        Kind::Overloaded | Kind::OwnerLimit => (429, "RateLimitError", None),
        Kind::Internal => (500, "InternalServerError", None),
        Kind::Unavailable => (503, "ServiceUnavailableError", None),
    };
    (status, answer::body(&Error { detail, error: NestedError::of(refusal, kind, status) }))
}

fn refusals() -> Schema {
    schema::any_of([schema::answer::<FaultyBody<'_>>(), schema::answer::<Error<'_>>()])
}
