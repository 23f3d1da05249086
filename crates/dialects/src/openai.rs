//! OpenAI: `/v1/embeddings` and `/v1/models`.
//!
//! Mistral's and Voyage's clients ask for the same path with fields of their own, Azure's by a path of their own ([`extras`](super::extras)).
//! Token ids are those of OpenAI's own vocabulary (`openai_tokens`).

use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use trireme_operations::{Prompt, TextModel, Vectors, Window};
use trireme_protocol::json::Writer;
use trireme_server::http::schema;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::answer::{self, EncodingFormat};
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::extras::{self, Extras, Form};
use super::fields::{self, Field, idle, read};
use super::input::{self, Input};
use super::refusal::{Kind, Refusal};
use crate::dialect::EmptyText;

pub(super) static DIALECT: Dialect = Dialect {
    name: "openai",
    routes: &[
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(embeddings(call)))
            .takes_both::<Embeddings, Extras>(&[EMBEDDINGS, extras::FIELDS])
            .gives(embeddings_answer),
        DialectRoute::post("/deployments/{model}/embeddings", "Embeds texts, as Azure's clients ask", |call| {
            Box::pin(embeddings(call))
        })
        .takes_both::<Embeddings, Extras>(&[EMBEDDINGS, extras::FIELDS])
        .gives(embeddings_answer)
        .behind_name(),
        DialectRoute::get("/v1/models", "The models that do something with texts", |call| Box::pin(models(call)))
            .gives(models_answer),
        DialectRoute::get("/v1/models/{*rest}", "A model", |call| Box::pin(model(call))).gives(model_answer),
        DialectRoute::get("/models", "The models, as Azure's clients ask", |call| Box::pin(models(call)))
            .gives(models_answer)
            .never_bare(),
    ],
    refuse,
    refusals,
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
    vectors(&found, body.model.as_deref(), form)
}

/// The list of vectors in this form, for dialects that have OpenAI's.
pub(super) fn vectors(vectors: &Vectors, model: Option<&str>, form: Form) -> Result<Response, Refusal> {
    form.check(vectors)?;
    Ok(answer::told(&vectors.ledger, answer::capacity(form.format, vectors.numbers().len()), |out| {
        out.object(|out| {
            out.name("object").string("list");
            data(out, vectors, form);
            out.name("model").string(model.unwrap_or(&vectors.model));
            answer::usage(out, &vectors.ledger);
            // Mistral's clients read no answer without.
            out.name("id").string(format!("embd-{}", answer::id()));
        });
    }))
}

/// The vectors. `index` is the number of the text; one of a window says which window of the text it is, and its characters.
pub(super) fn data(out: &mut Writer, vectors: &Vectors, form: Form) {
    out.name("data").array(|out| {
        for (row, vector) in vectors.numbers().chunks_exact(vectors.width.max(1)).enumerate() {
            let window = vectors.windows.as_ref().and_then(|windows| windows.get(row));
            out.object(|out| {
                out.name("object").string("embedding");
                out.name("index").integer(window.map_or(row, |window| window.text));
                if let Some(Window { number, start, end, .. }) = window {
                    out.name("window").integer(*number);
                    out.name("start").integer(*start);
                    out.name("end").integer(*end);
                }
                form.write(out.name("embedding"), vector);
            });
        }
    });
}

pub(super) async fn models(call: DialectCall) -> Result<Response, Refusal> {
    let all = match call.model.as_deref() {
        Some(model) => vec![call.operations.text_model(Some(model))?],
        None => call.operations.text_models(),
    };
    Ok(answer::json(answer::object(|out| {
        out.name("object").string("list");
        out.name("data").array(|out| all.iter().for_each(|model| entry(out, model)));
    })))
}

pub(super) async fn model(call: DialectCall) -> Result<Response, Refusal> {
    let found = call.operations.text_models().into_iter().find(|model| model.name == call.rest);
    let missing = || Refusal::new(Kind::NoModel, format!("model '{}' does not exist", call.rest));
    let found = found.ok_or_else(missing)?;
    let mut out = Writer::default();
    entry(&mut out, &found);
    Ok(answer::json(out.into_bytes()))
}

fn entry(out: &mut Writer, model: &TextModel) {
    out.object(|out| {
        out.name("id").string(&model.name);
        out.name("object").string("model");
        out.name("created").integer(model.origin.files_at.unwrap_or_default());
        out.name("owned_by").string("trireme");
        // Mistral's clients read no list without these two.
        out.name("type").string("base");
        out.name("capabilities").object(|_| {});
        answer::spaces(out, model);
    });
}

/// The table of errors. The SDK chooses its exception by the status.
pub(super) fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let (status, kind, code) = match refusal.kind {
        Kind::Malformed | Kind::Field | Kind::Empty | Kind::Invalid | Kind::TooLong | Kind::Unsupported => {
            (400, "invalid_request_error", None)
        }
        Kind::Key => (401, "invalid_request_error", Some("invalid_api_key")),
        Kind::Forbidden => (403, "invalid_request_error", None),
        Kind::NoModel => (404, "invalid_request_error", Some("model_not_found")),
        Kind::NoRoute => (404, "invalid_request_error", Some("unknown_url")),
        Kind::NoMethod => (405, "invalid_request_error", Some("method_not_supported")),
        Kind::OtherSpace => (412, "invalid_request_error", Some("other_space")),
        Kind::TooLarge => (413, "invalid_request_error", None),
        Kind::Overloaded | Kind::OwnerLimit => (429, "rate_limit_error", Some("rate_limit_exceeded")),
        Kind::Internal => (500, "server_error", None),
        Kind::Unavailable => (503, "server_error", None),
    };
    (status, nested(refusal, kind, |out| optional(out, code)))
}

/// `{"error": {"message", "type", "param", "code"}}`, for dialects that have OpenAI's errors.
pub(super) fn nested(refusal: &Refusal, kind: &str, code: impl FnOnce(&mut Writer)) -> Bytes {
    answer::object(|out| error(out, refusal, kind, code))
}

/// The member of the body of a refusal.
pub(super) fn error(out: &mut Writer, refusal: &Refusal, kind: &str, code: impl FnOnce(&mut Writer)) {
    out.name("error").object(|out| {
        out.name("message").string(&refusal.message);
        out.name("type").string(kind);
        optional(out.name("param"), refusal.field.as_deref());
        code(out.name("code"));
    });
}

/// A text, or null.
pub(super) fn optional(out: &mut Writer, text: Option<&str>) {
    match text {
        Some(text) => out.string(text),
        None => out.null(),
    }
}

fn refusals() -> Schema {
    answer::nested_schema()
}

fn embeddings_answer() -> Schema {
    answer::embeddings_schema()
}

pub(super) fn model_answer() -> Schema {
    let always = [
        ("id", schema::text()),
        ("object", schema::text()),
        ("created", schema::integer()),
        ("owned_by", schema::text()),
        ("type", schema::text()),
        ("capabilities", schema::plain()),
    ];
    schema::object_with(always, answer::spaces_schema())
}

pub(super) fn models_answer() -> Schema {
    schema::object([("object", schema::text()), ("data", schema::list(model_answer()))])
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
