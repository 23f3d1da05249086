//! A digest of what JSON says, whatever its form: spaces, the order of keys, and escapes do not count. The document is not kept in memory.

use std::fmt;
use std::io::{self, Read};

use ring::digest::{Context, SHA256};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// SHA-256, as four numbers.
type Digest = [u64; 4];

/// The digest of a document; these keys of its outermost object do not count. Errors when it is no JSON.
pub fn meaning(document: impl Read, without: &[&str]) -> io::Result<[u8; 32]> {
    let mut reader = serde_json::Deserializer::from_reader(document);
    let digest = Value { without }.deserialize(&mut reader)?;
    reader.end()?;
    let mut bytes = [0; 32];
    bytes.iter_mut().zip(digest.iter().flat_map(|number| number.to_le_bytes())).for_each(|(to, from)| *to = from);
    Ok(bytes)
}

/// A value within a document.
#[derive(Clone, Copy)]
struct Value<'a> {
    /// Keys that do not count, if it is an object.
    without: &'a [&'a str],
}

fn of(kind: u8, parts: &[&[u8]]) -> Digest {
    let mut context = Context::new(&SHA256);
    context.update(&[kind]);
    for part in parts {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    let digest = context.finish();
    let (numbers, _) = digest.as_ref().as_chunks();
    std::array::from_fn(|index| numbers.get(index).copied().map_or(0, u64::from_le_bytes))
}

fn bytes(digest: Digest) -> Vec<u8> {
    digest.iter().flat_map(|number| number.to_le_bytes()).collect()
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = Digest;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Digest, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = Digest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Digest, E> {
        Ok(of(0, &[]))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Digest, E> {
        Ok(of(1, &[&[value.into()]]))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Digest, E> {
        self.visit_f64(value as f64)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Digest, E> {
        self.visit_f64(value as f64)
    }

    /// All numbers are of one kind: 1 and 1.0 are the same.
    fn visit_f64<E: Error>(self, value: f64) -> Result<Digest, E> {
        Ok(of(2, &[&value.to_le_bytes()]))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Digest, E> {
        Ok(of(3, &[value.as_bytes()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Digest, A::Error> {
        let mut whole = of(4, &[]);
        while let Some(next) = list.next_element_seed(Value { without: &[] })? {
            whole = of(4, &[&bytes(whole), &bytes(next)]);
        }
        Ok(whole)
    }

    /// The sum of its entries, which is the same in any order.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Digest, A::Error> {
        let mut whole = of(5, &[]);
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(Value { without: &[] })?;
            if !self.without.contains(&key.as_str()) {
                let entry = of(6, &[key.as_bytes(), &bytes(value)]);
                whole.iter_mut().zip(entry).for_each(|(sum, number)| *sum = sum.wrapping_add(number));
            }
        }
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(one: &str, other: &str) -> bool {
        let [one, other] = [one, other].map(|text| meaning(text.as_bytes(), &["from"]).unwrap());
        one == other
    }

    #[test]
    fn form_does_not_count_and_values_do() {
        let first = r#"{"from":"here","a":[1,{"b":null}],"é":"x\n"}"#;
        assert!(same(first, "{ \"\\u00e9\": \"x\\u000a\",\n \"a\": [1.0, {\"b\": null}] }"));
        for other in [
            r#"{"a":[{"b":null},1],"é":"x\n"}"#,
            r#"{"a":[1,{"b":false}],"é":"x\n"}"#,
            r#"{"a":[1,{"b":null,"from":1}],"é":"x\n"}"#,
            r#"{"a":[1,{"b":null}],"e":"x\n"}"#,
            r#"{"a":[1,{"b":null}]}"#,
        ] {
            assert!(!same(first, other), "{other}");
        }
        assert!(!same(r#"[["a"],"b"]"#, r#"[["a","b"]]"#));
        assert!(meaning(&b"{} {"[..], &[]).is_err());
    }
}
