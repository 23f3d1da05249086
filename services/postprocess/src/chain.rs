//! A chain of ops: parsed, checked, run.

use trireme_inference::InferError;

use crate::ops::{OPS, Op, OpEntry, Resources, Side};
use crate::{Signature, Value};

/// Ops that run one after the other.
pub struct Chain(Vec<(&'static OpEntry, Box<dyn Op>)>);

/// Why a chain cannot be. Positions count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages show")]
pub enum ChainError {
    /// There is an empty place where an op should be.
    #[error("op {position} is empty, expected one of {}", known_ops())]
    Empty { position: usize },
    /// No op has this name.
    #[error("op {position} is '{name}', expected one of {}", known_ops())]
    Unknown { position: usize, name: String },
    /// The op does not take this argument, or lacks something else.
    #[error("op {position}, '{name}': {reason}")]
    Argument { position: usize, name: &'static str, reason: String },
    /// The op does not take what comes to it.
    #[error("op {position}, '{name}', {reason}")]
    Input { position: usize, name: &'static str, reason: String },
}

/// Every op as it is written, for messages.
fn known_ops() -> String {
    OPS.iter().map(|entry| entry.usage).collect::<Vec<_>>().join(", ")
}

// === impl Chain ===

impl Chain {
    /// Parses `name` or `name:argument`, separated by commas, and makes the ops.
    pub fn parse(text: &str, resources: &Resources<'_>) -> Result<Chain, ChainError> {
        let op = |(index, text): (usize, &str)| {
            let position = index + 1;
            let (name, argument) = match text.split_once(':') {
                Some((name, argument)) => (name.trim(), Some(argument.trim())),
                None => (text.trim(), None),
            };
            if name.is_empty() {
                return Err(ChainError::Empty { position });
            }
            let entry = OPS.iter().find(|entry| entry.name == name);
            let entry = entry.ok_or_else(|| ChainError::Unknown { position, name: name.to_owned() })?;
            let op = (entry.build)(argument, resources);
            Ok((entry, op.map_err(|reason| ChainError::Argument { position, name: entry.name, reason })?))
        };
        text.split(',').enumerate().map(op).collect::<Result<_, _>>().map(Chain)
    }

    /// What the chain gives for `input`; an error when an op does not take what the one before it gives.
    pub fn signature(&self, input: Signature) -> Result<Signature, ChainError> {
        self.0.iter().enumerate().try_fold(input, |input, (index, (entry, op))| {
            op.signature(&input).map_err(|reason| ChainError::Input { position: index + 1, name: entry.name, reason })
        })
    }

    /// Runs the chain on the data input.
    pub fn run<'a>(&self, data: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        self.0.iter().try_fold(data, |value, (_, op)| op.apply(value, side))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Form, Labels};

    fn parse(text: &str) -> Result<Chain, ChainError> {
        let labels = Labels::default();
        Chain::parse(text, &Resources { version_path: std::path::Path::new(""), labels: &labels, has_mask: true })
    }

    fn hidden() -> Signature {
        Signature::new(Form::Floats, [-1, -1, 384])
    }

    #[test]
    fn chains_give_the_signature_of_their_last_op() {
        let signature = |text| parse(text).unwrap().signature(hidden()).unwrap();
        assert_eq!(signature("pool:mean, slice:64 ,normalize"), Signature::new(Form::Floats, [-1, 64]));
        assert_eq!(signature("pool:cls,argmax"), Signature::new(Form::Ints, [-1]));
        assert_eq!(signature("pool : last, softmax, top_k : 3"), Signature::new(Form::Ranked, [-1, 3]));
    }

    #[test]
    fn faults_name_op_and_position_and_what_exists() {
        let message = |text| parse(text).err().map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(
            message("pool:mean, normalise"),
            "op 2 is 'normalise', expected one of pool:mean|cls|max|last, normalize, softmax, sigmoid, argmax, top_k:K, \
             slice:D, decode[:with_special_tokens]"
        );
        assert!(message("").starts_with("op 1 is empty, expected one of pool"));
        assert!(message("normalize,").starts_with("op 2 is empty"));
        assert_eq!(
            message("pool:median"),
            "op 1, 'pool': argument is 'median', expected 'mean', 'cls', 'max' or 'last'"
        );
        assert_eq!(message("normalize:2"), "op 1, 'normalize': argument is '2', expected none");
    }

    #[test]
    fn ops_that_do_not_follow_each_other_are_refused() {
        let message = |text| parse(text).unwrap().signature(hidden()).unwrap_err().to_string();
        assert_eq!(
            message("pool:mean, pool:mean"),
            "op 2, 'pool', takes floating point numbers of rank 3, got floating point numbers of shape [-1,384]"
        );
        assert_eq!(
            message("top_k:2, softmax"),
            "op 2, 'softmax', takes floating point numbers of rank 1 or more, got the ranked classes of top_k of shape \
             [-1,-1,2]"
        );
        assert!(message("pool:mean, slice:385").contains("385"));
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in "[a-z_:, 0-9é]{0,40}") {
            if let Ok(chain) = parse(&text) {
                prop_assert_eq!(chain.0.len(), text.split(',').count());
            }
        }
    }
}
