//! A call's metadata, and the path from an infer message to a response.

use std::sync::Arc;
use std::time::Duration;

use regex::Regex;
use tonic::Request;
use trireme_inference::{InferError, InferRequest, InferResponse, Lane, Parameters, TensorSpec, TraceParent};
use trireme_operations::{OperationRequest, TextOptions, Waits};
use trireme_protocol::grpc::wire::ModelInferRequest;
use trireme_protocol::grpc::{decode_infer_request, parse_model_version};
use trireme_server::RequestContext;
use trireme_server::budget::BytesPermit;
use trireme_server::http::body;

use super::deadline::Deadline;
use crate::caller::Caller;
use crate::forward;
use crate::handlers::{Handlers, Responses, Rows, SharedHandlers, Traced};

/// A call's metadata.
#[derive(Clone, Debug)]
pub struct RpcCall {
    /// When the client stops waiting.
    pub deadline: Option<Deadline>,
    /// What the listener knows of it. The id in its metadata (`x-request-id`) is that of its requests without one.
    context: Option<Arc<RequestContext>>,
    /// The client's W3C trace context.
    traceparent: Option<TraceParent>,
    /// Its requests' lane.
    lane: Lane,
    /// Metadata that models get as parameters.
    forwarded: Parameters,
}

/// The name in a request; `None` where the text is empty.
pub fn named(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

// === impl RpcCall ===

impl RpcCall {
    /// Reads a call's metadata. Entries that match `forward` become parameters for models.
    pub fn of<T>(request: &Request<T>, forward: Option<&Regex>) -> RpcCall {
        let mut forwarded = Parameters::new();
        forward::headers(request.metadata().as_ref(), forward, |_| false, &mut forwarded);
        forward::if_space(request.metadata().as_ref(), &mut forwarded);
        RpcCall {
            deadline: request.extensions().get().copied(),
            context: request.extensions().get().cloned(),
            traceparent: body::traceparent(request.metadata().as_ref()),
            lane: request.extensions().get().copied().unwrap_or_default(),
            forwarded,
        }
    }

    /// The id that the client has given; empty where it gave none.
    fn given_id(&self) -> String {
        self.context.as_ref().map_or_else(String::new, |context| context.given_id().to_owned())
    }

    /// Tells the listener which model is asked for.
    fn asks(&self, model: &str) {
        if let Some(context) = &self.context {
            context.asks(model.to_owned());
        }
    }

    /// A request for an operation on texts, as this call asks for it. It ends with the call, which its client or its deadline ends.
    pub fn operation(&self, model: Option<String>, options: TextOptions, permit: BytesPermit) -> OperationRequest {
        if let Some(model) = &model {
            self.asks(model);
        }
        OperationRequest {
            model,
            options,
            permit,
            parameters: self.forwarded.clone(),
            traceparent: self.traceparent.clone(),
            request_id: self.given_id(),
            waits: Waits { lane: self.lane, ..Waits::default() },
            route: Some("/tei.v1"),
        }
    }

    /// Decodes a request and runs it, for its one response; both are counted in `hold`. Dropping the future cancels it.
    pub async fn infer(
        &self,
        handlers: &Handlers,
        mut message: ModelInferRequest,
        permit: &BytesPermit,
    ) -> Result<InferResponse, InferError> {
        message.model_name = handlers.registry.catalog().own_name_or(message.model_name);
        let version = parse_model_version(&message.model_version)?;
        let (_, served) = handlers.find_model(&message.model_name, version)?;
        if served.config.decoupled {
            return Err(InferError::unsupported(
                "ModelInfer RPC doesn't support models with decoupled transaction policy",
            ));
        }
        let response = handlers.infer(self.decode(message, &served.inputs, "ModelInfer", permit)?).await?;
        permit.add(response.outputs.iter().map(|output| output.data().len() as u64).sum());
        Ok(response)
    }

    /// Decodes a request of a stream, counted in `hold`, and takes it into the pipeline; returns whether its model is decoupled.
    /// Dropping the responses cancels it.
    pub fn infer_stream(
        &self,
        handlers: &SharedHandlers,
        mut message: ModelInferRequest,
        permit: &BytesPermit,
    ) -> Result<(Responses, bool), InferError> {
        message.model_name = handlers.registry.catalog().own_name_or(message.model_name);
        let version = parse_model_version(&message.model_version)?;
        let (_, served) = handlers.find_model(&message.model_name, version)?;
        let request = self.decode(message, &served.inputs, "ModelStreamInfer", permit)?;
        Ok((handlers.infer_stream(request)?, served.config.decoupled))
    }

    fn decode(
        &self,
        message: ModelInferRequest,
        inputs: &[TensorSpec],
        method: &'static str,
        permit: &BytesPermit,
    ) -> Result<Traced, InferError> {
        self.asks(&message.model_name);
        let request = decode_infer_request(message, inputs)?;
        // Typed contents take more room in memory than on the wire.
        permit.cover(request.inputs.iter().map(|input| input.data.len() as u64).sum())?;
        let parameters = self.forwarded.clone().into_iter().chain(request.parameters).collect();
        let request = InferRequest { timeout: self.limit(request.timeout), parameters, ..request };
        let traceparent = self.traceparent.clone();
        Ok(Traced {
            request,
            given_id: self.given_id(),
            traceparent,
            caller: Caller::Grpc(method),
            waits: Waits { lane: self.lane, ..Waits::default() },
            rows: Rows::Configured,
            permit: permit.clone(),
            callers: Default::default(),
            embeds: false,
        })
    }

    /// The time for a request: its own timeout, or the call's remaining time if that is less.
    fn limit(&self, timeout: Option<Duration>) -> Option<Duration> {
        let remaining = self.deadline.map(Deadline::remaining);
        match (timeout, remaining) {
            (Some(timeout), Some(remaining)) => Some(timeout.min(remaining)),
            (timeout, remaining) => timeout.or(remaining),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_calls_deadline_lowers_a_requests_timeout() {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(9));
        let call = |deadline: Option<Duration>| RpcCall {
            deadline: deadline.map(|left| Deadline(tokio::time::Instant::now() + left)),
            context: None,
            traceparent: None,
            lane: Lane::Live,
            forwarded: Parameters::new(),
        };
        assert_eq!(call(Some(short)).limit(Some(long)), Some(short));
        assert_eq!(call(Some(long)).limit(Some(short)), Some(short));
        assert_eq!(call(Some(long)).limit(None), Some(long));
        assert_eq!(call(None).limit(Some(long)), Some(long));
        assert_eq!(call(None).limit(None), None);
        let call = call(Some(short));
        tokio::time::advance(long).await;
        assert_eq!(call.limit(Some(long)), Some(Duration::ZERO));
    }
}
