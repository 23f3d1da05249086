//! The condition of a request that its answer is of one of certain spaces: the header `If-Space`.

use crate::ledger::short;
use crate::{Cause, InferError, Ledger, Name, ParameterValue, Parameters, is_space, shown};

/// The parameter with the condition, wherever the request is: spaces with commas between them, as in the header `If-Space`.
pub const IF_SPACE: &str = "trireme_if_space";

/// The header with the condition, also of gRPC calls.
pub const IF_SPACE_HEADER: &str = "if-space";

/// Most spaces of a condition.
const MOST_SPACES: usize = 64;

/// How many of the spaces an error names.
const NAMED: usize = 3;

/// The spaces of which the answer to a request has to have one.
///
/// A space is a text of `trireme-space`: a part for each step. A part may have more digits than that header has.
///
/// ```
/// use trireme_inference::AskedSpaces;
///
/// let asked: AskedSpaces = "3f2a90c1d2e4.9b1c55e07a10, 000000000000".parse().unwrap();
/// assert!(asked.admit(["3f2a90c1d2e4aaaa", "9b1c55e07a10bbbb"], &[]));
/// assert!(!asked.admit(["3f2a90c1d2e4aaaa"], &[]));
/// assert!(asked.admit(["3f2a90c1d2e4aaaa"], &["000000000000".into()]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedSpaces(Vec<String>);

// === impl AskedSpaces ===

impl AskedSpaces {
    /// Takes the condition out of the parameters of a request: no model gets it, and no answer depends on it.
    ///
    /// # Errors
    /// The parameter is no list of spaces.
    pub fn take(parameters: &mut Parameters) -> Result<Option<AskedSpaces>, InferError> {
        match parameters.remove(IF_SPACE) {
            None => Ok(None),
            Some(ParameterValue::String(text)) => text.parse().map(Some),
            Some(_) => Err(InferError::invalid_arg(format!("parameter '{IF_SPACE}' is no string, {EXPECTED}"))),
        }
    }

    /// Whether an answer of steps with these spaces fulfils the condition. Its space was measured to equal the `equivalent` ones.
    pub fn admit<'a>(&self, steps: impl IntoIterator<Item = &'a str> + Clone, equivalent: &[Name]) -> bool {
        let is_asked = |asked: &String| {
            is_of(asked, steps.clone().into_iter())
                || equivalent.iter().any(|space| is_of(asked, space.as_str().split('.')))
        };
        self.0.iter().any(is_asked)
    }

    /// Checks an answer of this model: the model may have changed after the request was admitted.
    ///
    /// # Errors
    /// The answer has another space, or none that is known.
    pub fn check_answer(&self, model: &str, ledger: &Ledger) -> Result<(), InferError> {
        let steps: Option<Vec<&str>> = ledger.0.iter().map(|hop| hop.space.as_deref()).collect();
        let model = shown(model);
        match (steps, ledger.space()) {
            (Some(steps), _) if self.admit(steps.iter().copied(), ledger.equivalent_spaces()) => Ok(()),
            (_, Some(space)) => Err(self.refuse(&format!(
                "model '{model}' has changed meanwhile and its answer has space '{}': {EMBED_AGAIN}",
                shown(&space)
            ))),
            (_, None) => Err(self.refuse(&format!(
                "the answer of model '{model}' does not tell its space: send no If-Space, or look into the logs of its workers"
            ))),
        }
    }

    /// The error of a request that asks for other spaces than this one of the model.
    pub fn refuse_space(&self, model: &str, space: &str) -> InferError {
        self.refuse(&format!("model '{}' has space '{}': {EMBED_AGAIN}", shown(model), shown(space)))
    }

    /// The error of a request whose condition is not fulfilled, because of this.
    pub fn refuse(&self, because: &str) -> InferError {
        InferError::invalid_arg(format!("{}, but {because}", self.asked())).because(Cause::OtherSpace)
    }

    /// The beginning of an error: which spaces are asked for.
    pub fn asked(&self) -> String {
        let named: Vec<String> = self.0.iter().take(NAMED).map(|space| format!("'{space}'")).collect();
        let more = match self.0.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("If-Space asks for {}{more}", named.join(", "))
    }
}

/// Whether `asked`, a space of `If-Space`, is the space of these steps.
fn is_of<'a>(asked: &str, mut steps: impl Iterator<Item = &'a str>) -> bool {
    let mut parts = asked.split('.');
    loop {
        match (parts.next(), steps.next()) {
            (None, None) => return true,
            (Some(part), Some(step)) if step.starts_with(part) && part.starts_with(short(step)) => {}
            _ => return false,
        }
    }
}

const EMBED_AGAIN: &str = "embed the stored texts again, or send no If-Space";

const EXPECTED: &str = "expected spaces as 'trireme-space' tells them, with commas between them";

/// Reads the value of the header `If-Space`.
impl std::str::FromStr for AskedSpaces {
    type Err = InferError;

    fn from_str(text: &str) -> Result<AskedSpaces, InferError> {
        let spaces: Vec<String> = text.split(',').map(|space| space.trim().to_owned()).collect();
        if let Some(other) = spaces.iter().find(|space| !is_space(space)) {
            return Err(InferError::invalid_arg(format!("If-Space has '{}', {EXPECTED}", shown(other))));
        }
        if spaces.len() > MOST_SPACES {
            let count = spaces.len();
            return Err(InferError::invalid_arg(format!(
                "If-Space has {count} spaces, expected {MOST_SPACES} at most"
            )));
        }
        Ok(AskedSpaces(spaces))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Equivalence, Hop, equivalent_to};

