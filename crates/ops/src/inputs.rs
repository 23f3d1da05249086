//! The inputs of a postprocess model besides the data.

use trireme_engine::ExecuteRequest;
use trireme_inference::{DataType, InferError, Parameters, Tensor};
use trireme_model_repository::ModelInput;

use crate::Value;
use crate::options::RequestOptions;

/// Names of the inputs that ops use besides the data.
#[derive(Clone, Debug, Default)]
pub struct SideInputs {
    /// The attention mask.
    pub attention: Option<String>,
    /// The mask of the tokens that are pooled or compared, if it differs from the attention mask.
    pub pooling: Option<String>,
    /// See [`crate::ops::decode`].
    pub emitted: Option<String>,
    /// See [`crate::ops::decode`].
    pub last: Option<String>,
    /// Token ids.
    pub input_ids: Option<String>,
    /// Where tokens begin and end in their texts.
    pub offsets: Option<String>,
    /// Which tokens stand for no text.
    pub special_tokens_mask: Option<String>,
    /// Where words begin and end in their texts.
    pub word_offsets: Option<String>,
    /// The parts of texts that rows hold.
    pub windows: Option<String>,
    /// The texts.
    pub texts: Option<String>,
}

/// The request's tensors besides the data, as far as the model has inputs for them and the request brought them; and the
/// request's options.
#[derive(Clone, Copy, Debug, Default)]
pub struct Side<'a> {
    /// The model's name, for messages.
    pub model: &'a str,
    /// The mask of the tokens that count `[rows, length]`, INT64 or INT32: `pooling_mask` or `scoring_mask`, or else the
    /// attention mask.
    pub mask: Option<&'a Tensor>,
    /// The attention mask, likewise: where texts begin and end.
    pub attention: Option<&'a Tensor>,
    /// How much of the data has been decoded before: see [`crate::ops::decode`].
    pub emitted: Option<&'a Tensor>,
    /// Whether this is the last part: see [`crate::ops::decode`].
    pub last: Option<&'a Tensor>,
    /// The ids of tokens `[rows, length]`.
    pub input_ids: Option<&'a Tensor>,
    /// The characters where tokens begin and end `[rows, length, 2]`.
    pub offsets: Option<&'a Tensor>,
    /// 1 for tokens that stand for no text `[rows, length]`.
    pub special_tokens_mask: Option<&'a Tensor>,
    /// The characters where words begin and end `[rows, words, 2]`; 0 and 0 where there is no word.
    pub word_offsets: Option<&'a Tensor>,
    /// By row, its part of a text, `[rows, 6]`: the text's number, the row's characters, the characters that the row owns, and how many tokens
    /// it has.
    pub windows: Option<&'a Tensor>,
    /// The texts, one for each row, or as many as `windows` tells apart.
    pub texts: Option<&'a Tensor>,
    /// The request's parameters that all chains read.
    pub options: RequestOptions,
    /// All of them.
    pub parameters: Option<&'a Parameters>,
}

/// The datatypes by which an input is found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Integer,
    Bool,
    Text,
}

// === impl SideInputs ===

