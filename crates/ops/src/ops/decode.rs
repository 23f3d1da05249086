//! `decode`: token ids `[rows, length]` to texts `[rows]`, special tokens skipped; `decode:with_special_tokens` keeps them.
//!
//! The tokenizer is that of the version directory: `tokenizer.json`, or a SentencePiece model. The first op of a chain, because
//! no op gives token ids.
//!
//! Ids that come part by part, as generation gives them, become texts part by part. Two optional inputs give the position of a
//! part, so the op keeps no state between parts:
//! - `emitted`, INT64 or INT32, `[rows, 1]`: how many of the row's ids former parts held. The result is only the text that the
//!   other ids add.
//! - `final`, BOOL, `[1]` or one for each row: whether this is the last part. Until then the bytes of an unfinished character and
//!   spaces at the end are held back, so that no part breaks a character and the parts together are the text of all ids.
//!
//! Without both, all ids are decoded; with `emitted` alone, further parts may follow.

use ndarray::{Array1, Ix2};
use trireme_inference::{DataType, InferError, Tensor};
use trireme_text::{Padding, TextTokenizer, TokenizeOptions};

use super::op::{Op, OpEntry, Resources};
use crate::inputs::Side;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "decode",
    usage: "decode[:with_special_tokens]",
    doc: "token ids to text by the tokenizer in the version directory; first in a chain",
    inputs: &["emitted", "final"],
    embeds: false,
    reduces: false,
    build,
};

struct Decode {
    tokenizer: TextTokenizer,
    skip_special_tokens: bool,
}

/// Makes the op; loads the tokenizer.
fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    let skip_special_tokens = match argument {
        None => true,
        Some("with_special_tokens") => false,
        Some(other) => return Err(format!("argument is '{other}', expected none or 'with_special_tokens'")),
    };
    // Decoding pads nothing, so the tokenizer need not have a padding token.
    let options = TokenizeOptions { padding: Padding::None, ..TokenizeOptions::default() };
    let tokenizer = TextTokenizer::load(resources.version_path, options).map_err(|error| error.to_string())?;
    Ok(Box::new(Decode { tokenizer, skip_special_tokens }))
}

// === impl Decode ===

impl Op for Decode {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        let dims = &input.expect(Form::Ints, 2..=2)?.dims;
        Ok(Signature::new(Form::Texts, [dims[0]]))
    }

    fn apply<'a>(&self, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        let ids = value.into_ints()?.into_dimensionality::<Ix2>();
        let ids = ids.map_err(|_| InferError::internal("decode takes integers of rank 2"))?;
        let (rows, length) = ids.dim();
        let emitted = side.emitted.map(|tensor| read_emitted(tensor, rows, length)).transpose()?;
        let last = side.last.map(|tensor| read_last(tensor, rows)).transpose()?;
        let decode = |(row, ids): (usize, ndarray::ArrayView1<'_, i64>)| {
            let ids: Vec<u32> = ids.iter().map(|&id| token_id(id)).collect::<Result<_, _>>()?;
            let skip = self.skip_special_tokens;
            if emitted.is_none() && last.is_none() {
                return Ok(self.tokenizer.decode(&ids, skip)?);
            }
            let emitted = emitted.as_ref().map_or(0, |emitted| emitted[row]);
            let last = last.as_ref().is_some_and(|last| last[if last.len() == 1 { 0 } else { row }]);
            Ok(self.tokenizer.decode_next(&ids, emitted, last, skip)?)
        };
        let texts: Vec<String> = ids.outer_iter().enumerate().map(decode).collect::<Result<_, InferError>>()?;
        Ok(Value::Texts(Array1::from(texts).into_dyn()))
    }
}

/// How many ids of each row former parts held.
fn read_emitted(tensor: &Tensor, rows: usize, length: usize) -> Result<Vec<usize>, InferError> {
    let Value::Ints(values) = Value::from_tensor(tensor)? else {
        return Err(unexpected(tensor, "INT64 or INT32"));
    };
    if values.len() != rows {
        return Err(unexpected(tensor, &format!("shape [{rows},1]: one number for each row of token ids")));
    }
    let number = |&value: &i64| {
        usize::try_from(value).ok().filter(|&number| number <= length).ok_or_else(|| {
            let name = tensor.name();
            InferError::invalid_arg(format!("tensor '{name}' holds {value}, expected from 0 to the {length} token ids"))
        })
    };
    values.iter().map(number).collect()
}

/// Whether this is the last part: for all rows, or for each.
fn read_last(tensor: &Tensor, rows: usize) -> Result<Vec<bool>, InferError> {
    if tensor.datatype() != DataType::Bool {
        return Err(unexpected(tensor, "BOOL"));
    }
    let last: Vec<bool> = tensor.data().iter().map(|&byte| byte != 0).collect();
    if last.len() != rows && last.len() != 1 {
        return Err(unexpected(tensor, &format!("shape [1], or one flag for each of the {rows} rows")));
    }
    Ok(last)
}

