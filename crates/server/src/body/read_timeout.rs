//! Limits the pauses of a request while it arrives: a client may pause, but the part that it has sent takes memory, which it must
//! not keep for any time it likes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use tokio::time::{Instant, Sleep};

/// A client that sends as many bytes a second does not pause, however long its request takes.
const STEADY: f64 = 65_536.0;

/// All pauses together may last this many times the longest one.
const WHOLE: u32 = 5;

/// The pauses of a body that arrives in pieces. Only time in which a reader waits counts.
pub struct ReadTimeout {
    pause: Duration,
    /// The time left for all pauses together.
    left: Duration,
    /// When the reader began to wait for the next piece.
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// A client paused for too long.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum Overdue {
    /// It sent nothing for so long.
    #[error("no data for {0:?}")]
    Silent(Duration),
    /// Its pauses together took so long.
    #[error("not whole after {0:?} without data")]
    Slow(Duration),
}

/// The number of data bytes in a frame of a body.
pub fn size<E>(frame: &Option<Result<Frame<Bytes>, E>>) -> usize {
    let frame = frame.as_ref().and_then(|frame| frame.as_ref().ok());
    frame.and_then(Frame::data_ref).map_or(0, Bytes::len)
}

// === impl ReadTimeout ===

impl ReadTimeout {
    /// For a body that may pause for `pause` at a time, and for five times that in all.
    pub fn new(pause: Duration) -> ReadTimeout {
        ReadTimeout { pause, left: ReadTimeout::whole(pause), since: None, timer: None }
    }

    /// How long all pauses together may last.
    pub fn whole(pause: Duration) -> Duration {
        pause * WHOLE
    }

    /// A new message begins.
    pub fn renew(&mut self) {
        self.left = ReadTimeout::whole(self.pause);
    }

    /// A piece of so many bytes has arrived.
    pub fn arrived(&mut self, bytes: usize) {
        if let Some(since) = self.since.take() {
            let steady = Duration::from_secs_f64(bytes as f64 / STEADY);
            self.left = self.left.saturating_sub(since.elapsed().saturating_sub(steady));
        }
    }

    /// Waits until the next piece is overdue.
    pub fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<Overdue> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(Duration::ZERO)));
        if self.since.is_none() {
            let now = Instant::now();
            self.since = Some(now);
            timer.as_mut().reset(now + self.pause.min(self.left));
        }
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(match self.left < self.pause {
            true => Overdue::Slow(ReadTimeout::whole(self.pause)),
            false => Overdue::Silent(self.pause),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const PAUSE: Duration = Duration::from_secs(10);

    async fn overdue(pace: &mut ReadTimeout) -> Overdue {
        poll_fn(|cx| pace.poll_overdue(cx)).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_ends() {
        let (mut pace, begun) = (ReadTimeout::new(PAUSE), Instant::now());
        assert!(matches!(overdue(&mut pace).await, Overdue::Silent(PAUSE)));
        assert_eq!(begun.elapsed(), PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_add_up() {
        let (mut pace, begun) = (ReadTimeout::new(PAUSE), Instant::now());
        // A byte whenever it is nearly too late.
        let overdue = loop {
            match tokio::time::timeout(PAUSE * 9 / 10, overdue(&mut pace)).await {
                Ok(overdue) => break overdue,
                Err(_) => pace.arrived(1),
            }
            assert!(begun.elapsed() < PAUSE * 10, "it never ends");
        };
        assert!(matches!(overdue, Overdue::Slow(_)), "{overdue:?}");
        let elapsed = begun.elapsed();
        assert!((ReadTimeout::whole(PAUSE)..ReadTimeout::whole(PAUSE) + PAUSE / 100).contains(&elapsed), "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_goes_on_at_a_rate_may_take_its_time() {
        let mut pace = ReadTimeout::new(PAUSE);
        for _ in 0..1000 {
            assert!(tokio::time::timeout(PAUSE / 10, overdue(&mut pace)).await.is_err());
            pace.arrived(STEADY as usize);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_waits_does_not_count() {
        let mut pace = ReadTimeout::new(PAUSE);
        for _ in 0..10 {
            pace.arrived(0);
            tokio::time::sleep(PAUSE * 10).await;
        }
        assert!(tokio::time::timeout(PAUSE * 9 / 10, overdue(&mut pace)).await.is_err());
    }
}
