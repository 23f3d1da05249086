//! Scans JSON text: [`Scanner::check`] over unchecked text, the `skip_` methods over checked text.

use memchr::{memchr2, memchr3};

use super::error::{JsonError, SyntaxFault};

/// A position in JSON text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

/// A string as written in the text, without its quotes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawString<'a> {
    pub(super) text: &'a [u8],
    pub(super) escaped: bool,
}

/// A container that was opened and not closed yet.
#[derive(Clone, Copy)]
enum Open {
    Array,
    Object,
}

// === impl Scanner ===

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Scanner { text, at: 0 }
    }

    /// The byte at the position; 0 at the end. A NUL in the text is an end too, as in Triton.
    #[inline]
    pub(super) fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    /// Moves past the byte at the position, which the caller has checked.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.at += 1;
    }

    /// Moves past `byte` if it is at the position.
    #[inline]
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == byte;
        self.at += usize::from(found);
        found
    }

    #[inline]
    pub(super) fn skip_whitespace(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    /// Skips the byte order mark with which some clients begin, as Triton does.
    pub(super) fn skip_byte_order_mark(&mut self) {
        if self.text.starts_with(b"\xEF\xBB\xBF") {
            self.at = 3;
        }
    }

    fn fault<T>(&self, fault: SyntaxFault) -> Result<T, JsonError> {
        Err(JsonError::Syntax { fault, offset: self.at })
    }
}

// --- text that may be anything ---

impl<'a> Scanner<'a> {
    /// Checks that the text is one JSON value and nothing else. Iterative: nesting takes a byte of heap per level.
    pub(super) fn check(mut self) -> Result<(), JsonError> {
        let mut open = Vec::new();
        self.skip_whitespace();
        if matches!(self.peek(), 0 | b']' | b'}' | b',' | b':') {
            return self.fault(SyntaxFault::DocumentEmpty);
        }
        loop {
            // A value begins here. A container that is not empty begins with a value of its own.
            match self.peek() {
                b'[' => {
                    self.advance();
                    self.skip_whitespace();
                    if !self.take(b']') {
                        open.push(Open::Array);
                        continue;
                    }
                }
                b'{' => {
                    self.advance();
                    self.skip_whitespace();
                    if !self.take(b'}') {
                        open.push(Open::Object);
                        self.check_name()?;
                        continue;
                    }
                }
                _ => self.check_scalar()?,
            }
            // A value has ended here, and perhaps the containers around it end too.
            loop {
                self.skip_whitespace();
                match (open.last(), self.peek()) {
                    (None, 0) => return Ok(()),
                    (None, _) => return self.fault(SyntaxFault::RootNotSingular),
                    (Some(Open::Array), b']') | (Some(Open::Object), b'}') => {
                        self.advance();
                        open.pop();
                    }
                    (Some(Open::Array), b',') => {
                        self.advance();
                        self.skip_whitespace();
                        break;
                    }
                    (Some(Open::Object), b',') => {
                        self.advance();
                        self.skip_whitespace();
                        self.check_name()?;
                        break;
                    }
                    (Some(Open::Array), _) => return self.fault(SyntaxFault::MissingCommaOrBracket),
                    (Some(Open::Object), _) => return self.fault(SyntaxFault::MissingCommaOrBrace),
                }
            }
        }
    }

    /// Checks a member's name and colon, and the space around them.
    fn check_name(&mut self) -> Result<(), JsonError> {
        if self.peek() != b'"' {
            return self.fault(SyntaxFault::MissingName);
        }
        self.check_string()?;
        self.skip_whitespace();
        if !self.take(b':') {
            return self.fault(SyntaxFault::MissingColon);
        }
        self.skip_whitespace();
        Ok(())
    }

    fn check_scalar(&mut self) -> Result<(), JsonError> {
        match self.peek() {
            b'"' => self.check_string(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => self.number().map(drop),
        }
    }

    fn literal(&mut self, expected: &[u8]) -> Result<(), JsonError> {
        match expected.iter().all(|&byte| self.take(byte)) {
            true => Ok(()),
            false => self.fault(SyntaxFault::InvalidValue),
        }
    }

    fn check_string(&mut self) -> Result<(), JsonError> {
        self.advance();
        loop {
            let rest = &self.text[self.at..];
            self.at += rest.iter().position(|&b| b < 0x20 || b == b'"' || b == b'\\').unwrap_or(rest.len());
            match self.peek() {
                b'"' => {
                    self.advance();
                    return Ok(());
                }
                b'\\' => self.escape().map(drop)?,
                0 => return self.fault(SyntaxFault::MissingQuote),
                _ => return self.fault(SyntaxFault::Escape),
            }
        }
    }

    /// Decodes the escape sequence at the position. Faults have the offset of its backslash.
    pub(super) fn escape(&mut self) -> Result<char, JsonError> {
        let offset = self.at;
        let fail = |fault| JsonError::Syntax { fault, offset };
        self.advance();
        let escaped = self.peek();
        let plain = match escaped {
            b'"' | b'\\' | b'/' => escaped as char,
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.advance();
                let mut code = self.hex4().ok_or(fail(SyntaxFault::UnicodeHex))?;
                if (0xD800..0xDC00).contains(&code) {
                    if !(self.take(b'\\') && self.take(b'u')) {
                        return Err(fail(SyntaxFault::UnicodeSurrogate));
                    }
                    let low = self.hex4().ok_or(fail(SyntaxFault::UnicodeHex))?;
                    if !(0xDC00..0xE000).contains(&low) {
                        return Err(fail(SyntaxFault::UnicodeSurrogate));
                    }
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                }
                // The only fault left is a low surrogate that follows no high one.
                return char::from_u32(code).ok_or(fail(SyntaxFault::UnicodeSurrogate));
            }
            _ => return Err(fail(SyntaxFault::Escape)),
        };
        self.advance();
        Ok(plain)
    }

