//! Cases in which the reader follows rapidjson and not the standard.

use super::*;
use crate::json::SyntaxFault::{self, *};

fn fault(text: impl AsRef<[u8]>) -> (SyntaxFault, usize) {
    match parse(text.as_ref()) {
        Err(JsonError::Syntax { fault, offset }) => (fault, offset),
        other => panic!("{:?} is {other:?}", String::from_utf8_lossy(text.as_ref())),
    }
}

fn number(text: &str) -> Number {
    match parse(text.as_bytes()) {
        Ok(Value::Number(number)) => number,
        other => panic!("{text} is {other:?}"),
    }
}

fn string(text: &str) -> Vec<u8> {
    parse(text.as_bytes()).unwrap().as_bytes().unwrap().to_vec()
}

#[test]
fn syntax_faults_have_rapidjsons_reason_and_offset() {
    let table: &[(&str, SyntaxFault, usize)] = &[
        ("", DocumentEmpty, 0),
        (" \n", DocumentEmpty, 2),
        ("]", DocumentEmpty, 0),
        ("x", InvalidValue, 0),
        ("tru", InvalidValue, 3),
        ("nule", InvalidValue, 3),
        ("{} {}", RootNotSingular, 3),
        ("01", RootNotSingular, 1),
        ("{", MissingName, 1),
        ("{1:2}", MissingName, 1),
        ("{\"a\":1,}", MissingName, 7),
        ("{\"a\"}", MissingColon, 4),
        ("{\"a\" 1}", MissingColon, 5),
        ("{\"a\":}", InvalidValue, 5),
        ("{\"a\":1", MissingCommaOrBrace, 6),
        ("{\"a\":1 \"b\":2}", MissingCommaOrBrace, 7),
        ("{\"a\":1]", MissingCommaOrBrace, 6),
        ("[", InvalidValue, 1),
        ("[1,]", InvalidValue, 3),
        ("[1", MissingCommaOrBracket, 2),
        ("[1 2]", MissingCommaOrBracket, 3),
        ("[1}", MissingCommaOrBracket, 2),
        ("\"abc", MissingQuote, 4),
        ("\"a\nb\"", Escape, 2),
        ("\"\\x\"", Escape, 1),
        ("\"\\u12g4\"", UnicodeHex, 1),
        ("\"\\ud800\"", UnicodeSurrogate, 1),
        ("\"\\ud800\\u0041\"", UnicodeSurrogate, 1),
        ("\"\\udc00\"", UnicodeSurrogate, 1),
        ("[0, 1e400]", NumberTooBig, 4),
        ("1.", MissingFraction, 2),
        ("1.e5", MissingFraction, 2),
        ("1e", MissingExponent, 2),
        ("1e+", MissingExponent, 3),
        ("-", InvalidValue, 1),
        ("Infinit", InvalidValue, 7),
        ("/**/1", InvalidValue, 0),
    ];
    for &(text, reason, offset) in table {
        assert_eq!(fault(text), (reason, offset), "{text:?}");
    }
    assert_eq!(fault("9".repeat(310)), (NumberTooBig, 0));
    assert_eq!(
        parse(b"{\"a\":1").unwrap_err().to_string(),
        "failed to parse the request JSON buffer: Missing a comma or '}' after an object member. at 6"
    );
}

#[test]
fn numbers_keep_the_type_they_are_written_in() {
    assert_eq!(number("0"), Number::Unsigned(0));
    assert_eq!(number("-0"), Number::Unsigned(0));
    assert_eq!(number("18446744073709551615"), Number::Unsigned(u64::MAX));
    assert_eq!(number("18446744073709551616"), Number::Double(18446744073709551616.0));
    assert_eq!(number("-9223372036854775808"), Number::Negative(i64::MIN));
    assert_eq!(number("-9223372036854775809"), Number::Double(-9223372036854775808.0));
    assert_eq!(number("1.0"), Number::Double(1.0));
    assert_eq!(number("-2.5E+3"), Number::Double(-2500.0));
    assert_eq!(number("1e-400"), Number::Double(0.0));
    assert_eq!(number("Inf"), Number::Double(f64::INFINITY));
    assert_eq!(number("Infinity"), Number::Double(f64::INFINITY));
    assert_eq!(number("-Infinity"), Number::Double(f64::NEG_INFINITY));
    assert!(matches!(number("NaN"), Number::Double(nan) if nan.is_nan()));
}

