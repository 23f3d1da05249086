//! Folders that a web server lists as a page of links, as nginx, Apache, Caddy and `python3 -m http.server` write it.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use reqwest::header::{CONTENT_LENGTH, ETAG, LAST_MODIFIED};
use url::Url;

use crate::FetchError;
use crate::http::Http;
use crate::remote::{Body, RemoteFile, is_safe};

/// The target of a link, in one of three kinds of quotes.
#[allow(clippy::expect_used, reason = "the pattern is a constant")]
static LINK: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(?i)<a\s[^>]*?href\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]+))"#).expect("the pattern is valid")
});

/// How deep folders are looked into: a model repository needs three levels.
const DEPTH: usize = 6;

/// The most files of a folder.
const MOST_FILES: usize = 10_000;

/// A folder of a web server.
pub(crate) struct Web {
    http: Http,
    root: Url,
}

// === impl Web ===

impl Web {
    pub(crate) fn new(root: &Url) -> Result<Web, FetchError> {
        Ok(Web { http: Http::new(None, None)?, root: root.clone() })
    }

    /// The files in the folder and those within it.
    pub(crate) async fn list(&self) -> Result<Vec<RemoteFile>, FetchError> {
        let mut folders = vec![(String::new(), 0)];
        let mut names = BTreeSet::new();
        while let Some((folder, depth)) = folders.pop() {
            for name in self.links(&folder).await? {
                match name.strip_suffix('/') {
                    Some(path) if depth < DEPTH && is_safe(path) => folders.push((name, depth + 1)),
                    Some(_) => {}
                    None if is_safe(&name) => drop(names.insert(name)),
                    None => {}
                }
            }
            if names.len() + folders.len() > MOST_FILES {
                let why = format!("there are more than {MOST_FILES} files");
                return Err(FetchError::NoListing { url: self.root.to_string(), why });
            }
        }
        let mut files = Vec::with_capacity(names.len());
        for name in names {
            files.push(self.look(name).await?);
        }
        Ok(files)
    }

    /// The size and the ETag of a file, from the server's answer to HEAD.
    async fn look(&self, name: String) -> Result<RemoteFile, FetchError> {
        let response = self.http.head(&self.file_url(&name), true).await?;
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let size = header(CONTENT_LENGTH).and_then(|length| length.parse().ok());
        let etag = header(ETAG).or_else(|| header(LAST_MODIFIED));
        Ok(RemoteFile { name, size, etag, sha256: None })
    }

    /// The links of a folder's page that lead into it, as paths within the root; those of folders end with a slash.
    async fn links(&self, folder: &str) -> Result<Vec<String>, FetchError> {
        let url = self.file_url(folder);
        let no_listing = |why: String| FetchError::NoListing { url: url.clone(), why };
        let response = self.http.get(&url).await.map_err(|error| match error {
            FetchError::Refused { status, .. } if status < 500 => no_listing(format!("it answered {status}")),
            other => other,
        })?;
        let page = response.text().await;
        let page = page.map_err(|error| FetchError::Unreachable { url: url.clone(), why: error.to_string() })?;
        let base = Url::parse(&url).map_err(|error| no_listing(error.to_string()))?;
        let inner: Vec<String> = links(&page, &base).into_iter().map(|link| format!("{folder}{link}")).collect();
        if inner.is_empty() && folder.is_empty() {
            return Err(no_listing("its page has no links to files".to_owned()));
        }
        Ok(inner)
    }

    pub(crate) async fn read(&self, file: &RemoteFile, from: u64) -> Result<Body, FetchError> {
        self.http.read(&self.file_url(&file.name), from).await
    }

    pub(crate) fn file_url(&self, name: &str) -> String {
        let mut url = self.root.clone();
        if let Ok(mut parts) = url.path_segments_mut() {
            parts.pop_if_empty().extend(name.split('/'));
        }
        url.to_string()
    }
}

/// The links of a page that lead one level into `base`, decoded.
fn links(page: &str, base: &Url) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for captures in LINK.captures_iter(page) {
        let Some(target) = captures.iter().skip(1).flatten().next() else { continue };
        let target = target.as_str().replace("&amp;", "&");
        let Ok(mut link) = base.join(&target) else { continue };
        // Links that sort the page lead back to it.
        if link.query().is_some() {
            continue;
        }
        link.set_fragment(None);
        let Some(inner) = link.as_str().strip_prefix(base.as_str()) else { continue };
        let inner = percent_encoding::percent_decode_str(inner).decode_utf8_lossy().into_owned();
        let is_one_level = !inner.trim_end_matches('/').contains('/') && !inner.trim_end_matches('/').is_empty();
        if is_one_level {
            found.insert(inner);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_into_the_folder_are_its_files() {
        let base = Url::parse("http://h:1/models/m/").unwrap();
        let page = r#"<a href="?C=M;O=A">M</a> <a href="../">up</a><A class=x HREF='config.json'>c</a>
            <a href=onnx/>onnx/</a> <a href="/models/m/a%20b.txt">x</a> <a href="http://other/x">x</a>
            <a href="/models/m/">self</a> <a href="deep/er.txt">two levels</a> <a href="./model.onnx#top">m</a>"#;
        let found: Vec<String> = links(page, &base).into_iter().collect();
        assert_eq!(found, ["a b.txt", "config.json", "model.onnx", "onnx/"]);
    }
}
