//! Faults of JSON: in its text, or in its values.

use std::fmt;

use trireme_inference::{ErrorCode, InferError};

/// The limit of nested arrays in tensor data, which is Triton's: there may be one less than this.
pub const MAX_NESTING: usize = 100;

/// Why JSON could not be read. The messages are Triton's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The text is not JSON.
    #[error("failed to parse the request JSON buffer: {fault} at {offset}")]
    Syntax {
        /// The fault.
        fault: SyntaxFault,
        /// Its offset, in bytes from the start of the text.
        offset: usize,
    },
    /// A value has another type than its reader needs.
    #[error("attempt to access JSON non-{kind} as {wanted}")]
    Type {
        /// The type that the value does not have.
        kind: &'static str,
        /// The type that the reader wanted.
        wanted: &'static str,
    },
    /// A required member is missing, or its parent is not an object.
    #[error("attempt to access non-existing object member '{0}'")]
    MissingMember(&'static str),
    /// The members of a value that is not an object were requested.
    #[error("attempt to get members for non-object")]
    NoMembers,
    /// Arrays within arrays, too deep for tensor data.
    #[error("JSON nesting depth exceeds maximum allowed limit ({MAX_NESTING})")]
    Nesting,
}

/// A fault of JSON text, in rapidjson's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SyntaxFault {
    DocumentEmpty,
    RootNotSingular,
    InvalidValue,
    MissingName,
    MissingColon,
    MissingCommaOrBrace,
    MissingCommaOrBracket,
    UnicodeHex,
    UnicodeSurrogate,
    Escape,
    MissingQuote,
    NumberTooBig,
    MissingFraction,
    MissingExponent,
}

// === impl JsonError ===

impl JsonError {
    /// The code of the answer. Triton counts most faults of a client's JSON as internal errors (500), and its tests and
    /// clients depend on that.
    pub fn code(&self) -> ErrorCode {
        match self {
            JsonError::Syntax { .. } | JsonError::Type { .. } | JsonError::MissingMember(_) | JsonError::NoMembers => {
                ErrorCode::Internal
            }
            JsonError::Nesting => ErrorCode::InvalidArg,
        }
    }

    /// This error as the answer to a request, after a text that names the failed action: `Unable to parse 'shape'`.
    pub fn context(self, context: impl fmt::Display) -> InferError {
        InferError::new(self.code(), format!("{context}: {self}"))
    }
}

impl From<JsonError> for InferError {
    fn from(error: JsonError) -> Self {
        InferError::new(error.code(), error.to_string())
    }
}

// === impl SyntaxFault ===

impl fmt::Display for SyntaxFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SyntaxFault::DocumentEmpty => "The document is empty.",
            SyntaxFault::RootNotSingular => "The document root must not be followed by other values.",
            SyntaxFault::InvalidValue => "Invalid value.",
            SyntaxFault::MissingName => "Missing a name for object member.",
            SyntaxFault::MissingColon => "Missing a colon after a name of object member.",
            SyntaxFault::MissingCommaOrBrace => "Missing a comma or '}' after an object member.",
            SyntaxFault::MissingCommaOrBracket => "Missing a comma or ']' after an array element.",
            SyntaxFault::UnicodeHex => "Incorrect hex digit after \\u escape in string.",
            SyntaxFault::UnicodeSurrogate => "The surrogate pair in string is invalid.",
            SyntaxFault::Escape => "Invalid escape character in string.",
            SyntaxFault::MissingQuote => "Missing a closing quotation mark in string.",
            SyntaxFault::NumberTooBig => "Number too big to be stored in double.",
            SyntaxFault::MissingFraction => "Miss fraction part in number.",
            SyntaxFault::MissingExponent => "Miss exponent in number.",
        })
    }
}
