//! The files of a place, and how to read one: the same for all kinds of places.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;

use crate::FetchError;
use crate::hub::Hub;
use crate::store::Store;
use crate::web::Web;

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

/// A place that files are read from.
pub(crate) enum Source {
    Hub(Hub),
    Store(Store),
    Web(Web),
}

// === impl Source ===

impl Source {
    /// The content of a file from byte `from`, or from its beginning.
    pub(crate) async fn read(&self, file: &RemoteFile, from: u64) -> Result<Body, FetchError> {
        match self {
            Source::Hub(hub) => hub.read(file, from).await,
            Source::Store(store) => store.read(file, from).await,
            Source::Web(web) => web.read(file, from).await,
        }
    }

    /// Where a file is, for messages.
    pub(crate) fn url(&self, file: &RemoteFile) -> String {
        match self {
            Source::Hub(hub) => hub.file_url(&file.name),
            Source::Store(store) => store.file_url(&file.name),
            Source::Web(web) => web.file_url(&file.name),
        }
    }
}

/// Whether the path of a remote file stays within the folder that it is written to.
pub(crate) fn is_safe(name: &str) -> bool {
    !name.is_empty() && !name.contains(['\\', '\0']) && !name.split('/').any(|part| matches!(part, "" | "." | ".."))
}
