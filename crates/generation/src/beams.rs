//! Beam search, the same as transformers' vectorised one for a single text: the same candidates, penalties and stopping
//! rules, in the same single precision.

use std::sync::Arc;

use super::processors::{log_softmax, process};
use super::random::Random;
use super::settings::{EarlyStopping, Settings};
use super::warpers::{softmax, warp};

/// A sequence found by a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The ids, the start included.
    pub ids: Vec<i64>,
    /// Beam search: the sum of the log-probabilities divided by the length penalty; otherwise the sum.
    pub score: f32,
}

/// A score that makes a candidate the last choice, but is still a number.
const LAST_CHOICE: f32 = -1.0e9;

/// A text's beams.
#[derive(Debug)]
pub struct Beams {
    settings: Arc<Settings>,
    running: Vec<Beam>,
    /// As many as there are beams, best first. At first none of them is whole.
    finished: Vec<Finished>,
    random: Random,
    /// Whether a running beam may still become better than a finished one. Once false, it stays false.
    improvable: bool,
    done: bool,
}

#[derive(Clone, Debug)]
struct Beam {
    ids: Vec<i64>,
    score: f32,
}

#[derive(Clone, Debug)]
struct Finished {
    beam: Beam,
    /// Whether it is a whole sequence. Otherwise it only keeps the score of a last choice.
    whole: bool,
}

/// A beam extended by one id.
struct Candidate {
    parent: usize,
    beam: Beam,
    /// Whether the sequence ends here.
    ends: bool,
}

// === impl Beams ===

impl Beams {
    /// Beams that start with `start`.
    pub fn new(settings: Arc<Settings>, start: i64, random: Random) -> Beams {
        let count = settings.num_beams;
        let beam = |score| Beam { ids: vec![start], score };
        // Of equal beams only the first has a score, because otherwise all of them would choose the same id.
        let running = (0..count).map(|index| beam(if index == 0 { 0.0 } else { LAST_CHOICE })).collect();
        let finished = vec![Finished { beam: beam(LAST_CHOICE), whole: false }; count];
        Beams { settings, running, finished, random, improvable: true, done: false }
    }

    pub fn width(&self) -> usize {
        if self.done { 0 } else { self.running.len() }
    }

    pub fn sequences(&self) -> Vec<&[i64]> {
        self.running.iter().take(self.width()).map(|beam| &beam.ids[..]).collect()
    }

    pub fn found(&self) -> Vec<Found> {
        let best = self.finished.iter().take(self.settings.num_return_sequences);
        best.map(|finished| Found { ids: finished.beam.ids.clone(), score: finished.beam.score }).collect()
    }

    pub fn advance(&mut self, logits: &mut [f32], vocabulary: usize) -> Vec<usize> {
        for (beam, scores) in self.running.iter().zip(logits.chunks_mut(vocabulary)) {
            log_softmax(scores);
            process(&self.settings, &beam.ids, scores);
            if self.settings.do_sample {
                warp(&self.settings, self.settings.eos_token_id.len() + 1, scores);
            }
            if self.settings.renormalize_logits {
                log_softmax(scores);
            }
            scores.iter_mut().for_each(|score| *score += beam.score);
        }
        let candidates = self.candidates(logits, vocabulary);
        self.update_finished(&candidates);
        let parents = self.continue_with(&candidates);
        self.done = !self.goes_on(&candidates);
        if self.done { Vec::new() } else { parents }
    }

    /// The most likely continuations of all beams together, or the same number of drawn ones. There are enough that the
    /// ones that do not end still fill all beams.
    fn candidates(&mut self, scores: &[f32], vocabulary: usize) -> Vec<Candidate> {
        let settings = &*self.settings;
        let count = (settings.eos_token_id.len() + 1).max(2) * settings.num_beams;
        let chosen = match settings.do_sample {
            true => draw_distinct(&mut self.random, softmax(scores), count),
            false => largest(scores, count),
        };
        let candidate = |index: usize| {
            let (parent, id) = (index / vocabulary, (index % vocabulary) as i64);
            let mut ids = self.running[parent].ids.clone();
            ids.push(id);
            let ends = settings.eos_token_id.contains(&id) || ids.len() >= settings.longest();
            Candidate { parent, beam: Beam { ids, score: scores[index] }, ends }
        };
        chosen.into_iter().map(candidate).collect()
    }

