//! The trace extension's settings on the wire, and the rules for reading them.

use bytes::Bytes;
use trireme_inference::InferError;

use crate::json::{self, Value, Writer};

/// The trace settings of all models or of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    /// The contents of a trace; with neither, nothing is traced.
    pub level: TraceLevel,
    /// One of this many requests is traced.
    pub rate: u32,
    /// The number of further traces; -1 means no limit.
    pub count: i32,
    /// After how many traces a further numbered file is written; 0 means one file for all.
    pub log_frequency: u32,
}

/// The contents of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceLevel {
    /// The times of events.
    pub timestamps: bool,
    /// The contents of tensors.
    pub tensors: bool,
}

/// Where traces go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceMode<'a> {
    /// Into files in Triton's format.
    Triton {
        /// The path of the file; empty where there is none.
        file: &'a str,
    },
    /// To a collector, as spans.
    OpenTelemetry,
}

/// The change of one setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SettingChange<T> {
    /// Not in the request.
    #[default]
    Keep,
    /// Null: for a model, back to the value of all models; for all models, back to the value at start.
    Clear,
    /// A value.
    Set(T),
}

/// The changes in a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of TraceSettings")]
pub struct TraceChanges {
    pub level: SettingChange<TraceLevel>,
    pub rate: SettingChange<u32>,
    pub count: SettingChange<i32>,
    pub log_frequency: SettingChange<u32>,
}

/// Decodes the changes in a request's body. Errors have Triton's texts; numbers are strings.
pub fn decode_trace_changes(body: &[u8]) -> Result<TraceChanges, InferError> {
    let document = json::parse(body)?;
    let [file, level, rate, count, log_frequency] =
        document.pick(["trace_file", "trace_level", "trace_rate", "trace_count", "log_frequency"]);
    if file.is_some() {
        return Err(InferError::unsupported("trace file location can not be updated through network protocol"));
    }
    let count = change(count, |value| number("trace_count", value, i32::MIN))?;
    if let SettingChange::Set(count) = count
        && count < -1
    {
        return Err(InferError::invalid_arg(format!(
            "Unable to parse 'trace_count'. Expecting value >= -1, got:{count}"
        )));
    }
    Ok(TraceChanges {
        level: change(level, decode_level)?,
        rate: change(rate, |value| number("trace_rate", value, 0).map(i32::unsigned_abs))?,
        count,
        log_frequency: change(log_frequency, |value| number("log_frequency", value, 0).map(i32::unsigned_abs))?,
    })
}

fn change<T>(
    value: Option<Value<'_>>,
    read: impl FnOnce(&Value<'_>) -> Result<T, InferError>,
) -> Result<SettingChange<T>, InferError> {
    match value {
        None => Ok(SettingChange::Keep),
        Some(Value::Null) => Ok(SettingChange::Clear),
        Some(value) => read(&value).map(SettingChange::Set),
    }
}

fn decode_level(value: &Value<'_>) -> Result<TraceLevel, InferError> {
    let names = value.as_array()?;
    let mut level = TraceLevel::default();
    for name in names.iter() {
        match &*name.as_text()? {
            "TIMESTAMPS" => level.timestamps = true,
            "TENSORS" => level.tensors = true,
            "OFF" if names.iter().count() == 1 => {}
            "OFF" => return Err(InferError::invalid_arg("Expect only one trace level 'OFF' is specified")),
            other => return Err(InferError::invalid_arg(format!("unknown trace level '{other}'"))),
        }
    }
    Ok(level)
}

/// Reads a number from a string.
fn number(name: &str, value: &Value<'_>, min: i32) -> Result<i32, InferError> {
    let text = value.as_text()?;
    let range = |text: &str| {
        let max = if min == 0 { i64::from(u32::MAX) } else { i64::from(i32::MAX) };
        let shown = if min == 0 { 0 } else { -1 };
        InferError::invalid_arg(format!(
            "Unable to parse '{name}', value is out of range [ {shown}, {max} ], got: {text}"
        ))
    };
    match text.trim().parse::<i64>() {
        Ok(number) => match i32::try_from(number) {
            Ok(number) if number >= min => Ok(number),
            _ => Err(range(&text)),
        },
        Err(error) => match error.kind() {
            std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => Err(range(&text)),
            _ => Err(InferError::invalid_arg(format!("Unable to parse '{name}', got: {text}"))),
        },
    }
}

/// The answer to every trace request: the present settings.
pub fn encode_trace_settings(settings: &TraceSettings, mode: TraceMode<'_>) -> Bytes {
    let mut w = Writer::default();
    w.object(|w| {
        w.name("trace_level").array(|w| {
            for name in settings.level.names() {
                w.string(name);
            }
        });
        w.name("trace_rate").string(settings.rate.to_string());
        w.name("trace_count").string(settings.count.to_string());
        if let TraceMode::Triton { file } = mode {
            w.name("log_frequency").string(settings.log_frequency.to_string());
            w.name("trace_file").string(file);
        }
        w.name("trace_mode").string(mode.name());
    });
    w.into_bytes()
}

// === impl TraceMode ===

impl TraceMode<'_> {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            TraceMode::Triton { .. } => "triton",
            TraceMode::OpenTelemetry => "opentelemetry",
        }
    }
}

