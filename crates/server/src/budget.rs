//! One budget for the bytes of all requests at this gateway. Bodies take their bytes from it as they arrive, and give them back
//! when the answer has been sent. Without room a request is refused at once, as by a full queue. Bulk requests leave half of the
//! budget to live ones.
//!
//! Invariant: bytes that have not arrived are not counted. An announced body only asks for room, so that its refusal need not
//! wait for it.
//!
//! Not here: the largest size of a request (`http`, `grpc`), the number of requests (`dispatch`), the time that a request may
//! take to arrive (`ReadTimeout`).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use axum::http::Response;
use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use trireme_inference::{Cause, InferError, Lane, QUEUE_FULL};

/// Most bytes of an answer that the HTTP library gets at a time: it takes a piece whole, even if its client reads nothing.
const PIECE: usize = 64 << 10;

/// The bytes of a request about the server that are never refused.
const ABOUT_SERVER: u64 = 16 << 10;

/// A budget of bytes. Clones are the same.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: u64,
    used: AtomicU64,
}

/// A request's part of the budget. Clones share it; the last one gives it back.
#[derive(Clone, Debug)]
pub struct BytesPermit(Arc<PermitInner>);

#[derive(Debug)]
struct PermitInner {
    budget: Budget,
    bytes: AtomicU64,
    /// The number of bytes that are never refused.
    free: u64,
    /// The lane of the request.
    lane: Lane,
    /// Whether the request alone has more bytes than the budget.
    is_too_large: AtomicBool,
}

/// No bytes are left for a request.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no room for the request beside those in flight (--max-bytes-in-flight): {QUEUE_FULL}")]
pub struct NoRoom;

/// A request's body that takes its bytes from the budget as they arrive.
struct Counted {
    body: Body,
    permit: BytesPermit,
    /// The length that the client has announced, until the body is first read.
    announced: u64,
    /// Makes the error for the reader of the body.
    refuse: Refuse,
}

/// Makes an error that the reader of a body understands.
pub type Refuse = fn(NoRoom) -> axum::BoxError;

/// A response's body that holds its request's bytes, and its own, until it is sent.
struct Sent<H> {
    body: Body,
    /// The part of a piece that was not sent yet.
    rest: Bytes,
    _held: H,
}

/// Wraps a request's body: its bytes are counted in `permit`. Its first read fails if there is no room for the announced length.
pub fn count(body: Body, announced: u64, permit: &BytesPermit, refuse: Refuse) -> Body {
    if body.is_end_stream() {
        return body;
    }
    Body::new(Counted { body, permit: permit.clone(), announced, refuse })
}

/// Counts the bytes of a response in `permit`, and drops `held`, which holds the permit, when the response has been sent.
pub fn until_sent(response: Response<Body>, permit: &BytesPermit, held: impl Send + Unpin + 'static) -> Response<Body> {
    permit.add(response.body().size_hint().exact().unwrap_or_default());
    response.map(|body| Body::new(Sent { body, rest: Bytes::new(), _held: held }))
}

// === impl Budget ===

impl Budget {
    /// A budget of so many bytes.
    pub fn new(limit: u64) -> Budget {
        Budget(Arc::new(Shared { limit, used: AtomicU64::new(0) }))
    }

    /// The most that all requests together may hold, in bytes.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// The bytes that are held now.
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// A new live request's hold, without bytes.
    pub fn permit(&self) -> BytesPermit {
        self.permit_in(Lane::Live)
    }

    /// A new request's hold, without bytes.
    pub fn permit_in(&self, lane: Lane) -> BytesPermit {
        self.holding(0, 0, lane)
    }

    /// The hold of a request about the server, which has to be answered even if there is no room for others: as many bytes as
    /// such requests need are counted and not refused.
    pub fn permit_about_server(&self) -> BytesPermit {
        self.holding(0, ABOUT_SERVER, Lane::Live)
    }

    fn holding(&self, bytes: u64, free: u64, lane: Lane) -> BytesPermit {
        let (bytes, is_too_large) = (AtomicU64::new(bytes), AtomicBool::new(false));
        BytesPermit(Arc::new(PermitInner { budget: self.clone(), bytes, free, lane, is_too_large }))
    }
}

// === impl Shared ===

impl Shared {
    /// The sum of `used` and `bytes`, unless it is above the limit, or above half of it for a bulk request. A bulk request that
    /// is alone, with all of `used` as its `own`, may take as much as a live one: no request is too large for one lane only.
    fn with(&self, used: u64, bytes: u64, lane: Lane, own: u64) -> Option<u64> {
        let most = match lane {
            Lane::Bulk if used > own => self.limit.div_ceil(2),
            Lane::Bulk | Lane::Live => self.limit,
        };
        used.checked_add(bytes).filter(|&used| used <= most)
    }
}

