//! Inference: from a decoded request to its response.

use std::sync::Arc;

use tracing::Instrument;
use trireme_bus::{Answer, WorkMessage};
use trireme_inference::{InferError, InferRequest, InferResponse, Ledger, ModelKey, UnixMicros};

use super::Handlers;
use crate::registry::ServedModel;

/// A request with what its transport said about tracing.
#[derive(Debug)]
pub struct Traced {
    /// The request.
    pub request: InferRequest,
    /// The client's W3C `traceparent`.
    pub traceparent: Option<String>,
}

impl Handlers {
    /// The model version that a request for `model` runs on.
    pub fn find_model(&self, model: &str, version: Option<i64>) -> Result<(i64, Arc<ServedModel>), InferError> {
        self.registry.catalog().find(model, version).map(|(version, served)| (version, served.clone()))
    }

    /// Runs a request through the pipeline. Dropping the future cancels the request in every stage.
    pub async fn infer(&self, traced: Traced) -> Result<InferResponse, InferError> {
        if traced.traceparent.is_none() && !self.tracing.samples(&traced.request.model) {
            // Said to the stages too, which would begin a trace of their own.
            return self.run(traced.request, Some(trireme_telemetry::not_sampled())).await;
        }
        let span = tracing::info_span!("infer", model = traced.request.model, id = traced.request.id);
        if let Some(traceparent) = &traced.traceparent {
            trireme_telemetry::set_parent(&span, traceparent);
        }
        let traceparent = trireme_telemetry::traceparent(&span).or(traced.traceparent);
        self.run(traced.request, traceparent).instrument(span).await
    }

    async fn run(&self, request: InferRequest, traceparent: Option<String>) -> Result<InferResponse, InferError> {
        let catalog = self.registry.catalog();
        let (version, served) = catalog.find(&request.model, request.version)?;
        served.config.check_outputs(&request.outputs, &request.id)?;
        let tensors = served.config.admit(&request.id, request.inputs)?;

        let inputs: Vec<&str> = tensors.iter().map(|tensor| tensor.name()).collect();
        let outputs: Vec<&str> = request.outputs.iter().map(|output| output.name.as_str()).collect();
        let resolve = |model: &str, version| catalog.find(model, version).map(|(version, _)| version);
        let route = served.plan.route(version, &outputs, &inputs, resolve)?;

        let now = UnixMicros::now();
        let message = WorkMessage {
            request_id: self.dispatcher.request_id(),
            gateway: self.dispatcher.gateway().to_owned(),
            deadline: now.after(request.timeout.unwrap_or(self.default_timeout)),
            priority: request.priority,
            traceparent,
            client_id: request.id.clone(),
            sent_at: now,
            route,
            tensors,
            parameters: Arc::new(request.parameters),
            ledger: Ledger::default(),
            answer: Answer::Whole,
        };
        let reply = self.dispatcher.send(message).await.map_err(|error| with_id(error, &request.id))?;
        let mut output = reply.outcome.map_err(|error| with_id(error, &request.id))?;
        let batched = served.config.max_batch_size > 0;
        self.labels.classify(&request.model, batched, &request.outputs, &mut output.tensors)?;
        Ok(InferResponse {
            id: request.id,
            model: ModelKey { name: request.model, version },
            parameters: output.parameters,
            outputs: output.tensors,
            ledger: reply.ledger,
        })
    }
}

/// Errors of the core carry the request's id, as Triton's do.
fn with_id(mut error: InferError, id: &str) -> InferError {
    if !error.message.starts_with("[request id: ") {
        let id = if id.is_empty() { "<id_unknown>" } else { id };
        error.message = format!("[request id: {id}] {}", error.message);
    }
    error
}
