//! Model versions, which travel as text.

use trireme_inference::InferError;

/// The version in `text`; `None`, which means the latest, for an empty text. Reads the number as C's `stol` does:
/// leading space is skipped, and anything after the digits is ignored.
pub fn parse_model_version(text: &str) -> Result<Option<i64>, InferError> {
    if text.is_empty() {
        return Ok(None);
    }
    let refusal = |details: &str| {
        Err(InferError::invalid_arg(format!(
            "failed to get model version from specified version string '{text}'{details}, version should be an integral \
             value > 0"
        )))
    };
    let trimmed = text.trim_ascii_start();
    let sign = usize::from(trimmed.starts_with(['+', '-']));
    let digits = trimmed[sign..].bytes().take_while(u8::is_ascii_digit).count();
    match trimmed[..sign + digits].parse::<i64>() {
        Ok(version) if version >= 0 => Ok(Some(version)),
        Ok(_) => refusal(""),
        Err(_) => refusal(" (details: stol)"),
    }
}
