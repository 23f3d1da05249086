//! `ModelStreamInfer`: any number of requests on one call.
//!
//! Requests of a stream run side by side, at most [`MAX_IN_FLIGHT`] at a time. The gateway reads the next one when an earlier one
//! is answered, which the client sees as back-pressure. Models that are not decoupled are answered in the order of their
//! requests. Responses of decoupled models are sent as they are made, and those of several requests are interleaved. An error is
//! a response like any other and the stream goes on, unless the client asked for a status instead. Every response says whether it
//! is the last for its request.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Fuse};
use futures_util::stream::{self, BoxStream, FuturesOrdered, SelectAll, Stream, StreamExt, TryStreamExt};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};
use trireme_inference::InferError;
use trireme_protocol::grpc::wire::{ModelInferRequest, ModelStreamInferResponse};
use trireme_protocol::grpc::{
    Named, encode_stream_end, encode_stream_error, encode_stream_refusal, encode_stream_response, status,
    wants_empty_final,
};

use super::call::RpcCall;
use super::deadline;
use crate::handlers::{Responses, SharedHandlers};

/// Most requests of one stream that run at a time. Enough to fill the batches of several workers; a client that wants
/// more opens more streams.
const MAX_IN_FLIGHT: usize = 128;

/// How long a stream that was opened as the server stops may take to send its first request, before it counts as idle.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// How long a stopping server waits for a stream that had requests before: a request may be on its way, or is being inflated.
const ON_ITS_WAY: Duration = Duration::from_millis(200);

/// The key that asks for the first error to end the stream with its status.
const CLOSE_ON_ERROR: &str = "triton_grpc_error";

/// The responses of a stream.
pub type Replies = BoxStream<'static, Reply>;

type Reply = Result<ModelStreamInferResponse, Status>;

/// How a stream learns that the server stops.
struct Stop {
    raised: CancellationToken,
    /// Over when a stop has lasted so long that no more requests are taken, not even those that have arrived.
    lasted: Fuse<BoxFuture<'static, ()>>,
}

/// A stream and its requests in flight. Dropping it cancels the requests.
struct Session {
    handlers: SharedHandlers,
    call: RpcCall,
    close_on_error: bool,
    stop: Stop,
    /// The source of further requests; `None` after the last one.
    requests: Option<Streaming<ModelInferRequest>>,
    /// Whether it has had a request.
    begun: bool,
    /// The status that ends the stream once all requests are answered.
    end: Option<Status>,
    /// The answers of models that give a single response.
    ordered: FuturesOrdered<BoxFuture<'static, Reply>>,
    /// The responses of decoupled models.
    interleaved: SelectAll<Replies>,
}

/// Whether the first error shall end the stream.
pub fn closes_on_error(metadata: &MetadataMap) -> bool {
    metadata.get(CLOSE_ON_ERROR).is_some_and(|value| value == "true")
}

/// Answers the requests of a stream until the client sends no more, the call's deadline, or `stop`. Requests that were read by
/// then are answered first. Dropping the stream cancels the requests in flight.
pub fn answer(
    handlers: SharedHandlers,
    requests: Streaming<ModelInferRequest>,
    call: RpcCall,
    close_on_error: bool,
    stop: CancellationToken,
) -> Replies {
    let session = Session {
        handlers,
        call,
        close_on_error,
        stop: Stop::new(stop),
        requests: Some(requests),
        begun: false,
        end: None,
        ordered: FuturesOrdered::new(),
        interleaved: SelectAll::new(),
    };
    let replies = stream::unfold(Some(session), |session| async move {
        let mut session = session?;
        let reply = session.next().await?;
        let goes_on = reply.is_ok();
        Some((reply, goes_on.then_some(session)))
    });
    replies.boxed()
}

// === impl Stop ===

impl Stop {
    fn new(raised: CancellationToken) -> Stop {
        let late = raised.clone();
        let lasted = async move {
            late.cancelled().await;
            tokio::time::sleep(FIRST_REQUEST).await;
        };
        Stop { raised, lasted: lasted.boxed().fuse() }
    }
}

// === impl Session ===

impl Session {
    async fn next(&mut self) -> Option<Reply> {
        loop {
            let in_flight = self.ordered.len() + self.interleaved.len();
            let reads = self.requests.is_some() && in_flight < MAX_IN_FLIGHT;
            if in_flight == 0 && !reads {
                return self.end.take().map(Err);
            }
            tokio::select! {
                Some(reply) = self.ordered.next() => return Some(reply),
                Some(reply) = self.interleaved.next() => return Some(reply),
                message = read(&mut self.requests, self.begun, &self.call, &mut self.stop), if reads => match message {
                    Ok(Some(message)) => {
                        self.begun = true;
                        self.begin(message);
                    }
                    Ok(None) => self.requests = None,
                    Err(status) => {
                        self.requests = None;
                        self.end = Some(status);
                    }
                },
                // The last of those in flight had nothing more to say.
                else => {}
            }
        }
    }

