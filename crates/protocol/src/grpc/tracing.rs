//! The trace extension's messages. Values are texts, as over HTTP, so the settings are converted to the HTTP body and
//! decoded by the same code.

use std::collections::BTreeMap;

use trireme_inference::InferError;

use super::wire::TraceSettingResponse;
use super::wire::trace_setting_request::SettingValue;
use super::wire::trace_setting_response::SettingValue as Shown;
use crate::json::Writer;
use crate::tracing::{self, SettingChange, TraceChanges, TraceMode, TraceSettings};

/// Settings with any number of values. `trace_file` is among them because any value of it is refused.
const LISTS: [&str; 2] = ["trace_file", "trace_level"];
/// Settings with one value.
const SINGLE: [&str; 3] = ["trace_rate", "trace_count", "log_frequency"];

/// The changes in a request. A setting without values is cleared; unknown settings are skipped.
pub fn decode_trace_changes(settings: &BTreeMap<String, SettingValue>) -> Result<TraceChanges, InferError> {
    for name in SINGLE {
        if settings.get(name).is_some_and(|setting| setting.value.len() > 1) {
            return Err(InferError::invalid_arg(format!("expect only 1 value for '{name}'")));
        }
    }
    let mut body = Writer::default();
    body.object(|w| {
        for name in LISTS {
            if let Some(setting) = settings.get(name) {
                w.name(name).array(|w| setting.value.iter().for_each(|value| w.string(value)));
            }
        }
        for name in SINGLE {
            if let Some(value) = settings.get(name).and_then(|setting| setting.value.first()) {
                w.name(name).string(value);
            }
        }
    });
    let TraceChanges { level, rate, count, log_frequency } = tracing::decode_trace_changes(&body.into_bytes())?;
    let is_cleared = |name| settings.get(name).is_some_and(|setting| setting.value.is_empty());
    Ok(TraceChanges {
        level: if is_cleared("trace_level") { SettingChange::Clear } else { level },
        rate: if is_cleared("trace_rate") { SettingChange::Clear } else { rate },
        count: if is_cleared("trace_count") { SettingChange::Clear } else { count },
        log_frequency: if is_cleared("log_frequency") { SettingChange::Clear } else { log_frequency },
    })
}

/// The answer to `TraceSetting`: the present settings.
pub fn encode_trace_settings(settings: &TraceSettings, mode: TraceMode<'_>) -> TraceSettingResponse {
    let one = |value: String| Shown { value: vec![value] };
    let level = Shown { value: settings.level.names().map(str::to_owned).collect() };
    let mut shown = BTreeMap::from([
        ("trace_level".to_owned(), level),
        ("trace_rate".to_owned(), one(settings.rate.to_string())),
        ("trace_count".to_owned(), one(settings.count.to_string())),
        ("trace_mode".to_owned(), one(mode.name().to_owned())),
    ]);
    if let TraceMode::Triton { file } = mode {
        shown.insert("log_frequency".to_owned(), one(settings.log_frequency.to_string()));
        shown.insert("trace_file".to_owned(), one(file.to_owned()));
    }
    TraceSettingResponse { settings: shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracing::TraceLevel;

    fn decode<const N: usize>(settings: [(&str, &[&str]); N]) -> Result<TraceChanges, InferError> {
        let value = |values: &[&str]| SettingValue { value: values.iter().map(|&value| value.to_owned()).collect() };
        decode_trace_changes(&settings.map(|(name, values)| (name.to_owned(), value(values))).into())
    }

    #[test]
    fn changes_are_told_from_what_is_kept_and_cleared() {
        assert_eq!(decode([("unknown", &["\"", "x"])]), Ok(TraceChanges::default()));
        let found =
            decode([("trace_level", &["TIMESTAMPS", "TENSORS"]), ("trace_rate", &[]), ("trace_count", &["-1"])]);
        let level = SettingChange::Set(TraceLevel { timestamps: true, tensors: true });
        let expected = TraceChanges {
            level,
            rate: SettingChange::Clear,
            count: SettingChange::Set(-1),
            ..TraceChanges::default()
        };
        assert_eq!(found, Ok(expected));
        let cleared = decode([("trace_level", &[]), ("trace_count", &[]), ("log_frequency", &[])]).unwrap();
        assert_eq!(
            (cleared.level, cleared.count, cleared.rate),
            (SettingChange::Clear, SettingChange::Clear, SettingChange::Keep)
        );
        assert_eq!(cleared.log_frequency, SettingChange::Clear);
    }

    #[test]
    fn faulty_changes_are_refused_in_tritons_words() {
        let table: [(&str, &[&str], &str); 8] = [
            ("trace_file", &["x"], "trace file location can not be updated through network protocol"),
            ("trace_file", &[], "trace file location can not be updated through network protocol"),
            ("trace_level", &["OFF", "TENSORS"], "Expect only one trace level 'OFF' is specified"),
            ("trace_level", &["x"], "unknown trace level 'x'"),
            ("trace_rate", &["\"}"], "Unable to parse 'trace_rate', got: \"}"),
            ("trace_rate", &["1", "2"], "expect only 1 value for 'trace_rate'"),
            ("trace_count", &["-2"], "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
            (
                "log_frequency",
                &["-1"],
                "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: -1",
            ),
        ];
        for (name, values, message) in table {
            assert_eq!(decode([(name, values)]).unwrap_err().message, message);
        }
    }

    #[test]
    fn the_file_is_shown_where_there_could_be_one() {
        let settings = TraceSettings { level: TraceLevel::default(), rate: 1000, count: -1, log_frequency: 0 };
        let shown = encode_trace_settings(&settings, TraceMode::Triton { file: "" }).settings;
        let expected = [
            ("log_frequency", "0"),
            ("trace_count", "-1"),
            ("trace_file", ""),
            ("trace_level", "OFF"),
            ("trace_mode", "triton"),
            ("trace_rate", "1000"),
        ];
        let found: Vec<_> = shown.iter().map(|(name, shown)| (name.as_str(), shown.value[0].as_str())).collect();
        assert_eq!(found, expected);
        assert_eq!(encode_trace_settings(&settings, TraceMode::OpenTelemetry).settings.len(), 4);
    }
}
