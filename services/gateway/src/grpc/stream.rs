//! `ModelStreamInfer`: any number of requests on one call.
//!
//! Requests run side by side, at most [`MAX_IN_FLIGHT`] of a stream; one more is not read until the first of them is
//! answered, which the client sees as back-pressure. Responses come in the order of their requests. An error is a response
//! like any other and the stream goes on, unless the client asked for a status instead. Every response is marked as the
//! last for its request.

use futures_util::stream::{self, BoxStream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};
use trireme_inference::InferError;
use trireme_protocol::grpc::wire::{ModelInferRequest, ModelStreamInferResponse};
use trireme_protocol::grpc::{encode_stream_error, encode_stream_response, status};

use super::call::{Call, Responses};
use super::deadline;
use crate::handlers::SharedHandlers;

/// Most requests of one stream that run at a time. Enough to fill the batches of several workers; a client that wants
/// more opens more streams.
const MAX_IN_FLIGHT: usize = 128;

/// The key that asks for the first error to end the stream with its status.
const CLOSE_ON_ERROR: &str = "triton_grpc_error";

/// The responses of a stream.
pub type Replies = BoxStream<'static, Result<ModelStreamInferResponse, Status>>;

/// Whether the first error shall end the stream.
pub fn closes_on_error(metadata: &MetadataMap) -> bool {
    metadata.get(CLOSE_ON_ERROR).is_some_and(|value| value == "true")
}

/// Answers the requests of a stream until the client has no more, the call's deadline, or `stop`. What was read by then is
/// answered first. Dropping the stream cancels what is in flight.
pub fn answer(
    handlers: SharedHandlers,
    requests: Streaming<ModelInferRequest>,
    call: Call,
    close_on_error: bool,
    stop: CancellationToken,
) -> Replies {
    let deadline = call.deadline;
    let requests = stream::unfold(Some(requests), move |requests| {
        let stop = stop.clone();
        async move {
            let mut requests = requests?;
            let overdue = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.0).await,
                    None => std::future::pending().await,
                }
            };
            let next = tokio::select! {
                biased;
                () = stop.cancelled() => Err(status(&InferError::unavailable("Server is stopping"))),
                () = overdue => Err(deadline::exceeded()),
                message = requests.message() => message,
            };
            match next {
                Ok(message) => Some((Ok(message?), Some(requests))),
                Err(status) => Some((Err(status), None)),
            }
        }
    });
    requests
        .map(move |message| {
            let (handlers, call) = (handlers.clone(), call.clone());
            async move {
                let message: ModelInferRequest = message?;
                let id = message.id.clone();
                match call.infer(&handlers, message, Responses::Many).await {
                    Ok(response) => Ok(encode_stream_response(response, true)),
                    Err(error) if close_on_error => Err(status(&error)),
                    Err(error) => Ok(encode_stream_error(id, error)),
                }
            }
        })
        .buffered(MAX_IN_FLIGHT)
        .boxed()
}
