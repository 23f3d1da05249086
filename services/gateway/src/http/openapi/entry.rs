//! The entries of the document.

use utoipa::openapi::schema::Schema;

use super::schema::Described;

/// A route with one method.
pub struct Entry {
    /// How it is asked for.
    pub verb: Verb,
    /// Its path, parameters in braces.
    pub path: String,
    /// Whose routes it belongs to.
    pub group: &'static str,
    /// In a sentence, what it does.
    pub summary: String,
    /// The shapes of its bodies; none: it takes no body.
    pub bodies: Vec<Described>,
    /// The shapes of its answers; none: they are empty or no JSON.
    pub answers: Vec<Schema>,
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