    fn hex4(&mut self) -> Option<u32> {
        (0..4).try_fold(0, |code, _| {
            let digit = char::from(self.peek()).to_digit(16)?;
            self.advance();
            Some(code << 4 | digit)
        })
    }

    /// The number at the position, as written in the text.
    pub(super) fn number(&mut self) -> Result<&'a [u8], JsonError> {
        let start = self.at;
        self.take(b'-');
        match self.peek() {
            b'0' => self.advance(),
            b'1'..=b'9' => self.skip_digits(),
            b'N' => {
                self.literal(b"NaN")?;
                return Ok(&self.text[start..self.at]);
            }
            b'I' => {
                self.literal(b"Inf")?;
                if self.peek() == b'i' {
                    self.literal(b"inity")?;
                }
                return Ok(&self.text[start..self.at]);
            }
            _ => return self.fault(SyntaxFault::InvalidValue),
        }
        if self.take(b'.') {
            if !self.peek().is_ascii_digit() {
                return self.fault(SyntaxFault::MissingFraction);
            }
            self.skip_digits();
        }
        let scientific = self.take(b'e') || self.take(b'E');
        if scientific {
            let _sign = self.take(b'+') || self.take(b'-');
            if !self.peek().is_ascii_digit() {
                return self.fault(SyntaxFault::MissingExponent);
            }
            self.skip_digits();
        }
        let token = &self.text[start..self.at];
        // Only numbers with an exponent, or with more digits than a double has decades, can overflow.
        let may_overflow = scientific || token.len() > f64::MAX_10_EXP as usize;
        if may_overflow && to_f64(token).is_infinite() {
            return Err(JsonError::Syntax { fault: SyntaxFault::NumberTooBig, offset: start });
        }
        Ok(token)
    }

    #[inline]
    fn skip_digits(&mut self) {
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
    }
}

/// A number token's value, correctly rounded; infinite if it is too big. Rust's grammar of floats includes all JSON
/// numbers and the words for NaN and infinity.
pub(super) fn to_f64(token: &[u8]) -> f64 {
    let text = str::from_utf8(token).expect("a number token is ASCII");
    text.parse().expect("a number token is a Rust float")
}

// --- text that was checked ---

impl<'a> Scanner<'a> {
    /// Whether the position is at the end of the text.
    #[inline]
    pub(super) fn at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    /// The text from the position on.
    pub(super) fn rest(&self) -> &'a [u8] {
        &self.text[self.at..]
    }

    /// Moves to the end of the text.
    pub(super) fn finish(&mut self) {
        self.at = self.text.len();
    }

    /// Skips the string at the position and returns it.
    pub(super) fn skip_string(&mut self) -> RawString<'a> {
        self.advance();
        let start = self.at;
        let mut escaped = false;
        loop {
            let rest = &self.text[self.at..];
            self.at += memchr2(b'"', b'\\', rest).expect("a checked string is closed");
            if self.text[self.at] == b'"' {
                self.advance();
                return RawString { text: &self.text[start..self.at - 1], escaped };
            }
            escaped = true;
            self.at += 2;
        }
    }

    /// Skips the array or object at the position; returns it without its brackets. Only brackets of its own kind are
    /// counted: in checked text the others are balanced within.
    pub(super) fn skip_container(&mut self) -> &'a [u8] {
        let opening = self.peek();
        let closing = if opening == b'[' { b']' } else { b'}' };
        self.advance();
        let start = self.at;
        let mut depth = 1usize;
        while depth > 0 {
            let rest = &self.text[self.at..];
            self.at += memchr3(b'"', opening, closing, rest).expect("a checked container is closed");
            match self.peek() {
                b'"' => {
                    self.skip_string();
                    continue;
                }
                bracket if bracket == opening => depth += 1,
                _ => depth -= 1,
            }
            self.advance();
        }
        &self.text[start..self.at - 1]
    }

    /// Skips the word or number at the position, up to a character that can follow it.
    #[inline]
    pub(super) fn skip_word(&mut self) -> &'a [u8] {
        let start = self.at;
        while !matches!(self.peek(), 0 | b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    /// Reads the integer at the position, if it has at most 18 digits. This is by far the most common number, so it has
    /// a fast path.
    #[inline]
    pub(super) fn skip_short_integer(&mut self) -> Option<i64> {
        let sign = usize::from(self.peek() == b'-');
        let text = &self.rest()[sign..];
        let digits = text.iter().take(19).take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 || digits > 18 || matches!(text.get(digits), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        let value = text[..digits].iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0'));
        self.at += sign + digits;
        Some(if sign == 1 { -value } else { value })
    }
}
