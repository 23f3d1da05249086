//! The options of generation: one table that reads each of them from JSON, for all layers.
//!
//! Parameters of config.pbtxt are strings, and so are lists among a request's parameters (the v2 protocol has scalars
//! only): a string that contains JSON is read as JSON. Unknown names in `parameters` and in requests are ignored,
//! because those contain other things too. In `generation_config.json`, an option that changes the generated text and
//! is not offered here is an error, so that no model gives other answers than intended.

use std::collections::BTreeMap;

use serde_json::Value;
use trireme_inference::{ParameterValue, Parameters};

use super::settings::{EarlyStopping, OptionError, Settings};

/// One option.
pub struct GenerationOption {
    /// Its name, which is transformers'.
    pub name: &'static str,
    /// Its possible values.
    pub range: &'static str,
    /// Its description, as in docs/generation.md.
    #[cfg(test)]
    pub help: &'static str,
    /// Reads it; `None` if the value is out of range.
    read: fn(&mut Settings, &Value) -> Option<()>,
}

macro_rules! options {
    ($($name:ident: $range:literal, $help:literal, $read:expr;)*) => {
        /// Every option; docs/generation.md has the same table.
        pub const OPTIONS: &[GenerationOption] = &[$(GenerationOption {
            name: stringify!($name),
            range: $range,
            #[cfg(test)]
            help: $help,
            read: |settings, value| { settings.$name = $read(value)?; Some(()) },
        }),*];
    };
}

options! {
    max_length: "2 or more", "The longest sequence in ids, the start included", |v| whole(v, 2);
    max_new_tokens: "1 or more, or null", "The same without the start; it goes before `max_length`", |v| nullable(v, |v| whole(v, 1));
    min_length: "0 or more", "No end before the sequence has this many ids, the start included", |v| whole_or(v, 0, 0);
    min_new_tokens: "0 or more", "The same without the start", |v| whole_or(v, 0, 0);
    num_beams: "1 to 64", "Beams of beam search; 1 is none", |v| whole(v, 1).filter(|&count| count <= 64);
    length_penalty: "a number", "Beam search: scores are divided by the length to this power; above 0 favours long sequences", number_or(1.0);
    early_stopping: "true, false, \"never\"", "Beam search: stop at as many finished candidates as beams; or when a better one is unlikely; or only when none is possible", early_stopping;
    num_return_sequences: "1 to 64", "Sequences for each text: with beams at most as many, else samples", |v| whole_or(v, 1, 1).filter(|&count| count <= 64);
    do_sample: "true or false", "Draw ids by their probability instead of taking the most likely", switch;
    temperature: "above 0", "Sampling: below 1 sharpens, above 1 flattens", |v| positive_or(v, 1.0);
    top_k: "0 or more", "Sampling: only this many most likely ids; 0 is all", |v| whole_or(v, 0, 0);
    top_p: "above 0, up to 1", "Sampling: only the most likely ids that together have this probability", |v| positive_or(v, 1.0).filter(|&p| p <= 1.0);
    min_p: "0 to 1, or null", "Sampling: only ids at least this likely, measured by the most likely one", |v| nullable(v, |v| number(v).filter(|p| (0.0..=1.0).contains(p)).map(|p| p as f32));
    seed: "0 or more", "Sampling: the same seed gives the same sequences; without one it follows from the request's id", |v| nullable(v, Value::as_u64);
    repetition_penalty: "above 0", "Ids that occur already become less likely (above 1) or more (below 1)", |v| positive_or(v, 1.0);
    no_repeat_ngram_size: "0 or more", "No run of this many ids occurs twice; 0 is off", |v| whole_or(v, 0, 0);
    bad_words_ids: "lists of ids", "Runs of ids that never occur", |v| list_or_null(v, |v| list(v, id).filter(|word| !word.is_empty()));
    suppress_tokens: "ids", "Ids that never occur", |v| list_or_null(v, id);
    begin_suppress_tokens: "ids", "Ids that are not the first one", |v| list_or_null(v, id);
    forced_bos_token_id: "an id or null", "The first id after the start: the target language of multilingual models", |v| nullable(v, id);
    forced_eos_token_id: "an id, ids or null", "The last id, when the longest length is reached", ids;
    renormalize_logits: "true or false", "Probabilities add up to 1 again after all of the above", switch;
    bos_token_id: "an id or null", "The start, where `decoder_start_token_id` is not given", |v| nullable(v, id);
    pad_token_id: "an id or null", "The id that fills shorter rows", |v| nullable(v, id);
    eos_token_id: "an id, ids or null", "The ids that end a sequence", ids;
    decoder_start_token_id: "an id or null", "The id that a sequence starts with", |v| nullable(v, id);
}

