//! The families of translation models whose tokenizers add more than a template. They differ in the tokens that name
//! languages, and in the positions of a row's special tokens.

use std::collections::BTreeMap;

/// A tokenizer class of Hugging Face, by the tokens it adds to texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    M2m100,
    Nllb,
    Mbart,
    Mbart50,
    Marian,
    T5,
}

/// The tokens around a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Template {
    pub(crate) prefix: Vec<u32>,
    /// Between the texts of a pair.
    pub(crate) between: Vec<u32>,
    pub(crate) suffix: Vec<u32>,
}

/// The languages of a tokenizer and their tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Languages(pub(crate) BTreeMap<String, u32>);

// === impl Family ===

impl Family {
    /// The family of a `tokenizer_class` in tokenizer_config.json.
    pub(crate) fn of_class(class: &str) -> Option<Family> {
        Some(match class.strip_suffix("Fast").unwrap_or(class) {
            "M2M100Tokenizer" => Family::M2m100,
            "NllbTokenizer" => Family::Nllb,
            "MBartTokenizer" => Family::Mbart,
            "MBart50Tokenizer" => Family::Mbart50,
            "MarianTokenizer" => Family::Marian,
            "T5Tokenizer" => Family::T5,
            _ => return None,
        })
    }

    /// The default language of texts.
    pub(crate) fn usual_source(self) -> Option<&'static str> {
        match self {
            Family::M2m100 => Some("en"),
            Family::Nllb => Some("eng_Latn"),
            Family::Mbart | Family::Mbart50 => Some("en_XX"),
            Family::Marian | Family::T5 => None,
        }
    }

    /// The language named by `token`.
    pub(crate) fn language_of(self, token: &str) -> Option<&str> {
        // `eng_Latn`, `en_XX`: lower-case letters, then a part whose first letter is upper-case.
        let is_code = |first: usize, second: usize| {
            token.split_once('_').is_some_and(|(language, region)| {
                language.len() == first
                    && region.len() == second
                    && token.is_ascii()
                    && !language.contains(|c: char| !c.is_ascii_lowercase())
                    && region.starts_with(|c: char| c.is_ascii_uppercase())
            })
        };
        match self {
            Family::M2m100 => token.strip_prefix("__")?.strip_suffix("__").filter(|code| !code.is_empty()),
            Family::Nllb => is_code(3, 4).then_some(token),
            Family::Mbart | Family::Mbart50 => is_code(2, 2).then_some(token),
            Family::Marian => token.strip_prefix(">>")?.strip_suffix("<<").filter(|code| !code.is_empty()),
            Family::T5 => None,
        }
    }

    /// Whether generation begins with the token of the target language. Marian has it before the text instead.
    pub(crate) fn target_begins_output(self) -> bool {
        matches!(self, Family::M2m100 | Family::Nllb | Family::Mbart | Family::Mbart50)
    }

    /// The tokens around a text, from those of its language and of the target language. `legacy` is NLLB's first
    /// behaviour, which wrongly put the language at the end of a row.
    pub(crate) fn template(self, eos: u32, source: Option<u32>, target: Option<u32>, legacy: bool) -> Template {
        let source = source.into_iter();
        let (prefix, suffix) = match self {
            Family::Mbart => (Vec::new(), [eos].into_iter().chain(source).collect()),
            Family::Nllb if legacy => (Vec::new(), [eos].into_iter().chain(source).collect()),
            Family::Nllb | Family::M2m100 | Family::Mbart50 => (source.collect(), vec![eos]),
            Family::Marian => (target.into_iter().collect(), vec![eos]),
            Family::T5 => (Vec::new(), vec![eos]),
        };
        let between = if self == Family::T5 { vec![eos] } else { Vec::new() };
        Template { prefix, between, suffix }
    }
}

// === impl Template ===

impl Template {
    /// The number of tokens it adds.
    pub(crate) fn len(&self, pair: bool) -> usize {
        self.prefix.len() + self.suffix.len() + if pair { self.between.len() } else { 0 }
    }

    /// Whether a row ends with a token of the template.
    pub(crate) fn ends_row(&self) -> bool {
        !self.suffix.is_empty()
    }

    /// A row of one text or a pair. T5's closing token is not added if the text already ends with it.
    pub(crate) fn row(&self, first: &[u32], second: Option<&[u32]>) -> Vec<u32> {
        let ends = |ids: &[u32]| !self.between.is_empty() && ids.ends_with(&self.between);
        let mut row = self.prefix.clone();
        row.extend(first);
        let mut last = first;
        if let Some(second) = second {
            if !ends(first) {
                row.extend(&self.between);
            }
            row.extend(second);
            last = second;
        }
        if !ends(last) {
            row.extend(&self.suffix);
        }
        row
    }
}

// === impl Languages ===

impl Languages {
    /// The languages named by `tokens`.
    pub(crate) fn among(family: Family, tokens: impl IntoIterator<Item = (String, u32)>) -> Languages {
        let named = tokens.into_iter().filter_map(|(token, id)| Some((family.language_of(&token)?.to_owned(), id)));
        Languages(named.collect())
    }

    /// The token of a language.
    pub(crate) fn id(&self, language: &str) -> Option<u32> {
        self.0.get(language).copied()
    }

    /// The known languages, for error messages.
    pub(crate) fn known(&self) -> String {
        self.0.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn language_tokens_are_told_from_others() {
        let codes = |family: Family| {
            ["__en__", "eng_Latn", "en_XX", ">>fra<<", "<s>", "____", "a_B", ">><<", "é_XX"]
                .into_iter()
                .filter_map(|token| family.language_of(token))
                .collect::<Vec<_>>()
        };
        assert_eq!(codes(Family::M2m100), ["en"]);
        assert_eq!(codes(Family::Nllb), ["eng_Latn"]);
        assert_eq!(codes(Family::Mbart), ["en_XX"]);
        assert_eq!(codes(Family::Marian), ["fra"]);
        assert!(codes(Family::T5).is_empty());
    }

    #[test]
    fn rows_have_their_tokens_where_the_models_expect_them() {
        let row = |family: Family, legacy| family.template(2, Some(9), Some(8), legacy).row(&[5, 6], None);
        assert_eq!(row(Family::M2m100, false), [9, 5, 6, 2]);
        assert_eq!(row(Family::Nllb, false), [9, 5, 6, 2]);
        assert_eq!(row(Family::Nllb, true), [5, 6, 2, 9]);
        assert_eq!(row(Family::Mbart, false), [5, 6, 2, 9]);
        assert_eq!(row(Family::Mbart50, false), [9, 5, 6, 2]);
        assert_eq!(row(Family::Marian, false), [8, 5, 6, 2]);
        assert_eq!(row(Family::T5, false), [5, 6, 2]);
        let t5 = Family::T5.template(1, None, None, false);
        assert_eq!(t5.row(&[5, 1], Some(&[7])), [5, 1, 7, 1]);
        assert_eq!((t5.len(false), t5.len(true)), (1, 2));
    }
}
