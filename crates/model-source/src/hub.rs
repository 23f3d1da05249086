//! The Hugging Face hub: which files a revision has, and their content. This is not the crate hf-hub, which downloads by itself: here
//! the hub, object stores and web servers share one download (`transfer`), which goes on where it ended and checks digests.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{CONTENT_LENGTH, ETAG, HeaderMap};
use serde::Deserialize;

use crate::FetchError;
use crate::http::Http;
use crate::remote::{Body, RemoteFile, is_safe};
use crate::settings::Settings;

/// The characters that need no percent-encoding in a part of a path.
const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The revision of words that name none.
pub(crate) const MAIN: &str = "main";

/// A revision of a repository.
pub(crate) struct Hub {
    http: Http,
    endpoint: String,
    repository: String,
    /// The commit; until the hub names it, the revision that was asked for.
    revision: String,
}

/// The hub's description of a revision.
#[derive(Deserialize)]
struct Revision {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    blob_id: Option<String>,
    size: Option<u64>,
    lfs: Option<Large>,
}

/// A file that git holds a pointer of.
#[derive(Deserialize)]
struct Large {
    sha256: Option<String>,
    size: Option<u64>,
}

// === impl Hub ===

impl Hub {
    pub(crate) fn new(settings: &Settings, repository: &str, revision: &str) -> Result<Hub, FetchError> {
        let advice = match &settings.hub_token {
            None => format!(
                "if '{repository}' is private or gated, set HF_TOKEN to a token that may read it; otherwise check its name and revision"
            ),
            Some(_) => format!(
                "the token in HF_TOKEN has no access to '{repository}' at revision '{revision}', or there is none of that name: \
                 accept the model's terms on its page, or set another token"
            ),
        };
        Ok(Hub {
            http: Http::new(settings.hub_token.clone(), Some(advice))?,
            endpoint: settings.hub_endpoint.clone(),
            repository: repository.to_owned(),
            revision: revision.to_owned(),
        })
    }

    /// The commit that the revision is, and its files. From here on files are read of that commit.
    pub(crate) async fn list(&mut self) -> Result<(String, Vec<RemoteFile>), FetchError> {
        let revision = utf8_percent_encode(&self.revision, PART);
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, self.repository);
        let body = self.http.get(&url).await?.bytes().await;
        let body = body.map_err(|error| FetchError::Unreachable { url: url.clone(), why: error.to_string() })?;
        let found: Revision = serde_json::from_slice(&body).map_err(|error| FetchError::Answer {
            url: url.clone(),
            expected: "JSON with 'sha' and 'siblings'",
            found: error.to_string(),
        })?;
        if found.sha.is_empty() || !found.sha.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Err(FetchError::Answer { url, expected: "a commit in 'sha'", found: format!("'{}'", found.sha) });
        }
        self.revision = found.sha;
        let file = |sibling: Sibling| {
            let (sha256, size) = match sibling.lfs {
                Some(large) => (large.sha256, large.size.or(sibling.size)),
                None => (None, sibling.size),
            };
            RemoteFile { name: sibling.rfilename, size, etag: sha256.clone().or(sibling.blob_id), sha256 }
        };
        let files = found.siblings.into_iter().map(file).filter(|file| is_safe(&file.name)).collect();
        Ok((self.revision.clone(), files))
    }

    /// Fills in a file's size and digest where the list lacks them, as the lists of the hub's mirrors do.
    pub(crate) async fn complete(&self, file: &RemoteFile) -> Result<RemoteFile, FetchError> {
        let mut file = file.clone();
        if file.etag.as_deref().is_some_and(is_blob_name) && file.size.is_some() {
            return Ok(file);
        }
        let url = self.file_url(&file.name);
        let response = self.http.head(&url, false).await?;
        let header = |name: &str| text(response.headers(), name);
        let etag = header("x-linked-etag").or_else(|| header(ETAG.as_str()));
        let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_owned());
        let Some(etag) = etag.filter(|etag| is_blob_name(etag)) else {
            return Err(FetchError::Answer { url, expected: "an ETag or X-Linked-Etag", found: "none".to_owned() });
        };
        let length = header("x-linked-size");
        let length = length.or_else(|| header(CONTENT_LENGTH.as_str()).filter(|_| response.status().is_success()));
        file.size = file.size.or_else(|| length.and_then(|length| length.parse().ok()));
        let is_sha256 = etag.len() == 64 && etag.chars().all(|c| c.is_ascii_hexdigit());
        file.sha256 = file.sha256.or_else(|| is_sha256.then(|| etag.clone()));
        file.etag = Some(etag);
        Ok(file)
    }

    pub(crate) async fn read(&self, file: &RemoteFile, from: u64) -> Result<Body, FetchError> {
        self.http.read(&self.file_url(&file.name), from).await
    }

    pub(crate) fn file_url(&self, name: &str) -> String {
        let path: Vec<String> = name.split('/').map(|part| utf8_percent_encode(part, PART).to_string()).collect();
        let revision = utf8_percent_encode(&self.revision, PART);
        format!("{}/{}/resolve/{revision}/{}", self.endpoint, self.repository, path.join("/"))
    }
}

/// Whether a file of the cache can be called this.
fn is_blob_name(etag: &str) -> bool {
    !etag.is_empty() && etag.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}
