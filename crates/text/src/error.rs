//! The error of this crate.

use std::path::{Path, PathBuf};

use trireme_inference::{ErrorCode, TensorError};

/// Why a tokenizer could not be loaded, or a text not encoded or decoded.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages show")]
pub enum TextError {
    /// A required file could not be read.
    #[error("cannot read {}: {source}", own(path).display())]
    File { path: PathBuf, source: std::io::Error },
    /// A file does not have the format that its name says.
    #[error("{} is not valid: {reason}", own(path).display())]
    Malformed { path: PathBuf, reason: String },
    /// Options that cannot be parsed or do not fit the tokenizer; all faults together.
    #[error("{}", .0.join("; "))]
    Options(Vec<String>),
    /// A parameter of a request that has to be text.
    #[error("parameter '{parameter}' is not a string, expected text")]
    NotText { parameter: &'static str },
    /// A parameter of a request whose text is too long.
    #[error("parameter '{parameter}' has {bytes} bytes, expected at most {most}")]
    LongText { parameter: &'static str, bytes: usize, most: usize },
    /// A parameter of a request of another type or out of range.
    #[error("parameter '{parameter}' is {found}, expected {expected}")]
    Parameter { parameter: &'static str, found: String, expected: &'static str },
    /// A prompt that the tokenizer has no text for.
    #[error(
        "parameter 'prompt_name' is '{name}', {}",
        if known.is_empty() { "but this model has no prompts: leave it out".to_owned() } else { format!("expected one of {}", known.join(", ")) }
    )]
    UnknownPrompt { name: String, known: Vec<String> },
    /// Two texts to put before each text.
    #[error("parameters 'prefix' and 'prompt_name' ('{name}') are both given, expected one of them")]
    TwoPrompts { name: String },
    /// Likewise.
    #[error("parameters 'prefix' and 'instruction' are both given, expected one of them")]
    PrefixAndInstruction,
    /// An instruction for a model without a place for it.
    #[error(
        "parameter 'instruction' has no place in texts of this model: it has no chat template, and its prompt has not the form '{}…{}'; send \
         the whole text that goes before each text as parameter 'prefix'",
        forms.0,
        forms.1.escape_default()
    )]
    NoInstruction { forms: (&'static str, &'static str) },
    /// An output that this tokenizer cannot give.
    #[error("output '{output}' needs a tokenizer.json that adds the special tokens, but this tokenizer {kind}")]
    NoOffsets { output: &'static str, kind: &'static str },
    /// A row that is too long, in a request that wants none to be cut.
    #[error(
        "text {index} has {length} tokens{}, expected at most {max_length}: shorten it, or leave out parameter 'truncate'",
        if *or_more { " or more" } else { "" }
    )]
    TooLong { index: usize, length: usize, or_more: bool, max_length: usize },
    /// A row that should hold token ids.
    #[error("text {index} is no JSON array of token ids, which parameter 'token_ids' announces: {reason}")]
    NoIds { index: usize, reason: String },
    /// An id that no token has.
    #[error("text {index} holds token id {id}, which is out of vocabulary for this model")]
    UnknownId { index: usize, id: u32 },
    /// Likewise of a text.
    #[error(
        "text {index} has {length} characters, expected at most {max_characters}: shorten it, or leave out parameter 'truncate'"
    )]
    TooManyCharacters { index: usize, length: usize, max_characters: usize },
    /// A text of more windows than a text may have.
    #[error(
        "text {index} needs {windows} windows{} of {}{room} tokens, expected at most {most}: send it in parts",
        if *or_more { " or more" } else { "" }, words.map_or_else(String::new, |words| format!("at most {words} words and "))
    )]
    TooManyWindows { index: usize, windows: usize, or_more: bool, words: Option<usize>, room: usize, most: usize },
    /// A request without labels for a model that finds entities of any.
    #[error(
        "parameter 'labels' is missing: this model finds entities of the labels that a request names, as in \"labels\": \"person, place\""
    )]
    NoLabels,
    /// More labels than a request may have.
    #[error("parameter '{parameter}' has more than {most} labels: send several requests")]
    TooManyLabels { parameter: &'static str, most: usize },
    /// Labels that cannot stand before a text.
    #[error("parameter '{parameter}': {reason}")]
    Labels { parameter: &'static str, reason: String },
    /// More scores of spans than a run may have.
    #[error(
        "{rows} rows of {words} words, each with {scores} scores for spans and labels, are more than the {most} scores of a request: send fewer texts or \
         labels, or shorter texts"
    )]
    TooManySpans { rows: usize, words: usize, scores: usize, most: usize },
    /// An overlap that leaves no room for new tokens in a window.
    #[error("parameter 'overlap' is {overlap}, expected at most {most}, half of the tokens that a row has for a text")]
    Overlap { overlap: usize, most: usize },
    /// A request for windows of texts whose rows the postprocess could not assign to texts.
    #[error("parameter '{parameter}' asks for windows, but this model does not fold those of a text: leave it out")]
    NoWindows { parameter: &'static str },
    /// A language without a token in the tokenizer.
    #[error("parameter '{parameter}' is '{language}', expected one of {known}")]
    UnknownLanguage { parameter: &'static str, language: String, known: String },
    /// A language for a tokenizer without tokens of languages.
    #[error(
        "parameter '{parameter}' is '{language}', but this tokenizer has no tokens of {}: leave it out",
        if *.parameter == "source_language" { "source languages" } else { "target languages" }
    )]
    NoLanguages { parameter: &'static str, language: String },
    /// The tensor is not one of texts.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An element of a BYTES tensor is not text.
    #[error("tensor '{tensor}': element {index} is not valid UTF-8 at byte {offset}, expected UTF-8 text")]
    InvalidUtf8 { tensor: String, index: usize, offset: usize },
    /// There have to be as many second texts as first ones.
    #[error("got {pairs} second texts for {texts} texts, expected one for each")]
    PairCount { texts: usize, pairs: usize },
    /// A text cannot be cut to the maximal length in the way of the options.
    #[error("text {index}: {reason}")]
    Truncation { index: usize, reason: String },
    /// Without padding, rows of different lengths cannot be one tensor.
    #[error(
        "text {index} has {actual} tokens but text 0 has {expected}: texts of unequal length need padding, expected \
         'padding' to be 'longest' or 'max_length', or one text per request"
    )]
    UnequalLengths { index: usize, expected: usize, actual: usize },
    /// A row is longer than the fixed length of all rows.
    #[error(
        "text {index} has {actual} tokens, expected at most the {length} that 'padding' is fixed to: truncation is off"
    )]
    LongerThanPadding { index: usize, actual: usize, length: usize },
    /// The padded rows would take more memory than one request may use.
    #[error(
        "{rows} texts padded to {length} tokens take {} bytes in each tensor, and a request may ask for {} at most: send fewer texts",
        rows.saturating_mul(*length).saturating_mul(size_of::<i64>()), trireme_inference::MAX_MESSAGE_BYTES
    )]
    TooManyTokens { rows: usize, length: usize },
    /// The chat template failed on a text.
    #[error("text {index}: the chat template of the model cannot be applied: {reason}")]
    Template { index: usize, reason: String },
    /// A conversation that the chat template cannot make a text of.
    #[error("conversation {index} cannot be made a text of: {reason}")]
    Conversation { index: usize, reason: String },
    /// A chat template that does not take the texts of a model.
    #[error(
        "the chat template cannot carry {}: {reason}; expected one that puts in the content of every message, as {{% for m in messages %}}         {{{{ m['content'] }}}}{{% endfor %}} does",
        if *pairs { "a pair, whose texts are messages of the roles 'query' and 'document'" } else { "a text, which is a message of the role 'user'" }
    )]
    Messages { pairs: bool, reason: String },
    /// The tokenizer failed on a text.
    #[error("text {index} cannot be tokenized: {reason}")]
    Encode { index: usize, reason: String },
    /// The tokenizer failed on ids.
    #[error("token ids cannot be decoded: {reason}")]
    Decode { reason: String },
    /// Further ids changed the text of earlier ones.
    #[error(
        "this tokenizer's texts cannot be given in pieces: the text of the first {sent} tokens is not how the text of all {total} begins"
    )]
    NotIncremental { sent: usize, total: usize },
}

