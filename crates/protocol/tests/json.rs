//! Compares the JSON reader with `serde_json`, and gives it arbitrary texts.

use proptest::prelude::*;
use serde_json::Value as Reference;
use trireme_protocol::json::{self, Number, Value};

/// Whether `value` equals `reference`. Members are compared by name. Documents here have no duplicate names, of which
/// `serde_json` keeps the last and we the first.
fn same(value: &Value<'_>, reference: &Reference) -> bool {
    match (value, reference) {
        (Value::Null, Reference::Null) => true,
        (Value::Bool(a), Reference::Bool(b)) => a == b,
        (Value::String(a), Reference::String(b)) => **a == *b.as_bytes(),
        (Value::Number(Number::Unsigned(a)), Reference::Number(b)) => b.as_u64() == Some(*a),
        (Value::Number(Number::Negative(a)), Reference::Number(b)) => b.as_i64() == Some(*a),
        (Value::Number(Number::Double(a)), Reference::Number(b)) => b.as_f64() == Some(*a),
        (Value::Array(a), Reference::Array(b)) => {
            a.iter().count() == b.len() && a.iter().zip(b).all(|(a, b)| same(&a, b))
        }
        (Value::Object(_), Reference::Object(b)) => {
            let members: Vec<_> = value.members().expect("an object has members").collect();
            members.len() == b.len()
                && members.iter().all(|(name, a)| {
                    let b = str::from_utf8(name).ok().and_then(|name| b.get(name));
                    b.is_some_and(|b| same(a, b))
                })
        }
        _ => false,
    }
}

fn documents() -> impl Strategy<Value = Reference> {
    let leaf = prop_oneof![
        Just(Reference::Null),
        any::<bool>().prop_map(Reference::from),
        any::<u64>().prop_map(Reference::from),
        any::<i64>().prop_map(Reference::from),
        any::<f64>().prop_filter("JSON proper has no others", |d| d.is_finite()).prop_map(Reference::from),
        any::<String>().prop_map(Reference::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Reference::from),
            prop::collection::vec((any::<String>(), inner), 0..8)
                .prop_map(|members| Reference::Object(members.into_iter().collect())),
        ]
    })
}

/// Texts that are almost JSON.
fn near_json() -> impl Strategy<Value = String> {
    let tokens = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\"a\"",
        "\\",
        "\\n",
        "\\u0041",
        "\\ud83d\\ude00",
        "\\ud83d",
        "é",
        "0",
        "12",
        "-",
        "1.5",
        ".",
        "e",
        "E+3",
        "e400",
        "true",
        "false",
        "null",
        " ",
        "\n",
        "x",
    ]);
    prop::collection::vec(tokens, 0..12).prop_map(|tokens| tokens.concat())
}

proptest! {
    #[test]
    fn documents_are_read_as_serde_json_wrote_them(document in documents(), pretty: bool) {
        let text = if pretty { serde_json::to_string_pretty(&document) } else { serde_json::to_string(&document) };
        let text = text.unwrap();
        let value = json::parse(text.as_bytes()).unwrap();
        prop_assert!(same(&value, &document), "{text}\n{value:?}");
    }

    #[test]
    fn what_is_json_is_agreed_on(text in near_json()) {
        let reference: Result<Reference, _> = serde_json::from_str(&text);
        prop_assert_eq!(json::parse(text.as_bytes()).is_ok(), reference.is_ok(), "{:?}: {:?}", text, reference);
    }

    #[test]
    fn any_bytes_are_read_or_refused(text in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(value) = json::parse(&text) {
            let _members = value.members().map(Iterator::count);
            let _elements = value.as_array().map(|array| array.flatten().count());
        }
    }

    #[test]
    fn doubles_are_read_back_as_they_were_written(value: f64) {
        let mut writer = json::Writer::default();
        writer.double(value);
        let text = writer.into_bytes();
        let back = json::parse(&text).unwrap().as_f64().unwrap();
        prop_assert!(back == value || back.is_nan() && value.is_nan(), "{text:?}");
    }

    #[test]
    fn strings_are_read_back_as_they_were_written(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut writer = json::Writer::default();
        writer.string(&bytes);
        let text = writer.into_bytes();
        let back = json::parse(&text).unwrap();
        prop_assert_eq!(back.as_bytes(), Ok(&bytes[..]));
    }
}
