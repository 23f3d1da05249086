//! vLLM's routes about the server and its models.

use axum::response::{IntoResponse, Response};
use trireme_server::http::schema::{integer, list, nullable, object, object_with, text};
use utoipa::openapi::schema::Schema;

use super::super::answer;
use super::super::dialect::DialectCall;
use super::super::refusal::Refusal;

pub(super) async fn models(call: DialectCall) -> Result<Response, Refusal> {
    let models = call.operations.text_models();
    Ok(answer::json(answer::object(|out| {
        out.name("object").string("list");
        out.name("data").array(|out| {
            for model in &models {
                out.object(|out| {
                    out.name("id").string(&model.name);
                    out.name("object").string("model");
                    out.name("created").integer(model.origin.files_at.unwrap_or_else(answer::now));
                    answer::spaces(out, model);
                    out.name("owned_by").string("vllm");
                    out.name("root").string(&model.name);
                    out.name("parent").null();
                    match model.max_length {
                        Some(length) => out.name("max_model_len").integer(length),
                        None => out.name("max_model_len").null(),
                    }
                    out.name("permission").array(|_| {});
                });
            }
        });
    })))
}

pub(super) async fn health(call: DialectCall) -> Result<Response, Refusal> {
    call.ready()?;
    Ok(().into_response())
}

/// How many requests wait for their answers.
pub(super) async fn load(call: DialectCall) -> Result<Response, Refusal> {
    Ok(answer::json(answer::object(|out| out.name("server_load").integer(call.operations.in_flight()))))
}

pub(super) fn load_answer() -> Schema {
    object([("server_load", integer())])
}

pub(super) async fn version(_: DialectCall) -> Result<Response, Refusal> {
    Ok(answer::json(answer::object(|out| out.name("version").string(env!("CARGO_PKG_VERSION")))))
}

pub(super) fn models_answer() -> Schema {
    let always = [
        ("id", text()),
        ("object", text()),
        ("created", integer()),
        ("owned_by", text()),
        ("root", text()),
        ("parent", nullable(text())),
        ("max_model_len", nullable(integer())),
    ];
    let model = object_with(always, answer::spaces_schema());
    object([("object", text()), ("data", list(model))])
}

pub(super) fn version_answer() -> Schema {
    object([("version", text())])
}
