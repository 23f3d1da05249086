//! A call's deadline: `grpc-timeout` from the moment the call's headers are there. tonic reads that header, too, but shows it to no
//! handler.

use std::time::Duration;

use axum::extract::Request;
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;
use tonic::Status;
use trireme_server::RequestContext;

/// How much earlier than the transport the gateway ends a call: the transport's own timer would call it cancelled.
const HEAD_START: Duration = Duration::from_millis(1);

/// Notes a call's deadline in its context, and ends the call at it. For a stream that is until its first response: the
/// rest is up to the stream.
pub async fn enforce(request: Request, next: Next) -> Response {
    let Some(timeout) = parse_timeout(request.headers()) else { return next.run(request).await };
    let now = Instant::now();
    RequestContext::of(request.extensions()).ends_at(now + timeout);
    match tokio::time::timeout_at(now + timeout.saturating_sub(HEAD_START), next.run(request)).await {
        Ok(response) => response,
        Err(_) => exceeded().into_http(),
    }
}

/// The status of a call that is over its deadline.
pub fn exceeded() -> Status {
    Status::deadline_exceeded("Deadline Exceeded")
}

/// Whether a deadline has passed, or is about to.
pub fn is_over(deadline: Instant) -> bool {
    deadline.saturating_duration_since(Instant::now()) <= HEAD_START
}

/// `grpc-timeout`: at most eight digits and a unit. Any other value counts as no timeout.
fn parse_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.is_empty() || number.len() > 8 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_digits_and_a_unit() {
        let parse = |text: &'static str| {
            parse_timeout(&HeaderMap::from_iter([(
                axum::http::HeaderName::from_static("grpc-timeout"),
                axum::http::HeaderValue::from_static(text),
            )]))
        };
        assert_eq!(parse("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(parse("3M"), Some(Duration::from_secs(180)));
        assert_eq!(parse("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(parse("150m"), Some(Duration::from_millis(150)));
        assert_eq!(parse("7u"), Some(Duration::from_micros(7)));
        assert_eq!(parse("0n"), Some(Duration::ZERO));
        for text in ["", "S", "1", "+1S", "-1S", "1.5S", "123456789S", "1s", "1 S"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(parse_timeout(&HeaderMap::new()), None);
    }
}
