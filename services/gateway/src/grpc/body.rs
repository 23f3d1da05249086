//! The bodies of calls on their way in: counted as they come, and not waited for without end.
//!
//! Invariants:
//! - A unary call's body may pause as one over HTTP may, up to its end. That of a stream may pause for as long as it likes
//!   between two messages, but not within one.
//! - Nothing of a unary call is decoded that still waits for the rest of its body: what is decoded takes more room.
//!
//! Not here: how large a message may be, and what it means (the gRPC library).

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use futures_util::stream;
use trireme_inference::InferError;
use trireme_protocol::grpc::status;

use crate::budget::{self, Hold, NoRoom};
use crate::pace::{Overdue, Pace};

/// How many bytes before each message say what it is.
const PREFIX: usize = 5;

/// A call's body on its way in.
struct CallBody {
    body: Body,
    hold: Hold,
    pace: Pace,
    /// Whether messages may follow one another.
    streams: bool,
    position: Position,
    /// The last piece of a unary call: it goes on when nothing follows.
    last: Option<Bytes>,
    ended: bool,
}

/// Where a body is in its sequence of messages.
#[derive(Debug, Default)]
struct Position {
    prefix: [u8; PREFIX],
    /// How much of a message's prefix is there.
    begun: usize,
    /// How much of its message is not.
    rest: usize,
}

/// Makes a call's body one that is counted in `hold`, and whose client may pause for `pause` at a time.
pub fn guard(body: Body, streams: bool, hold: &Hold, pause: Duration) -> Body {
    if body.is_end_stream() {
        return body;
    }
    // What is announced for all messages of a call together says nothing; each one's prefix does.
    let body = budget::count(body, 0, hold, |refusal| refused(refusal).into());
    let (hold, pace) = (hold.clone(), Pace::new(pause));
    let call = CallBody { body, hold, pace, streams, position: Position::default(), last: None, ended: false };
    Body::from_stream(stream::try_unfold(call, async |mut call| {
        Ok::<_, BoxError>(call.next().await?.map(|piece| (piece, call)))
    }))
}

fn refused(refusal: NoRoom) -> tonic::Status {
    status(&InferError::from(refusal))
}

fn too_late(overdue: Overdue) -> tonic::Status {
    status(&InferError::invalid_arg(format!("request could not be read: {overdue}")))
}

// === impl CallBody ===

impl CallBody {
    async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        loop {
            let piece = if self.ended { None } else { self.piece().await? };
            self.ended = piece.is_none();
            if self.streams || self.ended {
                return Ok(piece.or_else(|| self.last.take()));
            }
            if let Some(piece) = std::mem::replace(&mut self.last, piece) {
                return Ok(Some(piece));
            }
        }
    }

    /// What comes next, as it comes.
    async fn piece(&mut self) -> Result<Option<Bytes>, BoxError> {
        loop {
            let waits = !self.streams || self.position.is_within();
            let (body, pace) = (&mut self.body, &mut self.pace);
            let frame = poll_fn(|cx| {
                if let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) {
                    pace.arrived();
                    return Poll::Ready(Ok(frame));
                }
                match waits {
                    true => Poll::Ready(Err(ready!(pace.poll_overdue(cx)))),
                    false => Poll::Pending,
                }
            });
            let Some(frame) = frame.await.map_err(too_late)?.transpose()? else { return Ok(None) };
            let Ok(piece) = frame.into_data() else { continue };
            if self.position.pass(&piece) {
                self.pace.renew();
                self.hold.ask(self.position.rest as u64).map_err(refused)?;
            }
            return Ok(Some(piece));
        }
    }
}

// === impl Position ===

impl Position {
    /// Goes on past `piece`; says whether it ends in a message that began in it.
    fn pass(&mut self, mut piece: &[u8]) -> bool {
        let mut begins = false;
        while !piece.is_empty() {
            if self.rest > 0 {
                let passed = self.rest.min(piece.len());
                self.rest -= passed;
                piece = &piece[passed..];
                continue;
            }
            let passed = (PREFIX - self.begun).min(piece.len());
            self.prefix[self.begun..][..passed].copy_from_slice(&piece[..passed]);
            self.begun += passed;
            piece = &piece[passed..];
            if let (PREFIX, [_, length @ ..]) = (self.begun, self.prefix) {
                (self.begun, self.rest, begins) = (0, u32::from_be_bytes(length) as usize, true);
            }
        }
        begins && self.rest > 0
    }

