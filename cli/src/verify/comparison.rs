//! Answers beside those that were expected, and the report of all comparisons of a model.

use anyhow::Context;
use trireme_model_repository::Task;

use super::answers::{TextResult, expected, lower, measure};
use super::reference::Case;
use crate::style::{Style, cell, colours, harmless, paint, table};

/// Each text asked alone.
pub const ALONE: &str = "alone";

/// All texts in requests of as many rows as the model takes.
pub const BATCHED: &str = "batched";

/// The answers of a batch beside those of the same server for each text alone: a row must not depend on the others of its request.
const BESIDE: &str = "batched, to alone";

/// Characters of a text that are shown.
const SHOWN: usize = 60;

/// The result of one comparison: each text alone or all batched with the library, or both with each other.
pub struct Comparison {
    task: Task,
    way: &'static str,
    /// The lowest likeness that is good enough.
    bar: f64,
    lowest: f64,
    mean: f64,
    worst: usize,
    /// How many answers are exactly alike.
    equal: usize,
    /// Where the first text that differs does so.
    differs: Option<(usize, String)>,
}

/// The outcome of a model's comparison.
pub struct Verified {
    /// The report: a table, and the sentence.
    pub text: String,
    /// Whether all answers are alike enough.
    pub passed: bool,
    /// The result in a sentence.
    pub sentence: String,
    /// The model's tasks.
    pub tasks: String,
    /// The lowest likeness to the library's answers.
    pub lowest: f64,
}

/// The report of a model that the texts `cases` were asked of.
pub fn report(model: &str, library: &str, bar: f64, cases: &[Case], comparisons: &[Comparison]) -> Verified {
    let lines: Vec<_> = comparisons
        .iter()
        .map(|c| {
            let style = if c.passes() { Style::Plain } else { Style::Bad };
            vec![
                cell(c.task.name()),
                cell(c.way),
                (format!("{:.7}", c.lowest), style),
                cell(format!("{:.7}", c.mean)),
                cell(shown(&cases[c.worst].text)),
            ]
        })
        .collect();
    let mut out = String::new();
    table(&mut out, &["task", "asked", ">lowest", ">mean", "worst text"], &lines, colours());
    let with_library: Vec<&Comparison> = comparisons.iter().filter(|c| c.is_with_library()).collect();
    let passed = comparisons.iter().all(Comparison::passes);
    let what = if with_library.iter().all(|c| c.passes()) { "serves what" } else { "does not serve what" };
    let worst = worst(&with_library);
    let found = worst.map(|c| c.words(cases, bar)).unwrap_or_default();
    let mut sentence = format!("model '{model}' {what} {library} computes: {found}");
    if let Some(beside) = comparisons.iter().find(|c| !c.is_with_library() && !c.passes()) {
        let place = beside.differs.as_ref().map_or(String::new(), |(_, place)| format!(": {place}"));
        sentence += &format!(
            "; but the answer for a text depends on the others of its request: {:.7} for '{}'{place}, expected at least {:.7}",
            beside.lowest,
            shown(&cases[beside.worst].text),
            beside.bar
        );
    }
    out.push_str(&format!("{}\n", paint(&sentence, if passed { Style::Good } else { Style::Bad }, colours())));
    let mut tasks: Vec<&str> = with_library.iter().map(|c| c.task.name()).collect();
    tasks.dedup();
    let (tasks, lowest) = (tasks.join(", "), worst.map_or(1.0, |c| c.lowest));
    Verified { text: out, passed, sentence, tasks, lowest }
}

/// The comparison with the lowest likeness; one that is no number is the lowest.
fn worst<'a>(comparisons: &[&'a Comparison]) -> Option<&'a Comparison> {
    let lowest = comparisons.iter().map(|c| c.lowest).fold(f64::INFINITY, lower);
    comparisons.iter().copied().find(|c| c.lowest.total_cmp(&lowest).is_eq() || c.lowest.is_nan())
}

// === impl Comparison ===

impl Comparison {
    /// Answers beside the library's.
    pub fn of(
        task: Task,
        way: &'static str,
        bar: f64,
        cases: &[Case],
        answers: &[TextResult],
    ) -> anyhow::Result<Comparison> {
        let mut wanted = Vec::with_capacity(cases.len());
        for case in cases {
            wanted.push(expected(task, &case.line).with_context(|| format!("for text '{}'", shown(&case.text)))?);
        }
        Ok(Comparison::summary(task, way, bar, answers, &wanted))
    }

    /// The answers of a batch beside those for each text alone. They come from one graph, so that the bar is ten times as close to 1 as that
    /// for the library, which computes by other means.
    pub fn beside(task: Task, bar: f64, alone: &[TextResult], batched: &[TextResult]) -> Comparison {
        Comparison::summary(task, BESIDE, 1.0 - (1.0 - bar) / 10.0, batched, alone)
    }

