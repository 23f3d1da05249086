//! Values of a checked JSON text. Arrays and objects are spans that are scanned at each access.

use std::borrow::Cow;
use std::collections::HashSet;

use super::error::{JsonError, MAX_NESTING};
use super::scan::{RawString, Scanner, to_f64};

/// A JSON value that borrows its text.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string's bytes, unescaped; not necessarily UTF-8.
    String(Cow<'a, [u8]>),
    /// An array.
    Array(Array<'a>),
    /// An object.
    Object(Object<'a>),
}

/// A number as written: an integer if it has neither fraction nor exponent and fits 64 bits, otherwise a double.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An integer that is not negative.
    Unsigned(u64),
    /// A negative integer.
    Negative(i64),
    /// Any other number.
    Double(f64),
}

/// An array's text, checked.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    inner: &'a [u8],
}

/// An object's text, checked.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    inner: &'a [u8],
}

/// Checks the whole `text` and returns its value.
pub fn parse(text: &[u8]) -> Result<Value<'_>, JsonError> {
    let mut scanner = Scanner::new(text);
    scanner.skip_byte_order_mark();
    scanner.check()?;
    scanner.skip_whitespace();
    Ok(read(&mut scanner))
}

/// Reads the value at the scanner's position.
fn read<'a>(scanner: &mut Scanner<'a>) -> Value<'a> {
    match scanner.peek() {
        b'[' => Value::Array(Array { inner: scanner.skip_container() }),
        b'{' => Value::Object(Object { inner: scanner.skip_container() }),
        _ => read_scalar(scanner),
    }
}

#[inline]
fn read_scalar<'a>(scanner: &mut Scanner<'a>) -> Value<'a> {
    match scanner.peek() {
        b'"' => Value::String(unescape(scanner.skip_string())),
        b'-' | b'0'..=b'9' => Value::Number(match scanner.skip_short_integer() {
            Some(integer) => Number::from(integer),
            None => Number::from_token(scanner.skip_word()),
        }),
        _ => match scanner.skip_word() {
            b"null" => Value::Null,
            b"true" => Value::Bool(true),
            b"false" => Value::Bool(false),
            token => Value::Number(Number::from_token(token)),
        },
    }
}

fn unescape(raw: RawString<'_>) -> Cow<'_, [u8]> {
    if !raw.escaped {
        return Cow::Borrowed(raw.text);
    }
    let mut plain = Vec::with_capacity(raw.text.len());
    let mut rest = raw.text;
    while let Some(backslash) = memchr::memchr(b'\\', rest) {
        plain.extend_from_slice(&rest[..backslash]);
        let mut scanner = Scanner::new(&rest[backslash..]);
        let character = scanner.escape().expect("escapes were checked");
        plain.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        rest = scanner.rest();
    }
    plain.extend_from_slice(rest);
    Cow::Owned(plain)
}

// === impl Value ===

impl<'a> Value<'a> {
    /// The boolean. The error is "attempt to access JSON non-boolean as boolean".
    pub fn as_bool(&self) -> Result<bool, JsonError> {
        match *self {
            Value::Bool(value) => Ok(value),
            _ => Err(JsonError::Type { kind: "boolean", wanted: "boolean" }),
        }
    }

    /// The number, if it is an integer from 0 to `u64::MAX`.
    pub fn as_u64(&self) -> Result<u64, JsonError> {
        match *self {
            Value::Number(Number::Unsigned(value)) => Ok(value),
            _ => Err(JsonError::Type { kind: "unsigned-integer", wanted: "unsigned-integer" }),
        }
    }

    /// The number, if it is an integer within `i64`.
    pub fn as_i64(&self) -> Result<i64, JsonError> {
        let value = match *self {
            Value::Number(Number::Unsigned(value)) => i64::try_from(value).ok(),
            Value::Number(Number::Negative(value)) => Some(value),
            _ => None,
        };
        value.ok_or(JsonError::Type { kind: "signed-integer", wanted: "signed-integer" })
    }

    /// The number, integers included.
    pub fn as_f64(&self) -> Result<f64, JsonError> {
        match *self {
            Value::Number(Number::Unsigned(value)) => Ok(value as f64),
            Value::Number(Number::Negative(value)) => Ok(value as f64),
            Value::Number(Number::Double(value)) => Ok(value),
            _ => Err(JsonError::Type { kind: "number", wanted: "double" }),
        }
    }

    /// The string's bytes.
    pub fn as_bytes(&self) -> Result<&[u8], JsonError> {
        match self {
            Value::String(bytes) => Ok(bytes),
            _ => Err(JsonError::Type { kind: "string", wanted: "string" }),
        }
    }

    /// The string as text; bytes that are not UTF-8 become U+FFFD.
    pub fn as_text(&self) -> Result<Cow<'_, str>, JsonError> {
        self.as_bytes().map(String::from_utf8_lossy)
    }

    /// The array.
    pub fn as_array(&self) -> Result<Array<'a>, JsonError> {
        match *self {
            Value::Array(array) => Ok(array),
            _ => Err(JsonError::Type { kind: "array", wanted: "array" }),
        }
    }

    /// The members with these names, `None` for a missing one; all `None` if this is not an object.
    pub fn pick<const N: usize>(&self, names: [&str; N]) -> [Option<Value<'a>>; N] {
        let mut found = [const { None }; N];
        if let Value::Object(object) = self {
            let mut missing = N;
            let mut walk = object.walk();
            while missing > 0
                && let Some((name, value)) = walk.next()
            {
                if let Some(i) = names.iter().position(|n| n.as_bytes() == &*name)
                    && found[i].is_none()
                {
                    found[i] = Some(value);
                    missing -= 1;
                }
            }
        }
        found
    }

    /// The members in the order of the text. The error is "attempt to get members for non-object". Of members with the
    /// same name only the first one is returned.
    pub fn members(&self) -> Result<impl Iterator<Item = (Cow<'a, [u8]>, Value<'a>)> + use<'a>, JsonError> {
        let mut seen = HashSet::new();
        Ok(self.all_members()?.filter(move |(name, _)| seen.insert(name.clone())))
    }

    /// As [`Value::members`], with all members of the same name.
    pub fn all_members(&self) -> Result<impl Iterator<Item = (Cow<'a, [u8]>, Value<'a>)> + use<'a>, JsonError> {
        let Value::Object(object) = self else { return Err(JsonError::NoMembers) };
        Ok(object.walk())
    }
}

