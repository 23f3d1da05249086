//! Sends records to the broker in groups, as atomic batches (NATS ADR-50) where that is faster.
//!
//! A batch is stored whole or not at all. If it is refused, or its confirmation is lost, each of its messages is sent alone.
//! So is every message to a broker before 2.14: 2.12.0 refuses batches with expected revisions.

use std::time::Instant;

use async_nats::jetstream::context::PublishError;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::connection::Nats;
use super::groups::{LEAST, Message, Waiting};
use super::limits::REQUEST_TIMEOUT;

const BATCH_ID: &str = "Nats-Batch-Id";
const BATCH_SEQUENCE: &str = "Nats-Batch-Sequence";
const BATCH_COMMIT: &str = "Nats-Batch-Commit";

// === impl Nats ===

impl Nats {
    /// Sends a message until the broker confirms it, perhaps in a batch with others of the same stream. Returns its sequence
    /// number.
    pub(super) async fn send_grouped(&self, message: Message) -> Result<u64, PublishError> {
        let mut sent = self.groups.add(message.clone());
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut sent => break answer,
                turn = self.groups.turns.acquire() => match self.groups.take() {
                    group if group.is_empty() => {
                        drop(turn);
                        break sent.await;
                    }
                    group => self.send_group(group).await,
                }
            }
        };
        match answer {
            Ok(sent) => sent,
            // The batch was not stored, or the caller that sent it has gone.
            Err(_) => self.send_alone(message).await,
        }
    }

    async fn send_group(&self, group: Vec<Waiting>) {
        let (began, count) = (Instant::now(), group.len());
        let can_be_batch = count >= LEAST && self.client.is_server_compatible(2, 14, 0);
        let in_batch = can_be_batch && self.groups.pace.lock().prefers_batch();
        if in_batch {
            let last = self.send_batch(&group).await;
            for (waiting, after) in group.into_iter().zip((0..count as u64).rev()) {
                match last {
                    Some(last) => drop(waiting.sequence.send(Ok(last - after))),
                    None => drop(waiting),
                }
            }
        } else {
            let send = |Waiting { message, sequence }| async { drop(sequence.send(self.send_alone(message).await)) };
            group.into_iter().map(send).collect::<FuturesUnordered<_>>().collect::<()>().await;
        }
        if can_be_batch {
            self.groups.pace.lock().record(in_batch, began.elapsed(), count);
        }
    }

    async fn send_alone(&self, Message { subject, headers, body }: Message) -> Result<u64, PublishError> {
        self.send_confirmed(subject, headers, body).await.map(|confirmed| confirmed.sequence)
    }

    /// Sends a group as a batch. Returns the sequence number of its last message, which directly follows the others;
    /// `None` if the broker has not confirmed that it stored all of them.
    async fn send_batch(&self, group: &[Waiting]) -> Option<u64> {
        let id = format!("{:016x}", fastrand::u64(..));
        let mut messages = group.iter().enumerate().map(|(number, waiting)| {
            let Message { subject, mut headers, body } = waiting.message.clone();
            headers.insert(BATCH_ID, id.as_str());
            headers.insert(BATCH_SEQUENCE, (number + 1).to_string());
            (subject, headers, body)
        });
        let (subject, mut headers, body) = messages.next_back()?;
        for (subject, headers, body) in messages {
            self.client.publish_with_headers(subject, headers, body).await.ok()?;
        }
        headers.insert(BATCH_COMMIT, "1");
        let confirmed = tokio::time::timeout(REQUEST_TIMEOUT, async {
            self.jetstream.publish_with_headers(subject, headers, body).await?.await
        });
        match confirmed.await.ok()? {
            // No size: the stream's leader is a broker before 2.12, which has stored each message by itself.
            Ok(answer) => answer.batch_size.and(Some(answer.sequence)),
            Err(error) => {
                tracing::debug!(%error, messages = group.len(), "a batch was refused; its messages are sent alone");
                None
            }
        }
    }
}
