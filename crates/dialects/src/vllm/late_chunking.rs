//! Late chunking: a model with a vector for each token reads each text whole, and the vectors are cut into chunks of so many tokens. The vector
//! of a chunk is the mean of those of its tokens; the answer says which tokens and characters it stands for.

use serde::{Deserialize, Serialize};
use trireme_inference::Ledger;
use trireme_operations::{OperationRequest, TextOptions, Token};
use utoipa::ToSchema;

use super::super::dialect::DialectCall;
use super::super::refusal::Refusal;
use super::super::token_rows::{TokenRows, mean};

const FIELD: &str = "late_chunking_params";

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[schema(as = VllmLateChunking)]
pub(super) struct LateChunking {
    /// Tokens of a chunk; the last one of a text may have fewer.
    chunk_size: u64,
}

/// The chunks of texts.
pub(super) struct Chunked {
    pub model: String,
    /// Numbers of each vector.
    pub width: usize,
    /// By text, the numbers of the vectors of its chunks, one after the other.
    pub rows: Vec<Vec<f32>>,
    /// By text, the tokens and characters of its chunks.
    pub ranges: Vec<Ranges>,
    pub ledger: Ledger,
}

/// The tokens and characters of a text's chunks, as an answer's row has them.
#[derive(Serialize, ToSchema)]
pub(super) struct Ranges {
    strategy: &'static str,
    chunk_size: usize,
    input_tokens: usize,
    #[schema(inline)]
    chunks: Vec<Chunk>,
}

/// The tokens and characters of a chunk.
#[derive(Serialize, ToSchema)]
struct Chunk {
    token_range: [usize; 2],
    // Null for a chunk of special tokens alone.
    char_range: Option<[u64; 2]>,
}

// === impl LateChunking ===

impl LateChunking {
    /// The chunks of these texts.
    pub async fn of(
        self,
        call: &DialectCall,
        texts: &[String],
        ask: &OperationRequest,
        normalize: bool,
    ) -> Result<Chunked, Refusal> {
        let size = usize::try_from(self.chunk_size).ok().filter(|&size| size > 0);
        let size = size.ok_or_else(|| Refusal::field(FIELD, "has a 'chunk_size' of 0, expected at least 1"))?;
        let options = &ask.options;
        if options.token_ids || options.messages || texts.iter().any(String::is_empty) {
            return Err(Refusal::unsupported(FIELD, "is for texts that are not empty"));
        }
        if options.truncate.is_some() {
            return Err(Refusal::unsupported(FIELD, "goes with whole texts: leave out 'truncate_prompt_tokens'"));
        }
        let plain = TextOptions { normalize: Some(false), ..options.clone() };
        let ask = OperationRequest { options: plain, ..ask.clone() };
        let TokenRows { vectors, tokens } = TokenRows::of(call, texts, &ask, FIELD).await?;
        let width = vectors.width.max(1);
        let (mut rows, mut ranges) = (Vec::new(), Vec::new());
        for (row, tokens) in vectors.rows.iter().zip(&tokens) {
            rows.push(row.chunks(size.saturating_mul(width)).flat_map(|chunk| mean(chunk, width, normalize)).collect());
            ranges.push(Ranges::of(tokens, size));
        }
        Ok(Chunked { model: vectors.model, width, rows, ranges, ledger: vectors.ledger })
    }
}

/// The characters that tokens stand for, from the first to the last.
fn characters(tokens: &[Token]) -> Option<(u64, u64)> {
    let places = || tokens.iter().filter_map(|token| token.start.zip(token.stop)).filter(|(start, stop)| start < stop);
    Some((places().map(|(start, _)| start).min()?, places().map(|(_, stop)| stop).max()?))
}

// === impl Ranges ===

impl Ranges {
    /// The ranges of a text with these tokens, in chunks of `chunk_size` tokens.
    fn of(tokens: &[Token], chunk_size: usize) -> Ranges {
        let chunk = |(chunk, tokens): (usize, &[Token])| {
            let start = chunk * chunk_size;
            let char_range = characters(tokens).map(|(from, to)| [from, to]);
            Chunk { token_range: [start, start + tokens.len()], char_range }
        };
        let chunks = tokens.chunks(chunk_size).enumerate().map(chunk).collect();
        Ranges { strategy: "fixed_tokens", chunk_size, input_tokens: tokens.len(), chunks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_has_the_characters_of_its_tokens() {
        let token = |start, stop| Token { id: 1, text: String::new(), start, stop };
        let tokens = [token(None, None), token(Some(0), Some(3)), token(Some(4), Some(7)), token(Some(0), Some(0))];
        assert_eq!(characters(&tokens), Some((0, 7)));
        assert_eq!(characters(&tokens[..1]), None);
    }
}
