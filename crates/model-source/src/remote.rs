//! A file that lies elsewhere, and its content: the same for all kinds of places.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;

/// A file that lies elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    /// Its path within the folder.
    pub(crate) name: String,
    pub(crate) size: Option<u64>,
    /// Changes when the content does.
    pub(crate) etag: Option<String>,
    /// In hexadecimal digits.
    pub(crate) sha256: Option<String>,
}

/// The content of a file, from a byte on.
pub(crate) struct Body {
    pub(crate) from: u64,
    /// Pieces, or why there are no more.
    pub(crate) bytes: Pin<Box<dyn Stream<Item = Result<Bytes, String>> + Send>>,
}

/// Whether the path of a remote file stays within the folder that it is written to.
pub(crate) fn is_safe(name: &str) -> bool {
    !name.is_empty() && !name.contains(['\\', '\0']) && !name.split('/').any(|part| matches!(part, "" | "." | ".."))
}
