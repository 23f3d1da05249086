//! Cohere's routes besides its operations: tokens of a text, the list of models, and whether a key is valid.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use trireme_operations::{Task, TextModel, TextOptions};
use utoipa::{IntoParams, ToSchema};

use super::super::answer::{self, Spaces};
use super::super::dialect::DialectCall;
use super::super::fields::{self, Field, read};
use super::super::refusal::{Kind, Refusal};

pub(super) const TOKENIZE: &[Field] = &[read("text", fields::TEXT), read("model", fields::TEXT)];
pub(super) const DETOKENIZE: &[Field] = &[read("tokens", &["[1]"]), read("model", fields::TEXT)];

#[derive(Deserialize, ToSchema)]
#[schema(as = CohereTokenize)]
pub(super) struct Tokenize {
    text: String,
    model: String,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = CohereDetokenize)]
pub(super) struct Detokenize {
    tokens: Vec<u32>,
    model: String,
}

/// The query of the list of models.
#[derive(Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct ModelsQuery {
    /// Only models that do this, in the original's words: `embed`, `rerank` or `classify`.
    endpoint: Option<String>,
}

/// The version of the API.
#[derive(Serialize, ToSchema)]
pub(super) struct ApiVersion {
    pub version: &'static str,
}

/// The tokens of a text.
#[derive(Serialize, ToSchema)]
pub(super) struct TokenizeAnswer<'a> {
    tokens: Vec<u32>,
    token_strings: Vec<&'a str>,
    #[schema(inline)]
    meta: Meta,
}

/// The text of tokens.
#[derive(Serialize, ToSchema)]
pub(super) struct DetokenizeAnswer<'a> {
    text: &'a str,
    #[schema(inline)]
    meta: Meta,
}

/// The member `meta` of the answers of tokenizers.
#[derive(Serialize, ToSchema)]
struct Meta {
    #[schema(inline)]
    api_version: ApiVersion,
}

/// The models of a server.
#[derive(Serialize, ToSchema)]
pub(super) struct ModelList<'a> {
    #[schema(inline)]
    models: Vec<Model<'a>>,
    next_page_token: &'static str,
}

/// A model.
#[derive(Serialize, ToSchema)]
pub(super) struct Model<'a> {
    name: &'a str,
    endpoints: Vec<&'static str>,
    finetuned: bool,
    context_length: Option<u64>,
    // The original's clients tokenize by themselves with the file there.
    tokenizer_url: Option<&'static str>,
    default_endpoints: [&'static str; 0],
    #[serde(flatten)]
    #[schema(inline)]
    spaces: Spaces<'a>,
}

/// Whether the key of a request is valid.
#[derive(Serialize, ToSchema)]
pub(super) struct KeyCheck {
    valid: bool,
}

const META: Meta = Meta { api_version: ApiVersion { version: "1" } };

// === impl Model ===

impl Model<'_> {
    fn of(model: &TextModel) -> Model<'_> {
        Model {
            name: &model.name,
            endpoints: endpoints(model).collect(),
            finetuned: false,
            context_length: model.max_length,
            tokenizer_url: None,
            default_endpoints: [],
            spaces: Spaces::of(model),
        }
    }
}

/// The tokens of a text, without special ones, as the original gives them.
pub(super) async fn tokenize(call: DialectCall) -> Result<Response, Refusal> {
    let body: Tokenize = call.read()?;
    if body.text.is_empty() {
        return Err(Refusal::empty("text"));
    }
    let options = TextOptions { add_special_tokens: Some(false), ..TextOptions::default() };
    let lists = call.operations.tokenize(&[body.text], &call.ask(Some(&body.model), options)).await?;
    let tokens = lists.tokens(0);
    let tokenized = TokenizeAnswer {
        tokens: tokens.iter().map(|token| token.id).collect(),
        token_strings: tokens.iter().map(|token| token.text.as_str()).collect(),
        meta: META,
    };
    Ok(answer::told(&lists.ledger, &tokenized))
}

pub(super) async fn detokenize(call: DialectCall) -> Result<Response, Refusal> {
    let body: Detokenize = call.read()?;
    let options = TextOptions { skip_special_tokens: Some(false), ..TextOptions::default() };
    let (texts, ledger) = call.operations.decode(&[body.tokens], &call.ask(Some(&body.model), options)).await?;
    let text = texts.first().map_or("", String::as_str);
    Ok(answer::told(&ledger, &DetokenizeAnswer { text, meta: META }))
}

pub(super) async fn models(call: DialectCall) -> Result<Response, Refusal> {
    let mut models = call.operations.text_models();
    if let Some(endpoint) = call.query::<ModelsQuery>()?.endpoint {
        models.retain(|model| endpoints(model).any(|own| own == endpoint));
    }
    let models = models.iter().map(Model::of).collect();
    Ok(answer::plain(&ModelList { models, next_page_token: "" }))
}

pub(super) async fn model(call: DialectCall) -> Result<Response, Refusal> {
    let found = call.operations.text_models().into_iter().find(|model| model.name == call.rest);
    let missing = || Refusal::new(Kind::NoModel, format!("model '{}' does not exist", call.rest));
    Ok(answer::plain(&Model::of(&found.ok_or_else(missing)?)))
}

/// The original's words for what a model does.
fn endpoints(model: &TextModel) -> impl Iterator<Item = &'static str> {
    model.tasks.iter().filter_map(|task| match task {
        Task::Embed => Some("embed"),
        Task::Rerank => Some("rerank"),
        Task::Classify => Some("classify"),
        _ => None,
    })
}

/// The request has passed the check of its key.
pub(super) async fn check_key(_: DialectCall) -> Result<Response, Refusal> {
    Ok(answer::plain(&KeyCheck { valid: true }))
}