/// Options of transformers that change the generated text, with the values that turn them off. `null` does too.
const NOT_OFFERED: &[(&str, &[&str])] = &[
    ("assistant_early_exit", &[]),
    ("constraints", &[]),
    ("diversity_penalty", &["0.0", "0"]),
    ("dola_layers", &[]),
    ("encoder_no_repeat_ngram_size", &["0"]),
    ("encoder_repetition_penalty", &["1.0", "1"]),
    ("epsilon_cutoff", &["0.0", "0"]),
    ("eta_cutoff", &["0.0", "0"]),
    ("exponential_decay_length_penalty", &[]),
    ("force_words_ids", &[]),
    ("forced_decoder_ids", &["[]"]),
    ("guidance_scale", &["1.0", "1"]),
    ("num_beam_groups", &["1"]),
    ("penalty_alpha", &["0.0", "0"]),
    ("prompt_lookup_num_tokens", &[]),
    ("sequence_bias", &[]),
    ("stop_strings", &["[]"]),
    ("top_h", &[]),
    ("typical_p", &["1.0", "1"]),
    ("watermarking_config", &[]),
];

/// Sets one option; `false` if there is no such option.
fn set(settings: &mut Settings, name: &str, value: &Value) -> Result<bool, OptionError> {
    let Some(option) = OPTIONS.iter().find(|option| option.name == name) else { return Ok(false) };
    (option.read)(settings, value)
        .map(|()| true)
        .ok_or_else(|| OptionError::new(name, format!("has to be {}, found {value}", option.range)))
}

/// Applies the options in a `generation_config.json`.
pub fn apply_file(settings: &mut Settings, file: &serde_json::Map<String, Value>) -> Result<(), OptionError> {
    for (name, value) in file {
        if let Some((_, off)) = NOT_OFFERED.iter().find(|(unknown, _)| unknown == name)
            && !value.is_null()
            && !off.contains(&value.to_string().as_str())
        {
            let remedy = "remove it from the file, or let a model.py generate the texts (docs/python.md)";
            return Err(OptionError::new(name, format!("is not supported, found {value}: {remedy}")));
        }
        set(settings, name, value)?;
    }
    Ok(())
}

/// Applies the options among the `parameters` of a config.pbtxt.
pub fn apply_config(settings: &mut Settings, parameters: &BTreeMap<String, String>) -> Result<(), OptionError> {
    for (name, text) in parameters {
        set(settings, name, &read_text(text))?;
    }
    Ok(())
}

/// Applies the options among a request's parameters.
pub fn apply_request(settings: &mut Settings, parameters: &Parameters) -> Result<(), OptionError> {
    for (name, value) in parameters {
        let value = match value {
            ParameterValue::Bool(value) => Value::from(*value),
            ParameterValue::Int64(value) => Value::from(*value),
            ParameterValue::Uint64(value) => Value::from(*value),
            ParameterValue::Double(value) => Value::from(*value),
            ParameterValue::String(text) => read_text(text),
        };
        if set(settings, name, &value)? && name == "max_length" && !parameters.contains_key("max_new_tokens") {
            // A request's `max_length` must not be overridden by a file's `max_new_tokens`.
            settings.max_new_tokens = None;
        }
    }
    Ok(())
}

/// A string as JSON if it contains JSON, otherwise as itself.
fn read_text(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_else(|_| Value::from(text))
}

/// A whole number, which may be written as a float, as scalars on the wire may be.
fn whole(value: &Value, least: u64) -> Option<usize> {
    let number = value.as_u64().or_else(|| {
        let float = value.as_f64().filter(|float| float.fract() == 0.0 && (0.0..9e15).contains(float))?;
        Some(float as u64)
    })?;
    usize::try_from(number).ok().filter(|_| number >= least)
}

fn whole_or(value: &Value, least: u64, default: usize) -> Option<usize> {
    if value.is_null() { Some(default) } else { whole(value, least) }
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite())
}

fn number_or(default: f64) -> impl Fn(&Value) -> Option<f64> {
    move |value| if value.is_null() { Some(default) } else { number(value).filter(|number| number.abs() <= 1e3) }
}

fn positive_or(value: &Value, default: f32) -> Option<f32> {
    if value.is_null() {
        return Some(default);
    }
    number(value).map(|number| number as f32).filter(|number| *number > 0.0 && number.is_finite())
}

fn switch(value: &Value) -> Option<bool> {
    match value {
        Value::Null => Some(false),
        Value::Bool(value) => Some(*value),
        Value::Number(number) if number.as_u64().is_some_and(|number| number < 2) => Some(number.as_u64() == Some(1)),
        _ => None,
    }
}

fn early_stopping(value: &Value) -> Option<EarlyStopping> {
    match value.as_str() {
        Some("never") => Some(EarlyStopping::Never),
        _ => switch(value).map(|yes| if yes { EarlyStopping::Yes } else { EarlyStopping::No }),
    }
}

fn nullable<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Option<T>> {
    if value.is_null() { Some(None) } else { read(value).map(Some) }
}

fn id(value: &Value) -> Option<i64> {
    value.as_i64().filter(|&id| id >= 0)
}

/// One id or several.
fn ids(value: &Value) -> Option<Vec<i64>> {
    if value.is_array() { list(value, id) } else { nullable(value, id).map(|id| id.into_iter().collect()) }
}

fn list<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(read).collect()
}

