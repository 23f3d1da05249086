//! The bodies of calls on their way in: their bytes are counted, their pauses limited, and their messages decompressed.
//!
//! Invariants:
//! - A unary call's body may pause as a body over HTTP may, up to its end. A stream's body may pause for any time between two
//!   messages, but not within one.
//! - Decompressed bytes are counted while a message is decompressed. The gRPC library would decompress it uncounted, to any size,
//!   on a thread that other calls need.
//! - A unary call is decoded only when its whole body is there, because a decoded message takes more room.
//!
//! Not here: the largest size of a message, and its decoding (the gRPC library).

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body::Frame;
use tonic::Status;
use trireme_inference::{Cause, InferError};
use trireme_protocol::grpc::status;
use trireme_server::body::{InflateError, Pieces, inflate_in_pieces};
use trireme_server::body::{Overdue, ReadTimeout, size};
use trireme_server::budget::{self, BytesPermit, NoRoom};

use super::cost::Cost;

/// The bytes before each message: whether it is coded, and its length.
const PREFIX: usize = 5;
/// Memory that a message may take beside its bytes without a place in the budget.
const SMALL: u64 = 1 << 20;
/// The first byte of the prefix of a coded message.
const CODED: u8 = 1;

/// A call's body on its way in.
struct CallBody {
    body: Body,
    permit: BytesPermit,
    pace: ReadTimeout,
    /// Whether messages may follow one another.
    streams: bool,
    position: Position,
    coded: Option<Coded>,
    /// Memory that messages take once they are decoded, and the most for one message.
    cost: Cost,
    largest: usize,
    /// The last piece of a unary call: it goes on when nothing follows.
    last: Option<Bytes>,
    ended: bool,
}

/// The received part of a body whose messages may be coded.
#[derive(Debug, Default)]
struct Coded {
    /// The bytes up to a whole message.
    buffer: BytesMut,
    /// The pieces of the decompressed message, without its prefix.
    made: Option<Pieces>,
    /// The most bytes of a decompressed message.
    largest: usize,
}

/// How a call's body is read.
pub struct Rules {
    /// Whether messages may follow one another.
    pub streams: bool,
    /// Whether messages may have a coding that is taken off here.
    pub coded: bool,
    /// Most bytes of a message.
    pub largest: usize,
    /// Longest pause of a client at a time.
    pub pause: Duration,
}

/// The position within a body's sequence of messages.
#[derive(Debug, Default)]
struct Position {
    prefix: [u8; PREFIX],
    /// How many bytes of a message's prefix have come.
    begun: usize,
    /// How many bytes of its message are missing.
    rest: usize,
}

/// Wraps a call's body: it is counted in `hold` and read by these rules.
pub fn guard(body: Body, rules: Rules, permit: &BytesPermit) -> Body {
    if body.is_end_stream() {
        return body;
    }
    // Nothing is announced for the call as a whole: each message's prefix announces the message.
    let body = budget::count(body, 0, permit, |refusal| refused(refusal).into());
    let call = CallBody {
        body,
        permit: permit.clone(),
        pace: ReadTimeout::new(rules.pause),
        streams: rules.streams,
        position: Position::default(),
        cost: Cost::default(),
        largest: rules.largest,
        coded: rules.coded.then(|| Coded { largest: rules.largest, ..Coded::default() }),
        last: None,
        ended: false,
    };
    let next = async |mut call: CallBody| Ok::<_, BoxError>(call.next().await?.map(|piece| (piece, call)));
    Body::from_stream(stream::try_unfold(call, next))
}

fn refused(refusal: NoRoom) -> Status {
    status(&InferError::from(refusal))
}

fn too_large(bytes: u64) -> Status {
    Status::resource_exhausted(format!(
        "the message takes {bytes} bytes or more once it is decoded, which is more than the server has for one request: send large \
         tensors in raw_input_contents"
    ))
}

fn too_late(overdue: Overdue) -> Status {
    status(&InferError::invalid_arg(format!("request could not be read: {overdue}")))
}

fn not_inflated(error: InflateError) -> Status {
    status(&match error {
        InflateError::NoRoom(refusal) => refusal.into(),
        InflateError::Crowded => InferError::unavailable(error.to_string()).because(Cause::QueueFull),
        InflateError::NoMemory(_) => InferError::unavailable(error.to_string()),
        error => InferError::invalid_arg(format!("request could not be decompressed: {error}")),
    })
}

// === impl CallBody ===

