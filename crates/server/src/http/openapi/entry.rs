//! The entries of the document.

use utoipa::openapi::schema::Schema;

use super::schema::Described;
use crate::access::Category;
use crate::http::Traffic;

/// A route with one method.
pub struct Entry {
    /// How it is asked for.
    pub verb: Verb,
    /// Its path, parameters in braces, as the router has it.
    pub path: String,
    /// The category that access rules know it by; `None` for pages, which say nothing themselves.
    pub category: Option<Category>,
    /// Whether it changes the server.
    pub changes: bool,
    /// The traffic that requests to it belong to.
    pub traffic: Traffic,
    /// The group of routes that it belongs to, such as a dialect.
    pub group: &'static str,
    /// Its purpose, in a few words.
    pub summary: String,
    /// The shapes of its bodies; none: it takes no body.
    pub bodies: Vec<Described>,
    /// The effects of the fields of its bodies, where a table lists them.
    pub fields: Option<serde_json::Value>,
    /// The shapes of its answers; none: they are empty or no JSON.
    pub answers: Vec<Schema>,
    /// Whether its answers may be bytes, too.
    pub gives_bytes: bool,
    /// How it refuses.
    pub errors: Vec<Schema>,
}

/// How a route is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "HTTP's own words")]
pub enum Verb {
    Get,
    Post,
    Delete,
}

// === impl Verb ===

impl Verb {
    /// HTTP's word.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Delete => "DELETE",
        }
    }
}
