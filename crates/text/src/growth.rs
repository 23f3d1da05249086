//! How much longer a normalizer may make texts. Without a limit, a single text could fill the memory.

use serde_json::Value;
use tokenizers::NormalizerWrapper;

/// A text may become so many times as long.
const MOST: f64 = 256.0;

/// An error if a normalizer may make texts much longer.
pub(crate) fn check(normalizer: &NormalizerWrapper) -> Result<(), String> {
    let growth = serde_json::to_value(normalizer).map_or(1.0, |normalizer| growth(&normalizer));
    match growth > MOST {
        true => Err(format!(
            "its normalizer may make a text {growth:.0} times as long, expected {MOST} times at most: shorten what its steps of type Replace \
             and Prepend put in"
        )),
        false => Ok(()),
    }
}

/// By how many times a normalizer, as `tokenizer.json` has it, may multiply a text's bytes. Other types than these do not by much.
fn growth(normalizer: &Value) -> f64 {
    let bytes = |text: &Value| text.as_str().map_or(0, str::len) as f64;
    let longer = match normalizer["type"].as_str() {
        Some("Sequence") => normalizer["normalizers"].as_array().into_iter().flatten().map(growth).product(),
        // An expression is taken to match at least one byte.
        Some("Replace") => bytes(&normalizer["content"]) / bytes(&normalizer["pattern"]["String"]).max(1.0),
        Some("Prepend") => 1.0 + bytes(&normalizer["prepend"]),
        _ => 1.0,
    };
    longer.max(1.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(normalizer: Value) -> Result<(), String> {
        check(&serde_json::from_value(normalizer).unwrap())
    }

    #[test]
    fn normalizers_that_multiply_texts_are_refused() {
        let replace = |pattern: &str, content: &str| json!({ "type": "Replace", "pattern": { "String": pattern }, "content": content });
        let sequence = |steps: Vec<Value>| json!({ "type": "Sequence", "normalizers": steps });
        let tenfold = replace("a", "aaaaaaaaaa");
        checked(sequence(vec![tenfold.clone(); 2])).unwrap();
        let refused = checked(sequence(vec![tenfold; 6])).unwrap_err();
        assert!(refused.starts_with("its normalizer may make a text 1000000 times as long, expected 256"), "{refused}");
        assert!(checked(replace("a", &"b".repeat(1 << 20))).is_err());
        let usual = json!({ "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": "\u{2581}" });
        checked(sequence(vec![json!({ "type": "Prepend", "prepend": "\u{2581}" }), replace(" ", "\u{2581}"), usual]))
            .unwrap();
        checked(json!({ "type": "Lowercase" })).unwrap();
    }
}
