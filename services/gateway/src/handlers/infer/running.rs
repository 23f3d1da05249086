//! A request in the pipeline, as far as its responses depend on it, and its errors.

use std::sync::Arc;
use std::time::Duration;

use trireme_inference::{
    AskedSpaces, Cause, Equivalence, InferError, InferResponse, ModelKey, REQUEST_TIMEOUT, RequestedOutput, UnixMicros,
    shown,
};
use trireme_model_repository::OtherName;
use trireme_protocol::status::http_status;
use trireme_triton_compat::traces::OpenTrace;

use super::kept::KeptWindows;
use crate::dispatch::{EXPIRED, Turn};
use crate::handlers::metering::{Computed, Metered};
use crate::handlers::zero_shot::LabelScores;
use crate::registry::{Labels, ServedModel};
use crate::statistics::CountedRequest;
use crate::text_cache::Terms;

/// A request in the pipeline, as far as its responses depend on it.
pub struct Running {
    /// Its id in logs and errors.
    pub id: String,
    /// The id of its responses: the one in the request, or none.
    pub answered_id: String,
    pub model: ModelKey,
    pub outputs: Vec<RequestedOutput>,
    /// The output that its client knows by another name.
    pub other_name: Option<OtherName>,
    /// The model as it was when the request was sent.
    pub served: Arc<ServedModel>,
    /// The rows of the request, where its model batches.
    pub rows: Option<i64>,
    /// The rows that count as its owner's usage.
    pub counted_rows: u64,
    /// The rows of those that the pipeline computes.
    pub computed_rows: u64,
    /// The terms of its texts, where the text cache looks them up.
    pub texts: Option<Terms>,
    /// Where its answer keeps the rows of all windows of its texts.
    pub kept: Option<KeptWindows>,
    /// Its parameter `dimensions`, which cuts embeddings.
    pub dimensions: Option<u64>,
    /// The steps of its route.
    pub steps: usize,
    /// Whether code of a model's author makes its outputs.
    pub by_user_code: bool,
    pub labels: Arc<Labels>,
    /// How its scores become those of the labels that it brought.
    pub label_scores: Option<LabelScores>,
    /// The request's part of its sequence, if it belongs to a sequence and has not been sent.
    pub turn: Option<Turn>,
    /// The most rows of a message, where the request may travel as several.
    pub rows_per_message: Option<u32>,
    /// How long it waits for room in a full queue.
    pub patience: Duration,
    pub limit: Limit,
    pub counted: CountedRequest,
    /// The request in the limits and the usage of its owner.
    pub metered: Metered,
    pub span: tracing::Span,
    /// Where it is written to a file of traces.
    pub trace: Option<Arc<OpenTrace>>,
    /// The spaces of which its answer has to have one.
    pub spaces: Option<AskedSpaces>,
    /// The known equivalences of its answer's space.
    pub equivalences: Vec<Equivalence>,
}

/// Most bytes of an error's text.
const LONGEST_ERROR: usize = 4096;

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub time: Duration,
    /// Whether the client has set it; else it is the gateway's default.
    pub is_own: bool,
    pub deadline: UnixMicros,
}

// === impl Limit ===

impl Limit {
    /// Names the limit in an error that it is the reason for.
    fn name(&self, mut error: InferError) -> InferError {
        if error.message == EXPIRED && self.deadline <= UnixMicros::now() {
            let time = self.time.as_millis();
            error.message += &match self.is_own {
                true => format!(": no answer within the {time} ms that the client waits"),
                false => format!(
                    ": no answer within {time} ms, the gateway's --default-timeout-ms; '{REQUEST_TIMEOUT}' asks for another limit"
                ),
            };
        }
        error
    }
}

// === impl Running ===

impl Running {
    /// An error as its client gets it. Its text may be a worker's, so it is no longer than the metadata of gRPC may be.
    pub fn error(&self, error: InferError) -> InferError {
        let error = with_id(self.limit.name(error), &self.id);
        InferError { message: bounded(error.message), ..error }
    }

    /// A response that tells which spaces its own equals, if it is of a space that the request asks for. Also one of the response cache: another
    /// request may have begun it.
    pub fn with_spaces(&self, mut response: InferResponse) -> Result<InferResponse, InferError> {
        response.ledger.tell_equivalent(&self.equivalences);
        let Some(asked) = &self.spaces else { return Ok(response) };
        match asked.check_answer(&self.model.name, &response.ledger) {
            Ok(()) => Ok(response),
            Err(error) => {
                set_error(&self.span, &error);
                Err(self.error(error))
            }
        }
    }

    /// A response with the names that its client knows.
    pub fn named(&self, mut response: InferResponse) -> InferResponse {
        if let Some(name) = &self.other_name {
            name.give(&mut response);
        }
        response
    }

    /// Counts its one answer.
    pub fn meter(&mut self, answer: &Result<InferResponse, InferError>) {
        match answer {
            Ok(response) => {
                self.meter_part(response);
                self.metered.answered();
            }
            Err(_) => self.metered.failed(),
        }
    }

    /// Notes what a part of its answer tells.
    pub fn meter_part(&mut self, response: &InferResponse) {
        let computed = self.computed_rows;
        let messages = self.rows_per_message.map_or(1, |most| computed.div_ceil(most.max(1).into()));
        self.metered.part(&response.ledger, self.counted_rows, Computed { rows: computed, messages });
    }

    /// The pipeline computes so many of its rows: the others are there.
    pub fn compute_rows(&mut self, rows: u64) {
        self.rows = self.rows.map(|_| i64::try_from(rows).unwrap_or(i64::MAX));
        self.computed_rows = rows;
        self.counted.compute_rows(rows);
    }

    /// Notes in its trace that nothing more is done for it, so far.
    pub fn ended(&self) {
        if let Some(trace) = &self.trace {
            trace.ended();
        }
    }
}

/// The beginning of a text that is too long for an error, with a mark at its end.
fn bounded(mut text: String) -> String {
    if text.len() > LONGEST_ERROR {
        let end = (0..=LONGEST_ERROR).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
        text.truncate(end);
        text.push_str(" … (cut here: the log has the whole error)");
    }
    text
}

/// Notes the error of a request in its span. As OpenTelemetry has it, what the client has to mend is no failure of the server.
pub fn set_error(span: &tracing::Span, error: &InferError) {
    let is_servers_fault = http_status(error) >= 500;
    trireme_telemetry::set_error(span, format!("{:?}", error.code), &error.message, is_servers_fault);
}

/// Errors of the core carry the request's id, as Triton's do; those that a model's code makes, and those about sequences, do not.
pub fn with_id(mut error: InferError, id: &str) -> InferError {
    if error.cause != Some(Cause::Sequence) && !error.of_model && !error.message.starts_with("[request id: ") {
        let id = if id.is_empty() { "<id_unknown>" } else { id };
        error.message = format!("[request id: {}] {}", shown(id), error.message);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workers_error_is_no_longer_than_metadata_may_be() {
        assert_eq!(bounded("short".to_owned()), "short");
        let cut = bounded("é".repeat(1 << 20));
        assert!(cut.len() < LONGEST_ERROR + 100 && cut.ends_with("(cut here: the log has the whole error)"), "{cut}");
    }
}
