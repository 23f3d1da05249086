//! `decode`: token ids `[rows, length]` to texts `[rows]`, special tokens skipped.
//!
//! The tokenizer is `tokenizer.json` in the version directory. The first op of a chain: nothing else gives token ids.

use ndarray::{Array1, Ix2};
use trireme_inference::{InferError, Tensor};
use trireme_text::{Padding, TextTokenizer, TokenizeOptions};

use super::{Op, Resources, no_argument};
use crate::{Form, Signature, Value};

struct Decode(TextTokenizer);

/// Makes the op; loads the tokenizer.
pub fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    no_argument(argument)?;
    // Decoding pads nothing, so the tokenizer need not have a padding token.
    let options = TokenizeOptions { padding: Padding::None, ..TokenizeOptions::default() };
    let tokenizer = TextTokenizer::load(resources.version_path, options).map_err(|error| error.to_string())?;
    Ok(Box::new(Decode(tokenizer)))
}

// === impl Decode ===

impl Op for Decode {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        let dims = &input.expect(Form::Ints, 2..=2)?.dims;
        Ok(Signature::new(Form::Texts, [dims[0]]))
    }

    fn apply<'a>(&self, value: Value<'a>, _: Option<&Tensor>) -> Result<Value<'a>, InferError> {
        let ids = value.into_ints()?.into_dimensionality::<Ix2>();
        let ids = ids.map_err(|_| InferError::internal("decode takes integers of rank 2"))?;
        let decode = |row: ndarray::ArrayView1<'_, i64>| {
            let ids: Vec<u32> = row.iter().map(|&id| token_id(id)).collect::<Result<_, _>>()?;
            Ok(self.0.decode(&ids, true)?)
        };
        let texts: Vec<String> = ids.outer_iter().map(decode).collect::<Result<_, InferError>>()?;
        Ok(Value::Texts(Array1::from(texts).into_dyn()))
    }
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
    use crate::Labels;

    fn decode(ids: ndarray::Array2<i64>) -> Result<Value<'static>, InferError> {
        let version_path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tokenizer"));
        let resources = Resources { version_path, labels: &Labels::default(), has_mask: false };
        build(None, &resources).unwrap().apply(Value::Ints(CowArray::from(ids.into_dyn())), None)
    }

    #[test]
    fn rows_become_texts_without_special_tokens() {
        let Value::Texts(texts) = decode(arr2(&[[1, 4, 5, 2, 0], [5, 6, 0, 0, 0]])).unwrap() else { panic!() };
        assert_eq!(texts, Array1::from(vec!["hello world".to_owned(), "world!".to_owned()]).into_dyn());
    }

    #[test]
    fn ids_that_can_be_no_token_are_refused() {
        let error = decode(arr2(&[[4, -100]])).unwrap_err();
        assert_eq!(error.message, "token id -100 cannot be decoded, expected one from 0 to 4294967295");
    }

    #[test]
    fn a_missing_tokenizer_is_named() {
        let resources = Resources { version_path: Path::new("nowhere"), labels: &Labels::default(), has_mask: false };
        assert!(build(None, &resources).err().unwrap().starts_with("cannot read nowhere/tokenizer.json"));
    }
}
