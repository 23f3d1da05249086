//! Tokens one by one, and rows of token ids that come in place of texts.

use serde::Serialize;

use crate::row::{Around, Row, truncate_ids};
use crate::{TextError, TextTokenizer};

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
    /// The row of a JSON array of token ids. Nothing is put around them.
    pub(crate) fn row_of_ids(&self, index: usize, ids: &str, around: &Around<'_>) -> Result<Row, TextError> {
        let read = serde_json::from_str(ids);
        let mut ids: Vec<u32> = read.map_err(|error| TextError::NoIds { index, reason: error.to_string() })?;
        if let Some(&id) = ids.iter().find(|&&id| self.core.id_to_token(id).is_none()) {
            return Err(TextError::UnknownId { index, id });
        }
        let kept = self.kept(index, ids.len(), None, around)?;
        let truncated = kept.is_some_and(|(kept, _)| kept < ids.len());
        if let Some((kept, _)) = kept {
            truncate_ids(&mut ids, kept, around.truncation_side);
        }
        let special = ids.iter().map(|&id| u32::from(self.core.is_special(id))).collect();
        let offsets = if around.offsets { vec![(0, 0); ids.len()] } else { Vec::new() };
        Ok(Row { type_ids: vec![0; ids.len()], special, offsets, ids, truncated, ..Row::default() })
    }

    /// A row's tokens as a JSON array. `text` and `pair` are what the row was made of.
    pub(crate) fn list(&self, row: &Row, text: &str, pair: Option<&str>) -> String {
        let texts = [Characters::of(text), Characters::of(pair.unwrap_or_default())];
        let names: Vec<String> = row.ids.iter().map(|&id| self.core.id_to_token(id).unwrap_or_default()).collect();
        let token = |(at, &id): (usize, &u32)| {
            let special = row.special.get(at).map_or_else(|| self.core.is_special(id), |&special| special == 1);
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
