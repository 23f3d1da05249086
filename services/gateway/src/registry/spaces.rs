//! The spaces of the versions that are served and the age of their files, as their workers tell them, and whether a request may have an answer
//! of such a space (`If-Space`).
//!
//! A space equals another one where a worker tells that it was measured, or where both are sides of one model, such as that of queries and that
//! of documents. Nothing follows for a third space.

use std::collections::{BTreeMap, BTreeSet};

use trireme_bus::Content;
use trireme_inference::{AskedSpaces, Equivalence, InferError, ModelKey, Name, equivalent_to, space_of};

/// The space of each served version's answers, as its workers announce it.
#[derive(Debug, Default)]
pub struct Spaces {
    told: BTreeMap<ModelKey, Told>,
    /// By model whose requests go different ways, the equivalences of these.
    sides: BTreeMap<ModelKey, Vec<Equivalence>>,
}

/// The announcements of a version's workers.
#[derive(Debug, Default)]
struct Told {
    /// `None`: a worker does not know it.
    spaces: BTreeSet<Option<Name>>,
    /// The measured equivalences of answers with this step.
    equivalences: BTreeSet<Equivalence>,
    /// When the newest file was changed, in seconds since 1970.
    files_at: Option<u64>,
}

/// Why a space is not known before the answer is there.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NoSpace {
    /// No worker serves this version just now.
    NoWorker(ModelKey),
    /// A worker of this version does not know its space.
    Untold(ModelKey),
    /// Workers of this version have these spaces.
    Several(ModelKey, Vec<Name>),
}

// === impl Spaces ===

impl Spaces {
    /// Takes in the announcement of a worker that serves this version.
    pub fn tell(&mut self, model: &ModelKey, content: Option<&Content>) {
        let told = self.told.entry(model.clone()).or_default();
        told.spaces.insert(content.and_then(|content| content.space.as_deref()).map(Name::from));
        told.equivalences.extend(content.into_iter().flat_map(|content| &content.equivalences).cloned());
        told.files_at = told.files_at.max(content.and_then(|content| content.files_at));
    }

    /// Takes in the spaces of the sides of a model, each of which equals the others.
    pub fn join(&mut self, model: &ModelKey, sides: &BTreeSet<String>) {
        let mut pairs = Vec::new();
        for space in sides {
            let others = sides.iter().filter(|other| *other != space);
            pairs.extend(others.map(|to| Equivalence { space: space.as_str().into(), to: to.as_str().into() }));
        }
        if !pairs.is_empty() {
            self.sides.insert(model.clone(), pairs);
        }
    }

    /// The known equivalences of answers of this model by these steps.
    pub fn equivalences<'a>(
        &self,
        model: &ModelKey,
        steps: impl IntoIterator<Item = &'a ModelKey>,
    ) -> Vec<Equivalence> {
        let measured = steps.into_iter().filter_map(|step| Some(&self.told.get(step)?.equivalences)).flatten();
        let mut all: Vec<_> = measured.chain(self.sides.get(model).into_iter().flatten()).cloned().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The space of an answer of these steps, as `trireme-space` tells it; `None` where it is not known.
    pub fn told<'a>(&self, steps: impl IntoIterator<Item = &'a ModelKey>) -> Option<String> {
        let spaces = self.of_steps(steps).ok()?;
        space_of(spaces.into_iter().map(|space| Some(space.as_str())))
    }

    /// When the newest file of these steps was changed, in seconds since 1970, where a worker tells it.
    pub fn files_at<'a>(&self, steps: impl IntoIterator<Item = &'a ModelKey>) -> Option<u64> {
        steps.into_iter().filter_map(|step| self.told.get(step)?.files_at).max()
    }

    /// The spaces of these steps.
    fn of_steps<'a>(&self, steps: impl IntoIterator<Item = &'a ModelKey>) -> Result<Vec<&Name>, NoSpace> {
        steps.into_iter().map(|step| self.of_step(step)).collect()
    }

    fn of_step(&self, step: &ModelKey) -> Result<&Name, NoSpace> {
        let told = &self.told.get(step).ok_or_else(|| NoSpace::NoWorker(step.clone()))?.spaces;
        let known: Vec<&Name> = told.iter().flatten().collect();
        match known.as_slice() {
            _ if known.len() < told.len() => Err(NoSpace::Untold(step.clone())),
            [one] => Ok(one),
            several => Err(NoSpace::Several(step.clone(), several.iter().map(|&space| space.clone()).collect())),
        }
    }

    /// Checks a request for this model, whose answer comes from these steps, before anything is computed. `known` are the equivalences of such
    /// answers.
    ///
    /// # Errors
    /// The answer would have another space, or it cannot be known which.
    pub fn check<'a>(
        &self,
        asked: &AskedSpaces,
        model: &str,
        steps: impl IntoIterator<Item = &'a ModelKey>,
        known: &[Equivalence],
    ) -> Result<(), InferError> {
        let spaces = self.of_steps(steps).map_err(|unknown| unknown.refuse(asked, model))?;
        let told = space_of(spaces.iter().map(|space| Some(space.as_str()))).unwrap_or_default();
        match asked.admit(spaces.iter().map(|space| space.as_str()), &equivalent_to(known, &told)) {
            true => Ok(()),
            false => Err(asked.refuse_space(model, &told)),
        }
    }
}

// === impl NoSpace ===

