//! The shapes of a route in the OpenAPI document: those of its requests and of its answers.

use axum::http::StatusCode;
use utoipa::openapi::path::Parameter;
use utoipa::openapi::schema::Schema;

use super::schema::Described;

/// The shapes of a route.
#[derive(Default)]
pub struct Shapes {
    /// The parameters of its query, and the headers that it reads.
    pub parameters: Vec<Parameter>,
    /// The shapes of its bodies; none: it takes no JSON.
    pub bodies: Vec<Described>,
    /// The shape of its form (multipart/form-data); none: it takes no form.
    pub form: Option<Described>,
    /// The effects of the fields of its bodies, where a table lists them.
    pub fields: Option<serde_json::Value>,
    /// The shapes of its answers; none: they are empty or no JSON.
    pub answers: Vec<Schema>,
    /// Whether its answers are bytes, or may be.
    pub gives_bytes: bool,
    /// Its answers with another status than 200 that are no refusals.
    pub others: Vec<OtherAnswer>,
    /// How it refuses; none: as Triton does ([`response::error`](super::response::error)).
    pub errors: Vec<Schema>,
}

/// An answer with another status than 200 that is no refusal.
pub struct OtherAnswer {
    /// The status.
    pub status: StatusCode,
    /// Its description.
    pub description: &'static str,
    /// The shape of its body; `None`: it is empty, or no JSON.
    pub schema: Option<Schema>,
}
