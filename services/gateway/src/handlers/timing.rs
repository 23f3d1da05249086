//! Where a request's time went, as clients are told.

use std::fmt::Write;

use trireme_inference::Ledger;

/// The ledger as `Server-Timing`: an entry per hop, in milliseconds of computing, with waiting in its description.
pub fn server_timing(ledger: &Ledger) -> String {
    let mut text = String::new();
    for hop in &ledger.0 {
        if !text.is_empty() {
            text.push_str(", ");
        }
        // A metric's name is a token; model names may hold more.
        text.extend(hop.model.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }));
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