impl NoSpace {
    /// The error of a request for this model. Where the reason goes by itself, the request can be sent again.
    fn refuse(&self, asked: &AskedSpaces, model: &str) -> InferError {
        let step = |key: &ModelKey| match key.name == model {
            true => format!("model '{model}'"),
            false => format!("model '{}', a step of '{model}',", key.name),
        };
        let later = |because: String| InferError::unavailable(format!("{}, but {because}", asked.asked()));
        match self {
            NoSpace::Untold(key) => asked.refuse(&format!(
                "a worker of {} does not know its space: send no If-Space, or mend what the worker's log says",
                step(key)
            )),
            NoSpace::NoWorker(key) => {
                later(format!("no worker of {} is there to tell its space: send the request again later", step(key)))
            }
            NoSpace::Several(key, spaces) => {
                let spaces: Vec<String> = spaces.iter().map(|space| format!("'{space}'")).collect();
                later(format!(
                    "workers of {} have several spaces just now, {}: send the request again when all have one",
                    step(key),
                    spaces.join(" and ")
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use trireme_inference::{Cause, ErrorCode};

    use super::*;

    fn key(name: &str) -> ModelKey {
        ModelKey { name: name.into(), version: 1 }
    }

    fn spaces(told: &[(&str, Option<&str>)]) -> Spaces {
        let mut spaces = Spaces::default();
        for (number, &(name, space)) in told.iter().enumerate() {
            let space = space.map(Into::into);
            let files_at = Some(number as u64);
            let equivalences = Vec::new();
            let content =
                Content { of: name.to_owned(), digest: "d".to_owned(), space, equivalences, files_at, yields_to: None };
            spaces.tell(&key(name), Some(&content));
        }
        spaces
    }

    fn check(told: &[(&str, Option<&str>)]) -> Result<(), InferError> {
        let asked: AskedSpaces = "ab.cd, 12.34".parse().unwrap();
        spaces(told).check(&asked, "e", &[key("t"), key("m")], &[])
    }

    #[test]
    fn what_was_measured_counts_for_answers_of_exactly_that_space() {
        let mut known = spaces(&[("t", Some("ab")), ("m", Some("cd"))]);
        let pair = |space: &str, to: &str| Equivalence { space: space.into(), to: to.into() };
        let measured = vec![pair("ab.cd", "11.22"), pair("ab.ee", "33.44")];
        let content = Content {
            of: "f".to_owned(),
            digest: "d".to_owned(),
            space: Some("ab".into()),
            equivalences: measured.clone(),
            files_at: None,
            yields_to: None,
        };
        known.tell(&key("t"), Some(&content));
        known.join(&key("e"), &["ab.cd".to_owned(), "55.66".to_owned()].into());
        let steps = [key("t"), key("m")];
        let of = |model: &str| known.equivalences(&key(model), &steps);
        assert_eq!(of("other"), measured);
        let all = of("e");
        assert_eq!(equivalent_to(&all, "ab.cd"), ["11.22", "55.66"]);
        for (asked, counts) in [("11.22", true), ("55.66", true), ("33.44", false), ("ab.cd", true), ("22.11", false)] {
            let asked: AskedSpaces = asked.parse().unwrap();
            assert_eq!(known.check(&asked, "e", &steps, &all).is_ok(), counts, "{asked:?}");
        }
    }

    #[test]
    fn only_one_known_space_that_was_asked_for_lets_a_request_pass() {
        for told in [("ab", "cd"), ("12", "34")] {
            assert_eq!(check(&[("t", Some(told.0)), ("m", Some(told.1)), ("m", Some(told.1))]), Ok(()));
        }
        let other = check(&[("t", Some("ab")), ("m", Some("34"))]).unwrap_err();
        assert_eq!((other.code, other.cause), (ErrorCode::InvalidArg, Some(Cause::OtherSpace)));
        let words = "If-Space asks for 'ab.cd', '12.34', but model 'e' has space 'ab.34': ";
        assert!(other.message.starts_with(words), "{other}");

        let untold = check(&[("t", Some("ab")), ("m", Some("cd")), ("m", None)]).unwrap_err();
        assert_eq!(untold.cause, Some(Cause::OtherSpace));
        assert!(untold.message.contains("a worker of model 'm', a step of 'e', does not know its space"), "{untold}");
    }

    #[test]
    fn what_is_told_is_of_all_steps() {
        let all = spaces(&[("t", Some("ab")), ("m", Some("0123456789abcdef"))]);
        assert_eq!(all.told(&[key("t"), key("m")]).as_deref(), Some("ab.0123456789ab"));
        assert_eq!(all.files_at(&[key("t"), key("m")]), Some(1));
        for unknown in [spaces(&[("t", Some("ab"))]), spaces(&[("t", Some("ab")), ("m", None)])] {
            assert_eq!(unknown.told(&[key("t"), key("m")]), None);
        }
        let mut silent = Spaces::default();
        silent.tell(&key("t"), None);
        assert_eq!((silent.told(&[key("t")]), silent.files_at(&[key("t")])), (None, None));
    }

    #[test]
    fn a_reason_that_goes_by_itself_is_no_other_space() {
        let several = check(&[("t", Some("ab")), ("m", Some("cd")), ("m", Some("ef"))]).unwrap_err();
        assert_eq!((several.code, several.cause), (ErrorCode::Unavailable, None));
        assert!(
            several.message.contains("'m', a step of 'e', have several spaces just now, 'cd' and 'ef'"),
            "{several}"
        );
        let gone = check(&[("t", Some("ab"))]).unwrap_err();
        assert_eq!((gone.code, gone.cause), (ErrorCode::Unavailable, None));
        assert!(gone.message.contains("no worker of model 'm', a step of 'e', is there"), "{gone}");
    }
}
