//! The answers of two models for the same texts beside each other, by kinds of texts. Pure.

use serde_json::{Value, json};

use super::answers::TextResult;
use super::probes::Kind;
use crate::style::{Style, cell, colours, paint, table};

/// The first texts of a search that are compared; fewer where there are few texts.
const FIRST: usize = 10;

/// The answer of a model for a text; `None` where the model refuses the text.
pub type Answer = Option<TextResult>;

/// The likeness of two models for texts of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// How many texts there are.
    pub texts: usize,
    /// The lowest likeness, and the place of that text.
    pub lowest: f64,
    pub worst: usize,
    pub mean: f64,
    /// The share of the first texts that a search finds with either model's vector of the query, on average, where answers are vectors.
    pub overlap: Option<f64>,
}

/// The comparison of two models.
pub struct Likeness {
    /// By kind, for the kinds of these texts.
    pub kinds: Vec<(Kind, Figures)>,
    pub all: Figures,
    /// How many texts count as the first ones.
    pub first: usize,
}

// === impl Likeness ===

impl Likeness {
    /// Compares the answers of both models, one of each for each of these texts.
    pub fn of(texts: &[String], one: &[Answer], other: &[Answer]) -> Likeness {
        let alike: Vec<f64> = one.iter().zip(other).map(|(one, other)| likeness(one, other)).collect();
        let first = FIRST.min(texts.len().saturating_sub(1).div_ceil(2)).max(1);
        let overlaps: Vec<Option<f64>> = (0..texts.len()).map(|query| overlap(query, one, other, first)).collect();
        let figures = |places: Vec<usize>| {
            let worst = places.iter().copied().min_by(|&a, &b| rank(alike[a]).total_cmp(&rank(alike[b])))?;
            let found: Vec<f64> = places.iter().filter_map(|&place| overlaps[place]).collect();
            Some(Figures {
                texts: places.len(),
                lowest: alike[worst],
                worst,
                mean: places.iter().map(|&place| alike[place]).sum::<f64>() / places.len() as f64,
                overlap: (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64),
            })
        };
        let of_kind = |kind: &Kind| (0..texts.len()).filter(|&place| Kind::of(&texts[place]) == *kind).collect();
        let kinds = Kind::ALL.iter().filter_map(|kind| Some((*kind, figures(of_kind(kind))?))).collect();
        let none = Figures { texts: 0, lowest: f64::NAN, worst: 0, mean: f64::NAN, overlap: None };
        Likeness { kinds, all: figures((0..texts.len()).collect()).unwrap_or(none), first }
    }

    /// Whether all answers are alike enough. NaN is not.
    pub fn passes(&self, bar: f64) -> bool {
        self.all.lowest >= bar
    }

    /// The table for people.
    pub fn table(&self, measure: &str, bar: f64) -> String {
        let all = self.kinds.iter().map(|(kind, figures)| (kind.name(), figures)).chain([("all", &self.all)]);
        let line = |(name, figures): (&str, &Figures)| {
            let style = if figures.lowest >= bar { Style::Plain } else { Style::Bad };
            vec![
                cell(name),
                cell(figures.texts),
                (format!("{:.7}", figures.lowest), style),
                cell(format!("{:.7}", figures.mean)),
                cell(figures.overlap.map_or("–".to_owned(), |share| format!("{:.1} %", 100.0 * share))),
            ]
        };
        let lines: Vec<_> = all.map(line).collect();
        let mut out = String::new();
        let (lowest, mean, first) =
            (format!(">lowest {measure}"), ">mean".to_owned(), format!(">first {} alike", self.first));
        table(&mut out, &["texts", ">count", &lowest, &mean, &first], &lines, colours());
        out
    }

    /// The figures for programs.
    pub fn to_json(&self) -> Value {
        let figures = |figures: &Figures| json!({"texts": figures.texts, "lowest": number(figures.lowest), "mean": number(figures.mean), "overlap": figures.overlap});
        let kinds: serde_json::Map<String, Value> =
            self.kinds.iter().map(|(kind, of_kind)| (kind.name().replace(' ', "_"), figures(of_kind))).collect();
        json!({"all": figures(&self.all), "kinds": kinds, "first": self.first})
    }
}

/// A sentence in the colour of its meaning.
pub fn sentence(text: &str, passed: bool) -> String {
    format!("{}\n", paint(text, if passed { Style::Good } else { Style::Bad }, colours()))
}

/// JSON has no NaN.
fn number(value: f64) -> Option<f64> {
    Some(value).filter(|value| value.is_finite())
}

/// NaN is the lowest.
pub fn rank(value: f64) -> f64 {
    if value.is_nan() { f64::NEG_INFINITY } else { value }
}