    const TOKENIZER: &str = "3f2a90c1d2e4000000000000000000ff";
    const GRAPH: &str = "9b1c55e07a10000000000000000000ee";

    fn asked(text: &str) -> AskedSpaces {
        text.parse().unwrap()
    }

    #[test]
    fn the_told_text_and_longer_ones_match_and_no_other() {
        let steps = [TOKENIZER, GRAPH];
        let told = "3f2a90c1d2e4.9b1c55e07a10";
        assert_eq!(crate::space_of(steps.iter().map(|&step| Some(step))).as_deref(), Some(told));
        let whole = format!("{TOKENIZER}.{GRAPH}");
        for text in [told, &whole, &format!("0, {told}"), &format!(" {told} ,0"), "3f2a90c1d2e40000.9b1c55e07a10"] {
            assert!(asked(text).admit(steps, &[]), "{text}");
        }
        for text in [
            "3f2a90c1d2e4",
            "9b1c55e07a10.3f2a90c1d2e4",
            "3f2a90c1d2e.9b1c55e07a10",
            "3f2a90c1d2e41.9b1c55e07a10",
            &format!("{told}.0"),
            &format!("{whole}0"),
            &told.to_uppercase(),
        ] {
            assert!(!asked(text).admit(steps, &[]), "{text}");
        }
        // Workers of others may tell shorter ones.
        assert!(asked("ab.c").admit(["ab", "c"], &[]) && !asked("a.c").admit(["ab", "c"], &[]));
    }

    #[test]
    fn a_space_that_was_measured_to_be_equal_counts_and_none_behind_it() {
        let pair = |space: &str, to: &str| Equivalence { space: space.into(), to: to.into() };
        let known = [pair("b", "a.1"), pair("b", "c"), pair("c", "d")];
        let equivalent = equivalent_to(&known, "b");
        assert_eq!(equivalent, ["a.1", "c"]);
        for (text, counts) in [("a.1", true), ("x, c", true), ("b", true), ("d", false), ("a", false), ("1", false)] {
            assert_eq!(asked(text).admit(["b"], &equivalent), counts, "{text}");
        }
        assert!(equivalent_to(&known, "a.1").is_empty(), "not the other way round");
        let mut ledger = Ledger(vec![Hop { space: Some("b".into()), ..Hop::default() }]);
        assert!(asked("c").check_answer("m", &ledger).is_err());
        ledger.tell_equivalent(&known);
        assert_eq!(asked("c").check_answer("m", &ledger), Ok(()));
        ledger.0[0].space = Some("other".into());
        ledger.tell_equivalent(&known);
        assert!(ledger.equivalent_spaces().is_empty(), "the model has changed");
    }

    #[test]
    fn a_condition_that_is_no_list_of_spaces_is_refused_and_not_ignored() {
        for text in ["", ",", "a,", "\"a\"", "*", "a b", "a..b", ".a", "a\r\nb", "é", &"a".repeat(1025)] {
            let error = text.parse::<AskedSpaces>().unwrap_err();
            assert!(error.cause.is_none() && error.message.contains(EXPECTED), "{error}");
            assert!(error.message.len() < 500, "{error}");
        }
        assert!("a,".repeat(64).trim_end_matches(',').parse::<AskedSpaces>().is_ok());
        let error = ["a"; 65].join(",").parse::<AskedSpaces>().unwrap_err();
        assert_eq!(error.message, "If-Space has 65 spaces, expected 64 at most");
    }

    #[test]
    fn the_condition_is_no_parameter_of_models() {
        let mut parameters = Parameters::from([(IF_SPACE.to_owned(), ParameterValue::from("a"))]);
        assert_eq!(AskedSpaces::take(&mut parameters), Ok(Some(asked("a"))));
        assert!(parameters.is_empty());
        assert_eq!(AskedSpaces::take(&mut parameters), Ok(None));
        parameters.insert(IF_SPACE.to_owned(), ParameterValue::Bool(true));
        assert!(AskedSpaces::take(&mut parameters).is_err());
    }

    #[test]
    fn an_answer_is_of_an_asked_space_or_none() {
        let ledger = |spaces: &[Option<&str>]| {
            Ledger(spaces.iter().map(|space| Hop { space: space.map(Into::into), ..Hop::default() }).collect())
        };
        let asked = asked("a, b, c, 3f2a90c1d2e4.9b1c55e07a10");
        assert_eq!(asked.check_answer("m", &ledger(&[Some(TOKENIZER), Some(GRAPH)])), Ok(()));
        let error = asked.check_answer("m", &ledger(&[Some(GRAPH)])).unwrap_err();
        assert_eq!(error.cause, Some(Cause::OtherSpace));
        let words = "If-Space asks for 'a', 'b', 'c' and 1 more, but model 'm' has changed meanwhile and its \
                     answer has space '9b1c55e07a10': ";
        assert!(error.message.starts_with(words), "{error}");
        for unknown in [ledger(&[Some(TOKENIZER), None]), ledger(&[])] {
            let error = asked.check_answer("m", &unknown).unwrap_err();
            assert!(error.cause == Some(Cause::OtherSpace) && error.message.contains("does not tell"), "{error}");
        }
    }
}
