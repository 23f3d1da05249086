//! JSON bodies as types read them. The fault of a body is described in words for its author: the field, the value that was found and the
//! form that was expected. A line and a column say nothing to somebody whose library writes the body.

use bytes::Bytes;
use serde::de::DeserializeOwned;

/// The fault of a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// Whether it is no JSON.
    pub is_syntax: bool,
    /// The member of the body that it is about.
    pub field: Option<String>,
    /// The fault in words.
    pub message: String,
}

/// A JSON body without the byte order mark that some programs put before it.
pub fn without_mark(body: Bytes) -> Bytes {
    match body.starts_with(b"\xef\xbb\xbf") {
        true => body.slice(3..),
        false => body,
    }
}

/// A body as JSON of this shape.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(body).map_err(|error| {
        if !error.is_data() {
            return Fault::of_syntax(&error);
        }
        // Once more, to learn the place of the fault: that costs time, which good bodies do not take.
        let mut json = serde_json::Deserializer::from_slice(body);
        match serde_path_to_error::deserialize::<_, T>(&mut json) {
            Err(error) => Fault::of_value(&error.path().to_string(), error.inner()),
            Ok(_) => Fault::of_value(".", &error),
        }
    })
}

// === impl Fault ===

impl Fault {
    fn of_syntax(error: &serde_json::Error) -> Fault {
        let (line, column) = (error.line(), error.column());
        let place = if line > 1 { format!("line {line}, character {column}") } else { format!("character {column}") };
        let message = format!("the body is no JSON: {} (near {place})", without_place(error));
        Fault { is_syntax: true, field: None, message }
    }

    /// A value that cannot be read, at a path of members and indices; "." is the body.
    fn of_value(path: &str, error: &serde_json::Error) -> Fault {
        let message = without_place(error);
        let named = |words: &str| message.strip_prefix(words).and_then(|rest| rest.split('`').next());
        let (inner, fault) = match (named("missing field `"), named("duplicate field `")) {
            (Some(field), _) => (Some(field), "is missing".to_owned()),
            (None, Some(field)) => (Some(field), "is there twice".to_owned()),
            (None, None) => (None, format!("cannot be read: {}", with_json_types(&message.replace('`', "'")))),
        };
        let place = match (path, inner) {
            (".", None) => return Fault { is_syntax: false, field: None, message: format!("the body {fault}") },
            (".", Some(field)) => field.to_owned(),
            (path, Some(field)) if !path.ends_with(field) => format!("{path}.{field}"),
            (path, _) => path.to_owned(),
        };
        let field = place.split(['.', '[']).next().map(str::to_owned);
        Fault { is_syntax: false, field, message: format!("'{place}' {fault}") }
    }
}

/// The words of the parser without the line and the column.
fn without_place(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.rfind(" at line ").map_or(message.clone(), |end| message[..end].to_owned())
}

/// A parser's message with JSON's words for the types that it has expected, in place of Rust's.
fn with_json_types(message: &str) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "an integer of at least 0",
        "i8" | "i16" | "i32" | "i64" => "an integer",
        "f32" | "f64" => "a number",
        "a sequence" => "an array",
        "a map" => "an object",
        structure if structure.starts_with("struct ") => "an object",
        other => other,
    };
    format!("{found}, expected {expected}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[allow(dead_code, reason = "only its faults are looked at")]
    struct Body {
        input: Vec<String>,
        dimensions: Option<u64>,
        inner: Option<Inner>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[allow(dead_code, reason = "only its faults are looked at")]
    struct Inner {
        text: String,
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_body() {
        let found = |body: &'static [u8]| without_mark(Bytes::from_static(body));
        assert_eq!(found(b"\xef\xbb\xbf{}"), "{}");
        assert_eq!((found(b"{}"), found(b"\xef\xbb")), ("{}".into(), b"\xef\xbb"[..].into()));
    }

    #[test]
    fn faults_of_a_body_name_their_field() {
        let fault = |text: &str| read::<Body>(text.as_bytes()).unwrap_err();
        let syntax = fault("{");
        assert_eq!((syntax.is_syntax, syntax.field), (true, None));
        assert_eq!(syntax.message, "the body is no JSON: EOF while parsing an object (near character 1)");
        assert!(fault(r#"{"input": ["a"]} x"#).is_syntax);
        let told = |text: &str| (fault(text).field.unwrap_or_default(), fault(text).message);
        for (body, field, message) in [
            ("{}", "input", "'input' is missing"),
            (
                r#"{"input": ["a", 3]}"#,
                "input",
                "'input[1]' cannot be read: invalid type: integer '3', expected a string",
            ),
            (
                r#"{"input": [], "dimensions": -1}"#,
                "dimensions",
                "'dimensions' cannot be read: invalid value: integer '-1', expected an integer of at least 0",
            ),
            (r#"{"input": 3}"#, "input", "'input' cannot be read: invalid type: integer '3', expected an array"),
            (r#"{"input": [], "inner": {}}"#, "inner", "'inner.text' is missing"),
            (r#"{"input": [], "input": []}"#, "input", "'input' is there twice"),
        ] {
            assert_eq!(told(body), (field.to_owned(), message.to_owned()), "{body}");
        }
        assert_eq!(fault("3").message, "the body cannot be read: invalid type: integer '3', expected an object");
        assert_eq!(fault("[]").message, "the body cannot be read: invalid length 0, expected an object");
    }
}