    /// Compares candidates that end with the finished ones, after the length penalty. Only as many candidates as there
    /// are beams are compared: the others only serve to continue.
    fn update_finished(&mut self, candidates: &[Candidate]) {
        let full = self.finished.iter().all(|finished| finished.whole);
        if !self.improvable || full && self.settings.early_stopping == EarlyStopping::Yes {
            return;
        }
        for candidate in candidates.iter().take(self.settings.num_beams).filter(|candidate| candidate.ends) {
            let score = candidate.beam.score / self.penalty(candidate.beam.ids.len() - 1);
            let beam = Beam { ids: candidate.beam.ids.clone(), score };
            self.finished.push(Finished { beam, whole: true });
        }
        // Stable: of equal scores the older stays first.
        self.finished.sort_by(|a, b| b.beam.score.total_cmp(&a.beam.score));
        self.finished.truncate(self.settings.num_beams);
    }

    /// Chooses the next running beams; returns their parents.
    fn continue_with(&mut self, candidates: &[Candidate]) -> Vec<usize> {
        let score = |candidate: &Candidate| candidate.beam.score + if candidate.ends { LAST_CHOICE } else { 0.0 };
        let scores: Vec<f32> = candidates.iter().map(score).collect();
        let next = largest(&scores, self.settings.num_beams);
        self.running =
            next.iter().map(|&index| Beam { ids: candidates[index].beam.ids.clone(), score: scores[index] }).collect();
        next.into_iter().map(|index| candidates[index].parent).collect()
    }

    fn goes_on(&mut self, candidates: &[Candidate]) -> bool {
        let settings = &*self.settings;
        let length = self.running.first().map_or(1, |beam| beam.ids.len());
        let hypothetical = match settings.early_stopping {
            EarlyStopping::Never if settings.length_penalty > 0.0 => settings.longest(),
            _ => length,
        };
        let best = self.running.first().map_or(LAST_CHOICE, |beam| beam.score) / self.penalty(hypothetical - 1);
        let worst = self.finished.iter().map(|finished| finished.beam.score).fold(f32::INFINITY, f32::min);
        let beaten = |finished: &Finished| best > if finished.whole { worst } else { LAST_CHOICE };
        self.improvable &= self.finished.iter().any(beaten);
        let full = self.finished.iter().all(|finished| finished.whole);
        let stops_early = full && settings.early_stopping == EarlyStopping::Yes;
        self.improvable && !stops_early && !candidates.iter().all(|candidate| candidate.ends)
    }

    /// The divisor of a score at this many ids after the start.
    fn penalty(&self, length: usize) -> f32 {
        (length as f64).powf(self.settings.length_penalty) as f32
    }
}

/// Indices of the `count` largest scores, in descending order; of equal scores the earlier comes first. `count` is
/// small compared with the number of scores.
fn largest(scores: &[f32], count: usize) -> Vec<usize> {
    let mut best: Vec<usize> = Vec::with_capacity(count + 1);
    for (index, score) in scores.iter().enumerate() {
        let beats = |other: &usize| score.total_cmp(&scores[*other]).is_gt();
        if best.len() < count || best.last().is_some_and(beats) {
            let place = best.partition_point(|other| !beats(other));
            best.insert(place, index);
            best.truncate(count);
        }
    }
    best
}

/// `count` different indices, drawn one after the other by `weights`. When no weight is left, the largest of the rest.
fn draw_distinct(random: &mut Random, mut weights: Vec<f32>, count: usize) -> Vec<usize> {
    let mut drawn = Vec::with_capacity(count);
    while drawn.len() < count.min(weights.len()) {
        let index = random.draw(&weights);
        if weights[index] <= 0.0 {
            break;
        }
        weights[index] = 0.0;
        drawn.push(index);
    }
    let rest: Vec<usize> =
        (0..weights.len()).filter(|index| !drawn.contains(index)).take(count - drawn.len()).collect();
    drawn.extend(rest);
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_in_order_and_the_earlier_first_among_equals() {
        let scores = [1.0, f32::NEG_INFINITY, 3.0, 3.0, 2.0];
        assert_eq!(largest(&scores, 3), [2, 3, 4]);
        assert_eq!(largest(&scores, 9), [2, 3, 4, 0, 1]);
    }

    #[test]
    fn what_is_drawn_is_drawn_once() {
        let mut random = Random::new(1, 0);
        for _ in 0..100 {
            let mut drawn = draw_distinct(&mut random, vec![0.0, 1.0, 5.0, 0.0, 2.0], 4);
            assert!([1, 2, 4].contains(&drawn[0]) && [1, 2, 4].contains(&drawn[2]));
            drawn.sort_unstable();
            drawn.dedup();
            assert_eq!(drawn.len(), 4);
        }
    }
}
