//! The limit of bytes in a message, and that of entries in a list from outside. Entries are counted while they are read, so that a short message cannot
//! take a lot of memory. They are also counted before they are sent, so that a reader never has to refuse the list.
//!
//! Not here: the length and depth of messages (`bus`).

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::Parameters;

/// The most entries of a list in a message: tensors, dimensions of a shape, steps of a route, inputs and outputs of a
/// step, parameters, hops. Some of these lists are compared with each other, entry by entry.
pub const MAX_LISTED: usize = 1024;

/// The most bytes of a message, and so of a tensor that is made for a request of fewer bytes.
pub const MAX_MESSAGE_BYTES: usize = 128 << 20;

/// Most windows of a text: rows of one that is longer than a row may be.
pub const MOST_WINDOWS: usize = 128;

/// More entries than a list may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} {what}, expected {MAX_LISTED} at most")]
pub struct TooMany {
    /// The name of the list.
    pub what: &'static str,
    /// The number of entries.
    pub found: usize,
}

/// Checks the length of a list against [`MAX_LISTED`].
pub fn check_listed(what: &'static str, found: usize) -> Result<(), TooMany> {
    if found > MAX_LISTED { Err(TooMany { what, found }) } else { Ok(()) }
}

/// Reads a list, for `deserialize_with`. `what` is its name in the error for a list that is too long.
pub fn read_list<'de, D, L>(deserializer: D, what: &'static str) -> Result<L, D::Error>
where
    D: Deserializer<'de>,
    L: Default + IntoIterator + Extend<L::Item>,
    L::Item: Deserialize<'de>,
{
    deserializer.deserialize_seq(Counting { what, kind: PhantomData::<L> })
}

/// Reads parameters: for `deserialize_with`.
pub fn read_parameters<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Parameters, D::Error> {
    deserializer.deserialize_map(CountingParameters)
}

/// Reads entries up to the limit.
struct Counting<L> {
    what: &'static str,
    kind: PhantomData<L>,
}

// === impl Counting ===

impl<'de, L> Visitor<'de> for Counting<L>
where
    L: Default + IntoIterator + Extend<L::Item>,
    L::Item: Deserialize<'de>,
{
    type Value = L;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MAX_LISTED} {} at most", self.what)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<L, A::Error> {
        // No memory is reserved, because the announced length is only a claim.
        let (mut list, mut found) = (L::default(), 0);
        while let Some(entry) = entries.next_element()? {
            if found == MAX_LISTED {
                return Err(A::Error::custom(format_args!("more than {MAX_LISTED} {}", self.what)));
            }
            list.extend(std::iter::once::<L::Item>(entry));
            found += 1;
        }
        Ok(list)
    }
}

/// Reads parameters up to the limit.
struct CountingParameters;

impl<'de> Visitor<'de> for CountingParameters {
    type Value = Parameters;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MAX_LISTED} parameters at most")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Parameters, A::Error> {
        let mut parameters = Parameters::new();
        while let Some((name, value)) = entries.next_entry()? {
            if parameters.len() == MAX_LISTED {
                return Err(A::Error::custom(format_args!("more than {MAX_LISTED} parameters")));
            }
            parameters.insert(name, value);
        }
        Ok(parameters)
    }
}
