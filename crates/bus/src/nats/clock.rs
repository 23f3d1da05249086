//! The broker's clock, by which deadlines are measured, and the offset of this host's clock.
//!
//! The broker writes its time into the answer to a question about a stream. All processes ask about the same stream, so
//! they all use the same clock: that of the broker that leads the stream. The answer was written between the question
//! and its arrival; half of that time is assumed.

use std::time::{Duration, Instant};

use async_nats::datetime::{DateTime, parse_rfc3339};
use bytes::Bytes;
use serde::Deserialize;
use trireme_inference::UnixMicros;

use super::buckets;
use super::connection::Nats;
use super::limits::taken;
use crate::{Bucket, BusError};

/// How often the clocks are compared.
const PERIOD: Duration = Duration::from_secs(15);

/// How often the broker is asked before it has answered for the first time.
const FIRST_PERIOD: Duration = Duration::from_secs(1);

/// Answers that took longer are too inaccurate and ignored.
const LONGEST_ROUND_TRIP: Duration = Duration::from_millis(500);

/// Offsets above this are logged as a warning.
const WORTH_A_WARNING: Duration = Duration::from_secs(1);

/// The field of the broker's answer that is used here.
#[derive(Deserialize)]
struct StreamInfo {
    ts: String,
}

// === impl Nats ===

impl Nats {
    /// Compares the clocks periodically, for as long as the connection is open.
    pub(super) fn follow_clock(&self) {
        let nats = self.clone();
        crate::spawn("nats clock", async move {
            let (mut warned, mut period) = (false, FIRST_PERIOD);
            while !nats.is_closed() {
                match nats.clock_offset().await {
                    Ok(Some(offset)) => (warned, period) = (adjust(offset, warned), PERIOD),
                    Ok(None) => {}
                    Err(error) => tracing::debug!(%error, "the broker's clock could not be read"),
                }
                tokio::time::sleep(period).await;
            }
        });
    }

    /// Sets the clock's offset before any deadline is computed.
    pub(super) async fn set_clock(&self) {
        if let Ok(Some(offset)) = self.clock_offset().await {
            adjust(offset, false);
        }
    }

    /// Microseconds by which this host's clock is behind the broker's. `None`: the answer took too long.
    async fn clock_offset(&self) -> Result<Option<i64>, BusError> {
        let subject = format!("{}.STREAM.INFO.{}", self.api, buckets::stream(&self.names, Bucket::Settings));
        let (asked, since) = (UnixMicros::of_host(), Instant::now());
        let answer = taken(self.client.request(subject, Bytes::new())).await?;
        let took = since.elapsed();
        if took > LONGEST_ROUND_TRIP {
            return Ok(None);
        }
        let unreadable =
            |error: &dyn std::fmt::Display| BusError::Unreachable(format!("reading the broker's clock: {error}"));
        let answer: StreamInfo = serde_json::from_slice(&answer.payload).map_err(|error| unreadable(&error))?;
        offset(&answer.ts, asked, took).map(Some).map_err(|error| unreadable(&error))
    }
}

/// A time that the broker has given.
pub fn micros(time: DateTime) -> UnixMicros {
    UnixMicros(u64::try_from(time.unix_timestamp_nanos() / 1000).unwrap_or_default())
}

/// Microseconds by which the host's clock is behind the broker's. The broker answered `time` to a question sent at
/// `asked`, and the round trip took `took`.
fn offset(time: &str, asked: UnixMicros, took: Duration) -> Result<i64, async_nats::Error> {
    let time = parse_rfc3339(time)?.unix_timestamp_nanos() / 1000;
    let expected = i128::from(asked.after(took / 2).0);
    Ok(i64::try_from(time - expected).unwrap_or_default())
}

/// Sets a new offset; returns whether it is above the warning limit. The warning is logged once.
fn adjust(offset: i64, warned: bool) -> bool {
    UnixMicros::set_clock_offset(offset);
    let is_far = Duration::from_micros(offset.unsigned_abs()) > WORTH_A_WARNING;
    if is_far && !warned {
        tracing::warn!(
            offset_seconds = offset as f64 / 1e6,
            "this host's clock is behind the broker's by so much (ahead, where that is negative); requests go by the \
             broker's clock, logs by the host's"
        );
    }
    is_far
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_round_trip_is_allowed_for() {
        let asked = UnixMicros(1_000_000);
        let behind = |time: &str| offset(time, asked, Duration::from_millis(200)).map_err(|error| error.to_string());
        assert_eq!(behind("1970-01-01T00:00:01.1Z"), Ok(0));
        assert_eq!(behind("1970-01-01T00:00:03.1000005Z"), Ok(2_000_000));
        assert_eq!(behind("1970-01-01T02:00:00.6+02:00"), Ok(-500_000));
        assert!(behind("now").is_err());
    }
}
