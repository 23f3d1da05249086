//! vLLM's routes about the server and its models.

use axum::response::{IntoResponse, Response};
use serde::Serialize;
use trireme_operations::TextModel;
use utoipa::ToSchema;

use super::super::answer::{self, NoMembers, Spaces};
use super::super::dialect::DialectCall;
use super::super::refusal::Refusal;

/// The models of a server.
#[derive(Serialize, ToSchema)]
pub(super) struct ModelList<'a> {
    object: &'static str,
    #[schema(inline)]
    data: Vec<Model<'a>>,
}

/// A model.
#[derive(Serialize, ToSchema)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    #[serde(flatten)]
    #[schema(inline)]
    spaces: Spaces<'a>,
    owned_by: &'static str,
    root: &'a str,
    parent: Option<&'static str>,
    max_model_len: Option<u64>,
    #[schema(inline)]
    permission: [NoMembers; 0],
}

/// How many requests wait for their answers.
#[derive(Serialize, ToSchema)]
pub(super) struct ServerLoad {
    server_load: u64,
}

/// The version of the server.
#[derive(Serialize, ToSchema)]
pub(super) struct Version {
    version: &'static str,
}

// === impl Model ===

impl Model<'_> {
    fn of(model: &TextModel) -> Model<'_> {
        Model {
            id: &model.name,
            object: "model",
            created: model.origin.files_at.unwrap_or_else(answer::now),
            spaces: Spaces::of(model),
            owned_by: "vllm",
            root: &model.name,
            parent: None,
            max_model_len: model.max_length,
            permission: [],
        }
    }
}

pub(super) async fn models(call: DialectCall) -> Result<Response, Refusal> {
    let models = call.operations.text_models();
    Ok(answer::plain(&ModelList { object: "list", data: models.iter().map(Model::of).collect() }))
}

pub(super) async fn health(call: DialectCall) -> Result<Response, Refusal> {
    call.ready()?;
    Ok(().into_response())
}

pub(super) async fn load(call: DialectCall) -> Result<Response, Refusal> {
    Ok(answer::plain(&ServerLoad { server_load: call.operations.in_flight() }))
}

pub(super) async fn version(_: DialectCall) -> Result<Response, Refusal> {
    Ok(answer::plain(&Version { version: env!("CARGO_PKG_VERSION") }))
}
