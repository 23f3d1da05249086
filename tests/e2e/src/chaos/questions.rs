//! The requests of the load, and how their answers are checked.
//!
//! Each request has numbers of its own, so that another request's answer is noticed. Requests depend on their number
//! only: runs with the same seed send the same ones.
//!
//! Not here: sending them (`ask`), and sending them again (`clients`).

use std::time::Duration;

use super::models::ROWS_IN_A_PART;
use crate::Golden;

/// How far numbers may differ from values that were computed without the product.
const TOLERANCE: f32 = 1e-5;

/// Number of values of a request that is larger than [`super::models::MAX_PAYLOAD`].
const MANY: usize = 100_000;

/// Parts of an answer in parts, and the milliseconds between them.
const PARTS: usize = 12;
const PART_DELAY: u32 = 4;

/// The timeout of a caller in a hurry: less than the request takes.
const HURRY: Duration = Duration::from_millis(10);

/// A request.
pub(super) struct Question {
    pub model: &'static str,
    pub inputs: Vec<Input>,
    pub way: Way,
    /// The right answer.
    expected: Expected,
    /// The request's own timeout.
    pub timeout: Option<Duration>,
    /// Whether its caller leaves without waiting for the answer.
    pub leaves: bool,
}

/// A tensor of one dimension.
pub(super) struct Input {
    pub name: &'static str,
    pub data: Data,
}

pub(super) enum Data {
    Texts(Vec<String>),
    Floats(Vec<f32>),
    Ints(Vec<i32>),
    Milliseconds(Vec<u32>),
}

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// JSON over HTTP.
    Json,
    /// The same on a connection that is kept for further requests.
    KeptAlive,
    /// Binary tensors over HTTP.
    Binary,
    /// Server-sent events.
    Events,
    /// ModelInfer.
    Grpc,
    /// ModelStreamInfer.
    GrpcStream,
}

enum Expected {
    Outputs(Vec<(&'static str, Vec<f32>)>),
    /// The numbers of `OUT`, one in each part.
    Parts(Vec<i32>),
}

/// The answer that came back.
#[derive(Debug)]
pub(super) enum Said {
    Outputs(Vec<(String, Vec<f32>)>),
    /// The parts that came, and the error that ended them, if any.
    Parts(Vec<i32>, Option<String>),
    Error(String),
    /// More than one answer; this is the first of them.
    #[allow(dead_code, reason = "complaints show it")]
    Twice(String),
}

/// The verdict on an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Right,
    /// The answer says that the request's own timeout has passed, as expected.
    Expired,
    Wrong,
    Lost,
    Doubled,
    /// The answer says that it cannot be served right now.
    Refused,
    Failed,
}

// === impl Question ===

impl Question {
    /// The request with this number.
    pub fn of(number: usize, golden: &[Golden]) -> Question {
        match number % 40 {
            0 => Question::heavy(number, Way::Binary),
            20 => Question::heavy(number, Way::Grpc),
            1 | 21 => Question::embedding(number, golden, 2 * ROWS_IN_A_PART + 3),
            2 | 12 | 22 | 32 => Question::diamond(number),
            3 | 23 => Question::parts(number, Way::Events),
            13 | 33 => Question::parts(number, Way::GrpcStream),
            7 | 27 | 37 => Question::echo(number, "snake", Way::Json),
            15 | 35 => Question::echo(number, "snake", Way::Grpc),
            17 => Question::echo(number, "snail", Way::Json),
            4 => Question { timeout: Some(HURRY), ..Question::echo(number, "snail", Way::Json) },
            24 => Question { leaves: true, ..Question::echo(number, "snail", Way::Json) },
            9 | 19 | 29 | 39 => Question::echo(number, "slow", Way::KeptAlive),
            5 | 25 => Question::echo(number, "slow", Way::Grpc),
            other if other.is_multiple_of(2) => Question::embedding(number, golden, number % 3 + 1),
            _ => Question::echo(number, "slow", Way::Json),
        }
    }

    /// The durable request with this number.
    pub fn durable(number: usize, golden: &[Golden]) -> Question {
        match number % 20 {
            0 => Question::heavy(number, Way::Binary),
            1 | 11 => Question::echo(number, "snake", Way::Json),
            2 | 7 | 12 | 17 => Question::diamond(number),
            other if other.is_multiple_of(2) => Question::embedding(number, golden, number % 3 + 1),
            _ => Question::echo(number, "slow", Way::Json),
        }
    }

