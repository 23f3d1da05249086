//! Answers that wait for their clients to read them. An answer that its client does not read for too long is given up, and its
//! part of the budget freed: the HTTP/2 library takes no more of it, and the connection may live on with other calls. The piece
//! that the library holds (`budget`) stays there.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

/// All answers on their way. Clones are the same.
#[derive(Clone, Default)]
pub struct Unread(Arc<UnreadBodies>);

#[derive(Default)]
struct UnreadBodies {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Arc<Mutex<UnreadBody>>>>,
}

/// An answer, and since when the library has taken nothing of it.
struct UnreadBody {
    /// `None` when it was given up.
    body: Option<Body>,
    since: Option<Instant>,
}

/// The body of an answer that can be given up.
struct Abandonable {
    number: u64,
    answer: Arc<Mutex<UnreadBody>>,
    unread: Unread,
}

// === impl Unread ===

impl Unread {
    /// Wraps an answer so that it can be given up.
    pub fn watch(&self, response: Response) -> Response {
        response.map(|body| {
            if body.is_end_stream() {
                return body;
            }
            let answer = Arc::new(Mutex::new(UnreadBody { body: Some(body), since: Some(Instant::now()) }));
            let number = self.0.next.fetch_add(1, Ordering::Relaxed);
            self.0.waiting.lock().insert(number, answer.clone());
            Body::new(Abandonable { number, answer, unread: self.clone() })
        })
    }

    /// Gives up answers of which nothing was taken for `limit`. Never ends.
    pub async fn give_up(&self, limit: Duration) {
        loop {
            tokio::time::sleep(limit / 4).await;
            let waiting: Vec<_> = self.0.waiting.lock().values().cloned().collect();
            for answer in waiting {
                // A locked answer is being read.
                let Some(mut answer) = answer.try_lock() else { continue };
                if answer.since.is_some_and(|since| since.elapsed() >= limit)
                    && let Some(body) = answer.body.take()
                {
                    tracing::debug!("an answer that its client does not take is given up");
                    drop(answer);
                    drop(body);
                }
            }
        }
    }
}

// === impl Abandonable ===

impl HttpBody for Abandonable {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut answer = self.answer.lock();
        let Some(body) = &mut answer.body else {
            return Poll::Ready(Some(Err(axum::Error::new("the client took nothing for too long"))));
        };
        let frame = Pin::new(body).poll_frame(cx);
        answer.since = frame.is_ready().then(Instant::now);
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.answer.lock().body.as_ref().is_some_and(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.answer.lock().body.as_ref().map(|body| body.size_hint()).unwrap_or_default()
    }
}

impl Drop for Abandonable {
    fn drop(&mut self) {
        self.unread.0.waiting.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::FutureExt;
    use futures_util::stream::{self, StreamExt};
    use http_body_util::BodyExt;

    use super::*;
    use crate::budget::{self, Budget};

    const LIMIT: Duration = Duration::from_secs(10);

    /// An answer of two pieces, and its hold.
    fn answer(budget: &Budget) -> Response {
        let permit = budget.permit();
        permit.take(10).unwrap();
        let pieces = stream::iter(["one", "two"]).map(|piece| Ok::<_, Infallible>(Bytes::from(piece)));
        budget::until_sent(Response::new(Body::from_stream(pieces.chain(stream::pending()))), &permit, permit.clone())
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_takes_is_given_up() {
        let (budget, unread) = (Budget::new(100), Unread::default());
        let mut untouched = unread.watch(answer(&budget)).into_body();
        let mut begun = unread.watch(answer(&budget)).into_body();
        assert!(begun.frame().await.unwrap().is_ok());
        let mut read = unread.watch(answer(&budget)).into_body();
        assert!(read.frame().await.unwrap().is_ok() && read.frame().await.unwrap().is_ok());
        assert!(read.frame().now_or_never().is_none(), "its client waits for more");
        assert_eq!(budget.used(), 30);
        assert!(tokio::time::timeout(LIMIT * 2, unread.give_up(LIMIT)).await.is_err());
        assert_eq!(budget.used(), 10);
        assert!(untouched.frame().await.unwrap().is_err() && begun.frame().await.unwrap().is_err());
        drop((untouched, begun, read));
        assert_eq!(budget.used(), 0);
        assert!(unread.0.waiting.lock().is_empty());
    }
}
