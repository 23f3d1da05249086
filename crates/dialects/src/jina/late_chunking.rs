//! Late chunking: the texts of a request are parts of one document. The model reads them as one text, joined by blanks, and each part gets the
//! vectors of its own tokens, which know of the others.
//!
//! Source: "Jina AI API will concatenate all sentences in the input field and feed them as a single string to the model", and the answer is
//! "a list of embeddings that matches the size of the input list" (docs of jina-embeddings-v3). Jina cuts a string that is longer than its
//! model's longest row; here it is refused, because the last texts would have no vectors.

use std::ops::Range;

use trireme_inference::Ledger;
use trireme_operations::{OperationRequest, Task, Token};

use super::super::dialect::DialectCall;
use super::super::refusal::{Kind, Refusal};
use super::super::token_rows::{TokenRows, mean};

pub(super) const FIELD: &str = "late_chunking";

/// The text between two joined texts.
const BLANK: &str = " ";

/// The vectors of the tokens of each text, which were read as one.
pub(super) struct LateChunks {
    /// Numbers of each vector.
    pub width: usize,
    /// By text, the numbers of its tokens' vectors, one after the other.
    pub rows: Vec<Vec<f32>>,
    pub ledger: Ledger,
}

// === impl LateChunks ===

impl LateChunks {
    /// The late chunks of `texts`.
    pub async fn of(call: &DialectCall, texts: &[String], ask: &OperationRequest) -> Result<LateChunks, Refusal> {
        let model = call.operations.text_model(ask.model.as_deref())?;
        if !model.tasks.contains(&Task::MultiVector) {
            let why = format!(
                "needs a model with a vector for each token, and '{}' has one for a text: leave it out",
                model.name
            );
            return Err(Refusal::unsupported(FIELD, why));
        }
        if texts.iter().any(String::is_empty) {
            return Err(Refusal::unsupported(FIELD, "is for texts that are not empty"));
        }
        let joined = [texts.join(BLANK)];
        let found = TokenRows::of(call, &joined, ask, FIELD).await.map_err(|refusal| too_long(refusal, texts.len()))?;
        let width = found.vectors.width.max(1);
        let parts = parts(texts, found.tokens.first().map_or(&[][..], Vec::as_slice));
        if let Some(text) = parts.iter().position(Range::is_empty) {
            let why =
                format!("needs texts with tokens of their own: text {text} has none between the others, leave it out");
            return Err(Refusal::unsupported(FIELD, why));
        }
        let numbers = found.vectors.rows.first().map_or(&[][..], Vec::as_slice);
        let rows = parts.into_iter().map(|part| numbers[part.start * width..part.end * width].to_vec()).collect();
        Ok(LateChunks { width, rows, ledger: found.vectors.ledger })
    }

    /// A vector for each text: the mean of those of its tokens, of length 1 if it is to be.
    pub fn means(&self, normalize: bool) -> Vec<Vec<f32>> {
        self.rows.iter().map(|row| mean(row, self.width, normalize)).collect()
    }
}

/// The refusal of a joined text that is longer than a row, in the words of the field.
fn too_long(refusal: Refusal, texts: usize) -> Refusal {
    if refusal.kind != Kind::TooLong {
        return refusal;
    }
    let found = refusal.message.split(": ").next().unwrap_or_default().replacen("text 0", "it", 1);
    let why =
        format!("reads the {texts} texts of a request as one: {found}; send fewer texts at a time, or leave it out");
    Refusal { kind: Kind::TooLong, ..Refusal::field(FIELD, why) }
}

/// By text, its tokens of those of the joined text: the ones that end in it. A token without characters is of the text before; those
/// before the first text, as its prompt, are of the first one, so that one text alone has all tokens.
fn parts(texts: &[String], tokens: &[Token]) -> Vec<Range<usize>> {
    let mut end = 0;
    let ends: Vec<u64> = texts
        .iter()
        .map(|text| {
            end += text.chars().count() as u64;
            let own = end;
            end += BLANK.len() as u64;
            own
        })
        .collect();
    let (mut text, mut counts) = (0, vec![0; texts.len()]);
    for token in tokens {
        let stop = token.stop.unwrap_or_default();
        while ends.get(text).is_some_and(|&end| end < stop) && text + 1 < ends.len() {
            text += 1;
        }
        counts[text] += 1;
    }
    let mut start = 0;
    counts
        .into_iter()
        .map(|count: usize| {
            let part = start..start + count;
            start = part.end;
            part
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(places: &[Option<(u64, u64)>]) -> Vec<Token> {
        let token = |place: &Option<(u64, u64)>| Token {
            id: 1,
            text: String::new(),
            start: place.map(|place| place.0),
            stop: place.map(|place| place.1),
        };
        places.iter().map(token).collect()
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn a_token_is_of_the_text_in_which_it_ends() {
        // "the oar 東京 ships", of which one token begins with the blank before its word.
        let all = tokens(&[None, Some((0, 3)), Some((3, 7)), Some((8, 9)), Some((9, 10)), Some((10, 16)), None]);
        assert_eq!(parts(&texts(&["the oar", "東京", "ships"]), &all), [0..3, 3..5, 5..7]);
        let alone = parts(&texts(&["the oar 東京 ships"]), &all);
        assert_eq!((alone.len(), &alone[0]), (1, &(0..7)), "one text has all of them");
        // A text without tokens has an empty range.
        let few = tokens(&[None, Some((0, 1)), Some((4, 5)), None]);
        assert_eq!(parts(&texts(&["a", "\u{200b}", "b"]), &few), [0..2, 2..2, 2..4]);
    }

    #[test]
    fn a_joined_text_that_is_too_long_is_refused_with_both_lengths() {
        let message = "text 0 has 40 tokens, expected at most 16: shorten it, or set 'truncate' to true";
        let refusal = too_long(Refusal::new(Kind::TooLong, message), 3);
        assert_eq!(
            refusal.message,
            "'late_chunking' reads the 3 texts of a request as one: it has 40 tokens, expected at most 16; send fewer texts at a time, or leave it out"
        );
        let other = Refusal::new(Kind::Invalid, "another");
        assert_eq!(too_long(other.clone(), 3), other);
    }
}
