//! Webhooks: a URL that is called when a job has ended. When it is called and how often; the call itself is
//! [`Execute::call`](crate::Execute::call).
//!
//! The record of the job has the state of its webhook, so another gateway goes on where one has died. A gateway that dies
//! between a call and its note calls again: a receiver gets an event at least once, each time with the same id.

use std::time::Duration;

use serde_json::json;
use trireme_inference::Backoff;

use crate::call::{WebhookAnswer, WebhookCall};
use crate::error::JobError;
use crate::jobs::Jobs;
use crate::record::{Record, Step, Webhook, WebhookState};
use crate::statistics::WebhookCounts;
use crate::store::StoredRecord;

/// The pauses after failed calls.
const CALL_AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(3600));

/// Longest reason of a failed call that a record keeps, in bytes.
const LONGEST_REASON: usize = 500;

/// The event about the end of a job, in the shape of OpenAI's webhooks. `None` if the job has not ended.
fn event(id: &str, record: &Record, now: u64) -> Option<WebhookCall> {
    let kind = match record {
        Record::Request(request) => format!("request.{}", request.state_name(now)),
        Record::Batch(batch) => format!("batch.{}", batch.state.name()),
        Record::File(_) => return None,
    };
    let event = format!("evt_{id}");
    let body = json!({
        "id": event,
        "object": "event",
        "created_at": record.ended()?,
        "type": kind,
        "data": {"id": id},
    });
    Some(WebhookCall { url: record.webhook()?.url.clone(), id: event, body: body.to_string().into() })
}

/// The pause after so many failed calls. The receiver may have asked for a longer one.
fn pause(attempts: u32, at_least: Option<Duration>) -> Duration {
    CALL_AGAIN.scattered_after(attempts).max(at_least.unwrap_or_default().min(CALL_AGAIN.longest()))
}

// === impl Webhook ===

impl Webhook {
    /// Notes the outcome of a call at `now`. After `last` there are no more calls. Times are in seconds since 1970.
    fn note(&mut self, answer: WebhookAnswer, now: u64, last: u64) {
        self.attempts += 1;
        match answer {
            WebhookAnswer::Delivered => (self.state, self.failure) = (WebhookState::Delivered, None),
            WebhookAnswer::Failed { mut why, is_final, after } => {
                self.next = now + pause(self.attempts, after).as_secs_f64().ceil() as u64;
                if is_final || self.next >= last {
                    self.state = WebhookState::Failed;
                }
                why.truncate(why.floor_char_boundary(LONGEST_REASON));
                self.failure = Some(why);
            }
        }
    }
}

// === impl Jobs ===

impl Jobs {
    /// Calls the webhook of a job of this gateway once, and notes the outcome.
    pub(crate) async fn call_webhook(&self, id: &str) -> Result<(), JobError> {
        let Some(StoredRecord { record, .. }) = self.read(id).await? else { return Ok(()) };
        let is_due = |record: &Record| {
            let is_next = record.step().is_some_and(|(step, _)| step == Step::Webhook);
            is_next && record.open_for() == Some(&self.0.own)
        };
        if !is_due(&record) {
            return Ok(());
        }
        let (Some(call), Some(before)) =
            (event(id, &record, self.now()), record.webhook().map(|webhook| webhook.attempts))
        else {
            return Ok(());
        };
        let answer = self.0.execute.call(call).await;
        let mut noted = None;
        self.change(id, |record| {
            if !is_due(record) || record.webhook().is_none_or(|webhook| webhook.attempts != before) {
                return None;
            }
            let last = record.ended().unwrap_or_default() + self.0.options.time_to_live.as_secs();
            let webhook = record.webhook_mut()?;
            webhook.note(answer.clone(), self.now(), last);
            noted = Some(webhook.clone());
            Some(self.lapse(record))
        })
        .await?;
        let Some(webhook) = noted else { return Ok(()) };
        let Webhook { state, attempts, failure, .. } = &webhook;
        match state {
            WebhookState::Delivered => tracing::debug!(job = id, attempts, "a webhook was called"),
            WebhookState::Waiting => {
                tracing::info!(job = id, attempts, reason = failure, "a webhook could not be called; trying again");
            }
            WebhookState::Failed => {
                tracing::warn!(job = id, attempts, reason = failure, "a webhook could not be called and is given up");
            }
        }
        self.0.counters.webhook(match state {
            WebhookState::Delivered => WebhookCounts { delivered: 1, ..WebhookCounts::default() },
            WebhookState::Waiting => WebhookCounts { retried: 1, ..WebhookCounts::default() },
            WebhookState::Failed => WebhookCounts { given_up: 1, ..WebhookCounts::default() },
        });
        Ok(())
    }

    /// How long a record is still kept: the rest of its time to live, which begins at its end; for ever while it has not ended.
    pub(crate) fn lapse(&self, record: &Record) -> Option<Duration> {
        let until = record.ended()? + self.0.options.time_to_live.as_secs();
        Some(Duration::from_secs(until.saturating_sub(self.now()).max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_about_an_hour_and_a_receiver_may_ask_for_longer_ones() {
        let seconds = |attempts, after| pause(attempts, after).as_secs();
        assert!((256..768).contains(&seconds(10, None)) && (1800..5400).contains(&seconds(1000, None)));
        assert_eq!(seconds(1, Some(Duration::from_secs(60))), 60);
        assert_eq!(seconds(1, Some(Duration::from_secs(1_000_000))), 3600);
    }

    #[test]
    fn a_webhook_ends_with_success_a_final_refusal_or_its_time() {
        let mut webhook = Webhook::new("https://example.com".to_owned());
        webhook.note(WebhookAnswer::failed("x".repeat(10_000)), 100, 1000);
        assert_eq!((webhook.state, webhook.attempts), (WebhookState::Waiting, 1));
        assert!((101..=102).contains(&webhook.next), "{}", webhook.next);
        assert_eq!(webhook.failure.as_ref().map(String::len), Some(LONGEST_REASON));
        let mut late = webhook.clone();
        late.note(WebhookAnswer::failed("again"), 999, 1000);
        assert_eq!(late.state, WebhookState::Failed);
        let mut gone = webhook.clone();
        gone.note(WebhookAnswer::Failed { why: "gone".to_owned(), is_final: true, after: None }, 110, 1000);
        assert_eq!((gone.state, gone.failure.as_deref()), (WebhookState::Failed, Some("gone")));
        webhook.note(WebhookAnswer::Delivered, 110, 1000);
        assert_eq!((webhook.state, webhook.attempts, webhook.failure), (WebhookState::Delivered, 2, None));
    }
}