    fn begin(&mut self, message: ModelInferRequest) {
        let named = Named::of(&message);
        let close_on_error = self.close_on_error;
        let wants_end = wants_empty_final(&message);
        // The bytes so far belong to this message, or to the beginning of the next one.
        let call = self.call.of_message();
        match call.infer_stream(&self.handlers, message) {
            Ok((responses, true)) => {
                let replies = all(responses, named, wants_end, close_on_error);
                let held = replies.inspect(move |_| {
                    let _ = &call;
                });
                self.interleaved.push(held.boxed());
            }
            Ok((mut responses, false)) => {
                let reply = async move {
                    let _call = call;
                    match responses.next().await {
                        Some(Ok(next)) => Ok(encode_stream_response(next.response, true)),
                        Some(Err(error)) => failed(named, error, close_on_error),
                        None => failed(named, InferError::internal("request ended without an answer"), close_on_error),
                    }
                };
                self.ordered.push_back(reply.boxed());
            }
            Err(error) => {
                let refusal = match close_on_error {
                    true => Err(status(&error)),
                    false => Ok(encode_stream_refusal(named, error)),
                };
                self.ordered.push_back(std::future::ready(refusal).boxed());
            }
        }
    }
}

/// The next request; `None` when the client sends no more. A server that stops still takes requests that have arrived, for as
/// long as it waits for the first request of a stream that has not `begun`: it has accepted the call. After that it takes no more
/// requests, not even those that have arrived: a client that never pauses would be cut off at the end of the exit timeout, with
/// its answers.
async fn read(
    requests: &mut Option<impl Stream<Item = Result<ModelInferRequest, Status>> + Unpin>,
    begun: bool,
    call: &RpcCall,
    stop: &mut Stop,
) -> Result<Option<ModelInferRequest>, Status> {
    let Some(requests) = requests else { return Ok(None) };
    let overdue = async {
        match call.deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    let stopping = || Err(status(&InferError::unavailable("Server is stopping")));
    let Stop { raised, lasted } = stop;
    let quiet = async {
        raised.cancelled().await;
        tokio::time::sleep(ON_ITS_WAY).await;
    };
    tokio::select! {
        biased;
        () = overdue => Err(deadline::exceeded()),
        () = lasted => stopping(),
        message = requests.try_next() => message,
        () = quiet, if begun => stopping(),
    }
}

/// Every response of a decoupled model. With `wants_end`, a final message is sent even if it has no outputs.
fn all(responses: Responses, named: Named, wants_end: bool, close_on_error: bool) -> Replies {
    let replies = stream::unfold(Some(responses), move |responses| {
        let named = named.clone();
        async move {
            let mut responses = responses?;
            match responses.next().await? {
                Ok(next) if next.empty => wants_end.then(|| (Ok(encode_stream_end(named)), None)),
                Ok(next) => {
                    let reply = encode_stream_response(next.response, next.last);
                    Some((Ok(reply), (!next.last).then_some(responses)))
                }
                Err(error) => Some((failed(named, error, close_on_error), None)),
            }
        }
    });
    replies.boxed()
}

/// The pipeline's error as a reply.
fn failed(named: Named, error: InferError, close_on_error: bool) -> Reply {
    match close_on_error {
        true => Err(status(&error)),
        false => Ok(encode_stream_error(named, error)),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Request;
    use trireme_server::RequestContext;
    use trireme_server::budget::Budget;

    use super::*;

    fn call() -> RpcCall {
        let mut request = Request::new(());
        request.extensions_mut().insert(RequestContext::of_process(Budget::new(0).permit()));
        RpcCall::of(&request, None)
    }

    /// The result of reading from a stream after the server's stop, if the client's request comes `later`.
    async fn read_when_stopped(begun: bool, later: Duration) -> Result<Option<ModelInferRequest>, Status> {
        let stop = CancellationToken::new();
        stop.cancel();
        let request = async move {
            if !later.is_zero() {
                tokio::time::sleep(later).await;
            }
            Ok(ModelInferRequest::default())
        };
        let call = call();
        read(&mut Some(stream::once(request).boxed()), begun, &call, &mut Stop::new(stop)).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_lets_a_stream_that_was_taken_in_last_send_its_request() {
        assert!(read_when_stopped(false, FIRST_REQUEST / 2).await.is_ok_and(|request| request.is_some()));
        assert!(read_when_stopped(false, FIRST_REQUEST * 2).await.is_err(), "an idle stream does not hold up the end");
        assert!(read_when_stopped(true, FIRST_REQUEST / 2).await.is_err(), "it has had its requests");
        assert!(read_when_stopped(true, Duration::ZERO).await.is_ok(), "this one has come");
        assert!(read_when_stopped(true, ON_ITS_WAY / 2).await.is_ok(), "this one was on its way");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_streams_that_always_have_another_request() {
        let raised = CancellationToken::new();
        let (call, mut stop) = (call(), Stop::new(raised.clone()));
        let mut requests = Some(stream::repeat_with(|| Ok(ModelInferRequest::default())));
        assert!(read(&mut requests, true, &call, &mut stop).await.is_ok());
        raised.cancel();
        let mut taken = 0;
        // As the session reads: a new future for each request, with a pause while the limit of requests is in flight.
        while read(&mut requests, true, &call, &mut stop).await.is_ok() {
            taken += 1;
            assert!(taken < 100, "the stop was not seen");
            tokio::time::sleep(FIRST_REQUEST / 10).await;
        }
        assert!(taken >= 10, "what has come is taken for a while, not only {taken}");
    }
}
