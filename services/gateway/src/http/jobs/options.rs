//! The terms of a job, which a client may name: the time before which the job does not begin, and the URL of its webhook.
//!
//! A time is a time, not a pause, so that a request that is sent twice means the same: RFC 3339, or seconds since 1970 as in
//! OpenAI's API.

use axum::http::HeaderMap;
use chrono::DateTime;
use serde::Deserialize;
use trireme_jobs::{JobOptions, now};
use trireme_server::http::describe::header;
use trireme_server::http::schema::text;
use trireme_server::http::shapes::Shapes;
use utoipa::ToSchema;

use super::webhooks::{self, Webhooks};

/// The headers of a durable request.
const NOT_BEFORE: &str = "Not-Before";
const WEBHOOK: &str = "Webhook-Url";

/// How far ahead a job may begin, in seconds.
const LONGEST: u64 = 365 * 24 * 3600;

/// A smaller number is no time: most clients that send one mean a pause.
const FIRST: u64 = 1_000_000_000;

/// A time in JSON.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Time {
    /// Seconds since 1970.
    Seconds(u64),
    /// A text.
    Text(String),
}

/// Whether a request has headers about durable work.
pub fn are_in(headers: &HeaderMap) -> bool {
    headers.contains_key(NOT_BEFORE) || headers.contains_key(WEBHOOK)
}

/// Describes those headers.
pub fn describe(shapes: &mut Shapes) {
    let about =
        "with respond-async: the time before which the request does not begin, in RFC 3339 or seconds since 1970";
    shapes.parameters.push(header(NOT_BEFORE, about, text()));
    shapes.parameters.push(header(
        WEBHOOK,
        "with respond-async: the URL that is called when the answer is there",
        text(),
    ));
}

/// The terms that the headers of a durable request name. The client gets the error.
pub fn of_headers(headers: &HeaderMap, webhooks: Option<&Webhooks>) -> Result<JobOptions, String> {
    let text = |name: &str| match headers.get(name).map(|value| value.to_str()) {
        Some(Ok(value)) => Ok(Some(value)),
        Some(Err(_)) => Err(format!("header {name} is no text")),
        None => Ok(None),
    };
    let not_before = text(NOT_BEFORE)?.map(|value| time(NOT_BEFORE, value)).transpose()?;
    let webhook = text(WEBHOOK)?.map(|url| webhooks::check(webhooks, WEBHOOK, url)).transpose()?;
    Ok(JobOptions { not_before, webhook })
}

/// The terms that the fields of a batch name. The client gets the error.
pub fn of_fields(
    not_before: Option<Time>,
    webhook: Option<&str>,
    webhooks: Option<&Webhooks>,
) -> Result<JobOptions, String> {
    let not_before = match not_before {
        Some(Time::Seconds(seconds)) => Some(checked("'not_before'", seconds, &seconds.to_string())?),
        Some(Time::Text(text)) => Some(time("'not_before'", &text)?),
        None => None,
    };
    let webhook = webhook.map(|url| webhooks::check(webhooks, "'webhook'", url)).transpose()?;
    Ok(JobOptions { not_before, webhook })
}

/// The time in a text, in seconds since 1970.
fn time(name: &str, text: &str) -> Result<u64, String> {
    let text = text.trim();
    let seconds = match text.parse() {
        Ok(seconds) => Some(seconds),
        Err(_) => DateTime::parse_from_rfc3339(text).ok().and_then(|time| u64::try_from(time.timestamp()).ok()),
    };
    match seconds {
        Some(seconds) => checked(name, seconds, text),
        None => Err(format!("{name} is '{text}', {EXPECTED}")),
    }
}

const EXPECTED: &str = "expected a time such as 2030-01-31T22:00:00Z, or the seconds since 1970";

fn checked(name: &str, seconds: u64, text: &str) -> Result<u64, String> {
    if seconds < FIRST {
        return Err(format!("{name} is '{text}', {EXPECTED}, not a pause"));
    }
    if seconds > now() + LONGEST {
        return Err(format!("{name} is '{text}', expected a time within the next 365 days"));
    }
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_or_seconds_since_1970() {
        for (text, expected) in [
            ("2026-01-01T00:00:00Z", 1_767_225_600),
            ("2026-01-01T02:00:00+02:00", 1_767_225_600),
            ("2026-01-01T00:00:00.9Z", 1_767_225_600),
            (" 1767225600 ", 1_767_225_600),
        ] {
            assert_eq!(time("Not-Before", text), Ok(expected), "{text}");
        }
        for text in ["", "soon", "2026-01-01", "3600", "-5", "1e10", "1800-01-01T00:00:00Z", "9999-01-01T00:00:00Z"] {
            let refusal = time("Not-Before", text).unwrap_err();
            assert!(refusal.starts_with(&format!("Not-Before is '{text}', expected a time")), "{refusal}");
        }
        let fields = |json: &str| of_fields(serde_json::from_str(json).unwrap(), None, None);
        assert_eq!(fields("1767225600").unwrap().not_before, Some(1_767_225_600));
        assert_eq!(fields("\"2026-01-01T00:00:00Z\"").unwrap().not_before, Some(1_767_225_600));
        assert_eq!(fields("null").unwrap(), JobOptions::default());
        assert!(fields("60").unwrap_err().starts_with("'not_before' is '60', expected a time"));
    }
}