/// A text that both refuse is no difference of the models.
fn likeness(one: &Answer, other: &Answer) -> f64 {
    match (one, other) {
        (Some(one), Some(other)) => one.likeness(other),
        (None, None) => 1.0,
        _ => 0.0,
    }
}

/// An index holds the vectors of `one`. The share of the first texts that it finds both for the query of `one` and for that of `other`, the
/// query itself left out. `None` where there is no such vector.
fn overlap(query: usize, one: &[Answer], other: &[Answer], first: usize) -> Option<f64> {
    let (old, new) = (vector(&one[query])?, vector(&other[query])?);
    let ranked = |by: &[f64]| {
        let others = (0..one.len()).filter(|&place| place != query);
        let mut places: Vec<(f64, usize)> =
            others.filter_map(|place| Some((cosine(by, vector(&one[place])?), place))).collect();
        places.sort_by(|a, b| b.0.total_cmp(&a.0));
        places.into_iter().take(first).map(|(_, place)| place).collect::<Vec<_>>()
    };
    let (by_old, by_new) = (ranked(old), ranked(new));
    let both = by_new.iter().filter(|place| by_old.contains(place)).count();
    (!by_old.is_empty()).then(|| both as f64 / by_old.len() as f64)
}

fn vector(answer: &Answer) -> Option<&[f64]> {
    match answer {
        Some(TextResult::Vector(vector)) => Some(vector),
        _ => None,
    }
}

/// The cosine of two vectors; −1 where they have different widths, which no search compares.
fn cosine(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return -1.0;
    }
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(angles: &[f64]) -> Vec<Answer> {
        angles.iter().map(|angle| Some(TextResult::Vector(vec![angle.cos(), angle.sin()]))).collect()
    }

    fn texts(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("text {number}")).collect()
    }

    #[test]
    fn the_worst_text_decides_and_a_search_shows_what_changes() {
        let angles: Vec<f64> = (0..30).map(|n| f64::from(n) * 0.1).collect();
        let one = vectors(&angles);
        let same = Likeness::of(&texts(30), &one, &one);
        assert_eq!((same.all.lowest, same.all.overlap, same.first), (1.0, Some(1.0), FIRST));
        assert!(same.passes(1.0));

        let mut turned = angles.clone();
        turned[7] += 0.5;
        let turned = Likeness::of(&texts(30), &one, &vectors(&turned));
        assert_eq!(turned.all.worst, 7);
        assert!((turned.all.lowest - 0.5f64.cos()).abs() < 1e-9 && !turned.passes(0.9999));
        assert!(turned.all.mean > 0.99);
        let overlap = turned.all.overlap.unwrap();
        assert!((29.0 / 30.0..1.0).contains(&overlap), "one query of 30 finds others: {overlap}");
    }

    #[test]
    fn kinds_are_told_apart() {
        let texts: Vec<String> = ["one", "two", "Москва", ""].map(str::to_owned).into();
        let (one, mut other) = (vectors(&[0.0, 1.0, 2.0, 3.0]), vectors(&[0.0, 1.0, 2.0, 3.0]));
        other[2] = vectors(&[2.5])[0].clone();
        let found = Likeness::of(&texts, &one, &other);
        let kinds: Vec<_> =
            found.kinds.iter().map(|(kind, figures)| (*kind, figures.texts, figures.lowest > 0.99)).collect();
        assert_eq!(kinds, [(Kind::Short, 2, true), (Kind::OtherScripts, 1, false), (Kind::Empty, 1, true)]);
        let json = found.to_json();
        assert_eq!(json["kinds"]["other_scripts"]["texts"], 1);
        assert!(json["all"]["lowest"].as_f64().unwrap() < 0.99);
        assert!(found.table("cosine", 0.99).contains("other scripts"));
    }

    #[test]
    fn refusals_and_other_widths_are_differences() {
        let one = vectors(&[0.0, 1.0]);
        let refusing = vec![one[0].clone(), None];
        assert_eq!(Likeness::of(&texts(2), &one, &refusing).all.lowest, 0.0);
        assert_eq!(Likeness::of(&texts(2), &refusing, &refusing).all.lowest, 1.0, "both refuse it");
        let wide = vec![Some(TextResult::Vector(vec![1.0, 0.0, 0.0])); 2];
        assert_eq!(Likeness::of(&texts(2), &one, &wide).all.lowest, 0.0);
        let nan = vec![Some(TextResult::Vector(vec![f64::NAN, 0.0])); 2];
        let found = Likeness::of(&texts(2), &one, &nan);
        assert!(!found.passes(0.0) && found.to_json()["all"]["lowest"].is_null());
        assert!(!Likeness::of(&[], &[], &[]).passes(0.0), "nothing was compared");
    }
}
