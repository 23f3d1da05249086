//! Messages of a child with a value that cannot be read: a number where a name belongs, NaN, half a character of UTF-16. The rest of
//! the message counts. A response with such a value becomes the error of its request, and the process goes on.

use serde_json::Value;
use trireme_inference::ErrorCode;

use crate::message::{ErrorHeader, FromChild, ResponseHeader, Responses};

/// The words of some programs for numbers that JSON does not have.
const NO_NUMBERS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

/// Reads a header. Where a value in it cannot be read, the others count.
pub fn read(header: &[u8]) -> serde_json::Result<FromChild> {
    FromChild::read(header).or_else(|error| salvage(header).ok_or(error))
}

/// Reads what can be read of a message. `None` where it is not known which request it is about.
fn salvage(header: &[u8]) -> Option<FromChild> {
    let text = repaired(header);
    if let Ok(message) = FromChild::read(text.as_bytes()) {
        return Some(message);
    }
    let mut message: Value = serde_json::from_str(&text).ok()?;
    let kind = message.get("type")?.as_str()?.to_owned();
    let listed = |message: &mut Value, key: &str| match message.get_mut(key).map(Value::take) {
        Some(Value::Array(values)) => Some(values),
        _ => None,
    };
    match kind.as_str() {
        "responses" => Some(FromChild::Responses(Responses {
            responses: listed(&mut message, "responses")?.into_iter().map(response).collect::<Option<_>>()?,
            executed: message.get("executed").and_then(Value::as_bool).unwrap_or_default(),
            released: message.get("released").and_then(Value::as_bool).unwrap_or_default(),
            took_ns: message.get("took_ns").and_then(Value::as_u64),
        })),
        "infer" => {
            let id = message.get("id")?.as_u64()?;
            Some(FromChild::Unreadable { id, reason: reason::<FromChild>(message) })
        }
        "metrics" => {
            let changes = listed(&mut message, "changes")?;
            Some(FromChild::Metrics { changes: changes.into_iter().flat_map(serde_json::from_value).collect() })
        }
        "log" => Some(FromChild::Log {
            level: message.get("level").and_then(Value::as_str).unwrap_or_default().to_owned(),
            message: message.get("message")?.to_string(),
        }),
        _ => None,
    }
}

/// A response, or the error of its request. `None` where it names no request.
fn response(value: Value) -> Option<ResponseHeader> {
    let id = value.get("id")?.as_u64()?;
    Some(serde_json::from_value(value.clone()).unwrap_or_else(|_| ResponseHeader {
        id,
        is_final: true,
        outputs: None,
        parameters: Default::default(),
        error: Some(ErrorHeader {
            code: ErrorCode::Internal,
            message: format!("the model's response cannot be read: {}", reason::<ResponseHeader>(value)),
            again: false,
        }),
    }))
}

/// Why a value is no `T`.
fn reason<T: serde::de::DeserializeOwned>(value: Value) -> String {
    serde_json::from_value::<T>(value).err().map_or_else(String::new, |error| error.to_string())
}

