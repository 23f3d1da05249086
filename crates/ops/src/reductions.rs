//! [`Reductions`]: the models of backend `postprocess` that the model service hosts beside its models.

use trireme_engine::{Backend, LoadError, LoadedModel, ModelSource};
use trireme_model_repository::ModelConfig;

use crate::PostprocessBackend;
use crate::chain::begins_with_reduction;

/// Loads models with `backend: "postprocess"` whose chain begins with an op that reduces. The worker that executed the model hands
/// its output over to them in memory, so only their small result crosses the broker. A model's parameter `beside_model` decides
/// where it is given: `"true"` for any chain, `"false"` for none.
///
/// ```
/// use trireme_engine::Backend;
/// use trireme_model_repository::ModelConfig;
/// use trireme_ops::Reductions;
///
/// let with_ops = |ops: &str| {
///     let parameter = format!("parameters {{ key: 'ops' value {{ string_value: '{ops}' }} }}");
///     ModelConfig::parse(&format!("backend: 'postprocess' {parameter}"), "m")
/// };
/// assert!(Reductions.hosts(&with_ops("pool:mean, normalize")?));
/// assert!(!Reductions.hosts(&with_ops("softmax")?));
/// # Ok::<(), trireme_model_repository::RepositoryError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Reductions;

// === impl Reductions ===

impl Backend for Reductions {
    fn name(&self) -> &'static str {
        PostprocessBackend.name()
    }

    fn hosts(&self, config: &ModelConfig) -> bool {
        match config.parameters.get("beside_model") {
            // Loading refuses other values than "true" and "false".
            Some(beside) => beside != "false",
            None => begins_with_reduction(config.parameters.get("ops").map_or("", String::as_str)),
        }
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        PostprocessBackend.load(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::OPS;

    fn hosts(ops: &str, beside: Option<&str>) -> bool {
        let parameter =
            |key: &str, value: &str| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}");
        let beside = beside.map_or(String::new(), |value| parameter("beside_model", value));
        let text = format!("backend: 'postprocess' {} {beside}", parameter("ops", ops));
        Reductions.hosts(&ModelConfig::parse(&text, "post").unwrap())
    }

    /// The permissions of the model service at the broker follow from the same ops.
    #[test]
    fn the_script_for_permissions_knows_the_ops_that_reduce() {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/nats/permissions.py");
        let names: Vec<_> = OPS.iter().filter(|entry| entry.reduces).map(|entry| entry.name).collect();
        let line = format!("REDUCTIONS = {names:?}\n");
        assert!(std::fs::read_to_string(script).unwrap().contains(&line), "expected {line}");
    }

    #[test]
    fn chains_that_begin_with_a_reduction_are_hosted_beside_the_model() {
        for ops in ["pool:mean, normalize", " slice : 64", "argmax", "top_k:3", "splade, sparse", "sparse"] {
            assert!(hosts(ops, None), "{ops}");
            assert!(!hosts(ops, Some("false")), "{ops}");
        }
        for ops in ["normalize, pool:mean", "softmax, top_k:3", "mask", "decode", "pooling", ""] {
            assert!(!hosts(ops, None), "{ops}");
            assert!(hosts(ops, Some("true")), "{ops}");
        }
    }
}
