//! The responses to a request in the pipeline, made of the replies of its last stage.

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::Instrument;
use trireme_bus::Reply;
use trireme_inference::{InferError, InferResponse};
use trireme_model_repository::ExpectedAnswer;

use super::running::{Running, set_error};
use crate::dispatch::Exchange;
use crate::handlers::Handlers;
use crate::handlers::shared_memory::OutputParts;
use crate::registry::ServedModel;

/// The responses to one request.
pub struct Responses {
    pub(super) handlers: Arc<Handlers>,
    pub(super) request: Running,
    pub(super) exchange: Exchange,
    pub(super) outputs: OutputParts,
}

/// A response of several.
#[derive(Debug)]
pub struct Next {
    /// The response.
    pub response: InferResponse,
    /// No other one follows.
    pub last: bool,
    /// It has no outputs: all it says is that nothing follows.
    pub empty: bool,
}

impl Handlers {
    /// The next response of a request in the pipeline.
    pub(super) async fn next(
        &self,
        request: &mut Running,
        exchange: &mut Exchange,
    ) -> Option<Result<Next, InferError>> {
        let reply = exchange.next().await?.and_then(|reply| checked(request, reply));
        match &reply {
            Ok(reply) => request.counted.reply(reply),
            Err(error) => request.counted.failed(error),
        }
        let reply = reply.map_err(|error| request.error(error));
        let span = reply_span(request, &reply);
        let response = span.in_scope(|| reply.and_then(|reply| self.respond(request, reply)));
        request.ended();
        if let Err(error) = &response {
            set_error(&request.span, error);
        }
        Some(response)
    }

    fn respond(&self, request: &Running, reply: Reply) -> Result<Next, InferError> {
        let empty = is_end(&reply);
        let mut output = reply.outcome.map_err(|error| request.error(error))?;
        if !empty {
            if let Some(labels) = &request.label_scores {
                labels.fold(&mut output.tensors).map_err(|error| request.error(error))?;
            }
            if let Some(trace) = &request.trace {
                trace.responded(&reply.ledger, &output.tensors);
            }
            request.labels.classify(
                &request.model.name,
                request.rows.is_some(),
                &request.outputs,
                &mut output.tensors,
            )?;
        }
        let response = InferResponse {
            id: request.answered_id.clone(),
            model: request.model.clone(),
            parameters: output.parameters,
            outputs: output.tensors,
            shared: BTreeSet::new(),
            ledger: reply.ledger,
        };
        Ok(Next { response, last: reply.last, empty })
    }
}

/// The reply, if it is one to this request: its tensors, with the shapes that the client sees, are those of the model. All that reaches a
/// client comes through here.
fn checked(request: &Running, mut reply: Reply) -> Result<Reply, InferError> {
    let hops = reply.ledger.0.len();
    let fault = |error: InferError| {
        let worker = reply.ledger.0.last().map_or("unknown", |hop| hop.worker.as_str());
        tracing::warn!(model = %request.model, worker, %error, "a worker has sent a wrong reply");
        error
    };
    if hops > request.steps {
        return Err(fault(InferError::internal(format!(
            "the answer of model '{}' has a ledger of {hops} hops, expected {} at most, one for each step",
            request.model.name, request.steps
        ))));
    }
    let ServedModel { config, plan, .. } = request.served.as_ref();
    if config.decoupled && is_end(&reply) {
        return Ok(reply);
    }
    let Ok(output) = &mut reply.outcome else { return Ok(reply) };
    if plan.ensemble {
        let shaped = |output| plan.reshape_output(output).map(|output| config.fit_output(plan, output));
        let tensors = std::mem::take(&mut output.tensors).into_iter().map(shaped);
        output.tensors = tensors.collect::<Result<_, _>>()?;
    }
    if let Some(kept) = &request.kept {
        output.tensors = kept.named(std::mem::take(&mut output.tensors)).map_err(fault)?;
    }
    // As in Triton, user code may answer with other rows; not where rows are put together, or belong to the texts of an operation.
    let may_have_other_rows = config.decoupled || (request.by_user_code && request.rows_per_message.is_none());
    let expected = ExpectedAnswer {
        requested: &request.outputs,
        rows: request.rows.filter(|_| !may_have_other_rows),
        windows_of: request.kept.as_ref().map(|kept| kept.texts),
        dimensions: request.dimensions,
        in_parts: config.decoupled,
        by_user_code: request.by_user_code,
    };
    let checked = config.check_answer(&output.tensors, &expected).map_err(fault);
    checked.map(|()| reply)
}

/// Whether a reply only says that nothing follows: it has no tensors.
fn is_end(reply: &Reply) -> bool {
    reply.last && reply.outcome.as_ref().is_ok_and(|output| output.tensors.is_empty())
}

// === impl Responses ===

impl Responses {
    /// The next response, or why there is none; `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<Next, InferError>> {
        let span = self.request.span.clone();
        let next = self.handlers.next(&mut self.request, &mut self.exchange).instrument(span).await?;
        if let Ok(Next { response, .. }) = &next {
            self.request.meter_part(response);
        }
        let next = next.and_then(|mut next| {
            if !next.empty {
                next.response = self.request.with_spaces(next.response)?;
            }
            next.response = self.request.named(next.response);
            self.outputs.write(&mut next.response)?;
            Ok(next)
        });
        match &next {
            Ok(Next { last: true, .. }) => self.request.metered.answered(),
            Ok(_) => {}
            // Also one whose answer came and is refused here: of another space than was asked for, or too large for its region.
            Err(_) => self.request.metered.failed(),
        }
        Some(next)
    }
}

/// The span of a reply that has come in, until it is the client's response.
fn reply_span(request: &Running, reply: &Result<Reply, InferError>) -> tracing::Span {
    match reply {
        // Without a request's span it would begin a trace of its own.
        Ok(reply) if !request.span.is_disabled() => {
            tracing::info_span!(parent: &request.span, "reply", sequence = reply.sequence, last = reply.last)
        }
        _ => tracing::Span::none(),
    }
}
