//! The logging extension's settings on the wire.

use bytes::Bytes;
use trireme_inference::InferError;

use crate::json::{self, Writer};

/// The log settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Whether information is logged.
    pub info: bool,
    /// Whether warnings are logged.
    pub warning: bool,
    /// Whether errors are logged.
    pub error: bool,
    /// How much more is logged; 0 means nothing.
    pub verbose_level: u32,
    /// `default` or `ISO8601`.
    pub format: String,
}

/// Applies the changes in a request's body to `settings`. Absent or null settings stay as they are.
pub fn decode_log_settings(mut settings: LogSettings, body: &[u8]) -> Result<LogSettings, InferError> {
    let document = json::parse(body)?;
    let fields = ["log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"];
    let given = document.pick(fields).map(|value| value.filter(|value| !matches!(value, json::Value::Null)));
    let [file, info, warning, error, verbose_level, format] = given;
    if file.is_some() {
        return Err(InferError::unsupported("log file location can not be updated through network protocol"));
    }
    if let Some(info) = info {
        settings.info = info.as_bool()?;
    }
    if let Some(warning) = warning {
        settings.warning = warning.as_bool()?;
    }
    if let Some(error) = error {
        settings.error = error.as_bool()?;
    }
    if let Some(level) = verbose_level {
        settings.verbose_level = u32::try_from(level.as_u64()?).unwrap_or(u32::MAX);
    }
    if let Some(format) = format {
        let format = format.as_text()?;
        if !["default", "ISO8601"].contains(&&*format) {
            return Err(InferError::unavailable(format!("invalid argument for --log_format, got: {format}")));
        }
        settings.format = format.into_owned();
    }
    Ok(settings)
}

/// The answer to every logging request: the present settings. Logs go to standard error, never to a file.
pub fn encode_log_settings(settings: &LogSettings) -> Bytes {
    let mut w = Writer::default();
    w.object(|w| {
        w.name("log_file").string("");
        w.name("log_info").bool(settings.info);
        w.name("log_warning").bool(settings.warning);
        w.name("log_error").bool(settings.error);
        w.name("log_verbose_level").integer(settings.verbose_level);
        w.name("log_format").string(&settings.format);
    });
    w.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trireme_inference::ErrorCode;

    fn settings() -> LogSettings {
        LogSettings { info: true, warning: true, error: true, verbose_level: 0, format: "default".to_owned() }
    }

    #[test]
    fn what_is_not_given_stays() {
        assert_eq!(decode_log_settings(settings(), b"{}"), Ok(settings()));
        let body = br#"{"log_info":false,"log_verbose_level":2,"log_warning":null,"log_format":"ISO8601"}"#;
        let changed = LogSettings { info: false, verbose_level: 2, format: "ISO8601".to_owned(), ..settings() };
        assert_eq!(decode_log_settings(settings(), body), Ok(changed.clone()));
        assert_eq!(
            encode_log_settings(&changed),
            concat!(
                r#"{"log_file":"","log_info":false,"log_warning":true,"log_error":true,"#,
                r#""log_verbose_level":2,"log_format":"ISO8601"}"#
            )
        );
    }

    #[test]
    fn faulty_settings_are_refused_in_tritons_words() {
        let table = [
            (
                r#"{"log_file":"x"}"#,
                ErrorCode::Unsupported,
                "log file location can not be updated through network protocol",
            ),
            (r#"{"log_info":1}"#, ErrorCode::Internal, "attempt to access JSON non-boolean as boolean"),
            (r#"{"log_verbose_level":-1}"#, ErrorCode::Internal, "non-unsigned-integer as unsigned-integer"),
            (r#"{"log_format":"x"}"#, ErrorCode::Unavailable, "invalid argument for --log_format, got: x"),
            ("", ErrorCode::Internal, "The document is empty."),
        ];
        for (body, code, message) in table {
            let error = decode_log_settings(settings(), body.as_bytes()).unwrap_err();
            assert_eq!(error.code, code, "{body}");
            assert!(error.message.contains(message), "{error}");
        }
    }
}