fn unexpected(tensor: &Tensor, expected: &str) -> InferError {
    let (name, datatype, shape) = (tensor.name(), tensor.datatype(), tensor.shape());
    InferError::invalid_arg(format!("tensor '{name}' is {datatype} of shape {shape}, expected {expected}"))
}

fn token_id(id: i64) -> Result<u32, InferError> {
    u32::try_from(id).map_err(|_| {
        InferError::invalid_arg(format!("token id {id} cannot be decoded, expected one from 0 to {}", u32::MAX))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ndarray::{CowArray, arr2};

    use super::*;

    fn decode(ids: ndarray::Array2<i64>) -> Result<Value<'static>, InferError> {
        decode_with(None, ids, Side::default())
    }

    fn decode_with(
        argument: Option<&str>,
        ids: ndarray::Array2<i64>,
        side: Side<'_>,
    ) -> Result<Value<'static>, InferError> {
        let version_path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tokenizer"));
        let resources = Resources { version_path, ..Resources::default() };
        build(argument, &resources).unwrap().apply(Value::Ints(CowArray::from(ids.into_dyn())), &side)
    }

    fn texts(ids: ndarray::Array2<i64>, emitted: Option<Tensor>, last: Option<Tensor>) -> Vec<String> {
        let side = Side { emitted: emitted.as_ref(), last: last.as_ref(), ..Side::default() };
        let Value::Texts(texts) = decode_with(None, ids, side).unwrap() else { panic!() };
        texts.into_iter().collect()
    }

    fn emitted(values: &[i64]) -> Option<Tensor> {
        Some(Tensor::from_values("emitted", [values.len() as i64, 1], values.to_vec()).unwrap())
    }

    fn last(flags: &[bool]) -> Option<Tensor> {
        let bytes: Vec<u8> = flags.iter().map(|&flag| flag.into()).collect();
        Some(Tensor::new("final", DataType::Bool, [flags.len() as i64], bytes.into()).unwrap())
    }

    #[test]
    fn rows_become_texts_without_special_tokens() {
        let Value::Texts(texts) = decode(arr2(&[[1, 4, 5, 2, 0], [5, 6, 0, 0, 0]])).unwrap() else { panic!() };
        assert_eq!(texts, Array1::from(vec!["hello world".to_owned(), "world!".to_owned()]).into_dyn());
    }

    #[test]
    fn special_tokens_are_kept_on_demand() {
        let texts = decode_with(Some("with_special_tokens"), arr2(&[[1, 4, 2]]), Side::default()).unwrap();
        let Value::Texts(texts) = texts else { panic!() };
        assert!(texts[0].contains("hello") && texts[0].len() > "hello".len(), "{texts}");
    }

    #[test]
    fn parts_of_a_stream_are_what_they_add() {
        let ids = || arr2(&[[1, 4, 5], [1, 5, 6]]);
        assert_eq!(texts(ids(), emitted(&[0, 0]), None), ["hello world", "world!"]);
        assert_eq!(texts(ids(), emitted(&[2, 2]), None), [" world", "!"]);
        assert_eq!(texts(ids(), emitted(&[2, 3]), last(&[true])), [" world", ""]);
        assert_eq!(texts(ids(), emitted(&[1, 2]), last(&[true, false])), ["hello world", "!"]);
        assert_eq!(texts(ids(), None, last(&[false])), ["hello world", "world!"]);
    }

    #[test]
    fn positions_that_cannot_be_are_refused() {
        let refused = |emitted: Option<Tensor>, last: Option<Tensor>| {
            let side = Side { emitted: emitted.as_ref(), last: last.as_ref(), ..Side::default() };
            decode_with(None, arr2(&[[1, 4, 5], [1, 5, 6]]), side).unwrap_err().message
        };
        assert_eq!(refused(emitted(&[0, 4]), None), "tensor 'emitted' holds 4, expected from 0 to the 3 token ids");
        assert_eq!(refused(emitted(&[-1, 0]), None), "tensor 'emitted' holds -1, expected from 0 to the 3 token ids");
        let message = refused(emitted(&[1]), None);
        assert!(message.ends_with("expected shape [2,1]: one number for each row of token ids"), "{message}");
        let message = refused(None, last(&[true; 3]));
        assert!(message.ends_with("expected shape [1], or one flag for each of the 2 rows"), "{message}");
    }

    #[test]
    fn ids_that_can_be_no_token_are_refused() {
        let error = decode(arr2(&[[4, -100]])).unwrap_err();
        assert_eq!(error.message, "token id -100 cannot be decoded, expected one from 0 to 4294967295");
    }

    #[test]
    fn a_missing_tokenizer_is_named() {
        let resources = Resources { version_path: Path::new("nowhere"), ..Resources::default() };
        assert!(build(None, &resources).err().unwrap().starts_with("cannot read nowhere/tokenizer.json"));
    }
}
