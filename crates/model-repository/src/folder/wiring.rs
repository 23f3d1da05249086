//! The tensors that travel between the steps of a derived ensemble, and from them to clients.

use trireme_inference::DataType;
use trireme_model_files::onnx::GraphTensor;

use super::description::{Executor, FolderDescription};
use super::heads::{Head, Source};
use super::inputs;
use super::origin::Derived;
use super::task::Task;
use super::tensors::{FP32, INT64, STRING, TEXT, of_words, outputs, scoring_mask, side, tokens, windows};
use super::text::Tensor;

const TEXT_PAIR: &str = "TEXT_PAIR";

/// The tensors that travel between the steps.
pub(super) struct Wiring {
    /// The tokenizer's inputs.
    pub(super) texts: Vec<Tensor>,
    /// The tokenizer's outputs.
    pub(super) tokens: Vec<Tensor>,
    /// The model's inputs, all of them outputs of the tokenizer.
    pub(super) inputs: Vec<Tensor>,
    /// The model's output.
    pub(super) result: Tensor,
    /// The inputs of postprocess beside the model's output.
    pub(super) side: Vec<Tensor>,
    /// The outputs of the whole chain.
    pub(super) outputs: Vec<Tensor>,
    /// Further chains on the model's outputs.
    pub(super) branches: Vec<Branch>,
}

/// A step that makes a further result of one of the model's outputs.
pub(super) struct Branch {
    /// The name of its model, behind the folder's.
    pub(super) suffix: &'static str,
    /// The model's output that it is made of, where that is another one than the chain's.
    pub(super) result: Option<Tensor>,
    pub(super) side: Vec<Tensor>,
    pub(super) outputs: Vec<Tensor>,
}

// === impl Wiring ===

impl Wiring {
    /// The tensors of the chain that serves the folder.
    pub(super) fn of(description: &FolderDescription) -> Wiring {
        let task = description.task.value;
        let tokens = |name: &str| Tensor::new(name, INT64, &[-1, -1]);
        let mut inputs = vec![tokens("input_ids"), tokens("attention_mask")];
        let result = match &description.executor {
            Executor::Onnx { file, output } => {
                let taken = |input: &GraphTensor| {
                    let data_type = input.datatype.unwrap_or(DataType::Int64).config_name();
                    let dims = input.dims.clone().unwrap_or_else(|| vec![-1, -1]);
                    Tensor::new(&input.name, data_type, &dims).origin(file.place(input))
                };
                inputs = file.graph.inputs.iter().filter(|input| !inputs::is_cache(input)).map(taken).collect();
                given_by(&output.value).origin(&output.origin)
            }
            Executor::Static { file, width: 0, .. } => {
                Tensor::new("token_weights", FP32, &[-1, -1, 1]).origin(&file.value)
            }
            Executor::Static { file, width, .. } => {
                Tensor::new("sentence_embedding", FP32, &[-1, *width]).origin(&file.value)
            }
            Executor::Generation { tells_target, .. } => {
                if *tells_target {
                    let token = Tensor::new("forced_bos_token_id", INT64, &[-1, 1]).optional();
                    inputs.push(token.origin("the token of the target language"));
                }
                Tensor::new("generated_indices", INT64, &[-1, -1])
            }
        };
        let side = side(description);
        let mut given: Vec<Tensor> = inputs.iter().map(|input| Tensor { optional: false, ..input.clone() }).collect();
        let branches: Vec<Branch> = description.heads.iter().map(|head| Branch::of(description, head)).collect();
        let beside = side.iter().chain(branches.iter().flat_map(|branch| &branch.side));
        for tensor in beside.filter(|tensor| tensor.data_type != STRING) {
            if !given.iter().any(|given| given.name == tensor.name) {
                given.push(tensor.clone());
            }
        }
        let texts = vec![Tensor::new(TEXT, STRING, &[-1])];
        let pair = Tensor::new(TEXT_PAIR, STRING, &[-1]);
        let texts = match task {
            Task::Rerank if !description.takes_texts => [texts, vec![pair]].concat(),
            Task::Rerank | Task::Classify => [texts, vec![pair.optional()]].concat(),
            _ => texts,
        };
        let mut results = outputs(description.task.value, &description.width);
        if description.spans.is_some() {
            // The labels are those of requests.
            results.iter_mut().for_each(|result| result.label_file = None);
        }
        Wiring { texts, tokens: given, inputs, result, side, outputs: results, branches }
    }

    /// The model's outputs.
    pub(super) fn results(&self) -> Vec<Tensor> {
        let further = self.branches.iter().filter_map(|branch| branch.result.clone());
        std::iter::once(self.result.clone()).chain(further).collect()
    }

    /// The ensemble's name for the model's output, which must differ from the names of all other tensors.
    pub(super) fn carried(&self) -> String {
        let name = &self.result.name;
        let taken = self.outputs.iter().chain(&self.tokens).chain(&self.texts).any(|tensor| &tensor.name == name);
        if taken { format!("model_{name}") } else { name.clone() }
    }
}

/// An output of the graph.
fn given_by(output: &GraphTensor) -> Tensor {
    let data_type = output.datatype.unwrap_or(DataType::Fp32).config_name();
    Tensor::new(&output.name, data_type, &loose(output.dims.clone().unwrap_or_default()))
}

/// Makes rows and length variable: the file may have a name in place of a number there.
fn loose(mut dims: Vec<i64>) -> Vec<i64> {
    if let Some(rows) = dims.first_mut() {
        *rows = -1;
    }
    dims
}

// === impl Branch ===

impl Branch {
    fn of(description: &FolderDescription, head: &Head) -> Branch {
        let attention = || tokens(description, "attention_mask");
        let (suffix, side) = match head.task {
            Task::Sparse => ("sparse", vec![attention(), tokens(description, "input_ids")]),
            Task::ZeroShot => ("classes", vec![windows()]),
            Task::Extract => ("records", of_words().into()),
            _ if description.late.scores_apart() => ("multi_vector", vec![scoring_mask()]),
            _ => ("multi_vector", vec![attention()]),
        };
        let (result, place) = match &head.source {
            Source::Layer { file, .. } => (None, format!("{file}: weight")),
            Source::Output(output) => (Some(given_by(output).origin(&head.origin)), head.origin.clone()),
        };
        Branch { suffix, result, side, outputs: outputs(head.task, &Derived::from(head.width, place)) }
    }
}
