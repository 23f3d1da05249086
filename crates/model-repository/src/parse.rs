//! Text format and JSON to the message, and back to JSON.
//!
//! Both use the embedded schema descriptor, so that a field is either known or an error. `/config` shows this JSON and workers
//! publish it: field names as in config.pbtxt, every scalar printed even where it has its default, sub-messages only where they
//! are set, 64-bit numbers as numbers.

use std::sync::LazyLock;

use miette::Diagnostic;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};

use crate::{ModelConfig, RepositoryError, normalize::Surroundings, proto};

static SCHEMA: LazyLock<MessageDescriptor> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(include_bytes!(concat!(env!("OUT_DIR"), "/model_config.bin")).as_slice())
        .expect("the descriptor was compiled with this crate");
    pool.get_message_by_name("inference.ModelConfig").expect("the schema defines it")
});

/// No config.pbtxt is larger by intent, and the parser takes seconds for each megabyte.
const MAX_CONFIG_BYTES: usize = 1 << 20;

/// Reads the text format. `file` is the text's name in errors.
pub(crate) fn read_text(text: &str, file: &str) -> Result<proto::ModelConfig, RepositoryError> {
    let error = |line, reason: String| RepositoryError::Text { file: file.to_owned(), line, reason };
    if text.len() > MAX_CONFIG_BYTES {
        let found = text.len();
        return Err(error(
            1,
            format!("found {found} bytes, expected {MAX_CONFIG_BYTES} at most: files beside it hold what is large"),
        ));
    }
    if let Some((offset, reason)) = foreign_character(text) {
        return Err(error(line_of(text, offset), reason));
    }
    let text = with_list_colons(text);
    let message = DynamicMessage::parse_text_format(SCHEMA.clone(), &text).map_err(|cause| {
        let label = cause.labels().and_then(|mut labels| labels.next());
        let offset = label.map_or(text.len(), |label| label.offset());
        error(line_of(&text, offset), cause.to_string())
    })?;
    message.transcode_to().map_err(|cause| error(1, cause.to_string()))
}

/// Reads JSON.
pub(crate) fn read_json(json: &str) -> Result<proto::ModelConfig, RepositoryError> {
    let error = |reason: String| RepositoryError::Json { reason };
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let message = DynamicMessage::deserialize(SCHEMA.clone(), &mut deserializer);
    let message = message.map_err(|cause| error(cause.to_string()))?;
    deserializer.end().map_err(|cause| error(cause.to_string()))?;
    message.transcode_to().map_err(|cause| error(cause.to_string()))
}

/// The line, counted from 1, that byte `offset` of `text` is on.
fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|&byte| byte == b'\n').count()
}

/// The first character that editors and web pages insert, outside of strings and comments: its place, and the remedy.
fn foreign_character(text: &str) -> Option<(usize, String)> {
    let (mut quote, mut comment, mut escaped) = (None, false, false);
    for (offset, c) in text.char_indices() {
        match (c, quote) {
            ('\n', _) => (quote, comment, escaped) = (None, false, false),
            _ if comment => {}
            (_, Some(_)) if escaped => escaped = false,
            ('\\', Some(_)) => escaped = true,
            (_, Some(open)) => quote = if c == open { None } else { quote },
            ('"' | '\'', None) => quote = Some(c),
            ('#', None) => comment = true,
            ('\u{feff}', None) => {
                let reason = "found a byte order mark (U+FEFF): save the file as UTF-8 without one";
                return Some((offset, reason.to_owned()));
            }
            ('\u{2018}'..='\u{201f}' | '\u{ab}' | '\u{bb}', None) => {
                return Some((offset, format!("found the quotation mark {c} (U+{:04X}), expected \"", u32::from(c))));
            }
            ('\u{a0}' | '\u{2007}' | '\u{202f}', None) => {
                let code = u32::from(c);
                return Some((
                    offset,
                    format!("found a space that does not break (U+{code:04X}), expected a plain one"),
                ));
            }
            _ => {}
        }
    }
    None
}

/// The text format allows `input [ {..} ]` without a colon, which the parser requires: this inserts it. Lines stay as they were.
fn with_list_colons(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut chars = text.chars();
    // Whether the last token could be a field's name.
    let mut after_word = false;
    while let Some(c) = chars.next() {
        if c == '[' && after_word {
            out.push(':');
        }
        out.push(c);
        match c {
            '#' => {
                for c in chars.by_ref() {
                    out.push(c);
                    if c == '\n' {
                        break;
                    }
                }
            }
            '"' | '\'' => {
                let mut escaped = false;
                for inner in chars.by_ref() {
                    out.push(inner);
                    if inner == '\n' || (inner == c && !escaped) {
                        break;
                    }
                    escaped = inner == '\\' && !escaped;
                }
                after_word = false;
            }
            _ if c.is_whitespace() => {}
            _ => after_word = c == '_' || c.is_ascii_alphanumeric(),
        }
    }
    out
}

// === impl ModelConfig ===

impl ModelConfig {
    /// The configuration that `text`, in config.pbtxt's format, gives a model in the directory `directory`: the name must be that
    /// or be left out. The files of version directories, which may decide the backend, are not known here.
    pub fn parse(text: &str, directory: &str) -> Result<ModelConfig, RepositoryError> {
        let message = read_text(text, &format!("{directory}/config.pbtxt"))?;
        ModelConfig::from_message(message, &Surroundings { directory: Some(directory), ..Default::default() })
    }

    /// The configuration in `json` (see [`ModelConfig::to_json`]). Fields may be left out, or have their camel-case names; 64-bit
    /// numbers may be strings; unknown fields are errors.
    pub fn from_json(json: &str) -> Result<ModelConfig, RepositoryError> {
        ModelConfig::from_message(read_json(json)?, &Surroundings::default())
    }

    /// The whole configuration as `/config` shows it. [`ModelConfig::from_json`] gives it back unchanged.
    pub fn to_json(&self) -> String {
        let mut message = DynamicMessage::new(SCHEMA.clone());
        message.transcode_from(&self.message).expect("both types come from one schema");
        let options = SerializeOptions::new()
            .use_proto_field_name(true)
            .stringify_64_bit_integers(false)
            .skip_default_fields(false);
        // Through a value, because that sorts keys: the message's maps have them in any order.
        let value = message.serialize_with_options(serde_json::value::Serializer, &options);
        value.expect("keys are strings and numbers are finite or printed as strings").to_string()
    }

    /// The configuration as an encoded `inference.ModelConfig` message, the answer of gRPC's `ModelConfig` call.
    pub fn to_protobuf(&self) -> Vec<u8> {
        prost::Message::encode_to_vec(&self.message)
    }
}

#[cfg(test)]
#[path = "parse/tests.rs"]
mod tests;
