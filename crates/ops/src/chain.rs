//! A chain of ops: parsed, checked, run.

use trireme_inference::InferError;

use crate::inputs::Side;
use crate::ops::slice::first;
use crate::ops::{OPS, Op, OpEntry, Resources};
use crate::options::RequestOptions;
use crate::{Form, Signature, Value};

/// Ops that run one after the other.
///
/// A text of two tokens, and one position of padding:
///
/// ```
/// # use std::path::Path;
/// # use trireme_inference::Tensor;
/// # use trireme_ops::ops::Resources;
/// use trireme_ops::{Chain, Labels, Side, SideInputs, Value};
///
/// let inputs = SideInputs { attention: Some("attention_mask".to_owned()), ..SideInputs::default() };
/// let resources = Resources { version_path: Path::new("models/pool/1"), labels: &Labels::default(), inputs: &inputs };
/// let chain = Chain::parse("pool:mean, normalize", &resources)?;
///
/// let hidden = Tensor::from_values("hidden", [1, 3, 2], vec![3f32, 0.0, 3.0, 8.0, 9.0, 9.0])?;
/// let mask = Tensor::from_values("attention_mask", [1, 3], vec![1i64, 1, 0])?;
/// let side = Side { mask: Some(&mask), ..Side::default() };
/// let embedding = chain.run(Value::from_tensor(&hidden)?, &side)?.into_floats()?;
/// assert_eq!(embedding.as_slice(), Some(&[0.6, 0.8][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Chain(Vec<(&'static OpEntry, Box<dyn Op>)>);

/// The reason why a chain cannot be made. Positions count from 1.
///
/// ```
/// # use std::path::Path;
/// # use trireme_ops::ops::Resources;
/// # use trireme_ops::{Labels, SideInputs};
/// # let (labels, inputs) = (Labels::default(), SideInputs::default());
/// # let resources = Resources { version_path: Path::new(""), labels: &labels, inputs: &inputs };
/// # use trireme_ops::{Chain, ChainError};
/// let error = Chain::parse("softmax, topk:3", &resources).err();
/// assert_eq!(error, Some(ChainError::Unknown { position: 2, name: "topk".to_owned() }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages show")]
pub enum ChainError {
    /// An op is missing between two commas.
    #[error("op {position} is empty, expected one of {}", known_ops())]
    Empty { position: usize },
    /// No op has this name.
    #[error("op {position} is '{name}', expected one of {}", known_ops())]
    Unknown { position: usize, name: String },
    /// The op does not take this argument, or lacks something else.
    #[error("op {position}, '{name}': {reason}")]
    Argument { position: usize, name: &'static str, reason: String },
    /// The op does not take the value before it.
    #[error("op {position}, '{name}', {reason}")]
    Input { position: usize, name: &'static str, reason: String },
}

/// The usage of every op, for messages.
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

    /// The signature of the chain's result for `input`; an error when an op does not take its predecessor's result.
    ///
    /// ```
    /// # use std::path::Path;
    /// # use trireme_ops::ops::Resources;
    /// # use trireme_ops::{Labels, SideInputs};
    /// # let (labels, inputs) = (Labels::default(), SideInputs::default());
    /// # let resources = Resources { version_path: Path::new(""), labels: &labels, inputs: &inputs };
    /// use trireme_ops::{Chain, Form, Signature};
    ///
    /// let chain = Chain::parse("softmax, top_k:3", &resources)?;
    /// let logits = Signature::new(Form::Floats, [-1, 1000]);
    /// assert_eq!(chain.signature(logits)?, Signature::new(Form::Ranked, [-1, 3]));
    /// let error = chain.signature(Signature::new(Form::Texts, [-1])).unwrap_err();
    /// assert!(error.to_string().starts_with("op 1, 'softmax', takes floating point numbers"));
    /// # Ok::<(), trireme_ops::ChainError>(())
    /// ```
    pub fn signature(&self, input: Signature) -> Result<Signature, ChainError> {
        self.0.iter().enumerate().try_fold(input, |input, (index, (entry, op))| {
            op.signature(&input).map_err(|reason| ChainError::Input { position: index + 1, name: entry.name, reason })
        })
    }

    /// Runs the chain on the data input, without the ops that the request leaves out.
    pub fn run<'a>(&self, data: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        let cut = side.options.dimensions.and_then(|dimensions| Some((self.embedding_end()?, dimensions)));
        let mut value = data;
        for (index, (entry, op)) in self.0.iter().enumerate() {
            value = cut_at(index, cut, value)?;
            if !is_left_out(entry.name, &side.options) {
                value = entry.apply(op.as_ref(), value, side)?;
            }
        }
        cut_at(self.0.len(), cut, value)
    }

    /// Whether an op makes one row of a text's windows.
    pub(crate) fn folds(&self) -> bool {
        self.0.iter().any(|(entry, _)| entry.name == "fold")
    }

