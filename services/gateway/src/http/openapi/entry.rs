//! The entries of the document, and the lines from which those of v2, control and durable work are made.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

use super::schema::{Described, object};
use crate::http::dialects::Verb;

/// A route with one method.
pub struct Entry {
    /// How it is asked for.
    pub verb: Verb,
    /// Its path, parameters in braces.
    pub path: String,
    /// The group of routes that it belongs to, such as a dialect.
    pub group: &'static str,
    /// Its purpose, in a few words.
    pub summary: String,
    /// The shapes of its bodies; none: it takes no body.
    pub bodies: Vec<Described>,
    /// The shapes of its answers; none: they are empty or no JSON.
    pub answers: Vec<Schema>,
    /// How it refuses.
    pub errors: Vec<Schema>,
}

/// A route without its path's variants.
pub struct Line {
    verb: Verb,
    pub path: &'static str,
    summary: &'static str,
    body: Option<fn() -> Schema>,
    answer: Option<fn() -> Schema>,
}

pub const fn get(path: &'static str, summary: &'static str) -> Line {
    Line { verb: Verb::Get, path, summary, body: None, answer: None }
}

pub const fn post(path: &'static str, summary: &'static str) -> Line {
    Line { verb: Verb::Post, path, summary, body: None, answer: None }
}

pub const fn delete(path: &'static str, summary: &'static str) -> Line {
    Line { verb: Verb::Delete, path, summary, body: None, answer: None }
}

impl Line {
    pub const fn takes(self, body: fn() -> Schema) -> Line {
        Line { body: Some(body), ..self }
    }

    pub const fn gives(self, answer: fn() -> Schema) -> Line {
        Line { answer: Some(answer), ..self }
    }

    pub fn entry(&self, group: &'static str, path: String) -> Entry {
        Entry {
            verb: self.verb,
            path,
            group,
            summary: self.summary.to_owned(),
            bodies: self
                .body
                .map(|body| Described { schema: RefOr::T(body()), parts: Vec::new() })
                .into_iter()
                .collect(),
            answers: self.answer.map(|answer| answer()).into_iter().collect(),
            // Some refusals are plain text, as Triton has them.
            errors: Vec::new(),
        }
    }
}

/// An object of any members.
pub fn plain() -> Schema {
    object([])
}
