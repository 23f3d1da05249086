//! Texts, or pairs of texts, to a score for each class.

use trireme_inference::{InferError, Ledger};

use crate::{OperationRequest, Operations, Task};

/// The scores of each text, in the order of the classes.
#[derive(Clone, Debug)]
pub struct Classified {
    /// The model's own name.
    pub model: String,
    /// The names of the classes.
    pub labels: Vec<String>,
    /// By text, a score for each class.
    pub rows: Vec<Vec<f32>>,
    /// The steps of the request and their times.
    pub ledger: Ledger,
}

/// A class and its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoredLabel<'a> {
    /// The class.
    pub label: &'a str,
    /// Its score.
    pub score: f32,
}

impl Operations {
    /// The scores of each text, or of each pair of texts where `pairs` holds as many second ones.
    pub async fn classify(
        &self,
        texts: &[String],
        pairs: Option<&[String]>,
        ask: &OperationRequest,
    ) -> Result<Classified, InferError> {
        let found = self.find_for(Task::Classify, ask)?;
        let (tensors, ledger) = self.run_texts(&found, texts, pairs, ask).await?;
        let tensor = tensors.first().ok_or_else(|| found.fault("gave no scores".to_owned()))?;
        let (numbers, width) = found.numbers(tensor)?;
        let declared = match found.pipeline.capabilities.labels.as_slice() {
            [] => self.0.labels(&found.pipeline.name, tensor.name()),
            labels => labels.to_vec(),
        };
        let labels: Vec<String> = match declared.len() {
            0 => (0..width).map(|class| format!("LABEL_{class}")).collect(),
            count if count == width => declared,
            count => return Err(found.fault(format!("gave {width} scores for {count} labels"))),
        };
        let rows = numbers.chunks_exact(width.max(1)).map(<[f32]>::to_vec).collect();
        Ok(Classified { model: found.pipeline.name, labels, rows, ledger })
    }
}

// === impl Classified ===

impl Classified {
    /// The classes of a text with their scores, the best first.
    pub fn best_first(&self, row: &[f32]) -> Vec<ScoredLabel<'_>> {
        let labelled = self.labels.iter().zip(row).map(|(label, &score)| ScoredLabel { label, score });
        let mut scored: Vec<_> = labelled.collect();
        scored.sort_by(|one, two| two.score.total_cmp(&one.score));
        scored
    }
}
