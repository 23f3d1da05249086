//! Why a model cannot be fetched.

use std::path::PathBuf;

use trireme_inference::ErrorCode;
use trireme_model_repository::NeededError;

/// Why a model cannot be fetched. A message names the URL, the fault there, and its remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages show")]
pub enum FetchError {
    /// A word that names no place.
    #[error("'{word}' names no model: {why}")]
    Address { word: String, why: String },
    /// A word that names no file.
    #[error("'{word}' names no file: {why}")]
    File { word: String, why: String },
    /// The server says no.
    #[error("{url}: the server answered {status}{}", hint(.advice))]
    Refused { url: String, status: u16, advice: Option<String> },
    /// The server does not answer, or the connection ends early, again and again.
    #[error("{url}: {why}")]
    Unreachable { url: String, why: String },
    /// The hub does not answer, or does not from here, and the cache lacks the model. `fault` names the URL that was asked.
    #[error(
        "{word} cannot be downloaded: {fault}; the cache {} has not all of its files: on a machine that reaches the hub run \
         `{download} --local-dir FOLDER` and serve that folder, or copy the cache of that machine and name it by HF_HUB_CACHE; HF_ENDPOINT \
         names a mirror of the hub, HTTPS_PROXY a proxy",
        cache.display()
    )]
    HubAway { word: String, fault: Box<FetchError>, cache: PathBuf, download: String },
    /// A web server does not answer, or does not from here, and the cache lacks the model. `fault` names the URL that was asked.
    #[error(
        "{word} cannot be downloaded: {fault}; check the URL, or copy the folder to this machine and serve its path; HTTPS_PROXY names a proxy"
    )]
    WebAway { word: String, fault: Box<FetchError> },
    /// An object store says no.
    #[error("{url}: {why}{}", hint(.advice))]
    Store { url: String, why: String, advice: Option<String>, transient: bool },
    /// Nothing lies there.
    #[error("{url}: there are no files; check the name")]
    Empty { url: String },
    /// A server that does not say which files it has.
    #[error(
        "{url}: the server does not list the files of this folder ({why}); let it list them, or use hf://, s3://, gs:// or az://"
    )]
    NoListing { url: String, why: String },
    /// A file has another size than the server said.
    #[error("{url}: expected {expected} bytes, the server sent {found}")]
    Size { url: String, expected: u64, found: u64 },
    /// A file has another content than the server said.
    #[error("{url}: expected sha256 {expected}, found {found} in what the server sent")]
    Digest { url: String, expected: String, found: String },
    /// An answer that is not the hub's.
    #[error("{url}: expected {expected}, found {found}")]
    Answer { url: String, expected: &'static str, found: String },
    /// Offline, and the cache does not have it.
    #[error(
        "{word} is not in the cache {}, and HF_HUB_OFFLINE forbids to download it: name a cache that has it by HF_HUB_CACHE, serve the path of \
         its folder, or unset HF_HUB_OFFLINE",
        cache.display()
    )]
    Offline { word: String, cache: PathBuf },
    /// The model lacks a file that serving it needs, such as an ONNX file.
    #[error("{word}: {source}")]
    Needed { word: String, source: NeededError },
    /// The cache cannot be written.
    #[error("{}: {source}; the cache of models is set by HF_HUB_CACHE (for hf://) and TRIREME_DOWNLOAD_CACHE (for others)", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

fn hint(advice: &Option<String>) -> String {
    advice.as_ref().map(|advice| format!("; {advice}")).unwrap_or_default()
}

// === impl FetchError ===

impl FetchError {
    /// The code of the error.
    pub fn code(&self) -> ErrorCode {
        match self {
            FetchError::Address { .. }
            | FetchError::File { .. }
            | FetchError::NoListing { .. }
            | FetchError::Needed { .. } => ErrorCode::InvalidArg,
            FetchError::Empty { .. } | FetchError::Offline { .. } => ErrorCode::NotFound,
            FetchError::Refused { status: 404, .. } => ErrorCode::NotFound,
            FetchError::Refused { .. }
            | FetchError::Unreachable { .. }
            | FetchError::HubAway { .. }
            | FetchError::WebAway { .. }
            | FetchError::Store { .. }
            | FetchError::Size { .. }
            | FetchError::Digest { .. }
            | FetchError::Answer { .. } => ErrorCode::Unavailable,
            FetchError::Io { .. } => ErrorCode::Internal,
        }
    }

    /// Whether trying again may help.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            FetchError::Unreachable { .. } => true,
            FetchError::Store { transient, .. } => *transient,
            FetchError::Refused { status, .. } => matches!(status, 408 | 429 | 500..),
            _ => false,
        }
    }

    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> FetchError {
        let path = path.into();
        move |source| FetchError::Io { path, source }
    }
}
