//! The fields of bodies as data: for each route of a dialect every field that the original server knows, its forms, and its effect here.
//! These tables have three uses: a body is checked by them before it is read, a request to a path of several dialects is given to one of
//! these dialects, and docs/dialects.md lists the fields.

use std::borrow::Cow;

use serde_json::json;
use trireme_protocol::json::{self, Number, Value};

use super::refusal::Refusal;
pub use super::words::Forms;
use super::words::{self, Meaning, Sense, Word};

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
    /// The members of an object that are read; none where all of them are the model's.
    pub inner: &'static [&'static [Field]],
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
    Field { name, forms, effect: Effect::Read, inner: &[] }
}

/// A field that is read, and that the original does not have.
pub const fn ours(name: &'static str, forms: Forms) -> Field {
    Field { name, forms, effect: Effect::Ours, inner: &[] }
}

/// A field on which no answer depends: why.
pub const fn idle(name: &'static str, forms: Forms, why: &'static str) -> Field {
    Field { name, forms, effect: Effect::Idle(why), inner: &[] }
}

/// A field of which only these values are taken: why.
pub const fn only(name: &'static str, forms: Forms, values: Forms, why: &'static str) -> Field {
    Field { name, forms, effect: Effect::Only(values, why), inner: &[] }
}

// === impl Field ===

impl Field {
    /// The same, an object of which these members are read.
    pub const fn with(self, inner: &'static [&'static [Field]]) -> Field {
        Field { inner, ..self }
    }
}

/// The treatment of fields that are in none of a route's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// They are refused.
    Refused,
    /// Those on which answers depend in some API ([`words`]) are read by another name or refused; the rest is passed over.
    ByWords,
    /// They are passed over: another route checks them.
    PassedOver,
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

/// The treatment of a member.
enum Fate {
    Kept,
    /// It is read as this value of this field.
    As(&'static str, serde_json::Value),
    /// It asks for nothing.
    Dropped,
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

    /// How many of them the tables know, in the forms that they have there; and how many of these the original knows, too.
    pub fn known(&self, tables: &[&[Field]]) -> (usize, usize) {
        let known = self.0.iter().filter(|(name, value)| matches!(fit(tables, name, value), Fit::Known | Fit::Coerced));
        let (ours, own): (Vec<_>, Vec<_>) =
            known.partition(|(name, _)| find(tables, name).is_some_and(|field| matches!(field.effect, Effect::Ours)));
        (own.len() + ours.len(), own.len())
    }

    /// A member on which the answer of the original of `others` depends and that `tables` do not know: the request asks for two things at once.
    pub fn unknown_but_to(&self, tables: &[&[Field]], others: &[&[Field]]) -> Option<&str> {
        let is_theirs = |name: &str, value: &Value<'_>| {
            let matters =
                find(others, name).is_some_and(|field| !matches!(field.effect, Effect::Idle(_) | Effect::Ours));
            matters && !matches!(value, Value::Null) && fit(others, name, value) == Fit::Known
        };
        let found = self.0.iter().find(|(name, value)| {
            matches!(fit(tables, name, value), Fit::Unknown | Fit::WrongForm) && is_theirs(name, value)
        });
        found.map(|(name, _)| name.as_ref())
    }

