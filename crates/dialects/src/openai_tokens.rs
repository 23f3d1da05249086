//! Token ids in place of texts, as clients of OpenAI send them that count tokens themselves (LangChain by default). They are ids of
//! OpenAI's vocabulary cl100k_base, whatever model is asked for: taken for the model's own ids they would give wrong vectors
//! without an error. So they are turned back into texts, or refused.

use std::sync::OnceLock;

use tiktoken_rs::CoreBPE;
use trireme_inference::InferError;

use super::refusal::{Kind, Refusal};
use crate::dialect::TokenInput;

// === impl TokenInput ===

impl TokenInput {
    /// The texts of lists of ids.
    pub async fn texts(self, rows: Vec<Vec<u32>>) -> Result<Vec<String>, Refusal> {
        match self {
            TokenInput::Reject => Err(Refusal::unsupported(
                "input",
                "holds token ids, expected texts: with LangChain's OpenAIEmbeddings set check_embedding_ctx_length=False",
            )),
            // The first call reads the vocabulary, and many ids take their time.
            TokenInput::Cl100kBase => tokio::task::spawn_blocking(move || decode(&rows))
                .await
                .map_err(|_| InferError::internal("token ids could not be decoded"))?,
        }
    }
}

fn decode(rows: &[Vec<u32>]) -> Result<Vec<String>, Refusal> {
    static VOCABULARY: OnceLock<Option<CoreBPE>> = OnceLock::new();
    let vocabulary = VOCABULARY.get_or_init(|| tiktoken_rs::cl100k_base().ok());
    let vocabulary =
        vocabulary.as_ref().ok_or_else(|| InferError::internal("the vocabulary cl100k_base is not there"))?;
    let text = |(index, ids): (usize, &Vec<u32>)| {
        let bytes = vocabulary.decode_bytes(ids).map_err(|error| Refusal {
            kind: Kind::Field,
            ..Refusal::field("input", format!("holds an id at {index} that is not in cl100k_base: {error}"))
        })?;
        // A client that cuts long texts by tokens may cut a character in two.
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    };
    rows.iter().enumerate().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ids_become_the_texts_they_are_of() {
        let texts = TokenInput::Cl100kBase.texts(vec![vec![15339, 1917], vec![]]).await.unwrap();
        assert_eq!(texts, ["hello world", ""]);
        // The first two of the three bytes of a character.
        let cut = TokenInput::Cl100kBase.texts(vec![vec![162, 120]]).await.unwrap();
        assert!(cut[0].contains('\u{FFFD}'), "{cut:?}");
        let refusal = TokenInput::Cl100kBase.texts(vec![vec![1], vec![4_000_000_000]]).await.unwrap_err();
        assert!(refusal.message.contains("an id at 1 that is not in cl100k_base"), "{}", refusal.message);
    }

    #[tokio::test]
    async fn refused_ids_say_what_to_set() {
        let refusal = TokenInput::Reject.texts(vec![vec![1]]).await.unwrap_err();
        assert!(refusal.message.contains("check_embedding_ctx_length=False"));
    }
}
