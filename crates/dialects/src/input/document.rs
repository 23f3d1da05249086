//! Documents to rerank or embed: a text each, or an object with texts among its fields.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use trireme_server::http::schema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use crate::refusal::Refusal;

/// A document: a text, or an object with texts among its fields.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// A text.
    Text(String),
    /// The fields of an object that are texts.
    Fields(BTreeMap<String, String>),
}

/// A field's text; `None` where it is something else.
struct FieldText(Option<String>);

// === impl Document ===

impl ToSchema for Document {}

impl PartialSchema for Document {
    fn schema() -> RefOr<Schema> {
        RefOr::T(schema::any_of([schema::text(), schema::object([])]))
    }
}

impl Document {
    /// The document's text: the text itself, or the texts of these fields, a line each. `None` for an object without these fields.
    pub fn text(self, fields: &[impl AsRef<str>]) -> Option<String> {
        match self {
            Document::Text(text) => Some(text),
            Document::Fields(map) => {
                let texts: Vec<&str> =
                    fields.iter().filter_map(|name| Some(map.get(name.as_ref())?.as_str())).collect();
                (!texts.is_empty()).then(|| texts.join("\n"))
            }
        }
    }

    /// The texts of a list of documents of `field`, each of these fields.
    pub fn texts(documents: Vec<Document>, field: &str, fields: &[impl AsRef<str>]) -> Result<Vec<String>, Refusal> {
        let text = |(index, document): (usize, Document)| {
            let names: Vec<_> = fields.iter().map(|name| format!("'{}'", name.as_ref())).collect();
            let missing = || Refusal::field(field, format!("holds no text in {} at {index}", names.join(", ")));
            document.text(fields).ok_or_else(missing)
        };
        documents.into_iter().enumerate().map(text).collect()
    }

    /// The texts of a list of documents of `field`, each of all fields of an object that are texts, in the order of their names.
    pub fn whole_texts(documents: Vec<Document>, field: &str) -> Result<Vec<String>, Refusal> {
        let text = |(index, document): (usize, Document)| match document {
            Document::Text(text) => Ok(text),
            Document::Fields(map) if map.is_empty() => {
                Err(Refusal::field(field, format!("holds an object without a text at {index}")))
            }
            Document::Fields(map) => Ok(map.into_values().collect::<Vec<_>>().join("\n")),
        };
        documents.into_iter().enumerate().map(text).collect()
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Document, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = Document;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or an object with texts")
            }

            fn visit_str<E>(self, text: &str) -> Result<Document, E> {
                Ok(Document::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((name, FieldText(text))) = map.next_entry::<String, FieldText>()? {
                    fields.extend(text.map(|text| (name, text)));
                }
                Ok(Document::Fields(fields))
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

impl<'de> Deserialize<'de> for FieldText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FieldText, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = FieldText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_str<E>(self, text: &str) -> Result<FieldText, E> {
                Ok(FieldText(Some(text.to_owned())))
            }

            fn visit_bool<E>(self, _: bool) -> Result<FieldText, E> {
                Ok(FieldText(None))
            }

            fn visit_i64<E>(self, _: i64) -> Result<FieldText, E> {
                Ok(FieldText(None))
            }

            fn visit_u64<E>(self, _: u64) -> Result<FieldText, E> {
                Ok(FieldText(None))
            }

            fn visit_f64<E>(self, _: f64) -> Result<FieldText, E> {
                Ok(FieldText(None))
            }

            fn visit_unit<E>(self) -> Result<FieldText, E> {
                Ok(FieldText(None))
            }

            /// The text of a list of parts, if all are texts.
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FieldText, A::Error> {
                let mut parts = Some(Vec::new());
                while let Some(part) = list.next_element::<serde_json::Value>()? {
                    let text = part.get("text").and_then(serde_json::Value::as_str).map(str::to_owned);
                    parts = parts.zip(text).map(|(mut parts, text)| {
                        parts.push(text);
                        parts
                    });
                }
                Ok(FieldText(parts.filter(|parts| !parts.is_empty()).map(|parts| parts.join("\n"))))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FieldText, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(FieldText(None))
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

#[cfg(test)]
mod tests {
    use super::super::OneOrMany;
    use super::*;

    #[test]
    fn documents_may_be_objects() {
        let read = |text: &str| serde_json::from_str::<OneOrMany<Document>>(text).map_err(|error| error.to_string());
        let documents =
            read(r#"["a", {"title": "c", "text": "d", "year": 3, "tags": [1], "more": {"a": null}}]"#).unwrap();
        let texts = Document::texts(documents.into_list(), "documents", &["title", "text"]);
        assert_eq!(texts.unwrap(), ["a", "c\nd"]);
        let one = read(r#"{"text": "a"}"#).unwrap();
        assert_eq!(Document::texts(one.into_list(), "input", &["text"]).unwrap(), ["a"]);
        let parts = read(r#"{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}"#).unwrap();
        assert_eq!(Document::texts(parts.into_list(), "input", &["text", "content"]).unwrap(), ["a\nb"]);
        let image = read(r#"{"content": [{"type": "text", "text": "a"}, {"image_url": {}}]}"#).unwrap();
        assert!(Document::texts(image.into_list(), "input", &["text", "content"]).is_err());
        let none = read(r#"["a", {"title": "b"}]"#).unwrap();
        let refusal = Document::texts(none.into_list(), "documents", &["text"]).unwrap_err();
        assert_eq!(refusal.message, "'documents' holds no text in 'text' at 1");
        let whole = read(r#"["a", {"title": "c", "text": "d", "year": 3}]"#).unwrap();
        assert_eq!(Document::whole_texts(whole.into_list(), "documents").unwrap(), ["a", "d\nc"]);
        let none = read(r#"[{"year": 3}]"#).unwrap();
        let refusal = Document::whole_texts(none.into_list(), "documents").unwrap_err();
        assert_eq!(refusal.message, "'documents' holds an object without a text at 0");
        assert!(read("[1]").unwrap_err().contains("expected a text, or an object with texts"));
    }
}
