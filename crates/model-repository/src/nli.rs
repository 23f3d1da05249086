//! Which classes of a model say whether one text follows from another.

/// The classes of an NLI model that scores are made of, by their places among its labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nli {
    /// The hypothesis follows from the text.
    pub entailment: usize,
    /// The hypothesis contradicts the text, or does not follow from it.
    pub contradiction: usize,
}

// === impl Nli ===

impl Nli {
    /// The classes among these labels; `None`: the model is no NLI model. Entailment is the first label that begins with `entail`. Contradiction
    /// is the first one that begins with `contradict`. Without such a label it is the first label, or the last one where entailment is the first,
    /// as in transformers.
    pub fn of(labels: &[String]) -> Option<Nli> {
        let begins = |with: &str| labels.iter().position(|label| label.to_lowercase().starts_with(with));
        let entailment = begins("entail")?;
        let usual = if entailment == 0 { labels.len() - 1 } else { 0 };
        let contradiction = begins("contradict").unwrap_or(usual);
        (contradiction != entailment).then_some(Nli { entailment, contradiction })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classes_are_told_by_their_names() {
        let of = |names: &[&str]| {
            Nli::of(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
                .map(|nli| (nli.entailment, nli.contradiction))
        };
        assert_eq!(of(&["contradiction", "neutral", "entailment"]), Some((2, 0)));
        assert_eq!(of(&["ENTAILMENT", "NEUTRAL", "CONTRADICTION"]), Some((0, 2)));
        assert_eq!(of(&["entailment", "not_entailment"]), Some((0, 1)));
        // transformers takes the first label for contradiction here.
        assert_eq!(of(&["neutral", "contradiction", "entailment"]), Some((2, 1)));
        assert_eq!(of(&["entailment"]), None);
        assert_eq!(of(&["negative", "positive"]), None);
        assert_eq!(of(&[]), None);
    }
}
