//! Facts about a request in its answer's headers or gRPC metadata: its times, how many tokens its texts have, and how many texts
//! were cut.

use std::fmt::Write;

use trireme_inference::Ledger;

/// Header that says how many tokens the tokenizers of a request counted.
pub const TOKENS: &str = "trireme-tokens";

/// Header that says how many texts of a request were too long and lost tokens; left out if the number is 0.
pub const TRUNCATED: &str = "trireme-truncated-texts";

/// Most hops in `Server-Timing`, and most characters of a model's name there: a worker tells them, and clients refuse long headers.
const MOST_HOPS: usize = 64;
const LONGEST_NAME: usize = 64;

/// The headers that an answer with this ledger has, by their names in lower case.
pub fn answer_headers(ledger: &Ledger) -> impl Iterator<Item = (&'static str, String)> {
    let texts = ledger.texts();
    let tokens = texts.map(|texts| (TOKENS, texts.tokens.to_string()));
    let truncated = texts.filter(|texts| texts.truncated > 0).map(|texts| (TRUNCATED, texts.truncated.to_string()));
    [("server-timing", server_timing(ledger))].into_iter().chain(tokens).chain(truncated)
}

/// The ledger as `Server-Timing`: an entry per hop, in milliseconds of computing, with waiting in its description.
fn server_timing(ledger: &Ledger) -> String {
    let mut text = String::new();
    for hop in ledger.0.iter().take(MOST_HOPS) {
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
    use trireme_inference::{Hop, TextFacts};

    use super::*;

    #[test]
    fn what_workers_tell_stays_a_short_header() {
        let hop = Hop { model: "a\r\nX: \"é\"".repeat(1000).into(), ..Hop::default() };
        let timing = server_timing(&Ledger(vec![hop; 10_000]));
        assert!(timing.len() < 8 << 10, "{} bytes", timing.len());
        assert!(
            timing.starts_with("a__X_____a__X") && timing.bytes().all(|byte| (b' '..0x7f).contains(&byte)),
            "{timing}"
        );
    }

    #[test]
    fn tokens_are_told_where_they_are_known_and_cut_texts_where_there_are_some() {
        let names = |texts| -> Vec<_> { answer_headers(&Ledger(vec![Hop { texts, ..Hop::default() }])).collect() };
        assert_eq!(names(None).len(), 1);
        let told = names(Some(TextFacts { tokens: 12, truncated: 0 }));
        assert_eq!(told[1..], [(TOKENS, "12".to_owned())]);
        let told = names(Some(TextFacts { tokens: 12, truncated: 3 }));
        assert_eq!(told[1..], [(TOKENS, "12".to_owned()), (TRUNCATED, "3".to_owned())]);
    }
}
