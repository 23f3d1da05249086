//! Mistral: `/v1/classifications` and `/v1/chat/classifications`; `/v1/embeddings` and `/v1/models` are OpenAI's ([`openai`](super::openai)).
//!
//! A classifier of the original has several targets, each with a score for each of its classes. A model here has one, `classification`.

use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer};
use trireme_operations::{Classified, TextOptions};
use trireme_server::http::schema;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::answer::{self, FaultyBody};
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::extras::{self, Extras};
use super::fields::{self, Field, idle, read};
use super::input::{self, Input, Message, OneOrMany};
use super::openai;
use super::refusal::{Kind, Refusal};
use super::vllm::{Conversations, conversations};

pub(super) static DIALECT: Dialect = Dialect {
    name: "mistral",
    routes: &[
        DialectRoute::post("/v1/classifications", "Classifies texts", |call| Box::pin(classify(call)))
            .takes::<Classifications>(&[CLASSIFICATIONS])
            .gives(schema::answer::<Classes<'_>>),
        DialectRoute::post("/v1/chat/classifications", "Classifies conversations", |call| {
            Box::pin(classify_chats(call))
        })
        .takes::<ChatClassifications>(&[CHAT_CLASSIFICATIONS])
        .gives(schema::answer::<Classes<'_>>),
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(openai::embeddings(call)))
            .takes_both::<openai::Embeddings, Extras>(&[openai::EMBEDDINGS, extras::FIELDS])
            .gives(schema::answer::<openai::EmbeddingList<'_>>)
            .behind_name(),
        DialectRoute::get("/v1/models", "The models that do something with texts", |call| {
            Box::pin(openai::models(call))
        })
        .gives(schema::answer::<openai::ModelList<'_>>)
        .behind_name(),
        DialectRoute::get("/v1/models/{*rest}", "A model", |call| Box::pin(openai::model(call)))
            .gives(schema::answer::<openai::Model<'_>>)
            .behind_name(),
    ],
    refuse,
    refusals,
    is_strict: false,
    cut: "send a shorter one",
    model_in_path: false,
};

const CLASSIFICATIONS: &[Field] = &[
    read("model", fields::TEXT),
    read("input", fields::TEXT_OR_TEXTS),
    idle("metadata", fields::OBJECT, "is the client's own"),
];

const CHAT_CLASSIFICATIONS: &[Field] = &[read("model", fields::TEXT), read("input", &[CHAT, CHATS])];

const CHAT: &str = r#"{"messages": [{"role": "user", "content": "a"}]}"#;
const CHATS: &str = r#"[{"messages": [{"role": "user", "content": "a"}]}]"#;

#[derive(Deserialize, ToSchema)]
#[schema(as = MistralClassifications)]
struct Classifications {
    input: Input,
    model: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = MistralChatClassifications)]
struct ChatClassifications {
    #[schema(schema_with = input::one_or_many::<Chat>)]
    input: OneOrMany<Chat>,
    model: Option<String>,
}

/// A conversation.
#[derive(Deserialize, ToSchema)]
#[schema(as = MistralChat)]
struct Chat {
    #[schema(value_type = Vec<Object>)]
    messages: Vec<Message>,
}

/// The classes of texts.
#[derive(Serialize, ToSchema)]
struct Classes<'a> {
    id: String,
    model: &'a str,
    #[schema(inline)]
    results: Vec<ByTarget<'a>>,
}

/// A text's classes by target. A model here has one target.
#[derive(Serialize, ToSchema)]
struct ByTarget<'a> {
    #[schema(inline)]
    classification: Target<'a>,
}

#[derive(Serialize, ToSchema)]
struct Target<'a> {
    #[schema(value_type = Object)]
    scores: Scores<'a>,
}

/// A score for each label, by its name.
struct Scores<'a> {
    labels: &'a [String],
    scores: &'a [f32],
}

