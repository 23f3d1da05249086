//! The search for one text's sequences: greedy, sampling or beam search, one step at a time.
//!
//! A search has ids and scores only. It gets the model's logits for its rows and returns which rows of the decoder's
//! batch continue, and which of the former rows each one continues. Pure: [`super::instance`] runs the model.

use std::sync::Arc;

use super::beams::{Beams, Found};
use super::processors::{log_softmax, process};
use super::random::Random;
use super::settings::Settings;
use super::warpers::{softmax, warp};

/// A text's search.
#[derive(Debug)]
pub enum Search {
    /// Sequences that are independent of each other: a greedy one, or samples.
    Rows(Rows),
    /// Beam search.
    Beams(Beams),
}

/// Greedy search and sampling.
#[derive(Debug)]
pub struct Rows {
    settings: Arc<Settings>,
    rows: Vec<Row>,
    /// Indices into `rows` of the unfinished ones, in the order of the decoder's rows.
    open: Vec<usize>,
}

#[derive(Debug)]
struct Row {
    found: Found,
    random: Random,
}

// === impl Search ===

impl Search {
    /// The search for row `row` of a request, with random numbers from `seed`.
    pub fn new(settings: &Arc<Settings>, seed: u64, row: usize) -> Search {
        let start = settings.start().unwrap_or_default();
        if settings.num_beams > 1 {
            return Search::Beams(Beams::new(settings.clone(), start, Random::new(seed, row)));
        }
        let count = settings.num_return_sequences;
        let new = |index| Row {
            found: Found { ids: vec![start], score: 0.0 },
            random: Random::new(seed, row * count + index),
        };
        let rows = (0..count).map(new).collect();
        Search::Rows(Rows { settings: settings.clone(), rows, open: (0..count).collect() })
    }

    /// The sequences so far of its rows in the decoder's batch.
    pub fn sequences(&self) -> Vec<&[i64]> {
        match self {
            Search::Rows(rows) => rows.open.iter().map(|&index| &rows.rows[index].found.ids[..]).collect(),
            Search::Beams(beams) => beams.sequences(),
        }
    }

    /// The number of those rows.
    pub fn width(&self) -> usize {
        match self {
            Search::Rows(rows) => rows.open.len(),
            Search::Beams(beams) => beams.width(),
        }
    }

    /// Takes the logits of its rows, `vocabulary` of each, and adds an id to each sequence. Returns, for each next row,
    /// which of the rows it continues; empty when the search is done. `logits` are overwritten.
    pub fn advance(&mut self, logits: &mut [f32], vocabulary: usize) -> Vec<usize> {
        match self {
            Search::Rows(rows) => rows.advance(logits, vocabulary),
            Search::Beams(beams) => beams.advance(logits, vocabulary),
        }
    }

    /// The sequences found: final once [`Search::advance`] has returned no rows.
    pub fn found(&self) -> Vec<Found> {
        match self {
            Search::Rows(rows) => rows.rows.iter().map(|row| row.found.clone()).collect(),
            Search::Beams(beams) => beams.found(),
        }
    }
}

// === impl Rows ===

impl Rows {
    fn advance(&mut self, logits: &mut [f32], vocabulary: usize) -> Vec<usize> {
        let settings = &*self.settings;
        let mut parents = Vec::with_capacity(self.open.len());
        let mut open = Vec::with_capacity(self.open.len());
        for (parent, (&index, scores)) in self.open.iter().zip(logits.chunks_mut(vocabulary)).enumerate() {
            let row = &mut self.rows[index];
            let (id, score) = row.choose(settings, scores);
            row.found.ids.push(id as i64);
            row.found.score += score;
            let ended = settings.eos_token_id.contains(&(id as i64)) || row.found.ids.len() >= settings.longest();
            if !ended {
                open.push(index);
                parents.push(parent);
            }
        }
        self.open = open;
        parents
    }
}

impl Row {
    /// Chooses the next id; returns it with its log-probability.
    fn choose(&mut self, settings: &Settings, scores: &mut [f32]) -> (usize, f32) {
        process(settings, &self.found.ids, scores);
        if settings.do_sample {
            warp(settings, 1, scores);
            let probabilities = softmax(scores);
            let id = self.random.draw(&probabilities);
            return (id, probabilities[id].ln());
        }
        // The first of the largest scores, as in torch.
        let mut best = 0;
        for (id, score) in scores.iter().enumerate() {
            if *score > scores[best] {
                best = id;
            }
        }
        log_softmax(scores);
        (best, scores[best])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCABULARY: usize = 8;

    /// Runs a search over a model that always returns the same logits.
    fn run(settings: Settings, seed: u64, logits: &[f32; VOCABULARY]) -> Vec<Found> {
        let mut search = Search::new(&Arc::new(settings), seed, 0);
        for _ in 0..100 {
            let mut all = logits.repeat(search.width());
            let parents = search.advance(&mut all, VOCABULARY);
            assert_eq!(parents.len(), search.width());
            if parents.is_empty() {
                return search.found();
            }
        }
        panic!("the search does not end");
    }

    fn settings() -> Settings {
        Settings { eos_token_id: vec![1], decoder_start_token_id: Some(0), max_length: 10, ..Settings::default() }
    }

    #[test]
    fn greedy_takes_the_largest_until_the_end_or_the_length() {
        let found = run(settings(), 0, &[0.0, 0.0, 0.0, 5.0, 5.0, 0.0, 0.0, 0.0]);
        assert_eq!(found[0].ids, [0, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
        let found = run(settings(), 0, &[0.0, 9.0, 0.0, 5.0, 5.0, 0.0, 0.0, 0.0]);
        assert_eq!(found[0].ids, [0, 1]);
        assert!(found[0].score < 0.0 && found[0].score > -0.1);
    }

    #[test]
    fn samples_repeat_with_their_seed_and_differ_among_each_other() {
        let sampling = || Settings { do_sample: true, num_return_sequences: 5, top_k: 6, ..settings() };
        let logits = [0.0, 0.5, 0.3, 1.0, 1.0, 0.8, 0.2, -3.0];
        let found = run(sampling(), 11, &logits);
        assert_eq!(found, run(sampling(), 11, &logits));
        assert_ne!(found, run(sampling(), 12, &logits));
        assert!(found.iter().any(|other| other.ids != found[0].ids));
        assert!(found.iter().all(|found| !found.ids.contains(&7)), "top_k leaves the least likely out");
        let one = Settings { do_sample: true, top_k: 1, ..settings() };
        assert_eq!(run(one, 3, &[0.0, 0.0, 0.0, 5.0, 4.9, 0.0, 0.0, 0.0])[0].ids, [0, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
    }

    #[test]
    fn beams_find_the_best_and_end() {
        let beams = Settings { num_beams: 3, num_return_sequences: 2, ..settings() };
        let found = run(beams, 0, &[0.0, 2.0, 0.0, 2.1, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(found.len(), 2);
        assert!(found[0].score >= found[1].score);
        let sampled = Settings { num_beams: 3, do_sample: true, ..settings() };
        let logits = [0.0, 0.5, 0.3, 1.0, 1.0, 0.8, 0.2, -3.0];
        assert_eq!(run(sampled.clone(), 5, &logits), run(sampled, 5, &logits));
    }
}
