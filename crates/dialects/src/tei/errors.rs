//! The table of errors.

use super::super::refusal::{Kind, Refusal};

/// The status and the type of a refusal.
pub fn of(refusal: &Refusal) -> (u16, &'static str) {
    match refusal.kind {
        Kind::Empty => (400, "Empty"),
        Kind::Key => (401, "Unauthorized"),
        Kind::Forbidden => (403, "Forbidden"),
        Kind::NoModel | Kind::NoRoute => (404, "NotFound"),
        Kind::Malformed => (400, "Validation"),
        Kind::NoMethod => (405, "NotFound"),
        Kind::TooLarge | Kind::TooLong => (413, "Validation"),
        // The model does not do it.
        Kind::Unsupported if refusal.field.is_none() => (424, "Backend"),
        Kind::Field | Kind::Invalid | Kind::Unsupported => (422, "Validation"),
        Kind::Internal => (424, "Backend"),
        Kind::Overloaded | Kind::OwnerLimit => (429, "Overloaded"),
        Kind::Unavailable => (503, "Unhealthy"),
    }
}