    /// The request in a line of a batch. The digits of its number name its texts, so every line has an answer of its own.
    pub fn line(number: usize, golden: &[Golden]) -> Question {
        let (base, mut rest, mut chosen) = (golden.len(), number + 1, Vec::new());
        // Without a digit for zero no two numbers have the same digits.
        while rest > 0 {
            rest -= 1;
            chosen.push(&golden[rest % base]);
            rest /= base;
        }
        let texts = Data::Texts(chosen.iter().map(|golden| golden.text.clone()).collect());
        let expected = chosen.iter().flat_map(|golden| golden.embedding.clone()).collect();
        let expected = Expected::Outputs(vec![("embedding", expected)]);
        Question::new("tiny_embedding", Way::Json, vec![Input { name: "TEXT", data: texts }], expected)
    }

    fn new(model: &'static str, way: Way, inputs: Vec<Input>, expected: Expected) -> Question {
        Question { model, inputs, way, expected, timeout: None, leaves: false }
    }

    fn embedding(number: usize, golden: &[Golden], rows: usize) -> Question {
        let wanted = || golden.iter().cycle().skip(number / 2 % golden.len()).take(rows);
        let texts = Data::Texts(wanted().map(|golden| golden.text.clone()).collect());
        let expected = wanted().flat_map(|golden| golden.embedding.clone()).collect();
        let expected = Expected::Outputs(vec![("embedding", expected)]);
        Question::new("tiny_embedding", Way::Json, vec![Input { name: "TEXT", data: texts }], expected)
    }

    fn echo(number: usize, model: &'static str, way: Way) -> Question {
        Question::same(model, way, vec![("INPUT0", "OUTPUT0", vec![number as f32, -1.0])])
    }

    fn heavy(number: usize, way: Way) -> Question {
        let data = (0..MANY).map(|index| ((number + index) % 65_536) as f32).collect();
        Question::same("heavy", way, vec![("INPUT0", "OUTPUT0", data)])
    }

    fn diamond(number: usize) -> Question {
        let number = number as f32;
        let pairs = vec![("INPUT0", "OUTPUT0", vec![number, 1.0]), ("INPUT1", "OUTPUT1", vec![-number])];
        Question::same("diamond", Way::Json, pairs)
    }

    /// A request whose outputs have to be equal to its inputs.
    fn same(model: &'static str, way: Way, pairs: Vec<(&'static str, &'static str, Vec<f32>)>) -> Question {
        let expected = pairs.iter().map(|(_, output, data)| (*output, data.clone())).collect();
        let input = |(name, _, data)| Input { name, data: Data::Floats(data) };
        Question::new(model, way, pairs.into_iter().map(input).collect(), Expected::Outputs(expected))
    }

    fn parts(number: usize, way: Way) -> Question {
        let first = i32::try_from(number % 100_000 * PARTS).expect("a small number");
        let numbers: Vec<i32> = (first..).take(PARTS).collect();
        let inputs = vec![
            Input { name: "IN", data: Data::Ints(numbers.clone()) },
            Input { name: "DELAY", data: Data::Milliseconds(vec![PART_DELAY; PARTS]) },
        ];
        Question::new("repeat_echo", way, inputs, Expected::Parts(numbers))
    }

