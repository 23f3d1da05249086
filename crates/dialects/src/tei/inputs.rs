//! Forms of input that only TEI has.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use trireme_server::http::schema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use crate::input::OneOrMany;

/// Where a text is cut; clients write it with and without a capital.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = TeiTruncationDirection)]
pub enum Direction {
    #[serde(alias = "left")]
    Left,
    #[serde(alias = "right")]
    Right,
}

/// A text, or a pair of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub first: String,
    pub second: Option<String>,
}

/// The texts or pairs of `/predict`: a text; a list of one or two texts, which is one text or one pair; or a list of such
/// lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PredictInput {
    One(Pair),
    Many(Vec<Pair>),
}

impl ToSchema for PredictInput {}

impl PartialSchema for PredictInput {
    fn schema() -> RefOr<Schema> {
        let pair = || schema::some(schema::text(), 1, 2);
        RefOr::T(schema::any_of([schema::text(), pair(), schema::list(pair())]))
    }
}

fn pair<E: Error>(texts: Vec<String>) -> Result<Pair, E> {
    let count = texts.len();
    let mut texts = texts.into_iter();
    match (texts.next(), texts.next(), count) {
        (Some(first), second, 1 | 2) => Ok(Pair { first, second }),
        _ => Err(E::custom(format!("a list of {count} texts, expected one text or a pair of two"))),
    }
}

impl<'de> Deserialize<'de> for PredictInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PredictInput, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = PredictInput;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a pair of texts, or a list of lists of one or two texts")
            }

            fn visit_str<E>(self, text: &str) -> Result<PredictInput, E> {
                Ok(PredictInput::One(Pair { first: text.to_owned(), second: None }))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PredictInput, A::Error> {
                let (mut texts, mut pairs) = (Vec::new(), Vec::new());
                while let Some(element) = list.next_element()? {
                    match element {
                        OneOrMany::One(text) => texts.push(text),
                        OneOrMany::Many(texts) => pairs.push(pair(texts)?),
                    }
                }
                match (texts.is_empty(), pairs.is_empty()) {
                    (true, _) => Ok(PredictInput::Many(pairs)),
                    (false, true) => pair(texts).map(PredictInput::One),
                    (false, false) => Err(A::Error::custom("a list of both texts and lists, expected one kind")),
                }
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predict(text: &str) -> Result<PredictInput, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    fn pair(first: &str, second: Option<&str>) -> Pair {
        Pair { first: first.to_owned(), second: second.map(str::to_owned) }
    }

    #[test]
    fn texts_and_pairs_come_alone_or_in_lists() {
        assert_eq!(predict(r#""a""#), Ok(PredictInput::One(pair("a", None))));
        assert_eq!(predict(r#"["a"]"#), Ok(PredictInput::One(pair("a", None))));
        assert_eq!(predict(r#"["a", "b"]"#), Ok(PredictInput::One(pair("a", Some("b")))));
        let many = vec![pair("a", None), pair("b", Some("c"))];
        assert_eq!(predict(r#"[["a"], ["b", "c"]]"#), Ok(PredictInput::Many(many)));
        assert!(predict(r#"["a", "b", "c"]"#).unwrap_err().contains("a list of 3 texts, expected one text or a pair"));
        assert!(predict(r#"["a", ["b"]]"#).unwrap_err().contains("both texts and lists"));
        assert!(predict("3").unwrap_err().contains("expected a text, a pair of texts"));
    }

    #[test]
    fn directions_are_written_as_one_likes() {
        let read = |text: &str| serde_json::from_str::<Direction>(text);
        assert_eq!(read(r#""Right""#).unwrap(), Direction::Right);
        assert_eq!(read(r#""left""#).unwrap(), Direction::Left);
        assert!(read(r#""up""#).unwrap_err().to_string().contains("expected one of `Left`, `left`, `Right`, `right`"));
    }
}
