//! Texts that a model with a vector for each token reads whole, for late chunking: the vectors of parts of a text are made behind the model.

use trireme_operations::{OperationRequest, Task, TextOptions, Token, TokenVectors};

use super::dialect::DialectCall;
use super::refusal::Refusal;

/// The vectors of the tokens of texts, and the tokens.
pub struct TokenRows {
    /// As the request has them, each of length 1 or not.
    pub vectors: TokenVectors,
    /// By text, a token for each vector.
    pub tokens: Vec<Vec<Token>>,
}

// === impl TokenRows ===

impl TokenRows {
    /// The vectors and tokens of `texts`; `field` is the request's field that asks for them. A text that is longer than a row is refused, and so
    /// is a model that leaves tokens without vectors.
    pub async fn of(
        call: &DialectCall,
        texts: &[String],
        ask: &OperationRequest,
        field: &str,
    ) -> Result<TokenRows, Refusal> {
        let lists = call.operations.tokenize_for(Task::MultiVector, texts, ask).await?;
        let whole = TextOptions { truncate: Some(false), ..ask.options.clone() };
        let vectors = call.operations.multi_vector(texts, &OperationRequest { options: whole, ..ask.clone() }).await?;
        let width = vectors.width.max(1);
        let tokens: Vec<Vec<Token>> = (0..texts.len()).map(|index| lists.tokens(index)).collect();
        for (index, (row, tokens)) in vectors.rows.iter().zip(&tokens).enumerate() {
            let found = row.len() / width;
            if tokens.len() != found {
                let why =
                    format!("needs a vector for each token: text {index} has {} tokens and {found}", tokens.len());
                return Err(Refusal::unsupported(field, why));
            }
        }
        Ok(TokenRows { vectors, tokens })
    }
}

/// The mean of vectors of this width, which come one after the other; of length 1 if it is to be.
pub fn mean(vectors: &[f32], width: usize, normalize: bool) -> Vec<f32> {
    let count = (vectors.len() / width).max(1) as f64;
    let column =
        |at: usize| vectors.iter().skip(at).step_by(width).map(|&number| f64::from(number)).sum::<f64>() / count;
    let means: Vec<f64> = (0..width).map(column).collect();
    let length = means.iter().map(|number| number * number).sum::<f64>().sqrt();
    let divisor = if normalize && length > 0.0 { length } else { 1.0 };
    means.iter().map(|number| (number / divisor) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_become_their_mean() {
        assert_eq!(mean(&[1.0, 2.0, 3.0, 4.0], 2, false), [2.0, 3.0]);
        assert_eq!(mean(&[3.0, 4.0], 2, true), [0.6, 0.8]);
        assert_eq!(mean(&[0.0, 0.0], 2, true), [0.0, 0.0]);
    }
}
