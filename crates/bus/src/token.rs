//! Names as single tokens of subjects and keys.

/// Escapes `name` to one subject token that is also valid in stream names and bucket keys. Letters, digits, `-` and `_`
/// stay; every other byte becomes `=` and two hexadecimal digits. An empty name becomes `=`.
pub fn escape_token(name: &str) -> String {
    let mut token = String::with_capacity(name.len());
    for &byte in name.as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => token.push(byte as char),
            _ => token.push_str(&format!("={byte:02X}")),
        }
    }
    if token.is_empty() {
        token.push('=');
    }
    token
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