    /// Checks an answer.
    pub fn judge(&self, said: &Said) -> Verdict {
        match (said, &self.expected) {
            (Said::Twice(_), _) => Verdict::Doubled,
            (Said::Error(error), _) | (Said::Parts(_, Some(error)), _) => match error.contains("timeout expired") {
                true if self.timeout.is_some() => Verdict::Expired,
                true => Verdict::Lost,
                // These are the statuses of HTTP and of gRPC.
                false if error.starts_with("503 ") || error.starts_with("Unavailable ") => Verdict::Refused,
                false => Verdict::Failed,
            },
            (Said::Outputs(found), Expected::Outputs(expected)) if are_right(found, expected) => Verdict::Right,
            (Said::Parts(found, None), Expected::Parts(expected)) => judge_parts(found, expected),
            _ => Verdict::Wrong,
        }
    }
}

/// Checks that each number came once, and in order.
fn judge_parts(found: &[i32], expected: &[i32]) -> Verdict {
    let twice = |number: &i32| found.iter().filter(|other| *other == number).count() > 1;
    match found {
        _ if found == expected => Verdict::Right,
        _ if found.iter().any(|number| !expected.contains(number)) => Verdict::Wrong,
        _ if found.iter().any(twice) => Verdict::Doubled,
        _ if found.len() < expected.len() => Verdict::Lost,
        _ => Verdict::Wrong,
    }
}

fn are_right(found: &[(String, Vec<f32>)], expected: &[(&'static str, Vec<f32>)]) -> bool {
    let close = |found: &[f32], expected: &[f32]| {
        found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= TOLERANCE)
    };
    let right = |(name, data): &(&str, Vec<f32>)| found.iter().any(|(found, of)| found == name && close(of, data));
    found.len() == expected.len() && expected.iter().all(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_to_come_once_and_in_order() {
        let question = Question::parts(0, Way::Events);
        let judge = |parts: &[i32]| question.judge(&Said::Parts(parts.to_vec(), None));
        let all: Vec<i32> = (0..PARTS as i32).collect();
        let with = |change: &dyn Fn(&mut Vec<i32>)| {
            let mut parts = all.clone();
            change(&mut parts);
            parts
        };
        assert_eq!(judge(&all), Verdict::Right);
        assert_eq!(judge(&with(&|parts| parts.insert(3, 2))), Verdict::Doubled);
        assert_eq!(judge(&with(&|parts| parts.push(11))), Verdict::Doubled);
        assert_eq!(judge(&with(&|parts| parts.swap(3, 4))), Verdict::Wrong);
        assert_eq!(judge(&with(&|parts| parts[0] = 77)), Verdict::Wrong);
        assert_eq!(judge(&with(&|parts| parts.retain(|part| *part != 5))), Verdict::Lost);
        assert_eq!(judge(&[]), Verdict::Lost);
        let ended = Said::Parts(all, Some("stream was reset".to_owned()));
        assert_eq!(question.judge(&ended), Verdict::Failed);
    }

    #[test]
    fn every_line_of_a_batch_has_texts_of_its_own() {
        let golden = crate::golden();
        let texts = |number| match &Question::line(number, &golden).inputs[0].data {
            Data::Texts(texts) => texts.clone(),
            _ => panic!("a line has texts"),
        };
        let all: std::collections::HashSet<_> = (0..5000).map(texts).collect();
        assert_eq!(all.len(), 5000);
        assert!(all.iter().all(|texts| (1..=ROWS_IN_A_PART).contains(&texts.len())));
    }

    #[test]
    fn an_answer_to_another_request_is_wrong() {
        let said = |number: f32| Said::Outputs(vec![("OUTPUT0".to_owned(), vec![number, -1.0])]);
        let question = Question::echo(7, "slow", Way::Json);
        assert_eq!(question.judge(&said(7.0)), Verdict::Right);
        assert_eq!(question.judge(&said(8.0)), Verdict::Wrong);
        assert_eq!(question.judge(&Said::Outputs(Vec::new())), Verdict::Wrong);
    }

    /// Workers have to execute each of their models again after faults. So each model needs requests whose callers
    /// wait.
    #[test]
    fn every_model_has_callers_that_wait() {
        let golden = crate::golden();
        let patient = (0..40).map(|number| Question::of(number, &golden));
        let mut asked: Vec<_> =
            patient.filter(|one| one.timeout.is_none() && !one.leaves).map(|one| one.model).collect();
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked, ["diamond", "heavy", "repeat_echo", "slow", "snail", "snake", "tiny_embedding"]);
    }

    #[test]
    fn a_refusal_is_no_other_failure() {
        let judge = |error: &str| Question::echo(7, "slow", Way::Grpc).judge(&Said::Error(error.to_owned()));
        assert_eq!([judge("503 {}"), judge("Unavailable no room")], [Verdict::Refused, Verdict::Refused]);
        assert_eq!([judge("500 {}"), judge("Internal 503 ")], [Verdict::Failed, Verdict::Failed]);
    }

    #[test]
    fn only_a_request_with_a_timeout_of_its_own_may_expire() {
        let late = Said::Error("504 timeout expired".to_owned());
        let question = Question::echo(7, "snail", Way::Json);
        assert_eq!(question.judge(&late), Verdict::Lost);
        assert_eq!(Question { timeout: Some(HURRY), ..question }.judge(&late), Verdict::Expired);
    }
}
