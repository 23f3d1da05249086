//! How well the two texts of pairs go together: a reranker reads both; for other models, the vectors of the texts are compared.

use std::collections::HashMap;

use trireme_inference::{InferError, Ledger};
use trireme_server::body::work;

use crate::{OperationRequest, Operations, Prompt, Scores, Task, TextOptions};

impl Operations {
    /// How well the two texts of each pair go together: the scores of a model that reranks, the MaxSim of one with a vector for each token,
    /// the cosines of one that embeds. `first`, the queries, and `second` are of one length.
    pub async fn compare(&self, first: &[&str], second: &[&str], ask: &OperationRequest) -> Result<Scores, InferError> {
        let does = |task| self.0.offering(task, ask.model.as_deref()).is_ok();
        if !does(Task::Rerank) && does(Task::MultiVector) {
            return self.max_similarities(first, second, ask).await;
        }
        if !does(Task::Rerank) && does(Task::Embed) {
            return self.cosines(first, second, ask).await;
        }
        self.score(first, second, ask).await
    }

    /// How alike the vectors of the two texts of each pair are: their cosines. `first` and `second` are of one length; a text
    /// that is there more than once is embedded once.
    pub async fn cosines(&self, first: &[&str], second: &[&str], ask: &OperationRequest) -> Result<Scores, InferError> {
        let TextOptions { max_text_tokens, max_pair_tokens, .. } = ask.options;
        if max_text_tokens == max_pair_tokens {
            let (texts, places) = distinct(first.iter().chain(second));
            let vectors = self.embed(&texts, &single(ask, max_text_tokens, None)).await?;
            let (numbers, width) = (vectors.numbers(), vectors.width);
            let row = |place: usize| &numbers[place * width..(place + 1) * width];
            let pairs = places[..first.len()].iter().zip(&places[first.len()..]);
            let scores = pairs.map(|(&one, &two)| cosine(row(one), row(two))).collect();
            return Ok(Scores { scores, logits: None, model: vectors.model, ledger: vectors.ledger });
        }
        let ((queries, ones), (documents, twos)) = (distinct(first), distinct(second));
        let queries = self.embed(&queries, &single(ask, max_text_tokens, None)).await?;
        let documents = self.embed(&documents, &single(ask, max_pair_tokens, None)).await?;
        let (one, two, width) = (queries.numbers(), documents.numbers(), queries.width);
        let pairs = ones.iter().zip(&twos);
        let cosine = |(&a, &b): (&usize, &usize)| cosine(&one[a * width..][..width], &two[b * width..][..width]);
        let (scores, ledger) = (pairs.map(cosine).collect(), both(queries.ledger.clone(), &documents.ledger));
        Ok(Scores { scores, logits: None, ledger, model: documents.model.clone() })
    }

    /// How well the vectors of the tokens of the two texts of each pair go together: for each token of the first text, a query, the largest
    /// product with a token of the second one, all of them added up (MaxSim). `first` and `second` are of one length.
    async fn max_similarities(
        &self,
        first: &[&str],
        second: &[&str],
        ask: &OperationRequest,
    ) -> Result<Scores, InferError> {
        let ((queries, ones), (documents, twos)) = (distinct(first), distinct(second));
        let asked = single(ask, ask.options.max_text_tokens, Some(Prompt::Query));
        let queries = self.multi_vector(&queries, &asked).await?;
        let asked = single(ask, ask.options.max_pair_tokens, Some(Prompt::Document));
        let documents = self.multi_vector(&documents, &asked).await?;
        let width = queries.width;
        let pairs: Vec<_> =
            ones.into_iter().zip(twos).map(|(one, two)| (&queries.rows[one][..], &documents.rows[two][..])).collect();
        let products = pairs.iter().map(|(query, document)| query.len().div_ceil(width.max(1)) * document.len()).sum();
        let scores = work::aside(products, each_max_similarity(&pairs, width)).await;
        let ledger = both(queries.ledger, &documents.ledger);
        Ok(Scores { scores, logits: None, ledger, model: documents.model })
    }