fn list_or_null<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    nullable(value, |value| list(value, &read)).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::settings::Limits;

    const LIMITS: Limits = Limits { vocabulary: 100, longest: 50, rows: 8 };

    fn file(value: Value) -> Result<Settings, String> {
        let mut settings = Settings { decoder_start_token_id: Some(2), ..Settings::default() };
        apply_file(&mut settings, value.as_object().unwrap()).map_err(|error| error.to_string())?;
        settings.check(&LIMITS).map_err(|error| error.to_string())?;
        Ok(settings)
    }

    #[test]
    fn without_a_length_in_its_files_a_model_makes_twenty_ids() {
        assert_eq!(file(json!({ "num_beams": 4 })).unwrap().longest(), 1 + 20);
        assert_eq!(file(json!({ "max_length": 20 })).unwrap().longest(), 20);
    }

    #[test]
    fn each_layer_goes_over_the_one_before() {
        let mut settings =
            file(json!({ "num_beams": 5, "length_penalty": 2.0, "max_new_tokens": 9, "transformers_version": "4" }))
                .unwrap();
        let config = [("num_beams", "3"), ("bad_words_ids", "[[4, 5], [6]]"), ("enable_mem_arena", "1")];
        let config = config.map(|(name, value)| (name.to_owned(), value.to_owned()));
        apply_config(&mut settings, &config.into()).unwrap();
        assert_eq!((settings.num_beams, settings.length_penalty, settings.longest()), (3, 2.0, 10));
        assert_eq!(settings.bad_words_ids, [vec![4, 5], vec![6]]);
        let request = Parameters::from([
            ("num_beams".to_owned(), ParameterValue::Int64(2)),
            ("early_stopping".to_owned(), ParameterValue::from("never")),
            ("eos_token_id".to_owned(), ParameterValue::from("[2, 7]")),
            ("timeout".to_owned(), ParameterValue::Int64(1_000_000)),
            ("max_length".to_owned(), ParameterValue::Double(12.0)),
        ]);
        apply_request(&mut settings, &request).unwrap();
        assert_eq!((settings.num_beams, settings.early_stopping), (2, EarlyStopping::Never));
        assert_eq!((settings.eos_token_id.as_slice(), settings.longest()), (&[2, 7][..], 12));
    }

    #[test]
    fn values_out_of_range_say_what_is_expected_and_what_was_found() {
        for (value, error) in [
            (json!({ "num_beams": 0 }), "parameter 'num_beams' has to be 1 to 64, found 0"),
            (json!({ "num_beams": "many" }), "parameter 'num_beams' has to be 1 to 64, found \"many\""),
            (json!({ "temperature": 0.0 }), "parameter 'temperature' has to be above 0, found 0.0"),
            (json!({ "top_p": 1.5 }), "parameter 'top_p' has to be above 0, up to 1, found 1.5"),
            (json!({ "bad_words_ids": [5] }), "parameter 'bad_words_ids' has to be lists of ids, found [5]"),
            (
                json!({ "early_stopping": "soon" }),
                "parameter 'early_stopping' has to be true, false, \"never\", found \"soon\"",
            ),
            (json!({ "suppress_tokens": [-1] }), "parameter 'suppress_tokens' has to be ids, found [-1]"),
            (
                json!({ "suppress_tokens": [100] }),
                "parameter 'suppress_tokens' names id 100, but the vocabulary has 100 ids",
            ),
            (json!({ "max_length": 51 }), "parameter 'max_length' has to be 2 to 50 for this model, found 51"),
            (json!({ "max_new_tokens": 50 }), "parameter 'max_new_tokens' has to be 1 to 49 for this model, found 50"),
            (json!({ "num_beams": 9 }), "parameter 'num_beams' has to be at most 8 (parameter 'max_rows'), found 9"),
            (
                json!({ "num_beams": 3, "num_return_sequences": 4 }),
                "parameter 'num_return_sequences' has to be at most num_beams, which is 3, found 4",
            ),
            (
                json!({ "num_return_sequences": 2 }),
                "parameter 'num_return_sequences' more than one, found 2, needs num_beams or do_sample",
            ),
            (
                json!({ "decoder_start_token_id": null }),
                "parameter 'decoder_start_token_id' is missing: neither it nor bos_token_id is given",
            ),
            (
                json!({ "num_beam_groups": 2 }),
                "parameter 'num_beam_groups' is not supported, found 2: remove it from the file, or let a model.py generate the texts \
                 (docs/python.md)",
            ),
        ] {
            assert_eq!(file(value.clone()).unwrap_err(), error, "{value}");
        }
    }

    #[test]
    fn what_is_off_is_not_missed_and_null_is_the_default() {
        let nothing = json!({ "num_beam_groups": 1, "typical_p": 1.0, "constraints": null, "top_k": null, "temperature": null, "eos_token_id": null });
        let settings = file(nothing).unwrap();
        assert_eq!((settings.top_k, settings.temperature, settings.eos_token_id.len()), (0, 1.0, 0));
    }

    #[test]
    fn the_documentation_has_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/generation.md");
        let text = std::fs::read_to_string(path).unwrap();
        for option in OPTIONS {
            let row = format!("| `{}` | {} | {} |", option.name, option.range, option.help);
            assert!(text.contains(&row), "docs/generation.md lacks this row:\n{row}");
        }
    }
}
