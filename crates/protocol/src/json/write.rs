//! Writes compact JSON, as rapidjson's `Writer` does.

use bytes::Bytes;
use trireme_inference::ParameterValue;

/// JSON under construction. It inserts commas; the caller has to alternate names and values.
#[derive(Debug, Default)]
pub struct Writer {
    out: Vec<u8>,
}

// === impl Writer ===

impl Writer {
    /// A writer with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Writer { out: Vec::with_capacity(capacity) }
    }

    /// Writes an object, whose members `fill` writes.
    pub fn object(&mut self, fill: impl FnOnce(&mut Self)) {
        self.enclosed(b'{', b'}', fill);
    }

    /// Writes an array, whose elements `fill` writes.
    pub fn array(&mut self, fill: impl FnOnce(&mut Self)) {
        self.enclosed(b'[', b']', fill);
    }

    fn enclosed(&mut self, open: u8, close: u8, fill: impl FnOnce(&mut Self)) {
        self.separate();
        self.out.push(open);
        fill(self);
        self.out.push(close);
    }

    /// Writes a member's name; its value has to follow.
    pub fn name(&mut self, name: &str) -> &mut Self {
        self.string(name);
        self.out.push(b':');
        self
    }

    /// Writes a string. Bytes that are not UTF-8 are written unchanged.
    pub fn string(&mut self, text: impl AsRef<[u8]>) {
        self.separate();
        self.out.push(b'"');
        let mut rest = text.as_ref();
        while let Some(i) = rest.iter().position(|&b| b < 0x20 || b == b'"' || b == b'\\') {
            self.out.extend_from_slice(&rest[..i]);
            self.escape(rest[i]);
            rest = &rest[i + 1..];
        }
        self.out.extend_from_slice(rest);
        self.out.push(b'"');
    }

    /// Writes a string of ASCII characters that need no escape: those that `fill` appends to the bytes written so far.
    pub fn unescaped(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        self.separate();
        self.out.push(b'"');
        fill(&mut self.out);
        self.out.push(b'"');
    }

    fn escape(&mut self, byte: u8) {
        let short = match byte {
            b'"' | b'\\' => byte,
            0x08 => b'b',
            0x09 => b't',
            0x0A => b'n',
            0x0C => b'f',
            0x0D => b'r',
            _ => {
                const HEX: &[u8; 16] = b"0123456789ABCDEF";
                let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
                return self.out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
            }
        };
        self.out.extend_from_slice(&[b'\\', short]);
    }

    /// Writes `true` or `false`.
    pub fn bool(&mut self, value: bool) {
        self.separate();
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// Writes an integer.
    #[inline]
    pub fn integer(&mut self, value: impl itoa::Integer) {
        self.separate();
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    /// Writes a double with the fewest digits that read back as the same double, always with a fraction or an exponent.
    #[inline]
    pub fn double(&mut self, value: f64) {
        self.separate();
        if value.is_nan() {
            return self.out.extend_from_slice(b"NaN");
        }
        if value.is_infinite() {
            return self.out.extend_from_slice(if value < 0.0 { b"-Infinity" } else { b"Infinity" });
        }
        let mut buffer = zmij::Buffer::new();
        let text = buffer.format_finite(value);
        match text.split_once('e') {
            None => self.out.extend_from_slice(text.as_bytes()),
            Some((digits, exponent)) => self.scientific(digits, exponent),
        }
    }

    /// A single-precision number, which has to be finite, in the fewest digits that read back as the same one.
    #[inline]
    pub fn float(&mut self, value: f32) {
        self.separate();
        let mut buffer = zmij::Buffer::new();
        self.out.extend_from_slice(buffer.format_finite(value).as_bytes());
    }

    /// `null`
    pub fn null(&mut self) {
        self.raw("null");
    }

    /// A value that is JSON already.
    pub fn raw(&mut self, json: &str) {
        self.separate();
        self.out.extend_from_slice(json.as_bytes());
    }

    /// Writes a very small or very large number: plain from 1e-6 to below 1e21, with an exponent outside that range.
    fn scientific(&mut self, digits: &str, exponent: &str) {
        let digits = match digits.strip_prefix('-') {
            Some(digits) => {
                self.out.push(b'-');
                digits
            }
            None => digits,
        };
        let exponent: i32 = exponent.parse().expect("an exponent is a small integer");
        let (first, rest) = digits.split_at(1);
        let rest = rest.trim_start_matches('.').trim_end_matches('0');
        let out = &mut self.out;
        match exponent {
            -6..0 => {
                out.extend_from_slice(b"0.");
                out.resize(out.len() + (-exponent - 1) as usize, b'0');
                out.extend_from_slice(first.as_bytes());
                out.extend_from_slice(rest.as_bytes());
            }
            0..=20 => {
                let (whole, fraction) = rest.split_at(rest.len().min(exponent as usize));
                out.extend_from_slice(first.as_bytes());
                out.extend_from_slice(whole.as_bytes());
                out.resize(out.len() + exponent as usize - whole.len(), b'0');
                out.push(b'.');
                out.extend_from_slice(if fraction.is_empty() { b"0" } else { fraction.as_bytes() });
            }
            _ => {
                out.extend_from_slice(first.as_bytes());
                if !rest.is_empty() {
                    out.push(b'.');
                    out.extend_from_slice(rest.as_bytes());
                }
                out.push(b'e');
                out.extend_from_slice(itoa::Buffer::new().format(exponent).as_bytes());
            }
        }
    }

    /// Writes a parameter's value.
    pub fn parameter(&mut self, value: &ParameterValue) {
        match value {
            ParameterValue::Bool(value) => self.bool(*value),
            ParameterValue::Int64(value) => self.integer(*value),
            ParameterValue::Uint64(value) => self.integer(*value),
            ParameterValue::Double(value) => self.double(*value),
            ParameterValue::String(value) => self.string(value),
        }
    }

    /// The text written so far.
    pub fn into_bytes(self) -> Bytes {
        self.out.into()
    }

    /// Writes a comma, unless the next value is the first in its container or the value of a name. The last byte shows
    /// which: a string always ends with its quote.
    #[inline]
    fn separate(&mut self) {
        if !matches!(self.out.last(), None | Some(b'{' | b'[' | b':')) {
            self.out.push(b',');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Writer)) -> String {
        let mut writer = Writer::default();
        write(&mut writer);
        String::from_utf8(writer.into_bytes().to_vec()).unwrap()
    }

    #[test]
    fn doubles_are_laid_out_like_rapidjsons() {
        let table = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (f64::from(0.1f32), "0.10000000149011612"),
            (-1.5, "-1.5"),
            (123456789.125, "123456789.125"),
            (1e-5, "0.00001"),
            (1.25e-6, "0.00000125"),
            (1e-6, "0.000001"),
            (1e-7, "1e-7"),
            (-1.5e-7, "-1.5e-7"),
            (1e15, "1000000000000000.0"),
            (1e16, "10000000000000000.0"),
            (1234567890123456789.0, "1234567890123456800.0"),
            (1e20, "100000000000000000000.0"),
            (1.5e20, "150000000000000000000.0"),
            (1e21, "1e21"),
            (-1.5e21, "-1.5e21"),
            (1e100, "1e100"),
            (f64::MAX, "1.7976931348623157e308"),
            (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
            (5e-324, "5e-324"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (value, text) in table {
            assert_eq!(written(|w| w.double(value)), text);
        }
    }

    #[test]
    fn control_characters_are_escaped_and_other_bytes_kept() {
        assert_eq!(
            written(|w| w.string("a\"\\/\u{8}\t\n\u{c}\r\0\u{1f}\u{7f}é")),
            "\"a\\\"\\\\/\\b\\t\\n\\f\\r\\u0000\\u001F\u{7f}é\""
        );
        let mut writer = Writer::default();
        writer.string(b"\xff");
        assert_eq!(writer.into_bytes(), &b"\"\xff\""[..]);
    }

    #[test]
    fn commas_go_between_values() {
        let text = written(|w| {
            w.object(|w| {
                w.name("a").array(|_| {});
                w.name("b").array(|w| {
                    w.integer(1);
                    w.bool(true);
                    w.string("x:");
                    w.object(|_| {});
                });
                w.name("c").parameter(&ParameterValue::Uint64(u64::MAX));
            });
        });
        assert_eq!(text, r#"{"a":[],"b":[1,true,"x:",{}],"c":18446744073709551615}"#);
    }
}
