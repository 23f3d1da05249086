//! Variants on trial: how alike their answers are to the original's, alone and batched.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use serde_json::Value;
use trireme_model_repository::Task;

use super::quantizer::Quantizer;
use super::search::{order, smallest};
use super::stand::{EXACT, Stand};
use crate::verify::answers::{Entities, TextResult, higher, lower};
use crate::verify::reference::Case;
use crate::verify::texts;

/// The name of the file that is written.
pub const FILE: &str = "model_int8.onnx";

/// A search aims above the bar by this part of the distance from the bar to 1, because other texts may fare worse.
const IN_HAND: f64 = 0.1;

/// The texts on which matrices are tried alone: those that fare worst.
const TRIED_ALONE: usize = 12;

/// The texts whose activations are looked at for smoothing, beside those that fare worst: spread over all.
const SPREAD: usize = 12;

/// Neighbours that are compared.
const NEAREST: usize = 10;

/// How alike a variant's answers are.
#[derive(Clone, Debug, PartialEq)]
pub struct Fidelity {
    /// Of the worst text, alone or batched; of token classifiers the share of equal entities over all texts.
    pub lowest: f64,
    pub mean: f64,
    /// How far apart the scores of equal entities are at most; only of token classifiers.
    pub score_difference: Option<f64>,
    /// The share of each text's ten nearest texts that are the same; only of vectors, and of more than eleven texts.
    pub agreement: Option<f64>,
    /// Each text, by its index, the worst one first.
    worst: Vec<usize>,
}

/// The bars that a variant has to reach.
#[derive(Clone, Copy, Debug)]
pub struct Bars {
    /// The lowest likeness.
    pub likeness: f64,
    /// The largest difference of the scores of equal entities.
    pub score_difference: f64,
    /// The lowest speed, in texts per second of the original.
    pub speedup: f64,
}

/// A variant of the original.
#[derive(Clone, Debug)]
pub struct Variant {
    /// For people.
    pub name: String,
    /// Its name on the server.
    pub model: String,
    /// The folder that holds its files.
    pub folder: PathBuf,
    pub bytes: u64,
    pub fidelity: Fidelity,
}

/// A variant with its speed.
pub struct Measured {
    pub variant: Variant,
    /// Texts per second: the median of the rounds.
    pub rate: f64,
    /// The original's texts per second.
    pub original: f64,
    /// The median of the rounds' ratios.
    pub speedup: f64,
}

/// The texts, and the original's answers.
pub struct Trial<'a> {
    stand: &'a Stand,
    task: Task,
    cases: Vec<Case>,
    expected: Vec<TextResult>,
    bars: Bars,
    work: PathBuf,
    tried: usize,
}

/// A kind of 8-bit weights: its name for the script, for people, and the same on the smoothed base.
struct Kind {
    name: &'static str,
    words: &'static str,
    smooth: &'static str,
}

// === impl Measured ===

impl Measured {
    /// Whether the variant is good enough and fast enough.
    pub fn holds(&self, bars: &Bars) -> bool {
        self.variant.fidelity.holds(bars) && self.speedup >= bars.speedup
    }
}

// === impl Fidelity ===

impl Fidelity {
    /// Whether the answers are alike enough. NaN is not.
    pub fn holds(&self, bars: &Bars) -> bool {
        self.lowest >= bars.likeness && self.score_difference.is_none_or(|found| found <= bars.score_difference)
    }

    /// The figures in words.
    pub fn words(&self) -> String {
        match self.score_difference {
            Some(difference) => {
                format!(
                    "a share of equal entities of {:.4}, whose scores differ by at most {difference:.4}",
                    self.lowest
                )
            }
            None => format!("a lowest likeness of {:.4}, a mean of {:.4}", self.lowest, self.mean),
        }
    }
}