/// An error that is not about a body.
#[derive(Serialize, ToSchema)]
struct Error<'a> {
    object: &'static str,
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

// === impl Scores ===

impl Serialize for Scores<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.labels.iter().zip(self.scores))
    }
}

async fn classify(call: DialectCall) -> Result<Response, Refusal> {
    let body: Classifications = call.read()?;
    let texts = body.input.texts("input", "send texts")?.0;
    let ask = call.ask(body.model.as_deref(), TextOptions::default());
    let found = call.operations.classify(&texts, None, &ask).await?;
    Ok(classes(&found, body.model.as_deref()))
}

async fn classify_chats(call: DialectCall) -> Result<Response, Refusal> {
    let body: ChatClassifications = call.read()?;
    let chats: Vec<Vec<Message>> = body.input.into_list().into_iter().map(|chat| chat.messages).collect();
    if chats.is_empty() {
        return Err(Refusal::empty("input"));
    }
    let texts = conversations(&call, Conversations::Many(chats), false)?;
    let options = TextOptions { messages: true, ..TextOptions::default() };
    let found = call.operations.classify(&texts, None, &call.ask(body.model.as_deref(), options)).await?;
    Ok(classes(&found, body.model.as_deref()))
}

/// For each text the scores of all classes.
fn classes(found: &Classified, model: Option<&str>) -> Response {
    let row = |scores| ByTarget { classification: Target { scores: Scores { labels: &found.labels, scores } } };
    let classes = Classes {
        id: format!("cls-{}", answer::id()),
        model: model.unwrap_or(&found.model),
        results: found.rows.iter().map(|scores| row(scores)).collect(),
    };
    answer::told(&found.ledger, &classes)
}

/// The table of errors: faults of a body as FastAPI has them, which the SDK has an exception for; others with Mistral's words.
fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let (status, r#type, code) = match refusal.kind {
        Kind::Malformed | Kind::Field | Kind::Empty => return (422, answer::body(&FaultyBody::of(refusal))),
        // As the original.
        Kind::NoModel => (400, "invalid_model", Some("1500")),
        Kind::Overloaded | Kind::OwnerLimit => (429, "rate_limited", None),
        Kind::Internal => (500, "internal_server_error", None),
        Kind::Unavailable => (503, "service_unavailable", None),
        kind => (kind.status(), "invalid_request_error", None),
    };
    let param = refusal.field.as_deref();
    (status, answer::body(&Error { object: "error", message: &refusal.message, r#type, param, code }))
}

fn refusals() -> Schema {
    schema::any_of([schema::answer::<FaultyBody<'_>>(), schema::answer::<Error<'_>>()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_come_alone_or_in_lists() {
        let read = |text: &str| input::read::<ChatClassifications>(text.as_bytes()).map(|body| body.input.into_list());
        assert_eq!(read(&format!(r#"{{"model": "m", "input": {CHAT}}}"#)).map(|chats| chats.len()), Ok(1));
        let chats = read(&format!(r#"{{"model": "m", "input": {CHATS}}}"#)).unwrap();
        assert_eq!(chats[0].messages[0]["content"], "a");
        let refusal = read(r#"{"model": "m", "input": [{"role": "user"}]}"#).map(|chats| chats.len()).unwrap_err();
        assert!(refusal.message.contains("messages"), "{}", refusal.message);
    }

    #[test]
    fn errors_have_the_two_shapes_that_the_sdk_reads() {
        let (status, body) = refuse(&Refusal::field("input", "is wrong"));
        assert_eq!(status, 422);
        assert_eq!(body, r#"{"detail":[{"type":"value_error","loc":["body","input"],"msg":"'input' is wrong"}]}"#);
        let (status, body) = refuse(&Refusal::new(Kind::NoModel, "gone"));
        assert_eq!(status, 400);
        assert!(str::from_utf8(&body).unwrap().contains(r#""type":"invalid_model","param":null,"code":"1500""#));
    }
}