#[test]
fn strings_are_bytes() {
    assert_eq!(string(r#""a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00z""#), "a\"\\/\u{8}\u{c}\n\r\té😀z".as_bytes());
    assert_eq!(string(r#""nul \u0000 inside""#), b"nul \0 inside");
    let invalid = parse(b"\"\xff\xfe\"").unwrap();
    assert_eq!(invalid.as_bytes().unwrap(), b"\xff\xfe");
    assert_eq!(invalid.as_text().unwrap(), "\u{fffd}\u{fffd}");
    assert!(matches!(parse(b"\"plain\""), Ok(Value::String(Cow::Borrowed(b"plain")))));
}

#[test]
fn the_first_of_duplicate_members_wins() {
    let value = parse(br#"{"a":1,"b":2,"\u0061":3,"a":[4]}"#).unwrap();
    let [a, b, c] = value.pick(["a", "b", "c"]);
    assert_eq!(a.unwrap().as_u64(), Ok(1));
    assert_eq!(b.unwrap().as_u64(), Ok(2));
    assert!(c.is_none());
    let names: Vec<_> = value.members().unwrap().map(|(name, _)| name).collect();
    assert_eq!(names, [&b"a"[..], b"b"]);
}

#[test]
fn what_is_no_object_has_no_members() {
    let value = parse(b"[{}]").unwrap();
    assert!(value.pick(["a"])[0].is_none());
    assert_eq!(value.members().err().unwrap().to_string(), "attempt to get members for non-object");
}

#[test]
fn wrong_types_are_named() {
    let value = parse(b"null").unwrap();
    let text = |e: JsonError| e.to_string();
    let prefix = "attempt to access JSON non-";
    assert_eq!(text(value.as_bool().unwrap_err()), format!("{prefix}boolean as boolean"));
    assert_eq!(text(value.as_u64().unwrap_err()), format!("{prefix}unsigned-integer as unsigned-integer"));
    assert_eq!(text(value.as_i64().unwrap_err()), format!("{prefix}signed-integer as signed-integer"));
    assert_eq!(text(value.as_f64().unwrap_err()), format!("{prefix}number as double"));
    assert_eq!(text(value.as_bytes().unwrap_err()), format!("{prefix}string as string"));
    assert_eq!(text(value.as_array().unwrap_err()), format!("{prefix}array as array"));
    assert!(parse(b"1.0").unwrap().as_i64().is_err());
    assert!(parse(b"9223372036854775808").unwrap().as_i64().is_err());
    assert_eq!(parse(b"-3").unwrap().as_f64(), Ok(-3.0));
}

#[test]
fn brackets_and_quotes_inside_strings_do_not_count() {
    let value = parse(br#" {"a]":["]","\"]",{"}":"{"}],"b":{"c":"}\\"}} "#).unwrap();
    let [a, b] = value.pick(["a]", "b"]);
    assert_eq!(a.unwrap().as_array().unwrap().iter().count(), 3);
    assert_eq!(b.unwrap().pick(["c"])[0].as_ref().unwrap().as_bytes(), Ok(&b"}\\"[..]));
}

#[test]
fn flattening_stops_at_the_nesting_limit() {
    let nested = |levels: usize, inner: &str| "[".repeat(levels) + inner + &"]".repeat(levels);
    let flat = |text: &str| -> Result<usize, JsonError> {
        let array = parse(text.as_bytes()).unwrap().as_array().unwrap();
        array.flatten().try_fold(0, |count, element| element.map(|_| count + 1))
    };
    assert_eq!(flat("[[1, 2], [[3]], 4, [], {\"a\": [5]}]"), Ok(5));
    assert_eq!(flat(&nested(99, "1")), Ok(1));
    assert_eq!(flat(&nested(100, "")), Ok(0));
    assert_eq!(flat(&nested(100, "1")), Err(JsonError::Nesting));
    assert_eq!(flat(&nested(101, "")), Err(JsonError::Nesting));
    assert_eq!(JsonError::Nesting.to_string(), "JSON nesting depth exceeds maximum allowed limit (100)");
}

#[test]
fn deep_nesting_overflows_no_stack() {
    let deep = "[".repeat(1_000_000);
    assert_eq!(fault(&deep), (InvalidValue, deep.len()));
    assert!(parse((deep.clone() + &"]".repeat(deep.len())).as_bytes()).is_ok());
}

#[test]
fn a_nul_ends_the_document_and_a_byte_order_mark_is_skipped() {
    assert!(parse(b"[1]\0 anything").is_ok());
    assert_eq!(fault("[1\0]"), (MissingCommaOrBracket, 2));
    assert_eq!(fault("\"a\0\""), (MissingQuote, 2));
    assert!(matches!(parse(b"\xEF\xBB\xBF true"), Ok(Value::Bool(true))));
    assert_eq!(fault(b"\xEF\xBB\xBF ?"), (InvalidValue, 4));
}
