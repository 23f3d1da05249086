//! The table of errors.

use super::super::refusal::{Kind, Refusal};

/// The status and the type of a refusal.
pub fn of(refusal: &Refusal) -> (u16, &'static str) {
    let status = match refusal.kind {
        Kind::TooLong => 413,
        // The model does not do it.
        Kind::Unsupported if refusal.field.is_none() => 424,
        Kind::Field | Kind::Invalid | Kind::Unsupported => 422,
        Kind::Internal => 424,
        kind => kind.status(),
    };
    let kind = match status {
        400 if refusal.kind == Kind::Empty => "Empty",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 | 405 => "NotFound",
        424 => "Backend",
        429 => "Overloaded",
        503 => "Unhealthy",
        _ => "Validation",
    };
    (status, kind)
}