impl CallBody {
    /// The next piece for the decoder. Of a unary call the last piece is held back until the body ends.
    async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        loop {
            let Some(piece) = self.decoded().await? else { return Ok(self.last.take()) };
            // Before the decoder has all of a message.
            let bytes = self.cost.pass(&piece);
            let beside = bytes.saturating_sub(SMALL);
            if beside > self.largest as u64 || self.permit.exceeds(beside) {
                return Err(too_large(bytes).into());
            }
            self.permit.ask(beside).map_err(refused)?;
            if self.streams {
                return Ok(Some(piece));
            }
            if let Some(before) = self.last.replace(piece) {
                return Ok(Some(before));
            }
        }
    }

    /// The next piece; coded messages are decompressed once they are whole.
    async fn decoded(&mut self) -> Result<Option<Bytes>, BoxError> {
        loop {
            let Some(coded) = &mut self.coded else { return self.piece().await };
            if let Some(made) = &mut coded.made {
                match made.next().await {
                    Some(piece) => return Ok(Some(piece.map_err(not_inflated)?)),
                    None => coded.made = None,
                }
            }
            match coded.whole() {
                Some(mut message) if message[0] == CODED => {
                    let (largest, size) = (coded.largest, message.len() as u64);
                    let coding = message.split_off(PREFIX);
                    // In pieces, because the decoder has a buffer for the whole of it.
                    let (length, made) =
                        inflate_in_pieces(coding, largest, &self.permit).await.map_err(not_inflated)?;
                    self.permit.give_back(size);
                    let length = u32::try_from(length).unwrap_or(u32::MAX);
                    coded.made = Some(made);
                    return Ok(Some([&[0][..], &length.to_be_bytes()].concat().into()));
                }
                Some(message) => return Ok(Some(message)),
                None => {}
            }
            match self.piece().await? {
                Some(piece) => self.coded.as_mut().map(|coded| coded.buffer.extend_from_slice(&piece)),
                // The message is cut off, which the decoder reports.
                None => {
                    return Ok(self.coded.take().map(|coded| coded.buffer.freeze()).filter(|rest| !rest.is_empty()));
                }
            };
        }
    }

    /// The next piece as it arrives.
    async fn piece(&mut self) -> Result<Option<Bytes>, BoxError> {
        while !self.ended {
            let waits = !self.streams || self.position.is_within();
            let (body, pace) = (&mut self.body, &mut self.pace);
            let frame = poll_fn(|cx| {
                if let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) {
                    pace.arrived(size(&frame));
                    return Poll::Ready(Ok(frame));
                }
                match waits {
                    true => Poll::Ready(Err(ready!(pace.poll_overdue(cx)))),
                    false => Poll::Pending,
                }
            });
            let frame = frame.await.map_err(too_late)?.transpose()?;
            self.ended = frame.is_none();
            let Some(Ok(piece)) = frame.map(Frame::into_data) else { continue };
            if self.position.pass(&piece) {
                self.pace.renew();
                self.permit.ask(self.position.rest as u64).map_err(refused)?;
            }
            return Ok(Some(piece));
        }
        Ok(None)
    }
}

// === impl Coded ===

