//! How well texts go together: a query with each of many documents, or pairs.

use trireme_inference::{InferError, Ledger};

use super::{Ask, Handlers};
use crate::registry::Task;

/// A score for each pair of texts.
#[derive(Clone, Debug)]
pub struct Scores {
    /// The model's own name.
    pub model: String,
    /// The scores, in the order of the pairs.
    pub scores: Vec<f32>,
    /// The steps of the request and their times.
    pub ledger: Ledger,
}

impl Handlers {
    /// How well each document answers the query, in the order of the documents.
    pub async fn rerank(&self, query: &str, documents: &[String], ask: &Ask) -> Result<Scores, InferError> {
        let queries = vec![query; documents.len()];
        let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
        self.score(&queries, &documents, ask).await
    }

    /// How well the two texts of each pair go together. `first` and `second` are of one length.
    pub async fn score(&self, first: &[&str], second: &[&str], ask: &Ask) -> Result<Scores, InferError> {
        let found = self.find_for(Task::Rerank, ask)?;
        let (tensors, ledger) = self.run_texts(&found, first, Some(second), ask).await?;
        let tensor = tensors.first().ok_or_else(|| found.fault("gave no scores".to_owned()))?;
        let (numbers, width) = found.numbers(tensor)?;
        if width != 1 {
            return Err(found.fault(format!("gave {width} scores for a pair, expected 1")));
        }
        Ok(Scores { scores: numbers.into_owned(), model: found.model, ledger })
    }
}

// === impl Scores ===

impl Scores {
    /// The best `most` documents, by their numbers, the best first; all of them without `most`.
    pub fn ranked(&self, most: Option<usize>) -> Vec<(usize, f32)> {
        let mut ranked: Vec<_> = self.scores.iter().copied().enumerate().collect();
        // Stable: documents of one score stay in their order.
        ranked.sort_by(|(_, one), (_, two)| two.total_cmp(one));
        ranked.truncate(most.unwrap_or(usize::MAX));
        ranked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_equal_ones_in_their_order() {
        let scores = Scores { model: String::new(), scores: vec![0.5, 0.9, 0.5, -1.0], ledger: Ledger::default() };
        assert_eq!(scores.ranked(None), [(1, 0.9), (0, 0.5), (2, 0.5), (3, -1.0)]);
        assert_eq!(scores.ranked(Some(2)), [(1, 0.9), (0, 0.5)]);
        assert!(scores.ranked(Some(0)).is_empty());
    }
}
