//! `processing_kwargs` of the transformer's file: how the library calls the tokenizer.

use serde_json::{Map, Value};

use super::files::Json;
use super::origin::Derived;

/// A field of `processing_kwargs` of the transformer's file, for texts.
pub(crate) fn processing(json: &Json, key: &str) -> Option<Derived<Value>> {
    let all = json.get("processing_kwargs")?;
    let found = ["text", "common"].into_iter().find_map(|group| Some((group, all.get(group)?.get(key)?)));
    let (group, value) = found.filter(|(_, value)| !value.is_null())?;
    Some(Derived::field(value.clone(), &json.file, &format!("processing_kwargs.{group}.{key}")))
}

/// `processing_kwargs` of the transformer's file, for texts: the newer place for a length.
pub(crate) fn processing_length(json: &Json) -> Option<Derived<u64>> {
    let all = json.get("processing_kwargs")?.as_object()?;
    let length =
        |group: &str| all.get(group).and_then(Value::as_object).and_then(|group: &Map<_, _>| group.get("max_length"));
    let (group, value) = ["text", "common"].into_iter().find_map(|group| Some((group, length(group)?.as_u64()?)))?;
    Some(Derived::field(value, &json.file, &format!("processing_kwargs.{group}.max_length")))
}
