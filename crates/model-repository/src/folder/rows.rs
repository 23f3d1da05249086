//! Rows of tokens: whether all have one length, and some for checks of the model.

use std::collections::BTreeSet;

use serde_json::Value;

use super::files::{Json, Reader};
use super::origin::Derived;
use super::processing;

/// Whether the library fills all rows up to the longest: SigLIP's towers have no mask and see the padding.
pub(super) fn pads_to_longest(reader: &Reader<'_>, own: Option<&Json>, model: &Json) -> Option<Derived<bool>> {
    if let Some(found) = own.and_then(|own| processing::processing(own, "padding")) {
        return match (found.value.as_str(), found.value.as_bool()) {
            (Some("max_length"), _) => Some(Derived::from(true, found.origin)),
            (Some("longest"), _) | (_, Some(true)) => None,
            _ => {
                reader.fault(format_args!(
                    "{} is not supported, expected true, \"longest\" or \"max_length\"",
                    found.origin
                ));
                None
            }
        };
    }
    let kind = model.get("model_type").and_then(Value::as_str).unwrap_or_default();
    kind.starts_with("siglip").then(|| Derived::field(true, &model.file, "model_type, whose rows all have one length"))
}

/// Rows for checks of the model, of different lengths, as the tokenizer makes them: the special tokens around tokens of the vocabulary.
pub(super) fn sample(json: &Json) -> Option<String> {
    const LENGTHS: [usize; 3] = [1, 4, 9];
    let ids =
        |value: &Value| -> Vec<i64> { value.as_array().into_iter().flatten().filter_map(Value::as_i64).collect() };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let processor = json.get("post_processor").cloned().unwrap_or_default();
    let parts = processor.get("processors").and_then(Value::as_array).cloned().unwrap_or_else(|| vec![processor]);
    for part in &parts {
        match part.get("type").and_then(Value::as_str) {
            Some("BertProcessing" | "RobertaProcessing") => {
                before.extend(part["cls"].get(1).and_then(Value::as_i64));
                after.extend(part["sep"].get(1).and_then(Value::as_i64));
            }
            Some("TemplateProcessing") => {
                let mut is_behind = false;
                for piece in part["single"].as_array().into_iter().flatten() {
                    match piece["SpecialToken"]["id"].as_str() {
                        Some(token) => {
                            let ids = ids(&part["special_tokens"][token]["ids"]);
                            if is_behind { after.extend(ids) } else { before.extend(ids) }
                        }
                        None => is_behind = true,
                    }
                }
            }
            _ => {}
        }
    }
    let added: BTreeSet<i64> =
        json.get("added_tokens")?.as_array()?.iter().filter_map(|token| token.get("id")?.as_i64()).collect();
    let count = match json.get("model")?.get("vocab")? {
        Value::Object(vocab) => vocab.len() as i64,
        Value::Array(pieces) => pieces.len() as i64,
        _ => return None,
    };
    // Ids from all over the vocabulary, the same ones for the same file.
    let plain: Vec<i64> = (1..count).filter(|id| !added.contains(id)).collect();
    let row = |length: usize| {
        let step = (plain.len() / 10).max(1);
        let tokens = plain.iter().skip(length).step_by(step).copied().cycle().take(length);
        before.iter().copied().chain(tokens).chain(after.iter().copied()).collect::<Vec<_>>()
    };
    (!plain.is_empty()).then(|| serde_json::json!(LENGTHS.map(row)).to_string())
}