/// The file itself, where the path is a link to it: a person knows the files of a model folder, and not the links that are served.
fn own(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

// === impl TextError ===

impl TextError {
    /// The error where only a part of the text was tokenized.
    pub(crate) fn of_part(self) -> TextError {
        match self {
            TextError::TooLong { index, length, max_length, .. } => {
                TextError::TooLong { index, length, or_more: true, max_length }
            }
            other => other,
        }
    }

    /// The code for a request with this error.
    pub fn code(&self) -> ErrorCode {
        match self {
            TextError::File { .. } => ErrorCode::NotFound,
            TextError::Malformed { .. }
            | TextError::Options(_)
            | TextError::NotText { .. }
            | TextError::LongText { .. }
            | TextError::Parameter { .. }
            | TextError::UnknownPrompt { .. }
            | TextError::TwoPrompts { .. }
            | TextError::PrefixAndInstruction
            | TextError::NoInstruction { .. }
            | TextError::TooLong { .. }
            | TextError::NoIds { .. }
            | TextError::UnknownId { .. }
            | TextError::TooManyCharacters { .. }
            | TextError::UnknownLanguage { .. }
            | TextError::NoLanguages { .. }
            | TextError::Tensor(_)
            | TextError::InvalidUtf8 { .. }
            | TextError::PairCount { .. }
            | TextError::Truncation { .. }
            | TextError::UnequalLengths { .. }
            | TextError::LongerThanPadding { .. }
            | TextError::TooManyTokens { .. }
            | TextError::TooManyWindows { .. }
            | TextError::NoLabels
            | TextError::TooManyLabels { .. }
            | TextError::Labels { .. }
            | TextError::TooManySpans { .. }
            | TextError::Overlap { .. }
            | TextError::Template { .. }
            | TextError::Conversation { .. }
            | TextError::Messages { .. }
            | TextError::Encode { .. }
            | TextError::Decode { .. } => ErrorCode::InvalidArg,
            TextError::NotIncremental { .. } | TextError::NoOffsets { .. } | TextError::NoWindows { .. } => {
                ErrorCode::Unsupported
            }
        }
    }
}

impl From<TextError> for trireme_inference::InferError {
    fn from(error: TextError) -> Self {
        trireme_inference::InferError::new(error.code(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_named_by_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("chat_template.jinja"), folder.path().join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let named = |path| TextError::Malformed { path, reason: "broken".to_owned() }.to_string();
        assert_eq!(named(link), named(file.canonicalize().unwrap()));
        assert_eq!(named("no/such/file".into()), "no/such/file is not valid: broken");
    }
}
