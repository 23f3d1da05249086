//! Names as errors and logs have them: the known name that a misspelt name probably means, and a client's text.

use std::borrow::Cow;

/// Letters by which a name may differ from the one that was meant.
const MOST_ERRORS: usize = 2;

/// Most bytes of a client's text in an error or in a line of a log.
const LONGEST_SHOWN: usize = 256;

/// No more of a client's text than its first 256 bytes.
pub fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= LONGEST_SHOWN {
        return Cow::Borrowed(text);
    }
    let end = (0..=LONGEST_SHOWN).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
    Cow::Owned(format!("{}…", &text[..end]))
}

/// A client's text, such as the name of a model or the id of a request, for an error or a log: [`cut`], and without control characters.
pub fn shown(text: &str) -> Cow<'_, str> {
    let cut = cut(text);
    if !cut.contains(char::is_control) {
        return cut;
    }
    let escape = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    Cow::Owned(cut.chars().map(escape).collect())
}

/// The entry of `known` that is most like `name`: other capitals, `-` for `_`, or one or two letters that are wrong, missing, too
/// many or in wrong order. `None` where no entry is like it, and where `known` contains `name`.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |name: &str| name.to_lowercase().replace('-', "_");
    let wanted = plain(name);
    // Short names are like many others.
    let most = MOST_ERRORS.min(wanted.chars().count() / 4);
    let likely = known.into_iter().map(|known| (strsim::damerau_levenshtein(&wanted, &plain(known)), known));
    let (errors, nearest) = likely.min_by_key(|(errors, _)| *errors)?;
    (errors <= most && nearest != name).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_s_text_is_shown_in_one_short_line() {
        assert_eq!(shown("org/name é"), "org/name é");
        assert_eq!(shown("a\nb\u{1b}[2J\u{85}"), "a\\nb\\u{1b}[2J\\u{85}");
        assert_eq!(shown(&"a".repeat(256)), "a".repeat(256));
        assert_eq!(shown(&"a".repeat(257)), "a".repeat(256) + "…");
        // No letter is cut in two.
        assert_eq!(shown(&"é".repeat(1 << 20)), "é".repeat(128) + "…");
        assert_eq!(shown(&("a".to_owned() + &"é".repeat(128))), "a".to_owned() + &"é".repeat(127) + "…");
        assert_eq!(shown(""), "");
    }

    #[test]
    fn the_name_that_was_meant_is_found() {
        let near = |name| nearest(name, ["max_length", "pad_inputs", "ops", "truncation"]);
        assert_eq!(near("Max_length"), Some("max_length"));
        assert_eq!(near("max-lenght"), Some("max_length"));
        assert_eq!(near("pad_input"), Some("pad_inputs"));
        assert_eq!(near("op"), None);
        assert_eq!(near("max_length"), None);
        assert_eq!(near("EXECUTION_ENV_PATH"), None);
    }
}
