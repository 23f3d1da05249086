//! Answers with headers that say how long each part took.

use std::time::Instant;

use axum::http::HeaderValue;
use axum::response::Response;
use serde::Serialize;
use trireme_inference::Ledger;
use trireme_server::http::response;

use super::super::answer;

/// An answer with headers that say how long each part took.
pub fn timed(ledger: &Ledger, started: Instant, texts: &[String], answer: &impl Serialize) -> Response {
    with_times(answer::told(ledger, answer), ledger, started, texts)
}

/// The same of an answer that is JSON already.
pub fn timed_json(ledger: &Ledger, started: Instant, texts: &[String], json: String) -> Response {
    let mut response = response::json(json.into());
    response::tell(ledger, response.headers_mut());
    with_times(response, ledger, started, texts)
}

fn with_times(mut response: Response, ledger: &Ledger, started: Instant, texts: &[String]) -> Response {
    let hops = || ledger.0.iter();
    let compute = |hop: &trireme_inference::Hop| hop.compute_input_us + hop.compute_infer_us + hop.compute_output_us;
    let tokenization: u64 = hops().filter(|hop| hop.texts.is_some()).map(compute).sum();
    let inference: u64 = hops().filter(|hop| hop.texts.is_none()).map(compute).sum();
    let queue: u64 = hops().map(|hop| hop.transit_us + hop.queue_us).sum();
    let total = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let values = [
        ("x-compute-type", None),
        ("x-compute-characters", Some(texts.iter().map(|text| text.chars().count() as u64).sum())),
        ("x-compute-tokens", Some(answer::tokens(ledger))),
        ("x-total-time", Some(total)),
        ("x-tokenization-time", Some(tokenization / 1000)),
        ("x-queue-time", Some(queue / 1000)),
        ("x-inference-time", Some(inference / 1000)),
    ];
    for (name, value) in values {
        let value = value.map_or(HeaderValue::from_static("trireme"), HeaderValue::from);
        response.headers_mut().insert(name, value);
    }
    response
}
