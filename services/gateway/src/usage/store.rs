//! Records in the store of usage: one for each hour and gateway, as JSON.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use trireme_bus::{Bucket, Bus, BusError, Change, escape_token};

use super::counts::{Counts, Hour, Key, Line, Table};
use super::query::Span;

/// How long usage is kept. The broker takes no longer time to live than a year.
const KEPT: Duration = Duration::from_secs(364 * 24 * 3600);

/// How long reading the store may take.
const READ_LIMIT: Duration = Duration::from_secs(20);

/// A record of the store.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    counts: Vec<RecordLine>,
}

#[derive(Debug, Serialize, Deserialize)]
struct RecordLine {
    #[serde(flatten)]
    key: Key,
    #[serde(flatten)]
    counts: Counts,
}

/// Writes the counts of an hour in place of those that this gateway wrote before.
pub async fn write(bus: &dyn Bus, own: &str, hour: Hour, table: &Table) -> Result<(), BusError> {
    let lines = table.iter().map(|(key, counts)| RecordLine { key: key.clone(), counts: *counts });
    let value = serde_json::to_vec(&Record { counts: lines.collect() })
        .map_err(|error| BusError::Refused { action: "writing usage", reason: error.to_string() })?;
    let key = format!("{}.{}", hour.0, escape_token(own));
    bus.put(Bucket::Usage, &key, value.into(), None, Some(KEPT)).await.map(drop)
}

/// The counts of all gateways in the hours of a span.
pub async fn read(bus: &dyn Bus, span: Span) -> Result<Vec<Line>, BusError> {
    let reading = async {
        let (mut changes, mut lines) = (bus.watch(Bucket::Usage).await?, Vec::new());
        loop {
            match changes.recv().await {
                Some(Change::Put(entry)) => {
                    let hour = entry.key.split('.').next().and_then(|hour| hour.parse().ok());
                    let Some(start) = hour.filter(|&hour| span.holds(Hour(hour))) else { continue };
                    match serde_json::from_slice::<Record>(&entry.value) {
                        Ok(record) => lines.extend(record.counts.into_iter().map(|RecordLine { key, counts }| Line {
                            start,
                            key,
                            counts,
                        })),
                        Err(error) => tracing::warn!(key = entry.key, %error, "a record of usage cannot be read"),
                    }
                }
                Some(Change::Deleted { .. }) => {}
                Some(Change::Complete) => return Ok(lines),
                None => return Err(BusError::Unreachable("the store of usage was not read to its end".to_owned())),
            }
        }
    };
    let late = |_| BusError::Unreachable("the store of usage does not answer".to_owned());
    tokio::time::timeout(READ_LIMIT, reading).await.map_err(late)?
}