    /// Whether something of a message is missing.
    fn is_within(&self) -> bool {
        self.begun > 0 || self.rest > 0
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::FutureExt;
    use futures_util::stream::StreamExt;
    use http_body_util::BodyExt;

    use super::*;
    use crate::budget::Budget;

    const PAUSE: Duration = Duration::from_secs(10);

    /// A message with its prefix.
    fn message(text: &[u8]) -> Vec<u8> {
        [&[0][..], &(text.len() as u32).to_be_bytes(), text].concat()
    }

    /// A body of these pieces that has not ended.
    fn open(pieces: Vec<Vec<u8>>) -> Body {
        let pieces = stream::iter(pieces.into_iter().map(|piece| Ok::<_, Infallible>(Bytes::from(piece))));
        Body::from_stream(pieces.chain(stream::pending()))
    }

    async fn next(body: &mut Body) -> Result<Bytes, String> {
        let frame = body.frame().await.expect("something comes");
        frame
            .map(|frame| frame.into_data().unwrap())
            .map_err(|error| tonic::Status::from_error(error.into()).to_string())
    }

    #[test]
    fn positions_are_known_however_bytes_are_cut() {
        let bytes = [message(b"one"), message(b""), message(b"three")].concat();
        let ends = [8, 13, 23];
        for size in 1..=bytes.len() {
            let (mut position, mut passed) = (Position::default(), 0);
            for piece in bytes.chunks(size) {
                position.pass(piece);
                passed += piece.len();
                assert_eq!(position.is_within(), !ends.contains(&passed), "{passed} bytes, {size} at a time");
            }
        }
        assert!(Position::default().pass(&bytes[..6]) && !Position::default().pass(&bytes[..8]));
    }

    #[tokio::test(start_paused = true)]
    async fn unary_calls_that_pause_for_too_long_end() {
        let budget = Budget::new(100);
        // Nothing, a part, and all but the end of the call.
        for (pieces, held) in [(vec![], 0), (vec![message(b"part")[..7].to_vec()], 7), (vec![message(b"whole")], 10)] {
            let hold = budget.hold();
            let mut body = guard(open(pieces), false, &hold, PAUSE);
            assert!(next(&mut body).now_or_never().is_none(), "nothing is decoded before the call is whole");
            assert_eq!(budget.used(), held);
            let error = next(&mut body).await.unwrap_err();
            assert!(error.contains("no data for 10s"), "{error}");
        }
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn streams_pause_between_messages_only() {
        let hold = Budget::new(100).hold();
        let mut body = guard(open(vec![message(b"one"), message(b"two")]), true, &hold, PAUSE);
        assert!(next(&mut body).await.is_ok() && next(&mut body).await.is_ok());
        assert!(tokio::time::timeout(PAUSE * 100, next(&mut body)).await.is_err(), "it may be silent");
        let mut body = guard(open(vec![message(b"one"), message(b"two")[..7].to_vec()]), true, &hold, PAUSE);
        assert!(next(&mut body).await.is_ok() && next(&mut body).await.is_ok());
        let error = next(&mut body).await.unwrap_err();
        assert!(error.contains("no data for 10s"), "{error}");
    }

    #[tokio::test]
    async fn a_message_for_which_there_is_no_room_is_refused_at_its_beginning() {
        let budget = Budget::new(100);
        let mut body = guard(open(vec![message(&[0; 101])[..6].to_vec()]), true, &budget.hold(), PAUSE);
        let error = next(&mut body).await.unwrap_err();
        assert!(error.contains("Exceeds maximum queue size"), "{error}");
        let whole = Body::from([message(&[1; 40]), message(&[2; 40])].concat());
        let body = guard(whole, true, &budget.hold(), PAUSE);
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), 90);
    }
}
