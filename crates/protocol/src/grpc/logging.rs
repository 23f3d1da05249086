//! The logging extension's messages.

use std::collections::BTreeMap;

use trireme_inference::InferError;

use super::wire::LogSettingsResponse;
use super::wire::log_settings_request::SettingValue;
use super::wire::log_settings_request::setting_value::ParameterChoice::{BoolParam, StringParam, Uint32Param};
use super::wire::log_settings_response::SettingValue as Shown;
use super::wire::log_settings_response::setting_value::ParameterChoice;
use crate::logging::LogSettings;

/// Applies a request's changes to `settings`. Absent settings stay as they are; unknown ones are skipped.
pub fn decode_log_settings(
    mut settings: LogSettings,
    changes: BTreeMap<String, SettingValue>,
) -> Result<LogSettings, InferError> {
    let expect = |kind, name| Err(InferError::invalid_arg(format!("expect {kind} for '{name}'")));
    for (name, SettingValue { parameter_choice }) in changes {
        match (name.as_str(), parameter_choice) {
            ("log_file", _) => {
                return Err(InferError::unsupported("log file location can not be updated through network protocol"));
            }
            ("log_info", Some(BoolParam(info))) => settings.info = info,
            ("log_warning", Some(BoolParam(warning))) => settings.warning = warning,
            ("log_error", Some(BoolParam(error))) => settings.error = error,
            ("log_info" | "log_warning" | "log_error", _) => return expect("boolean", name),
            ("log_verbose_level", Some(Uint32Param(level))) => settings.verbose_level = level,
            ("log_verbose_level", _) => return expect("int32", name),
            ("log_format", Some(StringParam(format))) if ["default", "ISO8601"].contains(&format.as_str()) => {
                settings.format = format;
            }
            ("log_format", Some(StringParam(format))) => {
                return Err(InferError::unavailable(format!("invalid argument for --log_format, got: {format}")));
            }
            ("log_format", _) => return expect("string", name),
            _ => {}
        }
    }
    Ok(settings)
}

/// The answer to `LogSettings`: the present settings. Logs go to standard error, never to a file.
pub fn encode_log_settings(settings: LogSettings) -> LogSettingsResponse {
    let LogSettings { info, warning, error, verbose_level, format } = settings;
    let settings = [
        ("log_file", ParameterChoice::StringParam(String::new())),
        ("log_info", ParameterChoice::BoolParam(info)),
        ("log_warning", ParameterChoice::BoolParam(warning)),
        ("log_error", ParameterChoice::BoolParam(error)),
        ("log_verbose_level", ParameterChoice::Uint32Param(verbose_level)),
        ("log_format", ParameterChoice::StringParam(format)),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), Shown { parameter_choice: Some(value) }));
    LogSettingsResponse { settings: settings.into() }
}

#[cfg(test)]
mod tests {
    use super::super::wire::log_settings_request::setting_value;
    use super::*;
    use trireme_inference::ErrorCode;

    fn settings() -> LogSettings {
        LogSettings { info: true, warning: true, error: true, verbose_level: 0, format: "default".to_owned() }
    }

    fn decode<const N: usize>(changes: [(&str, setting_value::ParameterChoice); N]) -> Result<LogSettings, InferError> {
        let changes = changes.map(|(name, value)| (name.to_owned(), SettingValue { parameter_choice: Some(value) }));
        decode_log_settings(settings(), changes.into())
    }

    #[test]
    fn what_is_not_given_stays() {
        assert_eq!(decode([("unknown", Uint32Param(1))]), Ok(settings()));
        let iso = StringParam("ISO8601".to_owned());
        let changed =
            decode([("log_info", BoolParam(false)), ("log_verbose_level", Uint32Param(2)), ("log_format", iso)]);
        let expected = LogSettings { info: false, verbose_level: 2, format: "ISO8601".to_owned(), ..settings() };
        assert_eq!(changed, Ok(expected.clone()));
        let shown = encode_log_settings(expected).settings;
        assert_eq!(shown.len(), 6);
        assert_eq!(shown["log_verbose_level"].parameter_choice, Some(ParameterChoice::Uint32Param(2)));
    }

    #[test]
    fn faulty_settings_are_refused_in_tritons_words() {
        let text = || StringParam("x".to_owned());
        let refused = "log file location can not be updated through network protocol";
        let table = [
            ("log_file", text(), ErrorCode::Unsupported, refused),
            ("log_info", Uint32Param(1), ErrorCode::InvalidArg, "expect boolean for 'log_info'"),
            ("log_error", text(), ErrorCode::InvalidArg, "expect boolean for 'log_error'"),
            ("log_verbose_level", BoolParam(true), ErrorCode::InvalidArg, "expect int32 for 'log_verbose_level'"),
            ("log_format", BoolParam(true), ErrorCode::InvalidArg, "expect string for 'log_format'"),
            ("log_format", text(), ErrorCode::Unavailable, "invalid argument for --log_format, got: x"),
        ];
        for (name, value, code, message) in table {
            let error = decode([(name, value)]).unwrap_err();
            assert_eq!((error.code, error.message.as_str()), (code, message));
        }
    }
}