impl SideInputs {
    /// Finds the names among the inputs after the first: those in `used`, which the ops of the chain know. The texts are the
    /// TYPE_STRING input of any name. One of the other integer inputs may be the attention mask.
    pub(crate) fn of(others: &[ModelInput], used: &[&str]) -> Result<SideInputs, String> {
        let mut side = SideInputs::default();
        let mut left: Vec<&ModelInput> = Vec::new();
        for input in others {
            let is_text = input.datatype == DataType::Bytes && used.contains(&"TEXT");
            let name = if is_text { "TEXT" } else { input.name.as_str() };
            let (slot, kind) = match name {
                _ if !used.contains(&name) => {
                    left.push(input);
                    continue;
                }
                "emitted" => (&mut side.emitted, Kind::Integer),
                "final" => (&mut side.last, Kind::Bool),
                "input_ids" => (&mut side.input_ids, Kind::Integer),
                "offsets" => (&mut side.offsets, Kind::Integer),
                "special_tokens_mask" => (&mut side.special_tokens_mask, Kind::Integer),
                "word_offsets" => (&mut side.word_offsets, Kind::Integer),
                "windows" => (&mut side.windows, Kind::Integer),
                "pooling_mask" | "scoring_mask" => (&mut side.pooling, Kind::Integer),
                _ => (&mut side.texts, Kind::Text),
            };
            kind.check(input)?;
            if let Some(first) = slot.replace(input.name.clone()) {
                return Err(format!(
                    "inputs '{first}' and '{}' are for the same use, expected one of them",
                    input.name
                ));
            }
        }
        let mut integers = left.iter().filter(|input| Kind::Integer.is(input));
        let mask = left.iter().find(|i| Kind::Integer.is(i) && i.name == "attention_mask").or_else(|| integers.next());
        side.attention = mask.map(|input| input.name.clone());
        match left.iter().find(|input| Some(&input.name) != side.attention.as_ref()) {
            Some(extra) => Err(format!(
                "input '{}' is used by no op, expected the data and at most an attention mask{}",
                extra.name,
                used.iter().map(|name| format!(", '{name}'")).collect::<String>()
            )),
            None => Ok(side),
        }
    }

    /// Whether there is a mask of tokens.
    pub fn has_mask(&self) -> bool {
        self.pooling.is_some() || self.attention.is_some()
    }

    /// The tensors of these names in a request to `model`.
    pub(crate) fn find<'a>(&self, model: &'a str, request: &'a ExecuteRequest, options: RequestOptions) -> Side<'a> {
        let inputs = &request.inputs;
        let find = |name: &Option<String>| inputs.iter().find(|tensor| Some(tensor.name()) == name.as_deref());
        let attention = find(&self.attention);
        Side {
            model,
            mask: find(&self.pooling).or(attention),
            attention,
            emitted: find(&self.emitted),
            last: find(&self.last),
            input_ids: find(&self.input_ids),
            offsets: find(&self.offsets),
            special_tokens_mask: find(&self.special_tokens_mask),
            word_offsets: find(&self.word_offsets),
            windows: find(&self.windows),
            texts: find(&self.texts),
            options,
            parameters: Some(&request.parameters),
        }
    }
}

/// The values of an input, row by row.
pub(crate) fn integers(tensor: Option<&Tensor>, name: &str, shape: &[usize]) -> Result<Vec<i64>, InferError> {
    let tensor = tensor.ok_or_else(|| InferError::invalid_arg(format!("input '{name}' is missing")))?;
    match Value::from_tensor(tensor)? {
        Value::Ints(values) if values.shape() == shape => Ok(values.iter().copied().collect()),
        _ => Err(InferError::invalid_arg(format!(
            "tensor '{name}' is {} of shape {}, expected INT64 or INT32 of shape {shape:?}",
            tensor.datatype(),
            tensor.shape()
        ))),
    }
}

// === impl Kind ===

impl Kind {
    fn is(self, input: &ModelInput) -> bool {
        match self {
            Kind::Integer => matches!(input.datatype, DataType::Int64 | DataType::Int32),
            Kind::Bool => input.datatype == DataType::Bool,
            Kind::Text => input.datatype == DataType::Bytes,
        }
    }

    fn check(self, input: &ModelInput) -> Result<(), String> {
        let expected = match self {
            _ if self.is(input) => return Ok(()),
            Kind::Integer => "TYPE_INT64 or TYPE_INT32",
            Kind::Bool => "TYPE_BOOL",
            Kind::Text => "TYPE_STRING",
        };
        let found = input.datatype.config_name();
        Err(format!("unexpected datatype {found} for inference input '{}', expecting {expected}", input.name))
    }
}