// === impl BytesPermit ===

impl BytesPermit {
    /// Takes more bytes, if there is room.
    pub fn take(&self, bytes: u64) -> Result<(), NoRoom> {
        if self.is_free(bytes) {
            self.add(bytes);
            return Ok(());
        }
        let budget = &self.0.budget.0;
        let (lane, own) = (self.0.lane, self.bytes());
        if own.saturating_add(bytes) > budget.limit {
            self.0.is_too_large.store(true, Ordering::Relaxed);
        }
        let more = |used: u64| budget.with(used, bytes, lane, own);
        budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map_err(|_| NoRoom)?;
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Grows the hold to so many bytes, if there is room: a request turned out to be larger than its received bytes.
    pub fn cover(&self, bytes: u64) -> Result<(), NoRoom> {
        self.take(bytes.saturating_sub(self.bytes()))
    }

    /// Whether there is room for so many more bytes. Takes none.
    pub fn ask(&self, bytes: u64) -> Result<(), NoRoom> {
        let budget = &self.0.budget.0;
        let used = budget.used.load(Ordering::Relaxed);
        let left = self.is_free(bytes) || budget.with(used, bytes, self.0.lane, self.bytes()).is_some();
        left.then_some(()).ok_or(NoRoom)
    }

    /// Whether so many more bytes would never have room, even alone.
    pub fn exceeds(&self, bytes: u64) -> bool {
        self.bytes().saturating_add(bytes) > self.0.budget.0.limit
    }

    fn is_free(&self, bytes: u64) -> bool {
        bytes == 0 || self.bytes().saturating_add(bytes) <= self.0.free
    }

    /// The bytes of this hold.
    fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes that exist already, even without room for them.
    pub fn add(&self, bytes: u64) {
        self.0.budget.0.used.fetch_add(bytes, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives some bytes back.
    pub fn give_back(&self, bytes: u64) {
        let less = |held: u64| Some(held.saturating_sub(bytes));
        let held = self.0.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or_default();
        self.0.budget.0.used.fetch_sub(held.min(bytes), Ordering::Relaxed);
    }

    /// Gives all but so many bytes back.
    pub fn shrink(&self, bytes: u64) {
        self.give_back(self.bytes().saturating_sub(bytes));
    }

    /// Whether the request alone has asked for more bytes than the budget: another try would end in the same way.
    pub fn is_too_large(&self) -> bool {
        self.0.is_too_large.load(Ordering::Relaxed)
    }

    /// Moves all bytes of this hold into a new one: for a message of a stream.
    pub fn split(&self) -> BytesPermit {
        let PermitInner { budget, bytes, free, lane, .. } = self.0.as_ref();
        budget.holding(bytes.swap(0, Ordering::Relaxed), *free, *lane)
    }
}

impl Drop for PermitInner {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

impl From<NoRoom> for InferError {
    fn from(refusal: NoRoom) -> InferError {
        InferError::unavailable(refusal.to_string()).because(Cause::QueueFull)
    }
}

// === impl Counted ===

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let announced = std::mem::take(&mut self.announced);
        self.permit.ask(announced).map_err(self.refuse)?;
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)?) else { return Poll::Ready(None) };
        let bytes = frame.data_ref().map_or(0, |data| data.remaining() as u64);
        self.permit.take(bytes).map_err(self.refuse)?;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

// === impl Sent ===

impl<H: Send + Unpin + 'static> HttpBody for Sent<H> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)?) else { return Poll::Ready(None) };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let length = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::stream::{self, StreamExt};
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn bodies_take_their_bytes_and_answers_give_them_back() {
        let budget = Budget::new(100);
        let refuse: Refuse = |refusal| refusal.into();

        let (first, second, third) = (budget.permit(), budget.permit(), budget.permit());
        let body = count(Body::from(vec![0; 60]), 60, &first, refuse);
        assert_eq!(budget.used(), 0, "nothing before somebody reads");
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), 60);
        assert_eq!(budget.used(), 60);

        let mut refused = count(Body::from(vec![0; 41]), 41, &second, refuse);
        assert!(refused.frame().await.unwrap().unwrap_err().to_string().contains("Exceeds maximum queue size"));
        assert_eq!(budget.used(), 60);

        let pieces = [30, 10, 1].map(|size| Ok::<_, NoRoom>(Bytes::from(vec![0; size])));
        let pieces = Body::from_stream(stream::iter(pieces));
        let mut chunked = count(pieces, 0, &third, refuse);
        assert!(chunked.frame().await.unwrap().is_ok() && chunked.frame().await.unwrap().is_ok());
        assert_eq!(budget.used(), 100);
        assert!(chunked.frame().await.unwrap().is_err(), "one byte too many");
        drop((chunked, third));
        assert_eq!(budget.used(), 60);

