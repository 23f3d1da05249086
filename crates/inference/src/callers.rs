//! The models that wait for a request, where the code of a model has sent it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{InferError, ModelKey, read_list};

/// Most models of which each may wait for the next one.
pub const MAX_CALLERS: u32 = 8;

/// The models whose instances wait for the answer to a request; for a client's request the list is empty. A model that executes
/// several requests at a time waits on behalf of all of these requests, so the callers of all of them are here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callers {
    /// The models, each once. The first ones are the longest chain, from the model that a client has requested on.
    #[serde(deserialize_with = "read_models")]
    models: Vec<ModelKey>,
    /// The length of the longest chain.
    depth: u32,
}

fn read_models<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ModelKey>, D::Error> {
    read_list(deserializer, "callers")
}

// === impl Callers ===

impl Callers {
    /// Whether a client has sent the request.
    pub fn is_empty(&self) -> bool {
        self.models.is_empty()
    }

    /// The models, each once.
    pub fn models(&self) -> &[ModelKey] {
        &self.models
    }

    /// The callers of a request that `model` sends while it executes requests with these callers.
    pub fn joined<'a>(executed: impl IntoIterator<Item = &'a Callers>, model: &ModelKey) -> Callers {
        let mut executed: Vec<&Callers> = executed.into_iter().collect();
        executed.sort_by_key(|callers| std::cmp::Reverse(callers.depth));
        let depth = executed.first().map_or(0, |longest| longest.depth);
        let mut joined = Callers { models: Vec::new(), depth: depth.saturating_add(1) };
        let models = executed.iter().enumerate().flat_map(|(index, callers)| {
            // The model itself ends the longest chain.
            let own = (index == 0).then_some(model);
            callers.models.iter().chain(own)
        });
        for caller in models.chain([model]) {
            if !joined.models.contains(caller) {
                joined.models.push(caller.clone());
            }
        }
        joined
    }

    /// Refuses a request that would run on `next`, if a caller would wait for itself or the chain is too long.
    pub fn check(&self, next: &ModelKey) -> Result<(), InferError> {
        if self.models.contains(next) {
            return Err(InferError::invalid_arg(format!(
                "model '{next}' would wait for itself: {self} -> {next}; a model must not send requests to itself or to models \
                 that send requests to it"
            )));
        }
        if self.depth >= MAX_CALLERS && !self.is_empty() {
            return Err(InferError::invalid_arg(format!(
                "{} models wait for each other already ({self}), so none may wait for model '{next}'; expected {MAX_CALLERS} \
                 at most",
                self.depth
            )));
        }
        Ok(())
    }
}

impl fmt::Display for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, model) in self.models.iter().enumerate() {
            let arrow = if index == 0 { "" } else { " -> " };
            write!(f, "{arrow}{model}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ModelKey {
        ModelKey { name: name.into(), version: 1 }
    }

    #[test]
    fn a_chain_must_not_meet_itself_and_has_a_longest_length() {
        let client = Callers::default();
        assert!(client.check(&key("a")).is_ok());
        let of_a = Callers::joined([&client], &key("a"));
        let of_b = Callers::joined([&of_a, &client], &key("b"));
        assert!(of_b.check(&key("c")).is_ok());
        assert!(of_b.check(&ModelKey { version: 2, ..key("a") }).is_ok(), "another version has instances of its own");
        assert_eq!(
            of_b.check(&key("a")).unwrap_err().message,
            "model 'a:1' would wait for itself: a:1 -> b:1 -> a:1; a model must not send requests to itself or to models that \
             send requests to it"
        );
        let longest =
            (0..MAX_CALLERS).fold(client, |callers, number| Callers::joined([&callers], &key(&number.to_string())));
        assert!(
            longest
                .check(&key("c"))
                .unwrap_err()
                .message
                .starts_with("8 models wait for each other already (0:1 -> 1:1")
        );
    }

    #[test]
    fn a_batch_waits_for_all_of_its_requests() {
        let client = Callers::default();
        let (of_a, of_b) = (Callers::joined([&client], &key("a")), Callers::joined([&client], &key("b")));
        let both = Callers::joined([&of_a, &of_b, &client], &key("m"));
        assert!(both.check(&key("a")).is_err() && both.check(&key("b")).is_err() && both.check(&key("m")).is_err());
        assert_eq!((both.depth, both.models.len()), (2, 3));
    }
}
