//! The trait of ops, the entry of an op in the table, and helpers of several ops.

use std::cmp::Ordering;
use std::path::Path;

use ndarray::ArrayD;
use trireme_inference::{InferError, Shape, room_for};

use crate::inputs::{Side, SideInputs};
use crate::{Form, Labels, Signature, Value};

/// A step of a chain. Pure: the same value gives the same result.
///
/// An op that makes each negative number 0:
///
/// ```
/// # use trireme_inference::{InferError, Tensor};
/// # use trireme_ops::{Form, Side, Signature, Value, ops::Op};
/// struct Relu;
///
/// impl Op for Relu {
///     fn signature(&self, input: &Signature) -> Result<Signature, String> {
///         input.expect(Form::Floats, 1..=usize::MAX).cloned()
///     }
///
///     fn apply<'a>(&self, value: Value<'a>, _: &Side<'_>) -> Result<Value<'a>, InferError> {
///         Ok(Value::Floats(value.into_floats()?.mapv(|number| number.max(0.0)).into()))
///     }
/// }
///
/// let numbers = Tensor::from_values("x", [3], vec![-1.5f32, 0.0, 2.5])?;
/// let result = Relu.apply(Value::from_tensor(&numbers)?, &Side::default())?;
/// assert_eq!(result.into_floats()?.as_slice(), Some(&[0.0, 0.0, 2.5][..]));
/// # Ok::<(), InferError>(())
/// ```
pub trait Op: Send + Sync {
    /// The signature of the result for an input of this signature; the error names the signature that the op takes instead.
    fn signature(&self, input: &Signature) -> Result<Signature, String>;

    /// The op itself. `value` has the signature that was accepted; dimensions left open there may be anything, zero
    /// included.
    fn apply<'a>(&self, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError>;
}

/// The model's parts that an op may be built from, besides its argument.
#[derive(Clone, Copy, Debug)]
pub struct Resources<'a> {
    /// The version directory of the model.
    pub version_path: &'a Path,
    /// The model's labels.
    pub labels: &'a Labels,
    /// The model's inputs besides the data.
    pub inputs: &'a SideInputs,
}

#[cfg(test)]
impl Default for Resources<'_> {
    fn default() -> Self {
        static NONE: std::sync::LazyLock<(Labels, SideInputs)> = std::sync::LazyLock::new(Default::default);
        Resources { version_path: Path::new(""), labels: &NONE.0, inputs: &NONE.1 }
    }
}

/// Builds an op from its argument; the error names the expected argument.
pub type BuildOp = fn(Option<&str>, &Resources<'_>) -> Result<Box<dyn Op>, String>;

/// An op that chains may name.
///
/// ```
/// # use std::path::Path;
/// # use trireme_ops::ops::Resources;
/// # use trireme_ops::{Labels, SideInputs};
/// # let (labels, inputs) = (Labels::default(), SideInputs::default());
/// # let resources = Resources { version_path: Path::new(""), labels: &labels, inputs: &inputs };
/// # use trireme_inference::Tensor;
/// # use trireme_ops::{Side, Value};
/// use trireme_ops::ops::OPS;
///
/// let entry = OPS.iter().find(|entry| entry.name == "argmax").expect("an op of this name");
/// let op = (entry.build)(None, &resources)?;
/// let scores = Tensor::from_values("scores", [1, 3], vec![0.1f32, 0.7, 0.2])?;
/// let class = entry.apply(op.as_ref(), Value::from_tensor(&scores)?, &Side::default())?;
/// assert_eq!(class.into_ints()?.as_slice(), Some(&[1][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OpEntry {
    /// Its name in a chain.
    pub name: &'static str,
    /// Its usage, with its argument.
    pub usage: &'static str,
    /// A description for people.
    pub doc: &'static str,
    /// The inputs that it uses besides the data and the attention mask; `TEXT` is the TYPE_STRING input of any name.
    pub inputs: &'static [&'static str],
    /// Whether its result is an embedding, which a request may cut by `dimensions`.
    pub embeds: bool,
    /// Whether its result is much smaller than the output of a model that it takes: one value of many tokens, or few of many
    /// components. Then the model service hosts models whose chain begins with it: see [`Reductions`](crate::Reductions).
    pub reduces: bool,
    /// Builds the op.
    pub build: BuildOp,
}

/// An op that takes floats of any shape and changes them in place.
pub(crate) struct InPlace(pub fn(&mut ArrayD<f32>));

/// For ops without argument.
pub(crate) fn no_argument(argument: Option<&str>) -> Result<(), String> {
    argument.map_or(Ok(()), |argument| Err(format!("argument is '{argument}', expected none")))
}

/// For ops whose argument is a number from 1.
pub(crate) fn number_argument(argument: Option<&str>) -> Result<usize, String> {
    let number = argument.and_then(|a| a.parse().ok()).filter(|&number: &usize| number > 0);
    number.ok_or_else(|| match argument {
        Some(argument) => format!("argument is '{argument}', expected a whole number from 1"),
        None => "argument is missing, expected a whole number from 1".to_owned(),
    })
}

/// A total order of scores. As in NumPy and PyTorch, 0 equals -0 and NaN is higher than any number: it shows, where an
/// arbitrary label would not.
pub(crate) fn compare_scores(a: f32, b: f32) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

// === impl OpEntry ===

impl OpEntry {
    /// Applies `op`, which this entry built, if there is room for its result: see [`room_for`]. A dimension of the result that is not known
    /// before counts as 1.
    pub fn apply<'a>(&self, op: &dyn Op, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        // An op that does not take the value says so itself.
        if let Ok(result) = op.signature(&value.signature()) {
            let dims: Shape = result.dims.iter().map(|dim| dim.abs()).collect::<Vec<_>>().into();
            let name = format!("result of {}", self.name);
            room_for(&name, dims, result.form.element_size(), value.size())
                .map_err(|error| InferError::invalid_arg(format!("model '{}': {error}", side.model)))?;
        }
        op.apply(value, side)
    }
}

// === impl InPlace ===

impl Op for InPlace {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        input.expect(Form::Floats, 1..=usize::MAX).cloned()
    }

    fn apply<'a>(&self, value: Value<'a>, _: &Side<'_>) -> Result<Value<'a>, InferError> {
        let mut array = value.into_floats()?.into_owned();
        (self.0)(&mut array);
        Ok(Value::Floats(array.into()))
    }
}
