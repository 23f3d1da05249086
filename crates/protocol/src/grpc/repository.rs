//! The model repository extension's messages.

use trireme_inference::InferError;

use super::wire::RepositoryIndexResponse;
use super::wire::repository_index_response::ModelIndex;
use crate::repository::{IndexEntry, IndexVersion};

/// Refuses a request that names a repository: none has a name.
pub fn check_repository_name(name: &str) -> Result<(), InferError> {
    match name {
        "" => Ok(()),
        _ => Err(InferError::unsupported("'repository_name' specification is not supported")),
    }
}

/// What `RepositoryIndex` answers. A model that was never loaded has only its name.
pub fn encode_index(entries: Vec<IndexEntry>) -> RepositoryIndexResponse {
    let models = entries.into_iter().map(|IndexEntry { name, version }| match version {
        None => ModelIndex { name, ..ModelIndex::default() },
        Some(IndexVersion { version, ready, reason }) => {
            let state = if ready { "READY" } else { "UNAVAILABLE" };
            ModelIndex { name, version: version.to_string(), state: state.to_owned(), reason }
        }
    });
    RepositoryIndexResponse { models: models.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_a_line() {
        let version = |version, ready, reason: &str| Some(IndexVersion { version, ready, reason: reason.to_owned() });
        let entries = [
            ("a", version(1, true, ""), ["a", "1", "READY", ""]),
            ("a", version(2, false, "gone"), ["a", "2", "UNAVAILABLE", "gone"]),
            ("b", None, ["b", "", "", ""]),
        ];
        for (name, version, expected) in entries {
            let found = encode_index(vec![IndexEntry { name: name.to_owned(), version }]).models.remove(0);
            assert_eq!([&found.name, &found.version, &found.state, &found.reason], expected);
        }
    }

    #[test]
    fn repositories_have_no_names() {
        assert_eq!(check_repository_name(""), Ok(()));
        let error = check_repository_name("r").unwrap_err();
        assert_eq!(error, InferError::unsupported("'repository_name' specification is not supported"));
    }
}
