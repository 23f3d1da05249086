//! The header `Idempotency-Key`: a request that is sent again under its key is the same request.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use trireme_server::http::body::text;
use trireme_server::http::describe::{Describe, header};
use trireme_server::http::shapes::Shapes;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};

use super::refused::Refused;

const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

/// Longest key of a client, in bytes.
const LONGEST_KEY: usize = 255;

/// The key under which a client's request is the same when it is sent again; `None` without the header, or with an empty one.
#[derive(Debug, PartialEq, Eq)]
pub struct IdempotencyKey(pub Option<String>);

// === impl IdempotencyKey ===

impl IdempotencyKey {
    /// The key in these headers.
    ///
    /// # Errors
    /// It is too long. The client gets the error.
    pub fn of(headers: &HeaderMap) -> Result<IdempotencyKey, String> {
        match text(headers, IDEMPOTENCY_KEY).filter(|key| !key.is_empty()) {
            Some(key) if key.len() > LONGEST_KEY => {
                Err(format!("{IDEMPOTENCY_KEY} has {} bytes, expected at most {LONGEST_KEY}", key.len()))
            }
            key => Ok(IdempotencyKey(key.map(str::to_owned))),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<IdempotencyKey, Refused> {
        IdempotencyKey::of(&parts.headers).map_err(|why| Refused::invalid(&why))
    }
}

impl Describe for IdempotencyKey {
    fn describe(shapes: &mut Shapes) {
        let key = ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).max_length(Some(LONGEST_KEY));
        let description = "a key under which the request is the same when it is sent again: it is done once";
        shapes.parameters.push(header(IDEMPOTENCY_KEY, description, Schema::Object(key.build())));
    }
}
