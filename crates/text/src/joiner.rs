//! Joins pieces to a text step by step, so that the text at any time is the beginning of the final text.

/// A text under construction.
#[derive(Debug, Default)]
pub(crate) struct Joiner {
    /// The certain part. Its first and last characters are not spaces.
    text: String,
    /// Spaces that are added only before further text.
    spaces: String,
    /// The first bytes of an incomplete character.
    bytes: Vec<u8>,
    /// Whether the part between special tokens has begun.
    in_part: bool,
}

/// The characters that Python's `str.strip` removes.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

// === impl Joiner ===

impl Joiner {
    /// Adds text.
    pub(crate) fn push(&mut self, text: &str) {
        self.end_bytes();
        self.push_text(text);
    }

    /// Adds a byte of a character.
    pub(crate) fn push_byte(&mut self, byte: u8) {
        self.bytes.push(byte);
        loop {
            let error = match std::str::from_utf8(&self.bytes) {
                Ok(_) => None,
                // The beginning of a character waits for its other bytes.
                Err(error) if error.error_len().is_none() && error.valid_up_to() == 0 => return,
                Err(error) => Some(error.valid_up_to()),
            };
            let bytes = std::mem::take(&mut self.bytes);
            match error {
                // Each byte that belongs to no character becomes a replacement character of its own.
                Some(0) => {
                    self.push_text("\u{FFFD}");
                    self.bytes.extend_from_slice(&bytes[1..]);
                }
                valid => {
                    let valid = valid.unwrap_or(bytes.len());
                    self.push_text(&String::from_utf8_lossy(&bytes[..valid]));
                    self.bytes.extend_from_slice(&bytes[valid..]);
                }
            }
            if self.bytes.is_empty() {
                return;
            }
        }
    }

    /// Adds a special token, separated by spaces.
    pub(crate) fn push_special(&mut self, token: &str) {
        self.end_bytes();
        self.spaces.clear();
        self.in_part = false;
        self.push_text(token);
        self.spaces.clear();
        self.in_part = false;
    }

    /// The text that is certain so far.
    pub(crate) fn into_beginning(self) -> String {
        self.text
    }

    /// The whole text, when nothing follows.
    pub(crate) fn finish(mut self) -> String {
        self.end_bytes();
        self.text
    }

    /// Replaces the bytes of an incomplete character.
    fn end_bytes(&mut self) {
        for _ in std::mem::take(&mut self.bytes) {
            self.push_text("\u{FFFD}");
        }
    }

    fn push_text(&mut self, text: &str) {
        for character in text.chars() {
            match (is_space(character), self.in_part) {
                (true, true) => self.spaces.push(character),
                (true, false) => {}
                (false, in_part) => {
                    if !in_part && !self.text.is_empty() {
                        self.text.push(' ');
                    }
                    self.in_part = true;
                    self.text.push_str(&self.spaces);
                    self.spaces.clear();
                    self.text.push(character);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Part {
        Text(String),
        Byte(u8),
        Special,
    }

    fn parts() -> impl Strategy<Value = Vec<Part>> {
        let byte = prop_oneof![Just(0xe2), Just(0x82), Just(0xac), Just(0xf0), Just(0x20), any::<u8>()];
        let part = prop_oneof!["[a é\u{1c}]{0,3}".prop_map(Part::Text), byte.prop_map(Part::Byte), Just(Part::Special)];
        proptest::collection::vec(part, 0..20)
    }

    fn joined(parts: &[Part]) -> Joiner {
        let mut joiner = Joiner::default();
        for part in parts {
            match part {
                Part::Text(text) => joiner.push(text),
                Part::Byte(byte) => joiner.push_byte(*byte),
                Part::Special => joiner.push_special("</s>"),
            }
        }
        joiner
    }

    proptest! {
        #[test]
        fn what_is_certain_stays(parts in parts()) {
            let whole = joined(&parts).finish();
            let mut before = String::new();
            for end in 0..=parts.len() {
                let beginning = joined(&parts[..end]).into_beginning();
                prop_assert!(beginning.starts_with(&before), "{before:?} became {beginning:?}");
                prop_assert!(whole.starts_with(&beginning), "{beginning:?} is not in {whole:?}");
                before = beginning;
            }
            prop_assert_eq!(whole.trim_matches(is_space), whole.as_str());
        }

        #[test]
        fn bytes_of_characters_give_them_back(text in "[a€😀é]{0,6}") {
            let bytes: Vec<Part> = text.bytes().map(Part::Byte).collect();
            prop_assert_eq!(joined(&bytes).finish(), text);
        }
    }

    #[test]
    fn bytes_that_make_no_character_are_replaced_one_by_one() {
        let bytes = |bytes: &[u8]| joined(&bytes.iter().map(|&b| Part::Byte(b)).collect::<Vec<_>>()).finish();
        assert_eq!(bytes(&[0xe2, 0x82]), "\u{FFFD}\u{FFFD}");
        assert_eq!(bytes(&[0xe2, 0x82, b'a']), "\u{FFFD}\u{FFFD}a");
        assert_eq!(bytes(&[0xac, 0xe2, 0x82, 0xac]), "\u{FFFD}€");
    }
}
