//! How well texts go together: a query with each of many documents, or pairs.

use trireme_inference::{InferError, Ledger};

use crate::{OperationRequest, Operations, Pipeline, Task, TextOptions};

/// A score for each pair of texts.
#[derive(Clone, Debug)]
pub struct Scores {
    /// The model's own name.
    pub model: String,
    /// The scores, in the order of the pairs.
    pub scores: Vec<f32>,
    /// The scores before the sigmoid that was taken of them: in f32 it is 1 for everything above 17.
    pub logits: Option<Vec<f32>>,
    /// The steps of the request and their times.
    pub ledger: Ledger,
}

impl Operations {
    /// How well each document answers the query, in the order of the documents.
    pub async fn rerank(
        &self,
        query: &str,
        documents: &[String],
        ask: &OperationRequest,
    ) -> Result<Scores, InferError> {
        let queries = vec![query; documents.len()];
        let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
        self.score(&queries, &documents, ask).await
    }

    /// How well the two texts of each pair go together. `first` and `second` are of one length.
    pub async fn score(&self, first: &[&str], second: &[&str], ask: &OperationRequest) -> Result<Scores, InferError> {
        let found = self.find_for(Task::Rerank, ask)?;
        let squashes = ask.options.raw_scores != Some(true) && ends_with_sigmoid(&found.pipeline);
        let raw =
            TextOptions { raw_scores: squashes.then_some(true).or(ask.options.raw_scores), ..ask.options.clone() };
        let ask = &OperationRequest { options: raw, ..ask.clone() };
        let (tensors, ledger) = self.run_texts(&found, first, Some(second), ask).await?;
        let tensor = tensors.first().ok_or_else(|| found.fault("gave no scores".to_owned()))?;
        let (numbers, width) = found.numbers(tensor)?;
        if width != 1 {
            return Err(found.fault(format!("gave {width} scores for a pair, expected 1")));
        }
        let numbers = numbers.into_owned();
        let (scores, logits) = match squashes {
            true => (numbers.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(), Some(numbers)),
            false => (numbers, None),
        };
        Ok(Scores { scores, logits, model: found.pipeline.name, ledger })
    }
}

/// Whether the last thing that happens to the model's scores is a sigmoid, which a request may leave out.
fn ends_with_sigmoid(pipeline: &Pipeline) -> bool {
    let chains = pipeline.steps.iter().filter(|step| step.backend == "postprocess");
    let chains = chains.filter_map(|step| step.parameters.get("ops"));
    let ops: Vec<&str> = chains.flat_map(|ops| ops.split(',').map(str::trim)).collect();
    let squashing = ops.iter().filter(|op| ["sigmoid", "softmax"].contains(op)).count();
    squashing == 1 && ops.last() == Some(&"sigmoid")
}

// === impl Scores ===

impl Scores {
    /// The best `most` documents, by their numbers, the best first; all of them without `most`.
    pub fn ranked(&self, most: Option<usize>) -> Vec<(usize, f32)> {
        let by = self.logits.as_ref().unwrap_or(&self.scores);
        let mut ranked: Vec<_> = self.scores.iter().copied().enumerate().collect();
        // Stable: documents of one score stay in their order.
        ranked.sort_by(|&(one, _), &(two, _)| by[two].total_cmp(&by[one]));
        ranked.truncate(most.unwrap_or(usize::MAX));
        ranked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_equal_ones_in_their_order() {
        let (scores, ledger) = (vec![0.5, 0.9, 0.5, -1.0], Ledger::default());
        let scores = Scores { model: String::new(), scores, logits: None, ledger };
        assert_eq!(scores.ranked(None), [(1, 0.9), (0, 0.5), (2, 0.5), (3, -1.0)]);
        assert_eq!(scores.ranked(Some(2)), [(1, 0.9), (0, 0.5)]);
        assert!(scores.ranked(Some(0)).is_empty());
        let squashed = Scores { scores: vec![1.0, 1.0, 0.5], logits: Some(vec![55.0, 59.0, 0.0]), ..scores };
        assert_eq!(squashed.ranked(Some(2)), [(1, 1.0), (0, 1.0)]);
    }
}