    /// Refuses the fields that the tables refuse; `others` says which other fields are refused. Gives the body as it shall be read, if it differs
    /// from the one that came: without nulls, with flags and numbers where texts stood for them, and with the fields' own names.
    pub fn check(&self, tables: &[&'static [Field]], others: Others) -> Result<Option<Vec<u8>>, Refusal> {
        let mut fates = Vec::with_capacity(self.0.len());
        for (name, value) in &self.0 {
            fates.push(match find(tables, name) {
                Some(field) => checked(field, value, others)?,
                None => self.other(name, value, tables, others)?,
            });
        }
        if fates.iter().all(|fate| matches!(fate, Fate::Kept)) {
            return Ok(None);
        }
        let mut members = serde_json::Map::new();
        for ((name, value), fate) in self.0.iter().zip(fates) {
            let (own, value) = match fate {
                Fate::Kept => (name.as_ref(), tree(value)),
                Fate::As(own, value) => (own, value),
                Fate::Dropped => continue,
            };
            if members.get(own).is_some_and(|other| *other != value) {
                let why = format!("comes with another name of '{own}' and another value, expected one of them");
                return Err(Refusal::field(name, why));
            }
            members.insert(own.to_owned(), value);
        }
        Ok(Some(serde_json::Value::Object(members).to_string().into_bytes()))
    }

    /// The treatment of a member that is in none of the tables.
    fn other(
        &self,
        name: &str,
        value: &Value<'_>,
        tables: &[&'static [Field]],
        others: Others,
    ) -> Result<Fate, Refusal> {
        let known = || tables.iter().copied().flatten().map(|field| field.name).collect::<Vec<_>>().join(", ");
        if others == Others::Refused {
            return Err(Refusal::field(name, format!("is unknown, expected some of {}", known())));
        }
        if matches!(value, Value::Null) {
            return Ok(Fate::Kept);
        }
        let Some(Word { sense: Sense::Matters { meaning, usual, instead }, .. }) = words::find(name) else {
            return Ok(Fate::Kept);
        };
        if others == Others::PassedOver {
            return Ok(Fate::Kept);
        }
        let plain = tree(value);
        for field in tables.iter().copied().flatten().filter(|field| is_of(field, *meaning)) {
            let Some(read) = translated(*meaning, &plain, field) else { continue };
            return Ok(if read.is_null() { Fate::Dropped } else { Fate::As(field.name, read) });
        }
        if is_usual(&plain, usual) {
            return Ok(Fate::Kept);
        }
        Err(Refusal::unsupported(name, format!("is {}: {instead}; this route reads {}", shown(value), known())))
    }
}

/// The treatment of a field's member.
fn checked(field: &'static Field, value: &Value<'_>, others: Others) -> Result<Fate, Refusal> {
    let name = field.name;
    let fate = match fit(&[std::slice::from_ref(field)], name, value) {
        Fit::Known if matches!(value, Value::Null) => return Ok(Fate::Dropped),
        Fit::Known => Fate::Kept,
        Fit::Coerced => Fate::As(name, coerced(field, value)),
        Fit::WrongForm | Fit::Unknown => {
            let expected: Vec<_> = field.forms.iter().map(|form| kind_of(form)).collect();
            return Err(Refusal::field(name, format!("is {}, expected {}", shown(value), expected.join(" or "))));
        }
    };
    if let Effect::Only(values, why) = field.effect
        && !values.iter().any(|expected| is_same(&coerced(field, value), expected))
    {
        return Err(Refusal::unsupported(name, format!("is {}: {why}", shown(value))));
    }
    if others != Others::PassedOver && !field.inner.is_empty() && matches!(value, Value::Object(_)) {
        let members = value.members().into_iter().flatten().map(|(name, value)| (text(name), value));
        for (inner, value) in members.filter(|(inner, _)| find(field.inner, inner).is_none()) {
            let Some(Word { sense: Sense::Matters { usual, instead, .. }, .. }) = words::find(&inner) else { continue };
            let plain = tree(&value);
            if !is_usual(&plain, usual) {
                let (name, shown) = (format!("{name}.{inner}"), shown(&value));
                return Err(Refusal::unsupported(&name, format!("is {shown}: {instead}")));
            }
        }
    }
    Ok(fate)
}

/// Whether a field has a meaning that other ones have, too.
fn is_of(field: &Field, meaning: Meaning) -> bool {
    let of = words::find(field.name).map(|word| &word.sense);
    meaning != Meaning::Own && matches!(of, Some(Sense::Matters { meaning: own, .. }) if *own == meaning)
}

/// The value of a field of this meaning as another field of the same meaning takes it; `None` where it cannot be said there.
fn translated(meaning: Meaning, value: &serde_json::Value, to: &Field) -> Option<serde_json::Value> {
    use Meaning::{Best, Cut, Dimensions, Documents, Elements, Instruction, Kind, Length, Model};
    use serde_json::Value;
    let takes = |other: &Value| to.forms.iter().any(|form| is_alike(form, other));
    let all = |value: Value| Some(value).filter(takes);
    match meaning {
        Meaning::Own => None,
        Kind if !matches!(to.effect, Effect::Ours) => None,
        Model | Dimensions | Length | Kind | Instruction | Best | Documents => all(value.clone()),
        Elements => match value {
            Value::Array(types) if types.len() == 1 => all(value.clone()).or_else(|| all(types[0].clone())),
            Value::Array(_) => all(value.clone()),
            one => all(one.clone()).or_else(|| all(Value::Array(vec![one.clone()]))),
        },
        Cut => {
            let cuts = match value {
                Value::Bool(cuts) => *cuts,
                Value::String(word) if word.eq_ignore_ascii_case("end") => true,
                Value::String(word) if word.eq_ignore_ascii_case("none") => false,
                Value::Number(tokens) if tokens.as_i64() == Some(-1) => true,
                _ => return None,
            };
            // Without a number of tokens vLLM's routes cut nothing.
            let as_number = || if cuts { all((-1).into()) } else { all(1.into()).map(|_| Value::Null) };
            all(cuts.into()).or_else(|| all(if cuts { "END" } else { "NONE" }.into())).or_else(as_number)
        }
    }
}

/// Whether a value is of the kind of an example.
fn is_alike(example: &str, value: &serde_json::Value) -> bool {
    use serde_json::Value;
    matches!(
        (example.as_bytes().first(), value),
        (Some(b'"'), Value::String(_))
            | (Some(b't' | b'f'), Value::Bool(_))
            | (Some(b'['), Value::Array(_))
            | (Some(b'{'), Value::Object(_))
            | (Some(b'0'..=b'9' | b'-'), Value::Number(_))
    )
}

/// Whether a value asks for nothing, or for what happens in any case.
fn is_usual(value: &serde_json::Value, usual: Forms) -> bool {
    let is_empty = match value {
        serde_json::Value::Null => true,
        serde_json::Value::String(text) => text.is_empty(),
        serde_json::Value::Array(items) => items.is_empty(),
        serde_json::Value::Object(members) => members.is_empty(),
        serde_json::Value::Bool(_) | serde_json::Value::Number(_) => false,
    };
    let is_text = |expected: &str| value.as_str().is_some_and(|text| text.eq_ignore_ascii_case(expected));
    is_empty || usual.iter().any(|expected| is_same(value, expected) || is_text(expected))
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
        let checked = Members::of(body.as_bytes()).check(TABLE, Others::Refused);
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
        assert_eq!(known(r#"{"input": "a", "flag": 7, "other": 1}"#), (1, 1));
        assert_eq!(known("[1]"), (0, 0));
        let members = Members::of(br#"{"input": "a", "late": true}"#);
        assert_eq!(members.unknown_but_to(&TABLE[..1], TABLE), Some("late"));
        assert_eq!(members.unknown_but_to(TABLE, TABLE), None);
    }
}
