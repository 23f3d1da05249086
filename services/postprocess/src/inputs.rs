//! The inputs of a postprocess model besides the data.

use trireme_inference::{DataType, Tensor};
use trireme_model_repository::ModelInput;

use crate::ops::Side;

/// Names of the inputs that ops use besides the data.
#[derive(Debug)]
pub(crate) struct SideInputs {
    pub(crate) mask: Option<String>,
    emitted: Option<String>,
    last: Option<String>,
}

// === impl SideInputs ===

impl SideInputs {
    /// Finds them among the inputs after the first. A chain that decodes may have `emitted` and `final`; of the rest one
    /// may be the attention mask.
    pub(crate) fn of(others: &[ModelInput], ops: &str) -> Result<SideInputs, String> {
        let decodes = ops.split(',').any(|op| op.split(':').next().is_some_and(|name| name.trim() == "decode"));
        let stream = |name: &str| others.iter().find(|input| decodes && input.name == name);
        let (emitted, last) = (stream("emitted"), stream("final"));
        if let Some(input) = emitted.filter(|input| !is_integer(input)) {
            return Err(unexpected(input, "TYPE_INT64 or TYPE_INT32"));
        }
        if let Some(input) = last.filter(|input| input.datatype != DataType::Bool) {
            return Err(unexpected(input, "TYPE_BOOL"));
        }
        let is_stream =
            |input: &ModelInput| [emitted, last].into_iter().flatten().any(|known| known.name == input.name);
        let rest = || others.iter().filter(|input| !is_stream(input));
        let mut integers = rest().filter(|input| is_integer(input));
        let mask = rest().find(|input| is_integer(input) && input.name == "attention_mask").or_else(|| integers.next());
        let name = |input: Option<&ModelInput>| input.map(|input| input.name.clone());
        let side = SideInputs { mask: name(mask), emitted: name(emitted), last: name(last) };
        match rest().find(|input| Some(&input.name) != side.mask.as_ref()) {
            Some(extra) => Err(format!(
                "input '{}' is used by no op, expected the data and at most an attention mask{}",
                extra.name,
                if decodes { ", 'emitted' and 'final'" } else { "" }
            )),
            None => Ok(side),
        }
    }

    /// The tensors of these names.
    pub(crate) fn find<'a>(&self, inputs: &'a [Tensor]) -> Side<'a> {
        let find = |name: &Option<String>| inputs.iter().find(|tensor| Some(tensor.name()) == name.as_deref());
        Side { mask: find(&self.mask), emitted: find(&self.emitted), last: find(&self.last) }
    }
}

fn is_integer(input: &ModelInput) -> bool {
    matches!(input.datatype, DataType::Int64 | DataType::Int32)
}

fn unexpected(input: &ModelInput, expected: &str) -> String {
    let found = input.datatype.config_name();
    format!("unexpected datatype {found} for inference input '{}', expecting {expected}", input.name)
}
