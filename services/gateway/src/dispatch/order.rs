//! Lines of requests: of models with `preserve_ordering`, and of sequences.
//!
//! A request takes a [`LinePlace`] behind the requests of its line that this gateway admitted before it. Its answer, or the
//! request itself, waits until those have left. Dropping a place gives it up, so no request waits for one that has ended
//! early. Requests of models with `preserve_ordering` are still executed in parallel; each gateway has lines of its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use trireme_inference::{InferError, UnixMicros};

/// The requests of a line that have not left, by number, each with the signal that it is the first one now.
type Line = BTreeMap<u64, Arc<Notify>>;

/// All lines, by name. Clones are the same.
#[derive(Clone, Default)]
pub struct RequestOrder(Arc<Lines>);

#[derive(Default)]
struct Lines {
    lines: Mutex<HashMap<String, Line>>,
    /// Number of requests and answers that wait for their turn.
    held: AtomicUsize,
}

/// Counts a request while it waits for its turn.
struct WaitingTurn<'a>(&'a AtomicUsize);

/// A request's place. When dropped, it is given up.
pub struct LinePlace {
    order: RequestOrder,
    line: String,
    number: u64,
    first: Arc<Notify>,
    request_id: String,
    deadline: UnixMicros,
}

// === impl RequestOrder ===

impl RequestOrder {
    /// Number of requests and answers that wait for their turn.
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }

    /// Takes a place behind all requests of the line that have one.
    pub fn enter(&self, name: String, request_id: &str, deadline: UnixMicros) -> LinePlace {
        let first = Arc::new(Notify::new());
        let mut lines = self.0.lines.lock();
        let line = lines.entry(name.clone()).or_default();
        let number = line.last_key_value().map_or(0, |(last, _)| last + 1);
        line.insert(number, first.clone());
        drop(lines);
        LinePlace { order: self.clone(), line: name, number, first, request_id: request_id.to_owned(), deadline }
    }
}

// === impl LinePlace ===

impl LinePlace {
    /// Waits until the requests before this one have left, until this request's deadline at most.
    pub async fn turn(&self) -> Result<(), InferError> {
        let remaining = self.deadline.remaining(UnixMicros::now()).unwrap_or_default();
        let turn = async {
            let _waiting = WaitingTurn::new(&self.order.0.held);
            while !self.is_first() {
                self.first.notified().await;
            }
        };
        tokio::time::timeout(remaining, turn).await.map_err(|_| {
            let error = InferError::unavailable("Request timeout expired");
            let (request_id, line) = (&self.request_id, &self.line);
            tracing::warn!(request_id, line, %error, "request failed: those before it were not answered in time");
            error
        })
    }

    fn is_first(&self) -> bool {
        let lines = self.order.0.lines.lock();
        let first = lines.get(&self.line).and_then(|line| line.first_key_value());
        first.is_none_or(|(number, _)| *number == self.number)
    }
}

impl Drop for LinePlace {
    fn drop(&mut self) {
        let mut lines = self.order.0.lines.lock();
        let Some(line) = lines.get_mut(&self.line) else { return };
        line.remove(&self.number);
        match line.first_key_value() {
            // Only the next one is notified, so that not all waiting tasks wake up each time.
            Some((number, first)) if *number > self.number => first.notify_one(),
            Some(_) => {}
            None => drop(lines.remove(&self.line)),
        }
    }
}

// === impl WaitingTurn ===

impl WaitingTurn<'_> {
    fn new(held: &AtomicUsize) -> WaitingTurn<'_> {
        held.fetch_add(1, Ordering::Relaxed);
        WaitingTurn(held)
    }
}

impl Drop for WaitingTurn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use trireme_inference::ErrorCode;

    use super::*;

    fn enter(order: &RequestOrder, version: i64, time: Duration) -> LinePlace {
        order.enter(format!("m:{version}"), "request", UnixMicros::now().after(time))
    }

    fn places<const COUNT: usize>(order: &RequestOrder) -> [LinePlace; COUNT] {
        std::array::from_fn(|_| enter(order, 1, Duration::from_secs(60)))
    }

    #[tokio::test]
    async fn the_turn_comes_when_all_before_have_left() {
        let order = RequestOrder::default();
        let [first, second, third] = places(&order);
        let (mut at_second, mut at_third) = (Box::pin(second.turn()), Box::pin(third.turn()));
        assert!(first.turn().now_or_never().is_some());
        assert!((&mut at_second).now_or_never().is_none() && (&mut at_third).now_or_never().is_none());
        assert_eq!(order.held(), 2);
        drop(first);
        assert!((&mut at_third).now_or_never().is_none(), "the second is before it");
        assert!((&mut at_second).now_or_never().is_some());
        drop(at_second);
        drop(second);
        assert!((&mut at_third).now_or_never().is_some());
        drop(at_third);
        drop(third);
        assert!(order.0.lines.lock().is_empty(), "nothing is kept of a model without requests");
        assert_eq!(order.held(), 0);
    }

    #[tokio::test]
    async fn one_that_leaves_early_is_not_waited_for() {
        let order = RequestOrder::default();
        let [first, second, third, fourth] = places(&order);
        let mut turn = Box::pin(fourth.turn());
        drop((third, second));
        assert!((&mut turn).now_or_never().is_none());
        drop(first);
        assert!(turn.now_or_never().is_some());
        // The number of a place that was last and left is used again.
        let fifth = enter(&order, 1, Duration::from_secs(60));
        assert!(fifth.turn().now_or_never().is_none());
        drop(fourth);
        assert!(fifth.turn().now_or_never().is_some());
    }

    #[tokio::test]
    async fn each_version_has_an_order_of_its_own() {
        let order = RequestOrder::default();
        let _first = enter(&order, 1, Duration::from_secs(60));
        assert!(enter(&order, 2, Duration::from_secs(60)).turn().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_beyond_the_deadline_and_the_others_keep_their_order() {
        let order = RequestOrder::default();
        let [first] = places(&order);
        let hasty = enter(&order, 1, Duration::from_millis(100));
        let last = enter(&order, 1, Duration::from_secs(60));
        let error = hasty.turn().await.unwrap_err();
        assert_eq!(order.held(), 0);
        assert_eq!((error.code, &*error.message), (ErrorCode::Unavailable, "Request timeout expired"));
        drop(hasty);
        assert!(last.turn().now_or_never().is_none());
        drop(first);
        last.turn().await.unwrap();
    }
}