// === impl Number ===

impl Number {
    /// The value of a token that [`Scanner::number`] accepts.
    fn from_token(token: &[u8]) -> Number {
        // Integers above 64 bits become doubles.
        let integer = match token {
            [b'-', digits @ ..] => parse_digits(digits).and_then(|n| 0i64.checked_sub_unsigned(n)).map(Number::from),
            digits => parse_digits(digits).map(Number::Unsigned),
        };
        integer.unwrap_or_else(|| Number::Double(to_f64(token)))
    }
}

/// The integer, if `digits` are only digits and it fits.
fn parse_digits(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| byte - b'0')?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

impl From<i64> for Number {
    #[inline]
    fn from(integer: i64) -> Number {
        match u64::try_from(integer) {
            Ok(integer) => Number::Unsigned(integer),
            Err(_) => Number::Negative(integer),
        }
    }
}

// === impl Array ===

impl<'a> Array<'a> {
    /// The elements.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let mut scanner = Scanner::new(self.inner);
        std::iter::from_fn(move || {
            scanner.skip_whitespace();
            if scanner.at_end() {
                return None;
            }
            let value = read(&mut scanner);
            scanner.skip_whitespace();
            scanner.take(b',');
            Some(value)
        })
    }

    /// The elements of this array and of nested arrays, depth first; no element is an array. An element under
    /// [`MAX_NESTING`] arrays or more is an error, after which the iterator ends.
    pub fn flatten(&self) -> impl Iterator<Item = Result<Value<'a>, JsonError>> + use<'a> {
        let mut scanner = Scanner::new(self.inner);
        let mut depth = 1;
        std::iter::from_fn(move || {
            loop {
                scanner.skip_whitespace();
                if scanner.at_end() {
                    return None;
                }
                match scanner.peek() {
                    b',' => scanner.advance(),
                    b']' => {
                        scanner.advance();
                        depth -= 1;
                    }
                    _ if depth >= MAX_NESTING => {
                        scanner.finish();
                        return Some(Err(JsonError::Nesting));
                    }
                    b'[' => {
                        scanner.advance();
                        depth += 1;
                    }
                    b'{' => return Some(Ok(read(&mut scanner))),
                    _ => return Some(Ok(read_scalar(&mut scanner))),
                }
            }
        })
    }

    /// Bytes of text between the brackets. They bound the number of elements, because each takes at least one byte and
    /// a comma.
    pub fn text_len(&self) -> usize {
        self.inner.len()
    }
}

// === impl Object ===

impl<'a> Object<'a> {
    /// Every member, duplicates included.
    fn walk(&self) -> impl Iterator<Item = (Cow<'a, [u8]>, Value<'a>)> + use<'a> {
        let mut scanner = Scanner::new(self.inner);
        std::iter::from_fn(move || {
            scanner.skip_whitespace();
            if scanner.at_end() {
                return None;
            }
            let name = unescape(scanner.skip_string());
            scanner.skip_whitespace();
            scanner.take(b':');
            scanner.skip_whitespace();
            let value = read(&mut scanner);
            scanner.skip_whitespace();
            scanner.take(b',');
            Some((name, value))
        })
    }
}

#[cfg(test)]
mod tests;