impl Coded {
    /// The next message with its prefix, if it is there.
    fn whole(&mut self) -> Option<Bytes> {
        let [_, length @ ..] = *self.buffer.first_chunk::<PREFIX>()?;
        let length = u32::from_be_bytes(length) as usize;
        if length > self.largest {
            // The decoder refuses it by its length, as long as the prefix does not call it coded.
            self.buffer[0] = 0;
            return Some(self.buffer.split().freeze());
        }
        (self.buffer.len() - PREFIX >= length).then(|| self.buffer.split_to(PREFIX + length).freeze())
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
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::FutureExt;
    use futures_util::stream::StreamExt;
    use http_body_util::BodyExt;

    use super::*;
    use trireme_server::budget::Budget;

    const PAUSE: Duration = Duration::from_secs(10);

    /// A message with its prefix.
    fn message(text: &[u8]) -> Vec<u8> {
        [&[0][..], &(text.len() as u32).to_be_bytes(), text].concat()
    }

    fn rules(streams: bool) -> Rules {
        Rules { streams, coded: false, largest: 1000, pause: PAUSE }
    }

    /// A message with its prefix, coded.
    fn coded(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        let mut message = message(&encoder.finish().unwrap());
        message[0] = CODED;
        message
    }

    /// A body of these pieces that has not ended.
    fn open(pieces: Vec<Vec<u8>>) -> Body {
        let pieces = stream::iter(pieces.into_iter().map(|piece| Ok::<_, Infallible>(Bytes::from(piece))));
        Body::from_stream(pieces.chain(stream::pending()))
    }

    async fn next(body: &mut Body) -> Result<Bytes, String> {
        let frame = body.frame().await.expect("something comes");
        frame.map(|frame| frame.into_data().unwrap()).map_err(|error| Status::from_error(error.into()).to_string())
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
            let permit = budget.permit();
            let mut body = guard(open(pieces), rules(false), &permit);
            assert!(next(&mut body).now_or_never().is_none(), "nothing is decoded before the call is whole");
            assert_eq!(budget.used(), held);
            let error = next(&mut body).await.unwrap_err();
            assert!(error.contains("no data for 10s"), "{error}");
        }
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn streams_pause_between_messages_only() {
        let permit = Budget::new(100).permit();
        let mut body = guard(open(vec![message(b"one"), message(b"two")]), rules(true), &permit);
        assert!(next(&mut body).await.is_ok() && next(&mut body).await.is_ok());
        assert!(tokio::time::timeout(PAUSE * 100, next(&mut body)).await.is_err(), "it may be silent");
        let mut body = guard(open(vec![message(b"one"), message(b"two")[..7].to_vec()]), rules(true), &permit);
        assert!(next(&mut body).await.is_ok() && next(&mut body).await.is_ok());
        let error = next(&mut body).await.unwrap_err();
        assert!(error.contains("no data for 10s"), "{error}");
    }

    #[tokio::test]
    async fn a_message_for_which_there_is_no_room_is_refused_at_its_beginning() {
        let budget = Budget::new(100);
        let mut body = guard(open(vec![message(&[0; 101])[..6].to_vec()]), rules(true), &budget.permit());
        let error = next(&mut body).await.unwrap_err();
        assert!(error.contains("Exceeds maximum queue size"), "{error}");
        let whole = Body::from([message(&[1; 40]), message(&[2; 40])].concat());
        let body = guard(whole, rules(true), &budget.permit());
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), 90);
    }

    #[tokio::test]
    async fn messages_lose_their_coding_however_they_are_cut() {
        let (plain, long) = (message(b"plain"), vec![7; 900]);
        let bytes = [coded(b"one"), plain.clone(), coded(&long), coded(b"")].concat();
        let expected = [message(b"one"), plain, message(&long), message(b"")].concat();
        for (size, streams) in [1, 2, 3, 7, bytes.len()].into_iter().flat_map(|size| [(size, true), (size, false)]) {
            let permit = Budget::new(10_000).permit();
            let pieces: Vec<_> =
                bytes.chunks(size).map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece))).collect();
            let body = Body::from_stream(stream::iter(pieces));
            let body = guard(body, Rules { coded: true, ..rules(streams) }, &permit);
            assert_eq!(body.collect().await.unwrap().to_bytes(), expected, "{size} at a time");
        }
        let cut = Body::from(bytes[..bytes.len() - 1].to_vec());
        let cut =
            guard(cut, Rules { coded: true, ..rules(true) }, &Budget::new(10_000).permit()).collect().await.unwrap();
        assert_eq!(cut.to_bytes()[..expected.len() - 5], expected[..expected.len() - 5], "the rest is for the decoder");
    }

    /// 20 000 inputs of two bytes each, which become structs.
    #[tokio::test]
    async fn what_a_message_becomes_is_counted_before_it_is_decoded() {
        let (small, large) = (message(&[0x2a, 0].repeat(1000)), message(&[0x2a, 0].repeat(20_000)));
        let budget = Budget::new(2 << 20);
        let rules = || Rules { largest: 1 << 30, ..rules(false) };
        let mut body = guard(Body::from(large), rules(), &budget.permit());
        let error = next(&mut body).await.unwrap_err();
        assert!(error.contains("once it is decoded"), "{error}");
        let body = guard(Body::from(small), rules(), &budget.permit());
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), 2005);
    }

    /// A small message that stands for a large one is refused before that is there.
    #[tokio::test]
    async fn what_a_coding_stands_for_is_counted() {
        let budget = Budget::new(200_000);
        let rules = |largest| Rules { coded: true, largest, ..rules(false) };
        let held = budget.permit();
        let body = guard(Body::from(coded(&[0; 150_000])), rules(1 << 20), &held);
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), PREFIX + 150_000);
        assert_eq!(budget.used(), 150_000, "what it stands for, and no more what it was");
        let error =
            next(&mut guard(Body::from(coded(&[0; 150_000])), rules(1 << 20), &budget.permit())).await.unwrap_err();
        assert!(error.contains("Exceeds maximum queue size"), "{error}");
        let error = next(&mut guard(Body::from(coded(&[0; 5000])), rules(4999), &budget.permit())).await.unwrap_err();
        assert!(error.contains("it expands to more than 4999 bytes"), "{error}");
        drop(held);
        assert_eq!(budget.used(), 0);
    }
}
