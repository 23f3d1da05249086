//! Texts to their named entities, and to the scores of their tokens.

use trireme_inference::{InferError, Ledger};

use crate::{OperationRequest, Operations, Task, TextOptions};

/// The entities of each text.
#[derive(Clone, Debug)]
pub struct Entities {
    /// By text, a JSON array of its entities.
    pub rows: Vec<String>,
    /// The steps of the request and their times.
    pub ledger: Ledger,
}

/// The scores of the tokens of each text.
#[derive(Clone, Debug)]
pub struct TokenScores {
    /// The model's own name.
    pub model: String,
    /// The number of classes.
    pub width: usize,
    /// By text, the scores of all its tokens, one after the other.
    pub rows: Vec<Vec<f32>>,
    /// The steps of the request and their times.
    pub ledger: Ledger,
}

impl Operations {
    /// The scores of all classes for each token of the texts.
    pub async fn token_scores(&self, texts: &[String], ask: &OperationRequest) -> Result<TokenScores, InferError> {
        let ask =
            OperationRequest { options: TextOptions { token_scores: true, ..ask.options.clone() }, ..ask.clone() };
        let found = self.find_for(Task::TokenClassify, &ask)?;
        let Entities { rows, ledger } = self.token_classify(texts, &ask).await?;
        let rows: Vec<Vec<Vec<f32>>> = rows
            .iter()
            .map(|row| serde_json::from_str(row))
            .collect::<Result<_, _>>()
            .map_err(|_| found.fault("gave no list of scores for each token".to_owned()))?;
        let width = rows.iter().flatten().map(Vec::len).max().unwrap_or_default();
        if rows.iter().flatten().any(|token| token.len() != width) {
            return Err(found.fault("gave some tokens more scores than others".to_owned()));
        }
        Ok(TokenScores {
            model: found.pipeline.name,
            width,
            rows: rows.iter().map(|tokens| tokens.concat()).collect(),
            ledger,
        })
    }

    /// The named entities of each text.
    pub async fn token_classify(&self, texts: &[String], ask: &OperationRequest) -> Result<Entities, InferError> {
        let found = self.find_for(Task::TokenClassify, ask)?;
        let TextOptions { labels, threshold, flat_ner, multi_label, .. } = &ask.options;
        let asks_for_spans = labels.is_some() || threshold.is_some() || flat_ner.is_some() || multi_label.is_some();
        if asks_for_spans && !found.pipeline.takes_labels() {
            return Err(InferError::unsupported(format!(
                "model '{}' has classes of its own: leave out 'labels', 'threshold', 'flat_ner' and 'multi_label', which are for models that find entities \
                 of any labels",
                found.pipeline.name
            )));
        }
        let (tensors, ledger) = self.run_texts(&found, texts, None::<&[String]>, ask).await?;
        let tensor = tensors.first().ok_or_else(|| found.fault("gave no entities".to_owned()))?;
        let rows = tensor.bytes_elements().map_err(|error| found.fault(format!("gave a result that {error}")))?;
        let array = |row: &[u8]| {
            // The row is written into an answer as it is, so it has to be a JSON array.
            let is_array = matches!(serde_json::from_slice(row), Ok(serde_json::Value::Array(_)));
            let text = String::from_utf8(row.to_vec()).ok().filter(|_| is_array);
            text.ok_or_else(|| found.fault("gave entities that are no JSON array".to_owned()))
        };
        Ok(Entities { rows: rows.map(array).collect::<Result<_, _>>()?, ledger })
    }
}