/// The text of a header as JSON: `null` for NaN and infinities, `\ufffd` for half a character.
fn repaired(header: &[u8]) -> String {
    let text = String::from_utf8_lossy(header);
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut in_string) = (&*text, false);
    let unit = |text: &str| u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok();
    while let Some(next) = rest.chars().next() {
        let (taken, instead) = match next {
            '"' => {
                in_string = !in_string;
                (1, None)
            }
            '\\' if in_string => match (unit(rest), rest.get(6..).and_then(unit)) {
                (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (12, None),
                (Some(0xd800..=0xdfff), _) => (6, Some("\\ufffd")),
                _ => (1 + rest[1..].chars().next().map_or(0, char::len_utf8), None),
            },
            _ if in_string => (next.len_utf8(), None),
            _ => match NO_NUMBERS.iter().find(|word| rest.starts_with(**word)) {
                Some(word) => (word.len(), Some("null")),
                None => (next.len_utf8(), None),
            },
        };
        out.push_str(instead.unwrap_or(&rest[..taken]));
        rest = &rest[taken..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn responses(header: &str) -> Vec<ResponseHeader> {
        match read(header.as_bytes()) {
            Ok(FromChild::Responses(Responses { responses, executed: true, .. })) => responses,
            other => panic!("{header}: {other:?}"),
        }
    }

    #[test]
    fn a_value_that_cannot_be_read_is_the_error_of_its_request() {
        let bad = [
            r#""outputs": [{"name": 5, "datatype": "FP32", "shape": [1], "offset": 0, "size": 4}]"#,
            r#""outputs": [{"name": "x", "datatype": "FP31", "shape": [1], "offset": 0, "size": 4}]"#,
            r#""outputs": [{"name": "x", "datatype": "FP32", "shape": [1.5], "offset": 0, "size": -4}]"#,
            r#""outputs": {}"#,
            r#""parameters": {"x": NaN}, "outputs": []"#,
            r#""parameters": {"x": -Infinity}, "outputs": []"#,
            r#""parameters": {"x": [1]}, "outputs": []"#,
            r#""error": {"code": "NONE", "message": "x"}"#,
            r#""error": 7"#,
        ];
        for bad in bad {
            let header = format!(
                r#"{{"type": "responses", "executed": true, "responses": [{{"id": 1, "outputs": [], "final": true}}, {{"id": 2, {bad}}}]}}"#
            );
            let found = responses(&header);
            assert!(found[0].id == 1 && found[0].error.is_none() && found[0].outputs.is_some(), "{header}");
            let error = found[1].error.as_ref().unwrap_or_else(|| panic!("{header}"));
            assert!(found[1].id == 2 && error.message.contains("cannot be read: "), "{header}: {error:?}");
        }
    }

    #[test]
    fn half_a_character_is_replaced() {
        for (text, expected) in [
            (r"\ud83d", "\u{fffd}"),
            (r"\ud83d\ude00 \\ud83d \ude00", "\u{1f600} \\ud83d \u{fffd}"),
            (r"\ud83d\ud83d\ude00\n\u00e9é", "\u{fffd}\u{1f600}\néé"),
            (r#"\" NaN \ud83d"#, "\" NaN \u{fffd}"),
        ] {
            let header = format!(
                r#"{{"type": "responses", "executed": true, "responses": [{{"id": 2, "error": {{"code": "INTERNAL", "message": "{text}"}}}}]}}"#
            );
            assert_eq!(responses(&header)[0].error.as_ref().map(|error| error.message.as_str()), Some(expected));
        }
        let header = b"{\"type\": \"log\", \"level\": \"INFO\", \"message\": \"\xff\"}";
        assert!(matches!(read(header), Ok(FromChild::Log { message, .. }) if message == "\u{fffd}"));
    }

    #[test]
    fn messages_about_no_request_are_no_loss_where_they_can_be_done_without() {
        let read = |header: &str| read(header.as_bytes());
        assert!(matches!(
            read(r#"{"type": "infer", "id": 3, "model": 5}"#),
            Ok(FromChild::Unreadable { id: 3, reason }) if reason.contains("expected a string")
        ));
        let changes = r#"[{"name": "a", "kind": "counter", "what": "add", "value": NaN}, {"name": 1}]"#;
        let metrics = read(&format!(r#"{{"type": "metrics", "changes": {changes}}}"#));
        assert!(matches!(metrics, Ok(FromChild::Metrics { changes }) if changes.len() == 1));
        assert!(
            matches!(read(r#"{"type": "log", "message": 5}"#), Ok(FromChild::Log { message, .. }) if message == "5")
        );
        for lost in [
            r#"{"type": "responses", "executed": true, "responses": [{"id": "a", "outputs": []}]}"#,
            r#"{"type": "loaded", "asks_ready": 5}"#,
            r#"{"type": 5}"#,
            r#"{"type": "responses""#,
            "no JSON",
        ] {
            assert!(read(lost).is_err(), "{lost}");
        }
    }
}
