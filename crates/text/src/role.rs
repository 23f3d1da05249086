//! The side of a text: query or document.

/// The side of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Query,
    Document,
    /// The request does not say it.
    Unknown,
}

// === impl Role ===

impl Role {
    /// The side that the name of a prompt says.
    pub(crate) fn of(prompt_name: Option<&str>) -> Role {
        match prompt_name {
            Some("query") => Role::Query,
            Some("document" | "passage" | "corpus") => Role::Document,
            _ => Role::Unknown,
        }
    }
}
