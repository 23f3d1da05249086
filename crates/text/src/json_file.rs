//! JSON files beside a model.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::TextError;

/// The byte order mark of UTF-8, which editors of Windows write before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A JSON file in `directory`; `None` if it does not exist. It may begin with a byte order mark.
pub(crate) fn read_json<T: DeserializeOwned>(directory: &Path, name: &str) -> Result<Option<T>, TextError> {
    let path = directory.join(name);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(TextError::File { path, source }),
    };
    match serde_json::from_slice(text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text)) {
        Ok(value) => Ok(Some(value)),
        Err(error) => Err(TextError::Malformed { path, reason: error.to_string() }),
    }
}
