//! The files of a place, and how to read one: the same for all kinds of places.

use crate::FetchError;
use crate::hub::Hub;
use crate::remote::{Body, RemoteFile};
use crate::store::Store;
use crate::web::Web;

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