    fn summary(task: Task, way: &'static str, bar: f64, answers: &[TextResult], expected: &[TextResult]) -> Comparison {
        let alike: Vec<f64> = answers.iter().zip(expected).map(|(answer, wanted)| answer.likeness(wanted)).collect();
        let worst = (0..alike.len()).min_by(|&a, &b| {
            let rank = |value: f64| if value.is_nan() { f64::NEG_INFINITY } else { value };
            rank(alike[a]).total_cmp(&rank(alike[b]))
        });
        let worst = worst.unwrap_or(0);
        let mean = alike.iter().sum::<f64>() / alike.len() as f64;
        let equal = alike.iter().filter(|alike| **alike >= 1.0).count();
        let mut places = answers.iter().zip(expected).map(|(answer, wanted)| answer.parting(wanted)).enumerate();
        let differs = places.find_map(|(index, place)| Some((index, place?)));
        Comparison { task, way, bar, lowest: alike[worst], mean, worst, equal, differs }
    }

    fn is_with_library(&self) -> bool {
        self.way != BESIDE
    }

    /// Whether all answers are alike enough. NaN is not.
    fn passes(&self) -> bool {
        self.lowest >= self.bar
    }

    /// The figures in words.
    fn words(&self, cases: &[Case], bar: f64) -> String {
        if self.task != Task::Generate {
            let (measure, texts) = (measure(self.task), cases.len());
            return format!("lowest {measure} {:.7} over {texts} texts, expected at least {bar}", self.lowest);
        }
        let first = self.differs.as_ref().map_or(String::new(), |(index, place)| {
            format!(
                "; the first that differs, {}, is the answer for '{}', at {place}",
                self.way,
                shown(&cases[*index].text)
            )
        });
        format!("{} of {} generated texts are equal{first}", self.equal, cases.len())
    }
}

/// A text as it is shown: its beginning, on one line.
fn shown(text: &str) -> String {
    let line = harmless(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}… ({} characters)", &line[..end], text.chars().count()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn case(text: &str, embedding: &[f64]) -> Case {
        Case { text: text.to_owned(), pair: None, line: json!({ "embedding": embedding }) }
    }

    fn told(bar: f64, cases: &[Case], comparisons: &[Comparison]) -> (String, bool) {
        let told = report("m", "the author of f", bar, cases, comparisons);
        (told.text, told.passed)
    }

    #[test]
    fn the_worst_text_is_named_and_decides() {
        let cases = [case("good", &[1.0, 0.0]), case("bad one", &[0.0, 1.0])];
        let answers = [TextResult::Vector(vec![1.0, 0.0]), TextResult::Vector(vec![0.6, 0.8])];
        let comparison = Comparison::of(Task::Embed, ALONE, 0.9, &cases, &answers).unwrap();
        assert_eq!((comparison.worst, comparison.lowest, comparison.mean), (1, 0.8, 0.9));
        let (text, passed) = told(0.9, &cases, &[comparison]);
        assert!(!passed && text.contains("bad one") && text.contains("lowest cosine 0.8000000 over 2 texts"), "{text}");
    }

    #[test]
    fn what_is_no_number_fails_whatever_the_bar() {
        let cases = [case("t", &[1.0]), case("u", &[1.0])];
        let answers = [TextResult::Vector(vec![f64::NAN]), TextResult::Vector(vec![1.0])];
        let comparison = Comparison::of(Task::Embed, BATCHED, 0.0, &cases, &answers).unwrap();
        assert_eq!(comparison.worst, 0);
        assert!(!told(0.0, &cases, &[comparison]).1);
    }

    #[test]
    fn a_row_that_sees_its_neighbours_fails_although_the_library_is_as_far_away() {
        let cases = [case("t", &[1.0, 0.0]), case("u", &[1.0, 0.0])];
        let right = TextResult::Vector(vec![1.0, 0.0]);
        let batched = [right.clone(), TextResult::Vector(vec![0.99995, 0.01])];
        let with_library = Comparison::of(Task::Embed, BATCHED, 0.9999, &cases, &batched).unwrap();
        assert!(with_library.passes());
        let beside = Comparison::beside(Task::Embed, 0.9999, &[right.clone(), right], &batched);
        let (text, passed) = told(0.9999, &cases, &[with_library, beside]);
        assert!(!passed && text.contains("depends on the others of its request"), "{text}");
    }

    #[test]
    fn generated_texts_are_counted_and_the_first_difference_is_shown() {
        let case = |text: &str, generated: &str| Case {
            text: text.to_owned(),
            pair: None,
            line: json!({ "generated_text": generated }),
        };
        let cases = [case("one", "eins"), case("two", "zwei Katzen"), case("three", "drei")];
        let answers = ["eins", "zwei Hunde", "vier"].map(|text| TextResult::Text(text.to_owned()));
        let comparison = Comparison::of(Task::Generate, ALONE, 0.9999, &cases, &answers).unwrap();
        let (text, passed) = told(0.9999, &cases, &[comparison]);
        assert!(!passed && text.contains("1 of 3 generated texts are equal"), "{text}");
        assert!(text.contains("the answer for 'two', at character 6: found 'Hunde', expected 'Katzen'"), "{text}");
    }

    #[test]
    fn long_texts_are_shown_by_their_beginning() {
        assert_eq!(shown("a\n b"), "a b");
        assert!(shown(&"é".repeat(99)).ends_with("… (99 characters)"));
    }
}