// === impl TraceLevel ===

impl TraceLevel {
    /// Whether nothing is traced.
    pub fn is_off(&self) -> bool {
        !self.timestamps && !self.tensors
    }

    /// The names on the wire.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        let all = [(self.is_off(), "OFF"), (self.timestamps, "TIMESTAMPS"), (self.tensors, "TENSORS")];
        all.into_iter().filter_map(|(is_set, name)| is_set.then_some(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_from_what_is_kept_and_cleared() {
        assert_eq!(decode_trace_changes(b"{}"), Ok(TraceChanges::default()));
        let body =
            br#"{"trace_level":["TIMESTAMPS","TENSORS"],"trace_rate":null,"trace_count":"-1","log_frequency":"5"}"#;
        let expected = TraceChanges {
            level: SettingChange::Set(TraceLevel { timestamps: true, tensors: true }),
            rate: SettingChange::Clear,
            count: SettingChange::Set(-1),
            log_frequency: SettingChange::Set(5),
        };
        assert_eq!(decode_trace_changes(body), Ok(expected));
    }

    #[test]
    fn faulty_changes_are_refused_in_tritons_words() {
        let table = [
            (r#"{"trace_file":"x"}"#, "trace file location can not be updated through network protocol"),
            (r#"{"trace_level":["OFF","TENSORS"]}"#, "Expect only one trace level 'OFF' is specified"),
            (r#"{"trace_level":"OFF"}"#, "attempt to access JSON non-array as array"),
            (r#"{"trace_rate":"x"}"#, "Unable to parse 'trace_rate', got: x"),
            (r#"{"trace_rate":5}"#, "attempt to access JSON non-string as string"),
            (
                r#"{"trace_rate":"-1"}"#,
                "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -1",
            ),
            (r#"{"trace_count":"-2"}"#, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
            (
                r#"{"trace_count":"99999999999999999999"}"#,
                "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 99999999999999999999",
            ),
        ];
        for (body, message) in table {
            assert_eq!(decode_trace_changes(body.as_bytes()).unwrap_err().message, message, "{body}");
        }
    }

    #[test]
    fn numbers_are_written_as_strings() {
        let settings = TraceSettings { level: TraceLevel::default(), rate: 1000, count: -1, log_frequency: 0 };
        assert_eq!(
            encode_trace_settings(&settings, TraceMode::Triton { file: "/t.json" }),
            concat!(
                r#"{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1","#,
                r#""log_frequency":"0","trace_file":"/t.json","trace_mode":"triton"}"#
            )
        );
    }
}