    /// How alike the vectors of `source` and of each other text are: their cosines.
    pub async fn similarity(
        &self,
        source: &str,
        others: &[String],
        ask: &OperationRequest,
    ) -> Result<(Vec<f32>, Ledger), InferError> {
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        let scores = self.cosines(&vec![source; others.len()], &others, ask).await?;
        Ok((scores.scores, scores.ledger))
    }
}

/// The request for one side of the pairs: texts of at most so many tokens, with this prompt.
fn single(ask: &OperationRequest, max_text_tokens: Option<u64>, prompt: Option<Prompt>) -> OperationRequest {
    let prompt = prompt.unwrap_or_else(|| ask.options.prompt.clone());
    OperationRequest {
        options: TextOptions { prompt, max_text_tokens, max_pair_tokens: None, ..ask.options.clone() },
        ..ask.clone()
    }
}

/// Each text once, and for each of `all` its place among them.
fn distinct<'t>(all: impl IntoIterator<Item = &'t &'t str>) -> (Vec<String>, Vec<usize>) {
    let (mut texts, mut places) = (Vec::new(), HashMap::new());
    let place = |text: &&'t str| {
        *places.entry(*text).or_insert_with(|| {
            texts.push((*text).to_owned());
            texts.len() - 1
        })
    };
    let all = all.into_iter().map(place).collect();
    (texts, all)
}

/// The steps of two runs of one request.
fn both(mut one: Ledger, two: &Ledger) -> Ledger {
    one.0.extend(two.0.iter().cloned());
    one
}

fn dot(one: &[f32], two: &[f32]) -> f64 {
    one.iter().zip(two).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// The cosine of the angle between two vectors; 0 for a vector without length.
fn cosine(one: &[f32], two: &[f32]) -> f32 {
    let lengths = (dot(one, one) * dot(two, two)).sqrt();
    if lengths == 0.0 { 0.0 } else { (dot(one, two) / lengths) as f32 }
}

/// The [`max_similarity`] of each pair, with pauses in which the request may be cancelled.
async fn each_max_similarity(pairs: &[(&[f32], &[f32])], width: usize) -> Vec<f32> {
    let mut scores = Vec::with_capacity(pairs.len());
    for (query, document) in pairs {
        scores.push(max_similarity(query, document, width));
        work::pause().await;
    }
    scores
}

/// For each vector of a query the largest product with one of a document, all of them added up.
fn max_similarity(query: &[f32], document: &[f32], width: usize) -> f32 {
    let best = |token: &[f32]| {
        document.chunks_exact(width.max(1)).map(|other| dot(token, other)).reduce(f64::max).unwrap_or_default()
    };
    query.chunks_exact(width.max(1)).map(best).sum::<f64>() as f32
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn cosines_are_those_of_angles() {
        assert_eq!(cosine(&[3.0, 4.0], &[6.0, 8.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 2.0]), 0.0);
        assert_eq!(cosine(&[1.0, 1.0], &[-2.0, -2.0]), -1.0);
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 0.0]), 0.0);
    }

    #[test]
    fn each_token_of_a_query_takes_the_best_one_of_the_document() {
        let query = [1.0, 0.0, 0.0, 2.0];
        assert_eq!(max_similarity(&query, &[0.5, 0.5, -1.0, 1.0], 2), 0.5 + 2.0);
        assert_eq!(max_similarity(&query, &[], 2), 0.0);
    }

    #[test]
    fn a_request_that_was_cancelled_ends_between_two_pairs() {
        let pairs: Vec<(&[f32], &[f32])> = vec![(&[1.0, 0.0], &[1.0, 0.0]); 3];
        let mut scores = Box::pin(each_max_similarity(&pairs, 2));
        for _ in 0..pairs.len() {
            assert_eq!(scores.as_mut().now_or_never(), None, "it goes on when it is asked again");
        }
        assert_eq!(scores.now_or_never(), Some(vec![1.0; 3]));
    }

    #[test]
    fn a_text_is_embedded_once() {
        assert_eq!(distinct(&["a", "b", "a"]), (vec!["a".to_owned(), "b".to_owned()], vec![0, 1, 0]));
    }
}
