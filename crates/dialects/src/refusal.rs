//! Why a request gets no result, in words that every dialect has a status and a shape for.

use std::time::Duration;

use trireme_inference::{Cause, ErrorCode, InferError};
use trireme_server::access::Denied;
use trireme_server::http::json::Fault;

/// How the tokenizer says to have a long text cut, for clients of v2.
pub const UNCUT: &str = "leave out parameter 'truncate'";

/// The kind of a refusal. Each dialect's table has a status for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The body is no JSON.
    Malformed,
    /// A field is unknown, missing, or of a wrong type or value.
    Field,
    /// There is nothing to do: no texts.
    Empty,
    /// A text is longer than the model's longest row, and the request does not have it cut.
    TooLong,
    /// The request asks for what cannot be done with these texts or this model.
    Invalid,
    /// It carries no valid key.
    Key,
    /// It does not carry a header that is needed.
    Forbidden,
    /// There is no such model.
    NoModel,
    /// There is no such path.
    NoRoute,
    /// There is, but not with this method.
    NoMethod,
    /// The body is too large.
    TooLarge,
    /// It asks for something that is not offered.
    Unsupported,
    /// The answer would not be of a space that it asks for.
    OtherSpace,
    /// A queue is full.
    Overloaded,
    /// The owner of its key has asked for as much as is allowed, for now.
    OwnerLimit,
    /// The model cannot be reached now, or the request's time is over.
    Unavailable,
    /// A fault of ours.
    Internal,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Of which kind.
    pub kind: Kind,
    /// The message for the client: the found and the expected value.
    pub message: String,
    /// The field of the body that it is about.
    pub field: Option<String>,
    /// After how long the same request may succeed, if that is known.
    pub retry_after: Option<Duration>,
}

// === impl Kind ===

impl Kind {
    /// The status that most APIs have for it. A dialect's table says where its own differs.
    pub fn status(self) -> u16 {
        match self {
            Kind::Malformed | Kind::Field | Kind::Empty | Kind::Invalid | Kind::TooLong | Kind::Unsupported => 400,
            Kind::Key => 401,
            Kind::Forbidden => 403,
            Kind::NoModel | Kind::NoRoute => 404,
            Kind::NoMethod => 405,
            Kind::OtherSpace => 412,
            Kind::TooLarge => 413,
            Kind::Overloaded | Kind::OwnerLimit => 429,
            Kind::Internal => 500,
            Kind::Unavailable => 503,
        }
    }

    /// Every kind.
    #[cfg(test)]
    pub const ALL: [Kind; 17] = [
        Kind::Malformed,
        Kind::Field,
        Kind::Empty,
        Kind::TooLong,
        Kind::Invalid,
        Kind::Key,
        Kind::Forbidden,
        Kind::NoModel,
        Kind::NoRoute,
        Kind::NoMethod,
        Kind::TooLarge,
        Kind::Unsupported,
        Kind::OtherSpace,
        Kind::Overloaded,
        Kind::OwnerLimit,
        Kind::Unavailable,
        Kind::Internal,
    ];
}

// === impl Refusal ===

impl Refusal {
    /// A refusal that is about no field in particular.
    pub fn new(kind: Kind, message: impl Into<String>) -> Refusal {
        Refusal { kind, message: message.into(), field: None, retry_after: None }
    }

    /// A field of a wrong type or value.
    pub fn field(field: &str, expected: impl std::fmt::Display) -> Refusal {
        let message = format!("'{field}' {expected}");
        Refusal { field: Some(field.to_owned()), ..Refusal::new(Kind::Field, message) }
    }

    /// A field that asks for a function that is not offered.
    pub fn unsupported(field: &str, why: impl std::fmt::Display) -> Refusal {
        Refusal { kind: Kind::Unsupported, ..Refusal::field(field, why) }
    }

    /// No texts in a field.
    pub fn empty(field: &str) -> Refusal {
        Refusal { kind: Kind::Empty, ..Refusal::field(field, "is empty, expected at least one text") }
    }
}

impl From<InferError> for Refusal {
    fn from(error: InferError) -> Refusal {
        let kind = match error.code {
            _ if error.cause == Some(Cause::OtherSpace) => Kind::OtherSpace,
            ErrorCode::NotFound => Kind::NoModel,
            ErrorCode::InvalidArg if error.cause == Some(Cause::TooLarge) => Kind::TooLarge,
            ErrorCode::InvalidArg if error.message.contains(UNCUT) => Kind::TooLong,
            ErrorCode::InvalidArg | ErrorCode::AlreadyExists => Kind::Invalid,
            ErrorCode::Unsupported => Kind::Unsupported,
            ErrorCode::Unavailable if error.cause == Some(Cause::QueueFull) => Kind::Overloaded,
            ErrorCode::Unavailable if error.cause == Some(Cause::OwnerLimit) => Kind::OwnerLimit,
            ErrorCode::Unavailable | ErrorCode::Cancelled => Kind::Unavailable,
            ErrorCode::Internal | ErrorCode::Unknown => Kind::Internal,
        };
        // The id before a message is v2's; in a dialect it is in a header.
        let message = match error.message.strip_prefix("[request id: ").and_then(|rest| rest.split_once("] ")) {
            Some((_, message)) => message,
            None => &error.message,
        };
        Refusal { field: field_of(message), retry_after: error.retry_after, ..Refusal::new(kind, message) }
    }
}

/// The field that a message is about: it begins with it, or calls it a parameter.
fn field_of(message: &str) -> Option<String> {
    let from = match message.split_once("parameter '") {
        Some((_, from)) => from,
        None => message.strip_prefix('\'')?,
    };
    let (field, rest) = from.split_once('\'')?;
    let is_field = rest.starts_with(" is ") && field.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    is_field.then(|| field.to_owned())
}

/// The fault of a body that was read as JSON of a certain shape.
impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        let kind = if fault.is_syntax { Kind::Malformed } else { Kind::Field };
        Refusal { field: fault.field, ..Refusal::new(kind, fault.message) }
    }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Refusal {
        let kind = if denied == Denied::Key { Kind::Key } else { Kind::Forbidden };
        Refusal::new(kind, denied.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_pipeline_are_of_a_kind() {
        let kind = |error: InferError| Refusal::from(error).kind;
        assert_eq!(kind(InferError::not_found("x")), Kind::NoModel);
        assert_eq!(kind(InferError::unavailable("full").because(Cause::QueueFull)), Kind::Overloaded);
        assert_eq!(kind(InferError::unavailable("enough").because(Cause::OwnerLimit)), Kind::OwnerLimit);
        assert_eq!(kind(InferError::unavailable("Request timeout expired")), Kind::Unavailable);
        assert_eq!(kind(InferError::invalid_arg("x").because(Cause::OtherSpace)), Kind::OtherSpace);
        let dimensions = Refusal::from(InferError::invalid_arg("'dimensions' is 0, expected at least 1"));
        assert_eq!(dimensions.field.as_deref(), Some("dimensions"));
        let deeper = Refusal::from(InferError::invalid_arg("in ensemble 'm', parameter 'dimensions' is 9, expected 8"));
        assert_eq!(deeper.field.as_deref(), Some("dimensions"));
        assert_eq!(kind(InferError::invalid_arg(format!("text 0 has 9 tokens: {UNCUT}"))), Kind::TooLong);
        let refusal = Refusal::from(InferError::invalid_arg("[request id: <id_unknown>] too long"));
        assert_eq!((refusal.kind, refusal.message.as_str()), (Kind::Invalid, "too long"));
        assert_eq!(Refusal::from(InferError::invalid_arg("[request id: a-1] too long")).message, "too long");
    }
}
