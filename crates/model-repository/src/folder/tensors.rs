//! The tensors between the steps of a derived repository: those of the tokenizer that ops need, and the results of each task.

use trireme_inference::DataType;

use super::description::{Executor, FolderDescription};
use super::origin::Derived;
use super::task::Task;
use super::text::Tensor;
use crate::CLASSES;

pub(super) const LABEL_FILE: &str = "labels.txt";
pub(super) const INT64: &str = "TYPE_INT64";
pub(super) const FP32: &str = "TYPE_FP32";
pub(super) const STRING: &str = "TYPE_STRING";
pub(super) const TEXT: &str = "TEXT";

pub(super) fn scoring_mask() -> Tensor {
    Tensor::new("scoring_mask", INT64, &[-1, -1]).origin("the tokens whose vectors are compared")
}

pub(super) fn windows() -> Tensor {
    Tensor::new("windows", INT64, &[-1, 6]).origin("what of which text a row is of")
}

/// An output of the tokenizer that the graph may take, too.
pub(super) fn tokens(description: &FolderDescription, name: &str) -> Tensor {
    let own = match &description.executor {
        Executor::Onnx { file, .. } => file.graph.input(name).and_then(|input| input.datatype),
        _ => None,
    };
    Tensor::new(name, own.unwrap_or(DataType::Int64).config_name(), &[-1, -1])
}

/// The inputs that a chain's ops need beside the data.
pub(super) fn side(description: &FolderDescription) -> Vec<Tensor> {
    let tokens = |name: &str| tokens(description, name);
    let uses_mask = |op: &Derived<String>| {
        ["pool:", "logit_score", "mask", "splade", "distinct", "lexical"].iter().any(|name| op.value.starts_with(name))
    };
    let mut side = Vec::new();
    if description.task.value == Task::MultiVector && description.late.scores_apart() {
        side.push(scoring_mask());
    } else if description.ops.iter().any(uses_mask) {
        side.push(tokens("attention_mask"));
    }
    if description.excludes_prompt {
        side.push(
            Tensor::new("pooling_mask", INT64, &[-1, -1]).origin("modules.json: Pooling with include_prompt false"),
        );
    }
    if description.ops.iter().any(|op| ["distinct", "lexical"].iter().any(|name| op.value.starts_with(name))) {
        side.push(tokens("input_ids"));
    }
    if description.fold().is_ok() {
        side.push(windows());
    }
    if description.spans.is_some() {
        side.extend(of_words());
        return side;
    }
    if description.task.value == Task::TokenClassify {
        side.push(tokens("input_ids"));
        side.push(Tensor::new("offsets", INT64, &[-1, -1, 2]));
        side.push(Tensor::new("special_tokens_mask", INT64, &[-1, -1]));
        side.push(windows());
        side.push(Tensor::new(TEXT, STRING, &[-1]));
    }
    side
}

/// What tells the words of texts.
pub(super) fn of_words() -> [Tensor; 3] {
    let offsets = Tensor::new("word_offsets", INT64, &[-1, -1, 2]).origin("the characters of words");
    [offsets, windows(), Tensor::new(TEXT, STRING, &[-1])]
}

/// The outputs of a task, for results of this width.
pub(super) fn outputs(task: Task, width: &Derived<i64>) -> Vec<Tensor> {
    let Derived { value: width, origin } = width;
    match task {
        Task::Embed => vec![Tensor::new("sentence_embedding", FP32, &[-1, *width]).origin(origin)],
        Task::Sparse => {
            vec![Tensor::new("sparse_indices", INT64, &[-1, -1]), Tensor::new("sparse_values", FP32, &[-1, -1])]
        }
        Task::MultiVector => vec![
            Tensor::new("token_embeddings", FP32, &[-1, -1, *width]).origin(origin),
            Tensor::new("token_mask", INT64, &[-1, -1]),
        ],
        Task::Rerank | Task::Classify => vec![Tensor::new("scores", FP32, &[-1, *width]).origin(origin)],
        Task::ZeroShot => {
            vec![Tensor::new("scores", FP32, &[-1, *width]).origin(origin), Tensor::new(CLASSES, STRING, &[-1])]
        }
        Task::TokenClassify => {
            let entities = Tensor::new("entities", STRING, &[-1]);
            vec![Tensor { label_file: Some(LABEL_FILE), ..entities }]
        }
        Task::Extract => vec![Tensor::new("records", STRING, &[-1])],
        Task::Generate => vec![Tensor::new("generated_text", STRING, &[-1])],
        // A folder's model takes token ids; its tokenizer is a model of its own.
        Task::Tokenize | Task::Decode => Vec::new(),
    }
}
