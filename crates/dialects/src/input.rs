//! The bodies of dialects: JSON of a dialect's own shape, and texts in the forms that several dialects allow.

mod document;

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use trireme_operations::ids;
use trireme_server::http::json;
use trireme_server::http::schema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use super::refusal::{Kind, Refusal};
pub use document::Document;

/// Bytes that a body takes in memory while it is read, at most: itself, its texts as they are read, and the tensor of them. A text
/// of no characters is three bytes in JSON, an empty list is two.
pub fn memory(body: &[u8]) -> u64 {
    let of = |byte: u8| 3 + 40 * u64::from(byte == b'"') + 64 * u64::from(byte == b'[');
    body.iter().map(|&byte| of(byte)).sum()
}

/// A body as JSON of this shape.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    Ok(json::read(body)?)
}

/// Refuses empty texts.
pub fn none_empty(field: &str, texts: &[String]) -> Result<(), Refusal> {
    match texts.iter().position(String::is_empty) {
        None => Ok(()),
        Some(index) => {
            Err(Refusal { kind: Kind::Empty, ..Refusal::field(field, format!("holds an empty text at {index}")) })
        }
    }
}

/// One text or several, or token ids in their place.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A text.
    One(String),
    /// Texts.
    Many(Vec<String>),
    /// Token ids, a list for each text; `one`: the list itself was given, not a list of lists.
    Tokens {
        /// The ids.
        rows: Vec<Vec<u32>>,
        /// Whether they are those of one text.
        one: bool,
    },
    /// Conversations, a list of messages for each.
    Conversations(Vec<Vec<Message>>),
}

/// A message of a conversation, as its client sent it.
pub type Message = serde_json::Map<String, serde_json::Value>;

/// An element of a list of texts, token ids or messages.
enum Element {
    Text(String),
    Id(u32),
    Message(Message),
    Ids(Vec<u32>),
    Messages(Vec<Message>),
}

/// One of something, or a list of them.
#[derive(Clone, Debug, PartialEq)]
pub enum OneOrMany<T> {
    /// Outside of a list.
    One(T),
    /// In a list.
    Many(Vec<T>),
}

// === impl OneOrMany ===

