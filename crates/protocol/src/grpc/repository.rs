//! The model repository extension's messages.

use std::collections::BTreeMap;

use trireme_inference::InferError;

use super::wire::model_repository_parameter::ParameterChoice;
use super::wire::repository_index_response::ModelIndex;
use super::wire::{ModelRepositoryParameter, RepositoryIndexResponse};
use crate::repository::{IndexEntry, IndexVersion, LoadRequest, file_path};

/// Refuses a request with a repository name: repositories have no names.
pub fn check_repository_name(name: &str) -> Result<(), InferError> {
    match name {
        "" => Ok(()),
        _ => Err(InferError::unsupported("'repository_name' specification is not supported")),
    }
}

/// Decodes the parameters of a load request.
pub fn decode_load_request(parameters: BTreeMap<String, ModelRepositoryParameter>) -> Result<LoadRequest, InferError> {
    let mut load = LoadRequest::default();
    let wrong = |name: &str, expected: &str| {
        InferError::invalid_arg(format!("invalid value type for load parameter '{name}', expected {expected}."))
    };
    for (name, value) in parameters {
        match (file_path(&name), value.parameter_choice) {
            (None, choice) if name == "config" => match choice {
                Some(ParameterChoice::StringParam(config)) => load.config = Some(config),
                _ => return Err(wrong(&name, "string_param")),
            },
            (Some(path), Some(ParameterChoice::BytesParam(content))) => {
                load.files.insert(path.to_owned(), content);
            }
            (Some(_), _) => return Err(wrong(&name, "bytes_param")),
            (None, _) => {
                return Err(InferError::invalid_arg(format!("unrecognized load parameter '{name}'.")));
            }
        }
    }
    Ok(load)
}

/// Whether the parameters of an unload request ask to unload an ensemble's models too.
pub fn decode_unload_request(parameters: &BTreeMap<String, ModelRepositoryParameter>) -> Result<bool, InferError> {
    const NAME: &str = "unload_dependents";
    match parameters.get(NAME).map(|value| &value.parameter_choice) {
        None => Ok(false),
        Some(Some(ParameterChoice::BoolParam(dependents))) => Ok(*dependents),
        Some(_) => {
            Err(InferError::invalid_arg(format!("invalid value type for '{NAME}' parameter, expected bool_param.")))
        }
    }
}

/// The answer to `RepositoryIndex`. A model that was never loaded has only its name.
pub fn encode_index(entries: Vec<IndexEntry>) -> RepositoryIndexResponse {
    let models = entries.into_iter().map(|IndexEntry { name, version }| match version {
        None => ModelIndex { name, ..ModelIndex::default() },
        Some(IndexVersion { version, state, reason }) => {
            ModelIndex { name, version: version.to_string(), state: state.name().to_owned(), reason }
        }
    });
    RepositoryIndexResponse { models: models.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::IndexState;

    #[test]
    fn each_version_has_a_line() {
        let version = |version, state, reason: &str| Some(IndexVersion { version, state, reason: reason.to_owned() });
        let entries = [
            ("a", version(1, IndexState::Ready, ""), ["a", "1", "READY", ""]),
            ("a", version(2, IndexState::Unavailable, "gone"), ["a", "2", "UNAVAILABLE", "gone"]),
            ("b", None, ["b", "", "", ""]),
        ];
        for (name, version, expected) in entries {
            let found = encode_index(vec![IndexEntry { name: name.to_owned(), version }]).models.remove(0);
            assert_eq!([&found.name, &found.version, &found.state, &found.reason], expected);
        }
    }

    #[test]
    fn parameters_have_types() {
        let one = |name: &str, choice| {
            BTreeMap::from([(name.to_owned(), ModelRepositoryParameter { parameter_choice: Some(choice) })])
        };
        let load = decode_load_request(one("config", ParameterChoice::StringParam("{}".to_owned()))).unwrap();
        assert_eq!(load.config.as_deref(), Some("{}"));
        let load = decode_load_request(one("file:1/a", ParameterChoice::BytesParam(vec![1].into()))).unwrap();
        assert_eq!(&load.files["1/a"][..], [1]);
        for (name, expected) in [("config", "string_param"), ("file:1/a", "bytes_param")] {
            let error = decode_load_request(one(name, ParameterChoice::BoolParam(true))).unwrap_err();
            assert_eq!(error.message, format!("invalid value type for load parameter '{name}', expected {expected}."));
        }
        assert!(decode_load_request(one("other", ParameterChoice::BoolParam(true))).is_err());
        assert_eq!(decode_unload_request(&one("unload_dependents", ParameterChoice::BoolParam(true))), Ok(true));
        assert!(decode_unload_request(&one("unload_dependents", ParameterChoice::Int64Param(1))).is_err());
    }

    #[test]
    fn repositories_have_no_names() {
        assert_eq!(check_repository_name(""), Ok(()));
        let error = check_repository_name("r").unwrap_err();
        assert_eq!(error, InferError::unsupported("'repository_name' specification is not supported"));
    }
}
