//! The logging extension: the log levels of all processes, changed while they run.

use trireme_inference::InferError;
use trireme_protocol::logging::LogSettings;
use trireme_telemetry::LogLevels;

use super::Handlers;

impl Handlers {
    /// The current log settings.
    pub fn log_settings(&self) -> LogSettings {
        let LogLevels { info, warning, error, verbose_level } = trireme_telemetry::log_levels();
        LogSettings { info, warning, error, verbose_level, format: self.log_format.lock().to_owned() }
    }

    /// Applies `settings` in every process that the bus reaches. The format is only kept for later reads: log lines have ISO 8601
    /// times in any case.
    pub async fn set_log_settings(&self, settings: LogSettings) -> Result<(), InferError> {
        let LogSettings { info, warning, error, verbose_level, format } = settings;
        let levels = LogLevels { info, warning, error, verbose_level };
        trireme_telemetry::set_log_levels(levels)
            .map_err(|error| InferError::internal(format!("log settings could not be changed: {error}")))?;
        self.collector.publish_log_levels(levels).await;
        *self.log_format.lock() = if format == "ISO8601" { "ISO8601" } else { "default" };
        Ok(())
    }
}
