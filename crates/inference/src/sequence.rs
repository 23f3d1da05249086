//! Sequences: requests that belong together because they carry the same correlation id.

use std::fmt;

use crate::{Cause, InferError, ParameterValue, Parameters};

/// The correlation id of a sequence. Ids of different kinds differ: 5 is not '5'.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CorrelationId {
    /// A number above 0.
    Number(u64),
    /// A text that is not empty.
    Text(String),
}

/// The place of a request in its sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The sequence.
    pub id: CorrelationId,
    /// Whether the request begins the sequence.
    pub start: bool,
    /// Whether the request ends the sequence.
    pub end: bool,
}

// === impl Membership ===

impl Membership {
    /// Bytes of the longest correlation id that is a text.
    pub const LONGEST_ID: usize = 128;

    /// Reads `sequence_id`, `sequence_start` and `sequence_end`. `None` if the id is absent, 0 or empty: the request belongs
    /// to no sequence.
    pub fn of(parameters: &Parameters) -> Result<Option<Membership>, InferError> {
        let id = match parameters.get("sequence_id") {
            // Over gRPC a number above 2^63 - 1 arrives as a negative one.
            Some(&ParameterValue::Int64(id)) if id != 0 => CorrelationId::Number(id as u64),
            Some(&ParameterValue::Uint64(id)) if id != 0 => CorrelationId::Number(id),
            Some(ParameterValue::String(id)) if id.len() > Membership::LONGEST_ID => {
                // Triton's words and code.
                let longest = Membership::LONGEST_ID;
                let text = format!("string correlation ID cannot be longer than {longest} characters");
                return Err(InferError::unsupported(text).because(Cause::Sequence));
            }
            Some(ParameterValue::String(id)) if !id.is_empty() => CorrelationId::Text(id.clone()),
            _ => return Ok(None),
        };
        let flag = |name: &str| parameters.get(name) == Some(&ParameterValue::Bool(true));
        Ok(Some(Membership { id, start: flag("sequence_start"), end: flag("sequence_end") }))
    }
}

impl fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CorrelationId::Number(id) => id.fmt(f),
            CorrelationId::Text(id) => id.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(id: ParameterValue) -> Result<Option<Membership>, InferError> {
        let flags = [("sequence_start", true), ("sequence_end", false)];
        let flags = flags.map(|(name, flag)| (name.to_owned(), ParameterValue::Bool(flag)));
        Membership::of(&Parameters::from_iter(flags.into_iter().chain([("sequence_id".to_owned(), id)])))
    }

    #[test]
    fn ids_are_numbers_or_texts_and_zero_and_empty_are_none() {
        let number = |id| Some(Membership { id: CorrelationId::Number(id), start: true, end: false });
        assert_eq!(of(ParameterValue::Uint64(5)).unwrap(), number(5));
        assert_eq!(of(ParameterValue::Int64(-1)).unwrap(), number(u64::MAX));
        let text = of("5".into()).unwrap().unwrap();
        assert_eq!(text.id, CorrelationId::Text("5".to_owned()));
        for none in [ParameterValue::Int64(0), ParameterValue::Uint64(0), "".into()] {
            assert_eq!(of(none).unwrap(), None);
        }
        assert_eq!(Membership::of(&Parameters::new()).unwrap(), None);
    }

    #[test]
    fn a_long_text_is_refused() {
        assert!(of("x".repeat(128).as_str().into()).unwrap().is_some());
        let error = of("x".repeat(129).as_str().into()).unwrap_err();
        assert_eq!(error.message, "string correlation ID cannot be longer than 128 characters");
    }
}
