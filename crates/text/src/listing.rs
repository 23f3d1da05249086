//! The tokens of a row, one by one.

use serde::Serialize;

use crate::TextTokenizer;
use crate::row::Row;

/// A token, as the list of a text's tokens has it.
#[derive(Serialize)]
struct Token<'a> {
    id: u32,
    /// The characters it stands for; of a special token, or one without a place in the text, its name in the vocabulary.
    text: &'a str,
    special: bool,
    /// The first of these characters, and the one after the last.
    start: Option<usize>,
    stop: Option<usize>,
}

/// A text of which characters are taken by their numbers.
struct Characters<'a> {
    text: &'a str,
    /// Where in the text's bytes each character begins.
    begins: Vec<usize>,
}

// === impl TextTokenizer ===

impl TextTokenizer {
    /// A row's tokens as a JSON array. `text` and `pair` are what the row was made of.
    pub(crate) fn list(&self, row: &Row, text: &str, pair: Option<&str>) -> String {
        let texts = [Characters::of(text), Characters::of(pair.unwrap_or_default())];
        let names: Vec<String> =
            row.ids.iter().map(|&id| self.encoder.core.id_to_token(id).unwrap_or_default()).collect();
        let token = |(at, &id): (usize, &u32)| {
            let special = row.special.get(at).map_or_else(|| self.encoder.core.is_special(id), |&special| special == 1);
            let place = || {
                let text = texts.get((*row.sequences.get(at)?)?)?;
                let &(start, stop) = row.offsets.get(at)?;
                Some((text.slice(start, stop)?, start, stop))
            };
            match place().filter(|_| !special) {
                Some((text, start, stop)) => Token { id, text, special, start: Some(start), stop: Some(stop) },
                None => Token { id, text: &names[at], special, start: None, stop: None },
            }
        };
        let tokens: Vec<Token<'_>> = row.ids.iter().enumerate().map(token).collect();
        serde_json::to_string(&tokens).expect("numbers and texts are JSON")
    }
}

// === impl Characters ===

impl<'a> Characters<'a> {
    fn of(text: &'a str) -> Characters<'a> {
        Characters { text, begins: text.char_indices().map(|(begin, _)| begin).chain([text.len()]).collect() }
    }

    /// Some characters; `None` where there is none among them.
    fn slice(&self, start: usize, stop: usize) -> Option<&'a str> {
        self.text.get(*self.begins.get(start)?..*self.begins.get(stop)?).filter(|text| !text.is_empty())
    }
}