impl<T> OneOrMany<T> {
    /// All of them.
    pub fn into_list(self) -> Vec<T> {
        match self {
            OneOrMany::One(one) => vec![one],
            OneOrMany::Many(many) => many,
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OneOrMany<T>, D::Error> {
        struct Forms<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Forms<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of texts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<OneOrMany<T>, E> {
                T::deserialize(StrDeserializer::new(text)).map(OneOrMany::One)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OneOrMany<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(OneOrMany::One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<OneOrMany<T>, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(OneOrMany::Many)
            }
        }
        deserializer.deserialize_any(Forms(PhantomData))
    }
}

/// The schema of one `T` or a list of them.
pub fn one_or_many<T: PartialSchema>() -> Schema {
    let many = utoipa::openapi::schema::ArrayBuilder::new().items(T::schema()).build();
    schema::any_of_refs([T::schema(), RefOr::T(Schema::Array(many))])
}

// === impl Input ===

impl ToSchema for Input {}

impl PartialSchema for Input {
    fn schema() -> RefOr<Schema> {
        let ids = || schema::list(schema::token_id());
        RefOr::T(schema::any_of([schema::text(), schema::list(schema::text()), ids(), schema::list(ids())]))
    }
}

impl Input {
    /// The rows of token ids of `field`, at least one.
    pub fn ids(self, field: &str) -> Result<Vec<Vec<u32>>, Refusal> {
        match self {
            Input::Tokens { rows, .. } => Ok(rows),
            Input::Many(texts) if texts.is_empty() => {
                Err(Refusal { kind: Kind::Empty, ..Refusal::field(field, "is empty, expected token ids") })
            }
            _ => Err(Refusal::field(field, "holds texts, expected token ids")),
        }
    }

    /// The texts, or JSON arrays of the model's token ids; whether a single one came outside of a list; whether they are ids.
    pub fn texts_or_ids(self, field: &str) -> Result<(Vec<String>, bool, bool), Refusal> {
        match self {
            Input::Tokens { rows, one } => match rows.iter().position(Vec::is_empty) {
                None => Ok((rows.iter().map(|row| ids(row)).collect(), one, true)),
                Some(index) => {
                    let why = format!("holds no token ids at {index}");
                    Err(Refusal { kind: Kind::Empty, ..Refusal::field(field, why) })
                }
            },
            texts => texts.texts(field, "").map(|(texts, one)| (texts, one, false)),
        }
    }

    /// The texts of `field`, at least one, and whether only one was given outside of a list. Token ids are refused: `why` says what
    /// to do instead.
    pub fn texts(self, field: &str, why: &str) -> Result<(Vec<String>, bool), Refusal> {
        match self {
            Input::One(text) => Ok((vec![text], true)),
            Input::Many(texts) if texts.is_empty() => Err(Refusal::empty(field)),
            Input::Many(texts) => Ok((texts, false)),
            Input::Tokens { .. } => Err(Refusal::unsupported(field, format!("holds token ids: {why}"))),
            Input::Conversations(_) => Err(Refusal::field(field, "holds messages, expected texts")),
        }
    }
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Input, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = Input;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a list of texts, a list of token ids, or a list of such lists")
            }

            fn visit_str<E>(self, text: &str) -> Result<Input, E> {
                Ok(Input::One(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Input, E> {
                Ok(Input::One(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Input, A::Error> {
                let (mut texts, mut ids, mut rows) = (Vec::new(), Vec::new(), Vec::new());
                let (mut messages, mut conversations) = (Vec::new(), Vec::new());
                while let Some(element) = list.next_element()? {
                    match element {
                        Element::Text(text) => texts.push(text),
                        Element::Id(id) => ids.push(id),
                        Element::Message(message) => messages.push(message),
                        Element::Ids(row) => rows.push(row),
                        Element::Messages(conversation) => conversations.push(conversation),
                    }
                }
                let kinds =
                    [texts.is_empty(), ids.is_empty(), rows.is_empty(), messages.is_empty(), conversations.is_empty()];
                match kinds {
                    [_, true, true, true, true] => Ok(Input::Many(texts)),
                    [true, false, true, true, true] => Ok(Input::Tokens { rows: vec![ids], one: true }),
                    [true, true, false, true, true] => Ok(Input::Tokens { rows, one: false }),
                    [true, true, true, false, true] => Ok(Input::Conversations(vec![messages])),
                    [true, true, true, true, false] => Ok(Input::Conversations(conversations)),
                    _ => Err(A::Error::custom("a list holds both texts and token ids, expected one kind")),
                }
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Element, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a token id, or a list of token ids")
            }

            fn visit_str<E>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Element, E> {
                Ok(Element::Text(text))
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
                u32::try_from(id).map(Element::Id).map_err(|_| E::custom(out_of_vocabulary(id)))
            }

            fn visit_i64<E: Error>(self, id: i64) -> Result<Element, E> {
                Err(E::custom(out_of_vocabulary(id)))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Element, A::Error> {
                Message::deserialize(MapAccessDeserializer::new(map)).map(Element::Message)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
                let (mut ids, mut messages) = (Vec::new(), Vec::new());
                while let Some(element) = list.next_element()? {
                    match element {
                        Element::Id(id) => ids.push(id),
                        Element::Message(message) => messages.push(message),
                        _ => return Err(A::Error::custom("a list in a list holds texts, expected token ids")),
                    }
                }
                match (ids.is_empty(), messages.is_empty()) {
                    (_, true) => Ok(Element::Ids(ids)),
                    (true, false) => Ok(Element::Messages(messages)),
                    (false, false) => Err(A::Error::custom("a list holds both token ids and messages")),
                }
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

/// The error of an id that is in no vocabulary.
fn out_of_vocabulary(id: impl fmt::Display) -> String {
    format!("{id} is no token id: it is out of vocabulary")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(text: &str) -> Result<Input, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn texts_come_alone_or_in_lists() {
        assert_eq!(input(r#""a\nb""#), Ok(Input::One("a\nb".to_owned())));
        assert_eq!(input(r#"["a", "b"]"#), Ok(Input::Many(vec!["a".to_owned(), "b".to_owned()])));
        assert_eq!(input("[]"), Ok(Input::Many(vec![])));
        assert_eq!(input("[]").unwrap().texts("input", "").unwrap_err(), Refusal::empty("input"));
    }

    #[test]
    fn token_ids_come_in_lists() {
        assert_eq!(input("[1, 2]"), Ok(Input::Tokens { rows: vec![vec![1, 2]], one: true }));
        assert_eq!(input("[[1], []]"), Ok(Input::Tokens { rows: vec![vec![1], vec![]], one: false }));
        let refusal = input("[1]").unwrap().texts("input", "send texts").unwrap_err();
        assert_eq!(refusal.message, "'input' holds token ids: send texts");
    }

    #[test]
    fn what_is_neither_is_named() {
        assert!(input("3").unwrap_err().contains("expected a text, a list of texts"));
        assert!(input("[null]").unwrap_err().contains("expected a text, a token id"));
        assert!(input("[-1]").unwrap_err().contains("-1 is no token id"));
        assert!(input(r#"["a", 1]"#).unwrap_err().contains("both texts and token ids"));
    }
}
