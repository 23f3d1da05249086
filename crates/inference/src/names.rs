//! Finds the known name that a misspelt name probably means.

/// Letters by which a name may differ from the one that was meant.
const MOST_ERRORS: usize = 2;

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
