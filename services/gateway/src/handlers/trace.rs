//! The trace extension: settings of all models and of single ones.

use trireme_inference::{InferError, shown};
use trireme_protocol::tracing::{TraceChanges, TraceMode, TraceSettings};

use super::Handlers;

impl Handlers {
    /// The trace settings of a model, or of all, and where traces go. Errors when there is no such model.
    pub fn trace_settings(&self, model: Option<&str>) -> Result<(TraceSettings, TraceMode<'_>), InferError> {
        self.check_traced_model(model)?;
        Ok((self.tracing.get(model), self.tracing.mode()))
    }

    /// Changes the trace settings of a model, or of all. Errors when there is no such model.
    pub fn change_trace_settings(&self, model: Option<&str>, changes: &TraceChanges) -> Result<(), InferError> {
        self.check_traced_model(model)?;
        self.tracing.change(model, changes)
    }

    fn check_traced_model(&self, model: Option<&str>) -> Result<(), InferError> {
        match model {
            Some(model) if self.registry.catalog().find(model, None).is_err() => {
                Err(InferError::invalid_arg(format!("Request for unknown model : {}", shown(model))))
            }
            _ => Ok(()),
        }
    }
}
