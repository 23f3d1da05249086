//! Reads of the last message of a subject, from any copy of a stream (JetStream's direct get).
//!
//! The brokers of a cluster share these reads. A halted broker answers none, but goes on getting its part of them until the others notice it,
//! which takes minutes. So a read without an answer is sent again beside the first one: each goes to a broker at random, and the first answer counts.

use std::time::Duration;

use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{DirectGetError, DirectGetErrorKind, Stream};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::connection::Nats;

/// How long a read may be without an answer before it is sent again.
const AGAIN: Duration = Duration::from_millis(250);

/// Most times that a read is sent. That one of three brokers gets all of them is one case in 6561.
const MOST: usize = 8;

// === impl Nats ===

impl Nats {
    /// The last message of a subject.
    pub(super) async fn read_any<I>(&self, stream: &Stream<I>, subject: &str) -> Result<StreamMessage, DirectGetError> {
        first(self.is_clustered(), || stream.direct_get_last_for_subject(subject)).await
    }
}

async fn first<T, F>(repeats: bool, mut read: impl FnMut() -> F) -> Result<T, DirectGetError>
where
    F: Future<Output = Result<T, DirectGetError>>,
{
    let (mut reads, mut sent) = (FuturesUnordered::from_iter([read()]), 1);
    loop {
        tokio::select! {
            Some(answer) = reads.next() => match answer {
                Err(error) if error.kind() == DirectGetErrorKind::TimedOut && !reads.is_empty() => {}
                answer => return answer,
            },
            () = tokio::time::sleep(AGAIN), if repeats && sent < MOST => {
                reads.push(read());
                sent += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::Instant;

    use super::*;

    /// Reads of which the first `silent` have no answer for 5 s.
    async fn read(repeats: bool, silent: usize) -> (Result<usize, DirectGetErrorKind>, Duration) {
        let (count, begun) = (AtomicUsize::new(0), Instant::now());
        let answer = first(repeats, || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            async move {
                if number < silent {
                    tokio::time::sleep(Duration::from_secs(5)).await;
                    return Err(DirectGetError::new(DirectGetErrorKind::TimedOut));
                }
                Ok(number)
            }
        });
        (answer.await.map_err(|error| error.kind()), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_a_broker_leaves_without_an_answer_is_sent_to_others() {
        assert_eq!(read(true, 0).await, (Ok(0), Duration::ZERO));
        assert_eq!(read(true, 3).await, (Ok(3), AGAIN * 3));
        let timed_out = Err(DirectGetErrorKind::TimedOut);
        assert_eq!(read(true, MOST).await, (timed_out.clone(), Duration::from_secs(5) + AGAIN * 7), "a bound");
        assert_eq!(read(false, 1).await, (timed_out, Duration::from_secs(5)), "one broker has one copy");
    }
}
