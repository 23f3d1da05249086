//! Fields of other servers that the routes with OpenAI's answers read, too: Mistral's, Voyage's, Azure's, Jina's and NIM's clients ask for
//! `/v1/embeddings`, each with its own ones. By [`words`](super::words) they have further names.

use serde::Deserialize;
use trireme_operations::{Prompt, TextOptions, Vectors};
use utoipa::ToSchema;

use super::answer::EncodingFormat;
use super::dialect::DialectCall;
use super::fields::{self, Field, ours};
use super::quantize::{EmbeddingType, Vector};
use super::refusal::Refusal;

/// The fields.
pub const FIELDS: &[Field] = &[
    ours("output_dtype", &[r#""float""#]),
    ours("truncate", fields::FLAG),
    ours("normalize", fields::FLAG),
    ours("input_type", &[r#""query""#]),
    ours("prompt_name", &[r#""query""#]),
    ours("instruction", fields::TEXT),
    ours("chunking", &["true", r#"{"fold": "max", "overlap": 8, "max_tokens": 32}"#]),
];

/// The fields as a body has them.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = Extras)]
pub struct Extras {
    output_dtype: Option<EmbeddingType>,
    truncate: Option<bool>,
    normalize: Option<bool>,
    input_type: Option<String>,
    prompt_name: Option<String>,
    instruction: Option<String>,
    chunking: Option<Chunking>,
}

/// Whether a text that is too long is read in windows. One vector is made of theirs, or each of them has one (`fold` is `keep`).
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Chunking)]
enum Chunking {
    Flag(bool),
    Windows(WindowsOfText),
}

/// How it is read.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WindowsOfText)]
struct WindowsOfText {
    fold: Option<String>,
    overlap: Option<u64>,
    max_tokens: Option<u64>,
}

/// The form of vectors in an answer.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The field that asks for the type.
    pub field: &'static str,
    pub elements: EmbeddingType,
    pub format: EncodingFormat,
}

/// The sides of a search by their names in all APIs, which clients write in capitals, too.
const QUERIES: [&str; 5] = ["query", "search_query", "retrieval.query", "retrieval_query", "code.query"];
const DOCUMENTS: [&str; 8] = [
    "document",
    "passage",
    "search_document",
    "retrieval.passage",
    "retrieval_document",
    "retrieval.document",
    "code.passage",
    "db",
];

/// Tasks whose prompts a model may have.
const TASKS: [&str; 4] = ["classification", "clustering", "separation", "text-matching"];

// === impl Extras ===

impl Extras {
    /// The options as operations take them.
    pub fn options(self, dimensions: Option<u64>) -> Result<TextOptions, Refusal> {
        let prompt = match (self.prompt_name, self.input_type) {
            (Some(_), Some(_)) => return Err(Refusal::field("input_type", "comes with 'prompt_name', expected one")),
            (Some(name), None) => Prompt::Named(name),
            (None, Some(kind)) => prompt(&kind)?,
            (None, None) => Prompt::Default,
        };
        let (windows, WindowsOfText { fold, overlap, max_tokens }) = match self.chunking {
            None => (None, WindowsOfText::default()),
            Some(Chunking::Flag(flag)) => (Some(flag), WindowsOfText::default()),
            Some(Chunking::Windows(windows)) => (Some(true), windows),
        };
        Ok(TextOptions {
            prompt,
            windows,
            fold,
            overlap,
            max_tokens,
            instruction: self.instruction,
            truncate: self.truncate,
            normalize: self.normalize,
            dimensions,
            ..TextOptions::default()
        })
    }

    /// The form of vectors, in this encoding.
    pub fn form(&self, format: Option<EncodingFormat>) -> Form {
        let elements = self.output_dtype.unwrap_or(EmbeddingType::Float);
        Form { field: "output_dtype", elements, format: format.unwrap_or_default() }
    }
}

/// The prompt of a side of a search, or of a task.
fn prompt(kind: &str) -> Result<Prompt, Refusal> {
    let word = kind.to_ascii_lowercase();
    if QUERIES.contains(&&*word) {
        return Ok(Prompt::Query);
    }
    if DOCUMENTS.contains(&&*word) {
        return Ok(Prompt::Document);
    }
    if let Some(task) = TASKS.into_iter().find(|task| *task == word) {
        return Ok(Prompt::IfThere(task));
    }
    let expected = "expected query, document, classification, clustering, separation or text-matching";
    Err(Refusal::field("input_type", format!("is {kind:?}, {expected}")))
}

// === impl Form ===

impl Form {
    /// Whether these vectors can be had in it.
    pub fn check(&self, vectors: &Vectors) -> Result<(), Refusal> {
        self.elements.check(self.field, &vectors.numbers())
    }

    /// A vector in it.
    pub fn vector<'a>(&self, numbers: &'a [f32]) -> Vector<'a> {
        Vector { numbers, elements: self.elements, format: self.format }
    }
}

/// The model of this name, and the prompt that the end of the name stands for: as NIM's clients name them, `NAME-query` and `NAME-passage` are
/// the model `NAME`, unless models are called so.
pub fn named<'n>(call: &DialectCall, name: &'n str) -> (&'n str, Option<Prompt>) {
    let ends = [("-query", Prompt::Query), ("-passage", Prompt::Document)];
    let exists = |name: &str| call.operations.text_model(Some(name)).is_ok();
    let own = ends.into_iter().find_map(|(end, prompt)| Some((name.strip_suffix(end)?, prompt)));
    match own.filter(|(own, _)| !exists(name) && exists(own)) {
        Some((own, prompt)) => (own, Some(prompt)),
        None => (name, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_have_the_words_of_all_apis() {
        let read = |kind: &str| prompt(kind).map_err(|refusal| refusal.message);
        for kind in ["query", "search_query", "RETRIEVAL_QUERY", "retrieval.query"] {
            assert_eq!(read(kind), Ok(Prompt::Query));
        }
        assert_eq!(read("passage"), Ok(Prompt::Document));
        assert_eq!(read("clustering"), Ok(Prompt::IfThere("clustering")));
        assert!(read("image").unwrap_err().starts_with("'input_type' is \"image\", expected query, document"));
    }
}