        let answer = until_sent(Response::new(Body::from(vec![0; 50])), &first, first.clone());
        drop(first);
        assert_eq!(budget.used(), 110, "an answer is counted, too large or not");
        drop(answer);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn an_answer_is_held_until_its_last_piece_is_taken() {
        let budget = Budget::new(1 << 20);
        let bytes: Vec<u8> = (0..=255u8).cycle().take(3 * PIECE + 1).collect();
        let permit = budget.permit();
        let mut answer = until_sent(Response::new(Body::from(bytes.clone())), &permit, permit.clone()).into_body();
        drop(permit);
        let mut taken = Vec::new();
        for size in [PIECE, PIECE, PIECE, 1] {
            assert_eq!(answer.size_hint().exact(), Some((bytes.len() - taken.len()) as u64));
            assert!(!answer.is_end_stream());
            let piece = answer.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(piece.len(), size);
            taken.extend_from_slice(&piece);
            assert_eq!(budget.used(), bytes.len() as u64);
        }
        assert!(answer.is_end_stream() && answer.frame().await.is_none());
        assert_eq!(taken, bytes);
        drop(answer);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn what_is_announced_takes_no_room_before_it_comes() {
        let budget = Budget::new(100);
        let (first, second) = (budget.permit(), budget.permit());
        let pieces = stream::iter([Ok::<_, NoRoom>(Bytes::from(vec![0; 10]))]).chain(stream::pending());
        let mut waiting = count(Body::from_stream(pieces), 100, &first, |refusal| refusal.into());
        assert!(waiting.frame().await.unwrap().is_ok());
        assert!(waiting.frame().now_or_never().is_none());
        assert_eq!(budget.used(), 10);
        let body = count(Body::from(vec![0; 90]), 90, &second, |refusal| refusal.into());
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), 90);
    }

    /// A message that was announced together with the preceding one is counted all the same.
    #[tokio::test]
    async fn what_was_announced_for_several_messages_is_counted_for_each() {
        let budget = Budget::new(100);
        let stream_hold = budget.permit();
        let pieces = stream::iter([Ok::<_, NoRoom>(Bytes::from(vec![0; 40])), Ok(Bytes::from(vec![0; 40]))]);
        let mut body = count(Body::from_stream(pieces), 80, &stream_hold, |refusal| refusal.into());
        assert!(body.frame().await.unwrap().is_ok());
        drop(stream_hold.split());
        assert_eq!(budget.used(), 0);
        assert!(body.frame().await.unwrap().is_ok());
        assert_eq!(budget.used(), 40);
    }

    #[test]
    fn what_is_about_the_server_is_not_refused() {
        let budget = Budget::new(100);
        let (full, control) = (budget.permit(), budget.permit_about_server());
        full.take(100).unwrap();
        assert!(budget.permit().take(1).is_err());
        control.take(ABOUT_SERVER).unwrap();
        assert_eq!(budget.used(), 100 + ABOUT_SERVER, "it counts");
        assert!(control.take(1).is_err(), "more than a request about the server needs");
        drop((full, control));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn bulk_requests_leave_half_to_live_ones() {
        let budget = Budget::new(100);
        let (first, second, live) = (budget.permit_in(Lane::Bulk), budget.permit_in(Lane::Bulk), budget.permit());
        first.take(30).unwrap();
        assert!(second.ask(21).is_err() && second.take(21).is_err());
        second.take(20).unwrap();
        assert!(first.take(1).is_err());
        live.take(50).unwrap();
        assert!(live.take(1).is_err(), "there is one budget");
        drop((first, second, live));
        let alone = budget.permit_in(Lane::Bulk);
        alone.take(60).unwrap();
        alone.take(40).unwrap();
        drop(alone.split());
        assert_eq!(budget.used(), 0);
        let live = budget.permit();
        live.take(1).unwrap();
        assert!(alone.split().take(60).is_err(), "a message of a stream has its lane");
    }

    #[test]
    fn what_a_message_of_a_stream_brought_goes_with_it() {
        let budget = Budget::new(100);
        let stream = budget.permit();
        stream.take(30).unwrap();
        let message = stream.split();
        stream.take(20).unwrap();
        drop(message);
        assert_eq!(budget.used(), 20);
        stream.give_back(5);
        assert_eq!(budget.used(), 15);
        stream.shrink(20);
        assert_eq!(budget.used(), 15);
        stream.shrink(10);
        assert_eq!(budget.used(), 10);
        drop(stream);
        assert_eq!(budget.used(), 0);
    }
}