/// Why none of these variants is written: the bar that fails, with the variant that comes closest to it.
pub fn failure(measured: &[Measured], bars: &Bars) -> String {
    let faithful = measured.iter().filter(|found| found.variant.fidelity.holds(bars));
    if let Some(Measured { variant, speedup, .. }) = faithful.max_by(|a, b| a.speedup.total_cmp(&b.speedup)) {
        return format!(
            "speed fails, not fidelity: of the variants that are alike enough the fastest, {}, has {speedup:.2} times the texts/s, expected at \
             least {}",
            variant.name, bars.speedup
        );
    }
    let Some(Measured { variant, .. }) =
        measured.iter().max_by(|a, b| a.variant.fidelity.lowest.total_cmp(&b.variant.fidelity.lowest))
    else {
        return "none could be made".to_owned();
    };
    let expected = match variant.fidelity.score_difference {
        Some(_) => {
            format!("a share of at least {} and a difference of at most {}", bars.likeness, bars.score_difference)
        }
        None => format!("a lowest likeness of at least {}", bars.likeness),
    };
    format!(
        "fidelity fails, whatever the speed: the variant that is most alike, {}, has {}, expected {expected}",
        variant.name,
        variant.fidelity.words()
    )
}

/// The variants with their rates; the first ones in `rates` are the original's.
pub fn measured(variants: Vec<Variant>, rates: &[Vec<f64>]) -> Vec<Measured> {
    let Some((original, rates)) = rates.split_first() else { return Vec::new() };
    let one = |(variant, rates): (Variant, &Vec<f64>)| {
        let ratios = rates.iter().zip(original).map(|(own, original)| own / original).collect();
        Measured { variant, rate: median(rates.clone()), original: median(original.clone()), speedup: median(ratios) }
    };
    variants.into_iter().zip(rates).map(one).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The size of an ONNX file and of the files of weights that begin with its name.
pub fn bytes_beside(graph: &Path) -> u64 {
    let name = graph.file_name().unwrap_or_default().to_string_lossy();
    let entries = graph.parent().and_then(|folder| folder.read_dir().ok()).into_iter().flatten().flatten();
    let own = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&*name));
    own.filter_map(|entry| std::fs::metadata(entry.path()).ok()).map(|found| found.len()).sum()
}

/// The kinds of 8-bit weights that pay on this processor. Where x86 has no instructions for products of 8 bits, the product of
/// signed weights overflows, which costs fidelity, and unsigned weights cost time: both are tried.
fn kinds() -> Vec<Kind> {
    #[cfg(target_arch = "x86_64")]
    let plain = !(is_x86_feature_detected!("avx512vnni") || is_x86_feature_detected!("avxvnni"));
    #[cfg(not(target_arch = "x86_64"))]
    let plain = false;
    let signed = Kind { name: "int8", words: "int8", smooth: "smooth" };
    let unsigned = Kind { name: "uint8", words: "unsigned int8", smooth: "usmooth" };
    if plain { vec![signed, unsigned] } else { vec![signed] }
}

// === impl Trial ===

