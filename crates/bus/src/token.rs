//! Names as single tokens of subjects and keys.

use std::fmt;

/// A name, displayed as one subject token that is also valid in stream names and bucket keys. Letters, digits, `-` and `_` stay;
/// every other byte becomes `=` and two hexadecimal digits. An empty name becomes `=`.
pub struct Token<'a>(pub &'a str);

/// A name as one token of a subject or a key. Letters, digits, `-` and `_` stay; every other byte becomes `=` and two
/// hexadecimal digits. An empty name becomes `=`.
///
/// ```
/// use trireme_bus::escape_token;
///
/// assert_eq!(escape_token("multilingual-e5"), "multilingual-e5");
/// assert_eq!(escape_token("intfloat/e5.small"), "intfloat=2Fe5=2Esmall");
/// ```
pub fn escape_token(name: &str) -> String {
    Token(name).to_string()
}

// === impl Token ===

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        if rest.is_empty() {
            return f.write_str("=");
        }
        let stays = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        loop {
            let kept = rest.bytes().take_while(stays).count();
            f.write_str(&rest[..kept])?;
            let Some(next) = rest[kept..].chars().next() else { return Ok(()) };
            let (escaped, behind) = rest[kept..].split_at(next.len_utf8());
            escaped.bytes().try_for_each(|byte| write!(f, "={byte:02X}"))?;
            rest = behind;
        }
    }
}

/// The name from which [`escape_token`] made this token.
pub fn unescape_token(token: &str) -> Option<String> {
    if token == "=" {
        return Some(String::new());
    }
    let (mut name, mut bytes) = (Vec::with_capacity(token.len()), token.bytes());
    while let Some(byte) = bytes.next() {
        match byte {
            b'=' => {
                let digits = [bytes.next()?, bytes.next()?];
                name.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            byte => name.push(byte),
        }
    }
    String::from_utf8(name).ok()
}