    /// The position of the op before which an embedding is cut to the requested dimensions: the last `normalize`, if no op
    /// after it changes the components, or else the end. `None`: the chain gives no embedding.
    fn embedding_end(&self) -> Option<usize> {
        if !self.0.iter().all(|(entry, _)| entry.embeds) {
            return None;
        }
        let keeps_components = |name: &str| matches!(name, "normalize" | "mask" | "fold");
        let end = self.0.iter().rposition(|(entry, _)| !keeps_components(entry.name)).map_or(0, |last| last + 1);
        let normalize = self.0[end..].iter().rposition(|(entry, _)| entry.name == "normalize");
        Some(normalize.map_or(self.0.len(), |index| end + index))
    }
}

fn is_left_out(name: &str, options: &RequestOptions) -> bool {
    match name {
        "normalize" => !options.normalize,
        "softmax" | "sigmoid" | "tanh" => options.raw_scores,
        _ => false,
    }
}

/// The first components of `value`, if `index` is the place to cut it.
fn cut_at<'a>(index: usize, cut: Option<(usize, usize)>, value: Value<'a>) -> Result<Value<'a>, InferError> {
    match cut {
        Some((at, dimensions)) if at == index && value.form() == Form::Floats => first(value, dimensions, |width| {
            format!("parameter 'dimensions' is {dimensions}, expected from 1 to the {width} of the embedding")
        }),
        _ => Ok(value),
    }
}

/// The inputs besides the data that the ops of a chain use.
pub(crate) fn used_inputs(ops: &str) -> Vec<&'static str> {
    let names = ops.split(',').map(|op| op.split(':').next().unwrap_or_default().trim());
    let entries = names.filter_map(|name| OPS.iter().find(|entry| entry.name == name));
    entries.flat_map(|entry| entry.inputs).copied().collect()
}

/// Whether the first op of a chain reduces.
pub(crate) fn begins_with_reduction(ops: &str) -> bool {
    let first = ops.split([',', ':']).next().unwrap_or_default().trim();
    OPS.iter().any(|entry| entry.name == first && entry.reduces)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Form, SideInputs};

    fn parse(text: &str) -> Result<Chain, ChainError> {
        let inputs = SideInputs { attention: Some("attention_mask".to_owned()), ..SideInputs::default() };
        Chain::parse(text, &Resources { inputs: &inputs, ..Resources::default() })
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
            "op 2 is 'normalise', expected one of pool:mean|cls|max|last|weighted_mean|mean_sqrt_len[+…], \
             logit_score:TRUE[-FALSE], normalize, dense:FOLDER, layer_norm:FOLDER, mask, softmax, sigmoid, tanh, argmax, top_k:K, slice:D, \
             splade[:relu|log1p_relu], sparse[:K], lexical[:ID+ID…], distinct[:K], fold:mean|first|max|keep[+normalize], entities:none|simple|first|average|max, spans, classes, records, redact, \
             decode[:with_special_tokens]"
        );
        assert!(message("").starts_with("op 1 is empty, expected one of pool"));
        assert!(message("normalize,").starts_with("op 2 is empty"));
        assert_eq!(
            message("pool:median"),
            "op 1, 'pool': argument is 'median', expected one of 'mean', 'cls', 'max', 'last', 'weighted_mean', \
             'mean_sqrt_len', or several joined by '+'"
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

    fn run(chain: &str, options: RequestOptions) -> Result<Vec<f32>, String> {
        let data = Value::Floats(ndarray::arr2(&[[3.0, 4.0, 12.0]]).into_dyn().into());
        let value = parse(chain).unwrap().run(data, &Side { options, ..Side::default() });
        value.map_err(|error| error.message).map(|value| value.into_floats().unwrap().iter().copied().collect())
    }

    #[test]
    fn requests_leave_ops_out() {
        let raw = RequestOptions { raw_scores: true, ..RequestOptions::default() };
        assert_eq!(run("softmax", raw).unwrap(), [3.0, 4.0, 12.0]);
        assert_eq!(run("sigmoid", raw).unwrap(), [3.0, 4.0, 12.0]);
        assert_ne!(run("softmax", RequestOptions::default()).unwrap(), [3.0, 4.0, 12.0]);
        let long = RequestOptions { normalize: false, ..RequestOptions::default() };
        assert_eq!(run("normalize", long).unwrap(), [3.0, 4.0, 12.0]);
    }

    #[test]
    fn requests_cut_embeddings_before_they_are_normalized() {
        let two = RequestOptions { dimensions: Some(2), ..RequestOptions::default() };
        assert_eq!(run("normalize", two).unwrap(), [0.6, 0.8]);
        assert_eq!(run("slice:3", two).unwrap(), [3.0, 4.0]);
        let long = RequestOptions { normalize: false, ..two };
        assert_eq!(run("normalize", long).unwrap(), [3.0, 4.0]);
        // A slice after `normalize` works on the embedding, before the request's `dimensions` cut it.
        assert!(run("normalize, slice:3", two).is_ok());
        let four = RequestOptions { dimensions: Some(4), ..RequestOptions::default() };
        let error = run("normalize", four).unwrap_err();
        assert_eq!(error, "parameter 'dimensions' is 4, expected from 1 to the 3 of the embedding");
        assert_eq!(run("softmax", four).unwrap().len(), 3, "scores are no embedding");
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
