//! The operations that models carry out on texts: their names in configurations, and the outputs that hold their results.

use std::fmt;

use trireme_inference::{DataType, TensorSpec};

/// The output of a model of labels in rows that has, for each text, the labels that count as a JSON object.
pub const CLASSES: &str = "classes";

/// An operation on texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// A text to a vector.
    Embed,
    /// A text to the few entries of a vector that are not zero.
    Sparse,
    /// A text to a vector for each token.
    MultiVector,
    /// A query and a text to how well they go together.
    Rerank,
    /// A text to a score for each class.
    Classify,
    /// A text to a score for each label that its request names.
    ZeroShot,
    /// A text to its named entities.
    TokenClassify,
    /// A text to the structures and relations that its request names.
    Extract,
    /// A text to another text, made token by token.
    Generate,
    /// A text to its tokens.
    Tokenize,
    /// Token ids to their text.
    Decode,
}

// === impl Task ===

impl Task {
    /// Every operation.
    pub const ALL: [Task; 11] = [
        Task::Embed,
        Task::Sparse,
        Task::MultiVector,
        Task::Rerank,
        Task::Classify,
        Task::ZeroShot,
        Task::TokenClassify,
        Task::Extract,
        Task::Generate,
        Task::Tokenize,
        Task::Decode,
    ];

    /// Its word in the parameter `task`.
    pub fn name(self) -> &'static str {
        match self {
            Task::Embed => "embed",
            Task::Sparse => "sparse",
            Task::MultiVector => "multi_vector",
            Task::Rerank => "rerank",
            Task::Classify => "classify",
            Task::ZeroShot => "zero_shot",
            Task::TokenClassify => "token_classify",
            Task::Extract => "extract",
            Task::Generate => "generate",
            Task::Tokenize => "tokenize",
            Task::Decode => "decode",
        }
    }

    /// The operation with this name.
    pub fn named(name: &str) -> Option<Task> {
        Task::ALL.into_iter().find(|task| task.name() == name)
    }

    /// Whether a tokenizer carries it out: clients name a model that has the tokenizer for a step.
    pub fn is_tokenizers(self) -> bool {
        matches!(self, Task::Tokenize | Task::Decode)
    }

    /// The outputs that hold its result, with their datatypes and numbers of dimensions; 0 is any.
    pub fn outputs(self) -> &'static [(&'static str, DataType, usize)] {
        match self {
            Task::Embed => &[("sentence_embedding", DataType::Fp32, 2)],
            Task::Sparse => &[("sparse_indices", DataType::Int64, 2), ("sparse_values", DataType::Fp32, 2)],
            Task::MultiVector => &[("token_embeddings", DataType::Fp32, 3), ("token_mask", DataType::Int64, 2)],
            Task::Rerank | Task::Classify | Task::ZeroShot => &[("scores", DataType::Fp32, 2)],
            Task::TokenClassify => &[("entities", DataType::Bytes, 0)],
            Task::Extract => &[("records", DataType::Bytes, 0)],
            Task::Generate => &[],
            Task::Tokenize => &[("tokens", DataType::Bytes, 0)],
            Task::Decode => &[("decoded_text", DataType::Bytes, 0)],
        }
    }

    /// Where its result is among the outputs of a model: under the names it has, or, where it is one tensor, in the only one
    /// that it could be in.
    pub fn find(self, outputs: &[TensorSpec]) -> Option<Vec<String>> {
        let fits = |output: &&TensorSpec, datatype, rank| {
            output.datatype == datatype && (rank == 0 || output.shape.len() == rank)
        };
        let named = |&(name, datatype, rank): &(&str, DataType, usize)| {
            outputs.iter().find(|output| output.name == name && fits(output, datatype, rank))
        };
        let found: Option<Vec<_>> = self.outputs().iter().map(named).collect();
        let found = found.or_else(|| match self.outputs() {
            &[(_, datatype, rank)] => {
                let mut fitting = outputs.iter().filter(|output| fits(output, datatype, rank));
                fitting.next().filter(|_| fitting.next().is_none()).map(|only| vec![only])
            }
            _ => None,
        })?;
        Some(found.into_iter().map(|output| output.name.to_string()).collect())
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
