//! The errors of requests that cannot be read.

use trireme_inference::InferError;

use crate::json::JsonError;

/// Adds the name of the field to an error.
pub(crate) fn unable_to_parse(name: &str) -> impl FnOnce(JsonError) -> InferError {
    move |error| error.context(format_args!("Unable to parse '{name}'"))
}
