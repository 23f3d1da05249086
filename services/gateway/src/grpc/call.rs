//! A call's metadata, and the path from an infer message to a response.

use std::sync::Arc;
use std::time::Duration;

use regex::Regex;
use tokio::time::Instant;
use tonic::Request;
use trireme_inference::{InferError, InferRequest, InferResponse, Parameters, TensorSpec};
use trireme_operations::{OperationRequest, TextOptions};
use trireme_protocol::grpc::wire::ModelInferRequest;
use trireme_protocol::grpc::{decode_infer_request, parse_model_version};
use trireme_server::RequestContext;

use crate::forward;
use crate::handlers::{Handlers, Responses, SharedHandlers, Traced};

/// A call without its messages.
#[derive(Clone, Debug)]
pub struct RpcCall {
    /// The call. Its id is that of its requests without one.
    pub context: Arc<RequestContext>,
    /// When the client stops waiting.
    pub deadline: Option<Instant>,
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
        let context = RequestContext::of(request.extensions()).clone();
        RpcCall { deadline: context.deadline(), context, forwarded }
    }

    /// The call with one message of its stream, which is a request of its own.
    pub fn of_message(&self) -> RpcCall {
        RpcCall { context: self.context.of_message(), ..self.clone() }
    }

    /// A request for an operation on texts, as this call asks for it. It ends with the call, which its client or its deadline ends.
    pub fn operation(&self, model: Option<String>, options: TextOptions) -> OperationRequest {
        if let Some(model) = &model {
            self.context.asks(model.clone());
        }
        OperationRequest {
            model,
            options,
            context: self.context.clone(),
            parameters: self.forwarded.clone(),
            request_id: self.context.given_id().to_owned(),
        }
    }

    /// Decodes a request and runs it, for its one response; both are counted in the call's permit. Dropping the future cancels it.
    pub async fn infer(
        &self,
        handlers: &Handlers,
        mut message: ModelInferRequest,
    ) -> Result<InferResponse, InferError> {
        message.model_name = handlers.registry.catalog().own_name_or(message.model_name);
        let version = parse_model_version(&message.model_version)?;
        let (_, served) = handlers.find_model(&message.model_name, version)?;
        if served.config.decoupled {
            return Err(InferError::unsupported(
                "ModelInfer RPC doesn't support models with decoupled transaction policy",
            ));
        }
        let response = handlers.infer(self.decode(message, &served.inputs)?).await?;
        self.context.permit().add(response.outputs.iter().map(|output| output.data().len() as u64).sum());
        Ok(response)
    }

    /// Decodes a request of a stream and takes it into the pipeline; returns whether its model is decoupled. Dropping the responses
    /// cancels it.
    pub fn infer_stream(
        &self,
        handlers: &SharedHandlers,
        mut message: ModelInferRequest,
    ) -> Result<(Responses, bool), InferError> {
        message.model_name = handlers.registry.catalog().own_name_or(message.model_name);
        let version = parse_model_version(&message.model_version)?;
        let (_, served) = handlers.find_model(&message.model_name, version)?;
        let request = self.decode(message, &served.inputs)?;
        Ok((handlers.infer_stream(request)?, served.config.decoupled))
    }

    fn decode(&self, message: ModelInferRequest, inputs: &[TensorSpec]) -> Result<Traced, InferError> {
        self.context.asks(message.model_name.clone());
        let request = decode_infer_request(message, inputs)?;
        // Typed contents take more room in memory than on the wire.
        self.context.permit().cover(request.inputs.iter().map(|input| input.data.len() as u64).sum())?;
        let parameters = self.forwarded.clone().into_iter().chain(request.parameters).collect();
        let request = InferRequest { timeout: self.limit(request.timeout), parameters, ..request };
        Ok(Traced::new(request, self.context.clone()))
    }

    /// The time for a request: its own timeout, or the call's remaining time if that is less.
    fn limit(&self, timeout: Option<Duration>) -> Option<Duration> {
        let remaining = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match (timeout, remaining) {
            (Some(timeout), Some(remaining)) => Some(timeout.min(remaining)),
            (timeout, remaining) => timeout.or(remaining),
        }
    }
}

#[cfg(test)]
mod tests {
    use trireme_server::budget::Budget;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_calls_deadline_lowers_a_requests_timeout() {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(9));
        let call = |deadline: Option<Duration>| RpcCall {
            deadline: deadline.map(|left| Instant::now() + left),
            context: RequestContext::of_process(Budget::new(0).permit()),
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
