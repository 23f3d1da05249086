//! Facts about a request in its answer's headers or gRPC metadata: its times, how many tokens its texts have, and how many texts
//! were cut, read in windows or found in the text cache.

use std::fmt::Write;

use trireme_inference::Ledger;

/// Header that says how many tokens the tokenizers of a request counted.
pub const TOKENS: &str = "trireme-tokens";

/// Header that says how many texts of a request were too long and lost tokens; left out if the number is 0.
pub const TRUNCATED: &str = "trireme-truncated-texts";

/// Header that says how many windows a request's long texts were read in; left out if there were none.
pub const WINDOWS: &str = "trireme-windows";

/// Header that says how many texts of a request were not computed, because the text cache had their results or the request has them more than
/// once; left out if there were none.
pub const CACHED: &str = "trireme-cached-texts";

/// Header that says which space an answer is of; left out where a step's is not known.
pub const SPACE: &str = "trireme-space";

/// Header that lists the spaces that the space of an answer was measured to equal; left out if there are none.
pub const EQUIVALENT_SPACES: &str = "trireme-equivalent-spaces";

/// Most hops in `Server-Timing`, and most characters of a model's name there: a worker tells them, and clients refuse long headers.
const MOST_HOPS: usize = 64;
const LONGEST_NAME: usize = 64;

/// Longest space in a header, in bytes: that of an ensemble of 64 steps.
const LONGEST_SPACE: usize = 1024;

/// Most bytes of a list of spaces.
const LONGEST_LIST: usize = 4096;

/// The headers that an answer with this ledger has, by their names in lower case.
pub fn answer_headers(ledger: &Ledger) -> impl Iterator<Item = (&'static str, String)> {
    let texts = ledger.texts();
    let tokens = texts.map(|texts| (TOKENS, texts.tokens.to_string()));
    let truncated = texts.filter(|texts| texts.truncated > 0).map(|texts| (TRUNCATED, texts.truncated.to_string()));
    let windows = texts.filter(|texts| texts.windows > 0).map(|texts| (WINDOWS, texts.windows.to_string()));
    let cached = Some(ledger.cached().texts).filter(|&texts| texts > 0).map(|texts| (CACHED, texts.to_string()));
    let is_space = |space: &str| space.len() <= LONGEST_SPACE && space.bytes().all(is_of_space);
    let space = ledger.space().filter(|space| is_space(space)).map(|space| (SPACE, space));
    let equivalent: Vec<&str> = ledger.equivalent_spaces().iter().map(|space| space.as_str()).collect();
    let equivalent = Some(equivalent.join(", ")).filter(|list| {
        let is_told = space.is_some() && !list.is_empty() && list.len() <= LONGEST_LIST;
        is_told && equivalent.iter().all(|space| is_space(space))
    });
    let equivalent = equivalent.map(|list| (EQUIVALENT_SPACES, list));
    let counts = tokens.into_iter().chain(truncated).chain(windows).chain(cached);
    [("server-timing", server_timing(ledger))].into_iter().chain(counts).chain(space).chain(equivalent)
}

/// Whether a space may have this character: workers tell spaces, and not every worker is ours.
fn is_of_space(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'.'
}

/// The ledger as `Server-Timing`: an entry per hop that ran, in milliseconds of computing, with waiting in its description.
fn server_timing(ledger: &Ledger) -> String {
    let mut text = String::new();
    for hop in ledger.0.iter().filter(|hop| hop.ran()).take(MOST_HOPS) {
        if !text.is_empty() {
            text.push_str(", ");
        }
        // A metric's name is a token; model names may hold more.
        let name = hop.model.chars().take(LONGEST_NAME);
        text.extend(name.map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }));
        let compute = hop.compute_input_us + hop.compute_infer_us + hop.compute_output_us;
        let _ = write!(
            text,
            ";dur={};desc=\"queue={} transit={} batch={}\"",
            millis(compute),
            millis(hop.queue_us),
            millis(hop.transit_us),
            hop.batch_size
        );
    }
    text
}

fn millis(micros: u64) -> String {
    format!("{}.{:03}", micros / 1000, micros % 1000)
}

#[cfg(test)]
mod tests {
    use trireme_inference::{CachedTexts, Hop, TextFacts};

    use super::*;

    #[test]
    fn what_workers_tell_stays_a_short_header() {
        let hop = Hop { model: "a\r\nX: \"é\"".repeat(1000).into(), worker: "w".into(), ..Hop::default() };
        let timing = server_timing(&Ledger(vec![hop; 10_000]));
        assert!(timing.len() < 8 << 10, "{} bytes", timing.len());
        assert!(
            timing.starts_with("a__X_____a__X") && timing.bytes().all(|byte| (b' '..0x7f).contains(&byte)),
            "{timing}"
        );
    }

    #[test]
    fn the_space_is_told_where_all_steps_know_theirs() {
        let hop = |space: Option<&str>| Hop { space: space.map(Into::into), ..Hop::default() };
        let told = |hops: &[Hop]| answer_headers(&Ledger(hops.to_vec())).find(|(name, _)| *name == SPACE);
        let steps = [hop(Some("0123456789abcdef")), hop(Some("fedcba9876543210"))];
        let space = Some((SPACE, "0123456789ab.fedcba987654".to_owned()));
        assert_eq!(told(&steps), space);
        let equal = |spaces: &[&str]| {
            let mut steps = steps.clone();
            steps[0].equivalent = spaces.iter().map(|&space| space.into()).collect();
            answer_headers(&Ledger(steps.to_vec())).find(|(name, _)| *name == EQUIVALENT_SPACES)
        };
        assert_eq!(equal(&["ab.cd", "ef"]), Some((EQUIVALENT_SPACES, "ab.cd, ef".to_owned())));
        let long = "a".repeat(1000);
        for spaces in [&[][..], &["a\r\nX: b"], &[long.as_str(); 5]] {
            assert_eq!(equal(spaces), None, "{spaces:?}");
        }
        let repeated = Ledger(steps.to_vec()).without_times();
        assert_eq!(
            (told(&repeated.0), server_timing(&repeated)),
            (space, String::new()),
            "of an answer that is given again"
        );
        assert_eq!(told(&[hop(Some("0123")), hop(None)]), None);
        assert_eq!(told(&[hop(Some("a\r\nX: b"))]), None);
        assert_eq!(told(&[]), None);
    }

    #[test]
    fn tokens_are_told_where_they_are_known_and_cut_texts_and_windows_where_there_are_some() {
        let names = |texts| -> Vec<_> { answer_headers(&Ledger(vec![Hop { texts, ..Hop::default() }])).collect() };
        assert_eq!(names(None).len(), 1);
        let told = names(Some(TextFacts { tokens: 12, truncated: 0, windows: 0 }));
        assert_eq!(told[1..], [(TOKENS, "12".to_owned())]);
        let told = names(Some(TextFacts { tokens: 12, truncated: 3, windows: 7 }));
        assert_eq!(told[1..], [(TOKENS, "12".to_owned()), (TRUNCATED, "3".to_owned()), (WINDOWS, "7".to_owned())]);
        let hop = Hop { cached: CachedTexts { texts: 2, tokens: 0 }, ..Hop::default() };
        let told: Vec<_> = answer_headers(&Ledger(vec![hop])).collect();
        assert_eq!(told[1..], [(CACHED, "2".to_owned())]);
    }
}
