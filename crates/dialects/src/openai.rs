//! OpenAI: `/v1/embeddings` and `/v1/models`.
//!
//! Mistral's and Voyage's clients ask for the same path with fields of their own, Azure's by a path of their own ([`extras`](super::extras)).
//! Token ids are those of OpenAI's own vocabulary (`openai_tokens`).

use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use trireme_operations::{Prompt, TextModel, Vectors};
use trireme_server::http::schema;
use utoipa::ToSchema;

use super::answer::{self, EncodingFormat, Nested, NoMembers, Spaces, Usage};
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::extras::{self, Extras, Form};
use super::fields::{self, Field, idle, read};
use super::input::{self, Input};
use super::quantize::Vector;
use super::refusal::{Kind, Refusal};
use crate::dialect::EmptyText;

pub(super) static DIALECT: Dialect = Dialect {
    name: "openai",
    routes: &[
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(embeddings(call)))
            .takes_both::<Embeddings, Extras>(&[EMBEDDINGS, extras::FIELDS])
            .gives(schema::answer::<EmbeddingList<'_>>),
        DialectRoute::post("/deployments/{model}/embeddings", "Embeds texts, as Azure's clients ask", |call| {
            Box::pin(embeddings(call))
        })
        .takes_both::<Embeddings, Extras>(&[EMBEDDINGS, extras::FIELDS])
        .gives(schema::answer::<EmbeddingList<'_>>)
        .behind_name(),
        DialectRoute::get("/v1/models", "The models that do something with texts", |call| Box::pin(models(call)))
            .gives(schema::answer::<ModelList<'_>>),
        DialectRoute::get("/v1/models/{*rest}", "A model", |call| Box::pin(model(call)))
            .gives(schema::answer::<Model<'_>>),
        DialectRoute::get("/models", "The models, as Azure's clients ask", |call| Box::pin(models(call)))
            .gives(schema::answer::<ModelList<'_>>)
            .never_bare(),
    ],
    refuse,
    refusals: schema::answer::<Error<'_>>,
    is_strict: false,
    cut: "send a shorter one",
    model_in_path: false,
};

pub(super) const EMBEDDINGS: &[Field] = &[
    read("input", fields::INPUT),
    read("model", fields::TEXT),
    read("encoding_format", &[r#""float""#]),
    read("dimensions", fields::NUMBER),
    idle("user", fields::TEXT, "names the author of the texts"),
];

#[derive(Deserialize, ToSchema)]
#[schema(as = OpenAiEmbeddings)]
pub(super) struct Embeddings {
    input: Input,
    model: Option<String>,
    encoding_format: Option<EncodingFormat>,
    dimensions: Option<u64>,
}

pub(super) async fn embeddings(call: DialectCall) -> Result<Response, Refusal> {
    let body: Embeddings = call.read()?;
    let extras: Extras = call.read()?;
    let texts = match body.input {
        Input::Tokens { rows, .. } => call.token_input.texts(rows).await?,
        input => input.texts("input", "")?.0,
    };
    if call.empty_text == EmptyText::Reject {
        input::none_empty("input", &texts)?;
    }
    let (model, of_name) = body.model.as_deref().map(|name| extras::named(&call, name)).unzip();
    let form = extras.form(body.encoding_format);
    let mut options = extras.options(body.dimensions)?;
    if let (Prompt::Default, Some(prompt)) = (&options.prompt, of_name.flatten()) {
        options.prompt = prompt;
    }
    let found = call.operations.embed_windows(&texts, &call.ask(model, options)).await?;
    EmbeddingList::answer(&found, body.model.as_deref(), form)
}

/// The answer of `/v1/embeddings`, for dialects that have OpenAI's.
#[derive(Serialize, ToSchema)]
pub(super) struct EmbeddingList<'a> {
    object: &'static str,
    #[schema(inline)]
    data: Vec<Embedding<'a>>,
    model: &'a str,
    #[schema(inline)]
    usage: Usage,
    // Mistral's clients read no answer without.
    id: String,
}

/// A vector. `index` is the number of the text; a vector of a window says which window of the text it is, and its characters.
#[derive(Serialize, ToSchema)]
pub(super) struct Embedding<'a> {
    object: &'static str,
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<u64>,
    #[schema(inline)]
    embedding: Vector<'a>,
}

/// The models of a server, or one.
#[derive(Serialize, ToSchema)]
pub(super) struct ModelList<'a> {
    object: &'static str,
    #[schema(inline)]
    data: Vec<Model<'a>>,
}

/// A model.
#[derive(Serialize, ToSchema)]
pub(super) struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    // Mistral's clients read no list without these two.
    r#type: &'static str,
    #[schema(inline)]
    capabilities: NoMembers,
    #[serde(flatten)]
    #[schema(inline)]
    spaces: Spaces<'a>,
}

// === impl EmbeddingList ===

impl EmbeddingList<'_> {
    /// The answer with these vectors in this form. `model` is the name by which the request called the model.
    pub(super) fn answer(vectors: &Vectors, model: Option<&str>, form: Form) -> Result<Response, Refusal> {
        form.check(vectors)?;
        let (numbers, usage) = (vectors.numbers(), Usage::of(&vectors.ledger));
        let model = model.unwrap_or(&vectors.model);
        let data = Embedding::all(vectors, &numbers, form);
        let list = EmbeddingList { object: "list", data, model, usage, id: format!("embd-{}", answer::id()) };
        Ok(answer::told(&vectors.ledger, &list))
    }
}

// === impl Embedding ===

impl Embedding<'_> {
    /// The vectors, whose numbers these are.
    pub(super) fn all<'a>(vectors: &Vectors, numbers: &'a [f32], form: Form) -> Vec<Embedding<'a>> {
        let embedding = |(row, numbers)| {
            let window = vectors.windows.as_ref().and_then(|windows| windows.get(row));
            Embedding {
                object: "embedding",
                index: window.map_or(row, |window| window.text),
                window: window.map(|window| window.number),
                start: window.map(|window| window.start),
                end: window.map(|window| window.end),
                embedding: form.vector(numbers),
            }
        };
        numbers.chunks_exact(vectors.width.max(1)).enumerate().map(embedding).collect()
    }
}