impl<'a> Trial<'a> {
    /// Asks the original for its answers.
    pub fn new(stand: &'a Stand, texts: Vec<String>, bars: Bars, work: PathBuf) -> anyhow::Result<Trial<'a>> {
        let (task, takes_pairs) = stand.task()?;
        let pairs = takes_pairs.then(|| texts::pairs(&texts));
        let case = |(index, text): (usize, String)| Case {
            text,
            pair: pairs.as_ref().map(|pairs| pairs[index].clone()),
            line: Value::Null,
        };
        let cases: Vec<Case> = texts.into_iter().enumerate().map(case).collect();
        ensure!(!cases.is_empty(), "there are no texts to compare");
        let expected = stand.answers(EXACT, task, &cases, true)?;
        Ok(Trial { stand, task, cases, expected, bars, work, tried: 0 })
    }

    /// The variants that are worth measuring, each on the server, and the texts.
    pub fn variants(mut self, quantizer: &mut Quantizer) -> anyhow::Result<(Vec<Variant>, Vec<String>)> {
        let mut found = Vec::new();
        let mut smoothed = None;
        for Kind { name, words, smooth } in kinds() {
            let count = quantizer.matrices.len();
            let all = self.variant(quantizer, name, &format!("{words}, all {count} matrices"), &[])?;
            let (holds, worst) = (all.fidelity.holds(&self.target()), all.fidelity.worst.clone());
            found.push(all);
            if holds {
                continue;
            }
            let changed = match smoothed {
                Some(changed) => changed,
                None => *smoothed.insert(quantizer.smooth(&self.stand.token_rows(&self.watched(&worst))?)?),
            };
            let mut bases = vec![(name, words.to_owned(), worst)];
            if changed > 0 {
                let words = format!("{words}, smoothed");
                let all = self.variant(quantizer, smooth, &format!("{words}, all {count} matrices"), &[])?;
                let (holds, worst) = (all.fidelity.holds(&self.target()), all.fidelity.worst.clone());
                found.push(all);
                if holds {
                    continue;
                }
                bases.push((smooth, words, worst));
            }
            // The base that is better with all matrices may be the one that has to leave out more of them.
            for (kind, words, worst) in bases {
                found.extend(self.leave_out(quantizer, kind, &words, &worst)?);
            }
        }
        if quantizer.has_blocks {
            found.push(self.variant(quantizer, "blocks", "int8 in blocks", &[])?);
        }
        Ok((found, self.cases.into_iter().map(|case| case.text).collect()))
    }

    /// The likeness that ends the search.
    fn target(&self) -> Bars {
        let Bars { likeness, score_difference, .. } = self.bars;
        Bars {
            likeness: likeness + (1.0 - likeness) * IN_HAND,
            score_difference: score_difference * (1.0 - IN_HAND),
            ..self.bars
        }
    }

    /// The texts whose activations are looked at: the worst ones, by their indices, and some spread over all.
    fn watched(&self, worst: &[usize]) -> Vec<&Case> {
        let step = self.cases.len().div_ceil(SPREAD).max(1);
        let mut indices: Vec<usize> = worst.iter().take(TRIED_ALONE).copied().collect();
        indices.extend((0..self.cases.len()).step_by(step));
        indices.sort_unstable();
        indices.dedup();
        indices.into_iter().map(|index| &self.cases[index]).collect()
    }

    /// The variant that leaves out the fewest matrices and holds the bar. A matrix that is left out gets weights in blocks, which are
    /// slower and more precise, or stays as it is.
    fn leave_out(
        &mut self,
        quantizer: &mut Quantizer,
        kind: &str,
        name: &str,
        worst: &[usize],
    ) -> anyhow::Result<Option<Variant>> {
        let tried: Vec<&Case> = worst.iter().take(TRIED_ALONE).map(|&index| &self.cases[index]).collect();
        let damage = quantizer.damage(kind, &self.stand.token_rows(&tried)?)?;
        let order = order(&quantizer.matrices, &damage);
        let target = self.target();
        let mut best = None;
        // With half of the matrices at more precision nothing is won any more.
        smallest(order.len() / 2, |count| {
            let name = match quantizer.has_blocks {
                true => format!("{name}, {count} of {} matrices in blocks", order.len()),
                false => format!("{name}, without {count} of {} matrices", order.len()),
            };
            let variant = self.variant(quantizer, kind, &name, &order[..count])?;
            let holds = variant.fidelity.holds(&target);
            if let Some(worse) = if holds { best.replace(variant) } else { Some(variant) } {
                self.stand.remove(&worse.model)?;
                std::fs::remove_dir_all(&worse.folder)?;
            }
            anyhow::Ok(holds)
        })?;
        Ok(best)
    }

    /// Makes a variant, serves it, and compares its answers.
    fn variant(
        &mut self,
        quantizer: &mut Quantizer,
        kind: &str,
        name: &str,
        leave_out: &[String],
    ) -> anyhow::Result<Variant> {
        self.tried += 1;
        let model = format!("variant{}", self.tried);
        let folder = self.work.join(&model);
        std::fs::create_dir(&folder)?;
        quantizer.quantize(kind, leave_out, &folder.join(FILE))?;
        self.stand.add(&model, &folder, FILE)?;
        let alone = self.stand.answers(&model, self.task, &self.cases, true)?;
        let batched = self.stand.answers(&model, self.task, &self.cases, false)?;
        let fidelity = fidelity(&self.expected, &[alone, batched]);
        tracing::info!("{name}: {}", fidelity.words());
        let bytes = bytes_beside(&folder.join(FILE));
        Ok(Variant { name: name.to_owned(), model, folder, bytes, fidelity })
    }
}

/// Compares answers that were given in several ways with the expected ones.
fn fidelity(expected: &[TextResult], found: &[Vec<TextResult>]) -> Fidelity {
    let likeness = |index: usize| found.iter().map(|way| way[index].likeness(&expected[index])).fold(1.0, lower);
    let alike: Vec<f64> = (0..expected.len()).map(likeness).collect();
    let mut worst: Vec<usize> = (0..alike.len()).collect();
    worst.sort_by(|&a, &b| alike[a].total_cmp(&alike[b]));
    let entities: Vec<Entities> = found.iter().filter_map(|way| entities(expected, way)).collect();
    let share = entities.iter().map(Entities::share).fold(1.0, lower);
    let lowest = alike.iter().copied().fold(1.0, lower);
    Fidelity {
        // A text with one entity that is missing would be as far off as can be.
        lowest: if entities.is_empty() { lowest } else { share },
        mean: alike.iter().sum::<f64>() / alike.len().max(1) as f64,
        score_difference: entities.iter().map(|found| found.difference).reduce(higher),
        agreement: found.first().and_then(|found| agreement(expected, found)),
        worst,
    }
}

/// The entities of all texts beside the expected ones; `None` for answers of another kind.
fn entities(expected: &[TextResult], found: &[TextResult]) -> Option<Entities> {
    let each = found.iter().zip(expected).map(|(found, expected)| found.entities(expected));
    each.reduce(|all, one| Some(all?.and(one?))).flatten()
}

/// The mean share of a text's nearest texts that stay its nearest.
fn agreement(expected: &[TextResult], found: &[TextResult]) -> Option<f64> {
    let (expected, found) = (unit_vectors(expected)?, unit_vectors(found)?);
    if expected.len() <= NEAREST + 1 {
        return None;
    }
    let nearest = |vectors: &[Vec<f64>], index: usize| {
        let dot = |other: &usize| vectors[index].iter().zip(&vectors[*other]).map(|(a, b)| a * b).sum::<f64>();
        let mut others: Vec<(f64, usize)> =
            (0..vectors.len()).filter(|other| *other != index).map(|other| (dot(&other), other)).collect();
        others.select_nth_unstable_by(NEAREST - 1, |a, b| b.0.total_cmp(&a.0));
        others.truncate(NEAREST);
        others.into_iter().map(|(_, other)| other).collect::<Vec<_>>()
    };
    let same = |index: usize| {
        let (expected, found) = (nearest(&expected, index), nearest(&found, index));
        expected.iter().filter(|other| found.contains(other)).count() as f64 / NEAREST as f64
    };
    Some((0..expected.len()).map(same).sum::<f64>() / expected.len() as f64)
}

/// Embeddings with a length of 1; `None` for answers of another kind.
fn unit_vectors(answers: &[TextResult]) -> Option<Vec<Vec<f64>>> {
    let unit = |answer: &TextResult| {
        let TextResult::Vector(vector) = answer else { return None };
        let length = vector.iter().map(|value| value * value).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
        Some(vector.iter().map(|value| value / length).collect())
    };
    answers.iter().map(unit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(count: usize, turned: impl Fn(usize) -> f64) -> Vec<TextResult> {
        let point = |index: usize| {
            let angle = index as f64 * 0.1 + turned(index);
            TextResult::Vector(vec![angle.cos(), angle.sin()])
        };
        (0..count).map(point).collect()
    }

    #[test]
    fn the_worst_text_alone_or_batched_decides() {
        let expected = circle(20, |_| 0.0);
        let found = fidelity(&expected, &[circle(20, |_| 0.0), circle(20, |index| if index == 7 { 0.3 } else { 0.0 })]);
        assert!((found.lowest - 0.3f64.cos()).abs() < 1e-9 && found.worst[0] == 7, "{found:?}");
        assert!((found.mean - (19.0 + 0.3f64.cos()) / 20.0).abs() < 1e-9);
        assert_eq!(found.agreement, Some(1.0), "neighbours are those of texts asked alone");
    }

    #[test]
    fn neighbours_that_change_are_counted() {
        let expected = circle(30, |_| 0.0);
        // The last text goes to the other end: it is no neighbour of its old ones any more.
        let found = agreement(&expected, &circle(30, |index| if index == 29 { -2.9 } else { 0.0 })).unwrap();
        assert!((0.8..0.99).contains(&found), "{found}");
        assert_eq!(agreement(&circle(11, |_| 0.0), &circle(11, |_| 0.0)), None);
        assert_eq!(agreement(&[TextResult::Scores(vec![1.0])], &[TextResult::Scores(vec![1.0])]), None);
    }

    #[test]
    fn a_speed_is_the_median_of_ratios_within_rounds() {
        let variant = variant("v", 0.995, None);
        // The machine is half as fast in the second round.
        let found = measured(vec![variant], &[vec![100.0, 50.0, 100.0], vec![190.0, 95.0, 300.0]]);
        assert_eq!((found[0].speedup, found[0].rate, found[0].original), (1.9, 190.0, 100.0));
        assert!(
            found[0].holds(&bars(0.99, 1.8)) && !found[0].holds(&bars(0.996, 1.8)) && !found[0].holds(&bars(0.99, 2.0))
        );
    }

    fn variant(name: &str, lowest: f64, score_difference: Option<f64>) -> Variant {
        let fidelity = Fidelity { lowest, mean: 0.999, score_difference, agreement: None, worst: vec![] };
        Variant { name: name.to_owned(), model: "m".to_owned(), folder: PathBuf::new(), bytes: 1, fidelity }
    }

    fn bars(likeness: f64, speedup: f64) -> Bars {
        Bars { likeness, score_difference: 0.05, speedup }
    }

    #[test]
    fn one_missing_entity_of_many_is_a_share_and_scores_have_a_bar_of_their_own() {
        let entity =
            |text: usize, score: f64| serde_json::json!({"entity_group": "LOC", "start": text, "score": score});
        let answers = |missing: Option<usize>, score: f64| -> Vec<TextResult> {
            let one =
                |text| TextResult::Entities(if missing == Some(text) { vec![] } else { vec![entity(text, score)] });
            (0..50).map(one).collect()
        };
        let found = fidelity(&answers(None, 0.9), &[answers(None, 0.9), answers(Some(7), 0.87)]);
        assert!((found.lowest - 98.0 / 99.0).abs() < 1e-9 && found.worst[0] == 7, "{found:?}");
        assert!((found.score_difference.unwrap() - 0.03).abs() < 1e-9);
        assert!(found.holds(&bars(0.98, 1.0)) && !found.holds(&bars(0.995, 1.0)));
        assert!(!found.holds(&Bars { score_difference: 0.02, ..bars(0.98, 1.0) }));
    }

    #[test]
    fn the_bar_that_fails_is_named() {
        let found = |lowest, score_difference, speedup| Measured {
            variant: variant("v", lowest, score_difference),
            rate: 1.0,
            original: 1.0,
            speedup,
        };
        let told = failure(&[found(0.999, None, 0.8), found(0.5, None, 3.0)], &bars(0.99, 1.0));
        assert!(
            told.starts_with("speed fails") && told.contains("0.80 times the texts/s, expected at least 1"),
            "{told}"
        );
        let told = failure(&[found(0.9, None, 2.0)], &bars(0.99, 1.0));
        assert!(told.starts_with("fidelity fails") && told.contains("likeness of 0.9000"), "{told}");
        let told = failure(&[found(1.0, Some(0.2), 2.0)], &bars(0.99, 1.0));
        assert!(
            told.contains(
                "differ by at most 0.2000, expected a share of at least 0.99 and a difference of at most 0.05"
            ),
            "{told}"
        );
    }
}
