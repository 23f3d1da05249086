//! The fields of bodies as data: for each route of a dialect every field that the original server knows, its forms, and its effect here.
//! These tables have three uses: a body is checked by them before it is read, a request to a path of several dialects is given to one of
//! these dialects, and docs/dialects.md lists the fields.

use std::borrow::Cow;

use serde_json::json;
use trireme_protocol::json::{self, Number, Value};

use super::refusal::Refusal;

/// Values of each form that a field takes, as JSON.
pub type Forms = &'static [&'static str];

/// A text.
pub const TEXT: Forms = &[r#""a""#];
/// A list of texts.
pub const TEXTS: Forms = &[r#"["a"]"#];
/// A text, or a list of them.
pub const TEXT_OR_TEXTS: Forms = &[r#""a""#, r#"["a"]"#];
/// Texts, or token ids in their place.
pub const INPUT: Forms = &[r#""a""#, r#"["a"]"#, "[1]", "[[1]]"];
/// A list of documents: texts, or objects with a text.
pub const DOCUMENTS: Forms = &[r#"["a"]"#, r#"[{"text": "a"}]"#];
/// A document or a list of them.
pub const DOCUMENT_OR_DOCUMENTS: Forms = &[r#""a""#, r#"["a"]"#, r#"[{"text": "a"}]"#, r#"{"text": "a"}"#];
/// True or false.
pub const FLAG: Forms = &["true"];
/// A number.
pub const NUMBER: Forms = &["1"];
/// An object.
pub const OBJECT: Forms = &["{}"];
/// A list of objects.
pub const OBJECTS: Forms = &["[{}]"];

/// A field that the original server knows.
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// A value of each form that it takes, as JSON.
    pub forms: Forms,
    /// Its effect here.
    pub effect: Effect,
}

/// The effect of a field.
pub enum Effect {
    /// The answer depends on it.
    Read,
    /// The answer depends on it, and the original does not have it.
    Ours,
    /// No answer depends on it: why.
    Idle(&'static str),
    /// These values, as JSON, say what happens in any case. Any other one is refused: why, and what to write instead.
    Only(Forms, &'static str),
}

/// A field that is read.
pub const fn read(name: &'static str, forms: Forms) -> Field {
    Field { name, forms, effect: Effect::Read }
}

/// A field that is read, and that the original does not have.
pub const fn ours(name: &'static str, forms: Forms) -> Field {
    Field { name, forms, effect: Effect::Ours }
}

/// A field on which no answer depends: why.
pub const fn idle(name: &'static str, forms: Forms, why: &'static str) -> Field {
    Field { name, forms, effect: Effect::Idle(why) }
}

/// A field of which only these values are taken: why.
pub const fn only(name: &'static str, forms: Forms, values: Forms, why: &'static str) -> Field {
    Field { name, forms, effect: Effect::Only(values, why) }
}

/// Tables as the document of the routes has them: by name, the forms and the effect of each field.
pub fn described(tables: &[&[Field]]) -> serde_json::Value {
    let values = |forms: Forms| -> Vec<serde_json::Value> {
        forms.iter().filter_map(|form| serde_json::from_str(form).ok()).collect()
    };
    let described = |field: &Field| {
        let effect = match field.effect {
            Effect::Read => json!({"effect": "read"}),
            Effect::Ours => json!({"effect": "read", "original": false}),
            Effect::Idle(why) => json!({"effect": "none", "why": why}),
            Effect::Only(taken, why) => json!({"effect": "refused", "unless": values(taken), "why": why}),
        };
        (field.name.to_owned(), json!({"forms": values(field.forms), "becomes": effect}))
    };
    // Of fields that are in two tables the first one counts.
    tables.iter().rev().copied().flatten().map(described).collect::<serde_json::Map<_, _>>().into()
}

/// The members of a body; none where it is no JSON object.
pub struct Members<'a>(Vec<(Cow<'a, str>, Value<'a>)>);

/// How well a table knows a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// In this form, or as null.
    Known,
    /// As a text that stands for a flag or a number, which lenient servers take for it.
    Coerced,
    /// By its name, in another form.
    WrongForm,
    Unknown,
}

// === impl Members ===

impl<'a> Members<'a> {
    /// Of a body.
    pub fn of(body: &'a [u8]) -> Members<'a> {
        let members = || {
            let body = json::parse(body).ok()?;
            let members = body.members().ok()?;
            Some(members.map(|(name, value)| (text(name), value)).collect())
        };
        Members(members().unwrap_or_default())
    }

    /// The member of this name, where it is a text.
    pub fn text(&self, name: &str) -> Option<String> {
        let (_, value) = self.0.iter().find(|(other, _)| other == name)?;
        value.as_text().ok().map(Cow::into_owned)
    }

    /// How many of them the tables know, in the forms that they have there.
    pub fn known(&self, tables: &[&[Field]]) -> usize {
        self.0.iter().filter(|(name, value)| matches!(fit(tables, name, value), Fit::Known | Fit::Coerced)).count()
    }

    /// A member on which the answer of `others` depends and that `tables` do not know: the request asks for two things at once.
    pub fn unknown_but_to(&self, tables: &[&[Field]], others: &[&[Field]]) -> Option<&str> {
        let is_theirs = |name: &str, value: &Value<'_>| {
            let matters = find(others, name).is_some_and(|field| !matches!(field.effect, Effect::Idle(_)));
            matters && !matches!(value, Value::Null) && fit(others, name, value) == Fit::Known
        };
        let found = self.0.iter().find(|(name, value)| {
            matches!(fit(tables, name, value), Fit::Unknown | Fit::WrongForm) && is_theirs(name, value)
        });
        found.map(|(name, _)| name.as_ref())
    }

    /// Refuses what the tables refuse; unknown fields, too, if they are `strict`. Gives the body as it shall be read, if that is not the
    /// one that came: without nulls, and with flags and numbers where texts stood for them.
    pub fn check(&self, tables: &[&[Field]], strict: bool) -> Result<Option<Vec<u8>>, Refusal> {
        let mut is_changed = false;
        for (name, value) in &self.0 {
            let Some(field) = find(tables, name) else {
                if strict {
                    let known: Vec<_> = tables.iter().copied().flatten().map(|field| field.name).collect();
                    return Err(Refusal::field(name, format!("is unknown, expected some of {}", known.join(", "))));
                }
                continue;
            };
            match fit(tables, name, value) {
                Fit::Known if matches!(value, Value::Null) => is_changed = true,
                Fit::Known => {}
                Fit::Coerced => is_changed = true,
                Fit::WrongForm | Fit::Unknown => {
                    let expected: Vec<_> = field.forms.iter().map(|form| kind_of(form)).collect();
                    return Err(Refusal::field(
                        name,
                        format!("is {}, expected {}", shown(value), expected.join(" or ")),
                    ));
                }
            }
            if let Effect::Only(values, why) = field.effect
                && !matches!(value, Value::Null)
                && !values.iter().any(|expected| is_same(&coerced(field, value), expected))
            {
                return Err(Refusal::unsupported(name, format!("is {}: {why}", shown(value))));
            }
        }
        Ok(is_changed.then(|| self.rewritten(tables)))
    }

    fn rewritten(&self, tables: &[&[Field]]) -> Vec<u8> {
        let kept = self.0.iter().filter(|(_, value)| !matches!(value, Value::Null));
        let members = kept.map(|(name, value)| match find(tables, name) {
            Some(field) => (name.to_string(), coerced(field, value)),
            None => (name.to_string(), tree(value)),
        });
        serde_json::Value::Object(members.collect()).to_string().into_bytes()
    }
}

fn text(bytes: Cow<'_, [u8]>) -> Cow<'_, str> {
    match bytes {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

fn find<'t>(tables: &[&'t [Field]], name: &str) -> Option<&'t Field> {
    tables.iter().flat_map(|table| table.iter()).find(|field| field.name == name)
}

fn fit(tables: &[&[Field]], name: &str, value: &Value<'_>) -> Fit {
    let Some(field) = find(tables, name) else { return Fit::Unknown };
    let has = |kind: &str| field.forms.iter().any(|form| kind_of(form) == kind);
    let found = kind(value);
    match found {
        "null" => Fit::Known,
        "an empty list" if field.forms.iter().any(|form| form.starts_with('[')) => Fit::Known,
        _ if has(found) => Fit::Known,
        _ if kind_of_tree(&coerced(field, value)) != found => Fit::Coerced,
        _ => Fit::WrongForm,
    }
}

/// The value as it is read: a text that stands for a flag or a number becomes it, where the field takes no texts.
fn coerced(field: &Field, value: &Value<'_>) -> serde_json::Value {
    let has = |kind: &str| field.forms.iter().any(|form| kind_of(form) == kind);
    let plain = tree(value);
    let Some(text) = plain.as_str().filter(|_| !has("a text")).map(str::trim) else { return plain };
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" if has("true or false") => true.into(),
        "false" | "0" | "no" | "off" if has("true or false") => false.into(),
        number if has("a number") => number.parse::<serde_json::Number>().map_or(plain, Into::into),
        _ => plain,
    }
}

/// The value as a tree.
fn tree(value: &Value<'_>) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(flag) => (*flag).into(),
        Value::Number(Number::Unsigned(number)) => (*number).into(),
        Value::Number(Number::Negative(number)) => (*number).into(),
        Value::Number(Number::Double(number)) => (*number).into(),
        Value::String(bytes) => String::from_utf8_lossy(bytes).into(),
        Value::Array(items) => items.iter().map(|item| tree(&item)).collect(),
        Value::Object(_) => {
            let members = value.members().into_iter().flatten();
            members.map(|(name, value)| (text(name).into_owned(), tree(&value))).collect()
        }
    }
}

fn is_same(value: &serde_json::Value, expected: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(expected).is_ok_and(|expected| expected == *value)
}

/// The kind of a value in words.
fn kind(value: &Value<'_>) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Object(_) => "an object",
        Value::Array(items) => match items.iter().next() {
            None => "an empty list",
            Some(Value::Null) => "a list of nulls",
            Some(Value::Bool(_)) => "a list of flags",
            Some(Value::Number(_)) => "a list of numbers",
            Some(Value::String(_)) => "a list of texts",
            Some(Value::Object(_)) => "a list of objects",
            Some(Value::Array(_)) => "a list of lists",
        },
    }
}

fn kind_of(form: &str) -> &'static str {
    json::parse(form.as_bytes()).map_or("nothing", |value| kind(&value))
}

fn kind_of_tree(value: &serde_json::Value) -> &'static str {
    kind_of(&value.to_string())
}

/// The value in an error: itself where it is short.
fn shown(value: &Value<'_>) -> String {
    match value {
        Value::String(text) if text.len() > 40 => kind(value).to_owned(),
        Value::Array(_) | Value::Object(_) => kind(value).to_owned(),
        short => tree(short).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[&[Field]] = &[
        &[read("input", INPUT), read("flag", FLAG), read("count", NUMBER)],
        &[idle("user", TEXT, "names the author"), only("late", FLAG, &["false"], "each text is embedded by itself")],
    ];

    fn check(body: &str) -> Result<Option<String>, String> {
        let checked = Members::of(body.as_bytes()).check(TABLE, true);
        checked.map(|body| body.map(|body| String::from_utf8(body).unwrap())).map_err(|refusal| refusal.message)
    }

    #[test]
    fn fields_are_refused_by_their_names_with_what_was_found_and_expected() {
        assert_eq!(check(r#"{"input": ["a"], "flag": true, "count": -3, "user": "u", "late": false}"#), Ok(None));
        assert_eq!(check(r#"{"input": []}"#), Ok(None));
        let input = "'input' is 3, expected a text or a list of texts or a list of numbers or a list of lists";
        assert_eq!(check(r#"{"input": 3}"#).unwrap_err(), input);
        assert!(check(r#"{"input": [{"a": 1}]}"#).unwrap_err().starts_with("'input' is a list of objects, expected"));
        assert_eq!(check(r#"{"flag": "maybe"}"#).unwrap_err(), r#"'flag' is "maybe", expected true or false"#);
        assert_eq!(check(r#"{"late": true}"#).unwrap_err(), "'late' is true: each text is embedded by itself");
        assert!(
            check(r#"{"inputs": 3}"#).unwrap_err().starts_with("'inputs' is unknown, expected some of input, flag")
        );
    }

    #[test]
    fn texts_stand_for_flags_and_numbers_and_nulls_for_nothing() {
        let body = check(r#"{"input": "true", "flag": "True", "count": "5", "user": null, "late": "false"}"#);
        assert_eq!(body.unwrap().unwrap(), r#"{"count":5,"flag":true,"input":"true","late":false}"#);
    }

    #[test]
    fn a_body_is_known_by_its_fields_and_their_forms() {
        let known = |body: &str| Members::of(body.as_bytes()).known(TABLE);
        assert_eq!(known(r#"{"input": "a", "flag": 7, "other": 1}"#), 1);
        assert_eq!(known("[1]"), 0);
        let members = Members::of(br#"{"input": "a", "late": true}"#);
        assert_eq!(members.unknown_but_to(&TABLE[..1], TABLE), Some("late"));
        assert_eq!(members.unknown_but_to(TABLE, TABLE), None);
    }
}