// === impl Model ===

impl Model<'_> {
    fn of(model: &TextModel) -> Model<'_> {
        Model {
            id: &model.name,
            object: "model",
            created: model.origin.files_at.unwrap_or_default(),
            owned_by: "trireme",
            r#type: "base",
            capabilities: NoMembers {},
            spaces: Spaces::of(model),
        }
    }
}

pub(super) async fn models(call: DialectCall) -> Result<Response, Refusal> {
    let all = match call.model.as_deref() {
        Some(model) => vec![call.operations.text_model(Some(model))?],
        None => call.operations.text_models(),
    };
    Ok(answer::plain(&ModelList { object: "list", data: all.iter().map(Model::of).collect() }))
}

pub(super) async fn model(call: DialectCall) -> Result<Response, Refusal> {
    let found = call.operations.text_models().into_iter().find(|model| model.name == call.rest);
    let missing = || Refusal::new(Kind::NoModel, format!("model '{}' does not exist", call.rest));
    Ok(answer::plain(&Model::of(&found.ok_or_else(missing)?)))
}

/// OpenAI's errors.
pub(super) type Error<'a> = Nested<'a, Option<&'static str>>;

/// The table of errors. The SDK chooses its exception by the status.
pub(super) fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let (kind, code) = match refusal.kind {
        Kind::Key => ("invalid_request_error", Some("invalid_api_key")),
        Kind::NoModel => ("invalid_request_error", Some("model_not_found")),
        Kind::NoRoute => ("invalid_request_error", Some("unknown_url")),
        Kind::NoMethod => ("invalid_request_error", Some("method_not_supported")),
        Kind::OtherSpace => ("invalid_request_error", Some("other_space")),
        Kind::Overloaded | Kind::OwnerLimit => ("rate_limit_error", Some("rate_limit_exceeded")),
        Kind::Internal | Kind::Unavailable => ("server_error", None),
        _ => ("invalid_request_error", None),
    };
    (refusal.kind.status(), answer::body(&Error::of(refusal, kind, code)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_hold_what_the_api_has() {
        let read = |text: &str| input::read::<Embeddings>(text.as_bytes());
        let body = read(r#"{"model": "m", "input": "a", "encoding_format": "base64", "dimensions": 4, "user": "u"}"#);
        let body = body.unwrap_or_else(|refusal| panic!("{refusal:?}"));
        assert_eq!((body.encoding_format, body.dimensions), (Some(EncodingFormat::Base64), Some(4)));
        let fault = |text| read(text).err().expect("a refusal");
        assert_eq!(fault(r#"{"model": "m"}"#).field.as_deref(), Some("input"));
        let format = fault(r#"{"model": "m", "input": "a", "encoding_format": "hex"}"#);
        assert_eq!(format.field.as_deref(), Some("encoding_format"));
        assert!(fault(r#"{"model": "m", "input": "a", "encoding_format": "hex"}"#).message.contains("base64"));
        assert!(fault(r#"{"model": "m", "input": "a", "dimensions": -1}"#).message.contains("-1"));
    }

    #[test]
    fn errors_have_the_shape_that_the_sdk_reads() {
        let (status, body) = refuse(&Refusal::field("input", "is wrong"));
        assert_eq!(status, 400);
        assert_eq!(
            body,
            r#"{"error":{"message":"'input' is wrong","type":"invalid_request_error","param":"input","code":null}}"#
        );
        let (status, body) = refuse(&Refusal::new(Kind::NoModel, "gone"));
        assert_eq!(status, 404);
        assert!(str::from_utf8(&body).unwrap().contains(r#""code":"model_not_found""#));
    }
}
