//! `TraceSetting` and `LogSettings`: one call both changes and shows the settings. Without settings it only shows them.

use trireme_inference::InferError;
use trireme_protocol::grpc;
use trireme_protocol::grpc::wire::{
    LogSettingsRequest, LogSettingsResponse, TraceSettingRequest, TraceSettingResponse,
};

use super::call::named;
use crate::handlers::Handlers;

/// Changes and shows the trace settings of a model, or of all.
pub fn trace(handlers: &Handlers, request: &TraceSettingRequest) -> Result<TraceSettingResponse, InferError> {
    let model = named(&request.model_name);
    if !request.settings.is_empty() {
        handlers.change_trace_settings(model, &grpc::decode_trace_changes(&request.settings)?)?;
    }
    let (settings, mode) = handlers.trace_settings(model)?;
    Ok(grpc::encode_trace_settings(&settings, mode))
}

/// Changes and shows the log settings.
pub async fn log(handlers: &Handlers, request: LogSettingsRequest) -> Result<LogSettingsResponse, InferError> {
    if !request.settings.is_empty() {
        handlers.set_log_settings(grpc::decode_log_settings(handlers.log_settings(), request.settings)?).await?;
    }
    Ok(grpc::encode_log_settings(handlers.log_settings()))
}
