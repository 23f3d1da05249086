//! Reads the word that names a model: the kind of place, and the folder there.

use url::Url;

use crate::FetchError;

/// A place that models come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A repository of the Hugging Face hub.
    Hub { repository: String, revision: Option<String> },
    /// A folder in an object store: S3, Google Cloud Storage, Azure.
    Store(Url),
    /// A folder that a web server lists. The URL ends with a slash.
    Web(Url),
}

/// Whether a word names a place that is not on this machine.
pub fn is_remote(word: &str) -> bool {
    word.contains("://")
}

// === impl Address ===

impl Address {
    /// Reads a word. `hub` is the hub's own URL: pages of models there are models of the hub.
    pub(crate) fn parse(word: &str, hub: &str) -> Result<Address, FetchError> {
        let bad = |why: &str| FetchError::Address { word: word.to_owned(), why: why.to_owned() };
        let (scheme, rest) = word
            .split_once("://")
            .ok_or_else(|| bad("it has no scheme, expected hf://, s3://, gs://, az:// or https://"))?;
        if let Some(page) = word.strip_prefix(hub).and_then(|page| page.strip_prefix('/')) {
            let (repository, revision) = match page.trim_end_matches('/').split_once("/tree/") {
                Some((repository, revision)) => (repository, Some(revision.to_owned())),
                None => (page.trim_end_matches('/'), None),
            };
            if is_repository(repository) {
                return Ok(Address::Hub { repository: repository.to_owned(), revision });
            }
        }
        match scheme {
            "hf" => {
                let (repository, revision) = match rest.split_once('@') {
                    Some((repository, revision)) => (repository, Some(revision.to_owned())),
                    None => (rest.trim_end_matches('/'), None),
                };
                if !is_repository(repository) || revision.as_ref().is_some_and(String::is_empty) {
                    return Err(bad("expected hf://org/name or hf://org/name@revision"));
                }
                Ok(Address::Hub { repository: repository.to_owned(), revision })
            }
            "s3" | "gs" | "az" => {
                let url = Url::parse(word).map_err(|error| bad(&error.to_string()))?;
                if url.host_str().is_none_or(str::is_empty) {
                    return Err(bad(&format!("expected {scheme}://bucket/folder")));
                }
                Ok(Address::Store(url))
            }
            "http" | "https" => {
                let mut url = Url::parse(word).map_err(|error| bad(&error.to_string()))?;
                if !url.path().ends_with('/') {
                    let path = format!("{}/", url.path());
                    url.set_path(&path);
                }
                Ok(Address::Web(url))
            }
            _ => Err(bad("expected hf://, s3://, gs://, az:// or https://")),
        }
    }

    /// The name of the folder, which a model folder is served under.
    pub(crate) fn name(&self) -> String {
        let last = match self {
            Address::Hub { repository, .. } => repository.rsplit('/').next(),
            Address::Store(url) | Address::Web(url) => {
                url.path_segments().and_then(|mut parts| parts.rfind(|part| !part.is_empty())).or(url.host_str())
            }
        };
        let last = last.unwrap_or("model");
        percent_encoding::percent_decode_str(last).decode_utf8_lossy().replace(['/', '\0'], "_")
    }
}

/// `name` or `org/name`, of characters that names on the hub have.
fn is_repository(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    (1..=2).contains(&name.split('/').count()) && name.split('/').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(word: &str) -> Result<Address, String> {
        Address::parse(word, "https://huggingface.co").map_err(|error| error.to_string())
    }

    #[test]
    fn words_are_told_apart() {
        let hub = |repository: &str, revision: Option<&str>| {
            Ok(Address::Hub { repository: repository.to_owned(), revision: revision.map(str::to_owned) })
        };
        assert_eq!(parse("hf://BAAI/bge-m3"), hub("BAAI/bge-m3", None));
        assert_eq!(parse("hf://gpt2"), hub("gpt2", None));
        assert_eq!(parse("hf://a/b@refs/pr/1"), hub("a/b", Some("refs/pr/1")));
        assert_eq!(parse("https://huggingface.co/a/b"), hub("a/b", None));
        assert_eq!(parse("https://huggingface.co/a/b/tree/v1"), hub("a/b", Some("v1")));
        let name = |word: &str| parse(word).unwrap().name();
        assert_eq!(name("s3://bucket/models/mini%20lm/"), "mini lm");
        assert_eq!(name("gs://bucket"), "bucket");
        assert_eq!(name("https://example.org/models/x"), "x");
        assert_eq!(name("hf://BAAI/bge-m3@main"), "bge-m3");
        assert!(matches!(parse("http://h/a"), Ok(Address::Web(url)) if url.as_str() == "http://h/a/"));
        for (word, expected) in [
            ("hf://a/b/c", "hf://org/name@revision"),
            ("hf://a/b@", "hf://org/name@revision"),
            ("hf://../b", "hf://org/name@revision"),
            ("ftp://a/b", "expected hf://, s3://, gs://, az:// or https://"),
            ("s3:///folder", "s3://bucket/folder"),
        ] {
            let error = parse(word).unwrap_err();
            assert!(error.contains(word) && error.contains(expected), "{error}");
        }
    }
}
