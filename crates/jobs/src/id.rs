//! The id of a job as the driver keeps it. A hundred thousand requests may wait, so an id of the usual form lies within the tables of the
//! driver: it has no allocation of its own, which would cost 64 bytes and keep the pages of the heap around it in memory.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

/// The prefixes of ids that the gateway makes.
const PREFIXES: [&str; 4] = ["req_", "batch_", "file-", "upload_"];

/// The bytes behind a prefix, each as two digits.
const BYTES: usize = 16;

/// An id. Two are equal if their texts are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Id {
    /// One of [`PREFIXES`] by its place, and 128 bits in hexadecimal digits.
    Usual(u8, [u8; BYTES]),
    /// Any other text.
    Other(Arc<str>),
}

// === impl Id ===

impl From<&str> for Id {
    fn from(text: &str) -> Id {
        let usual =
            PREFIXES.iter().zip(0..).find_map(|(prefix, place)| Some((place, bits(text.strip_prefix(prefix)?)?)));
        usual.map_or_else(|| Id::Other(text.into()), |(place, bits)| Id::Usual(place, bits))
    }
}

impl Display for Id {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Id::Usual(place, bits) => {
                f.write_str(PREFIXES[usize::from(*place)])?;
                bits.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Id::Other(text) => f.write_str(text),
        }
    }
}

/// The bytes of as many lower-case hexadecimal digits.
fn bits(digits: &str) -> Option<[u8; BYTES]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let mut bits = [0; BYTES];
    if pairs.len() != BYTES || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bits.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::new_id;

    #[test]
    fn an_id_keeps_its_text_and_the_usual_ones_are_small() {
        for prefix in PREFIXES {
            let text = new_id(prefix);
            let id = Id::from(text.as_str());
            assert!(matches!(id, Id::Usual(..)), "{text}");
            assert_eq!(id.to_string(), text);
        }
        let digits = "0123456789abcdef0123456789abcdef";
        let others = [
            String::new(),
            "req_".to_owned(),
            format!("part_{digits}"),
            format!("req_{}", digits.to_uppercase()),
            format!("req_{digits}0"),
            format!("req_{}", &digits[1..]),
            format!("req_{}g", &digits[1..]),
        ];
        for text in others {
            let id = Id::from(text.as_str());
            assert!(matches!(id, Id::Other(_)), "{text}");
            assert_eq!(id.to_string(), text);
        }
        assert_eq!(size_of::<Id>(), 24);
    }
}
