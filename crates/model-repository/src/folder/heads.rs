//! The heads of BGE-M3: from the states that its dense embedding is made of, a weight for each token (`sparse_linear.pt`) and a smaller
//! vector for each token (`colbert_linear.pt`). The rules are those of FlagEmbedding, the model's own library: weights go through ReLU,
//! special tokens have none, and of the vectors only the first token's is left out. A graph may have the heads inside, as further outputs.

use trireme_model_files::onnx::{EndOp, GraphTensor};
use trireme_model_files::torch_file;

use super::files::Reader;
use super::graphs::GraphFile;
use super::late::Late;
use super::origin::Derived;
use super::task::Task;
use super::tokenizer::Tokenizer;

/// The files, each with its task and the activation behind its layer.
const FILES: [(&str, Task, &str); 2] = [
    ("sparse_linear.pt", Task::Sparse, "torch.nn.modules.activation.ReLU"),
    ("colbert_linear.pt", Task::MultiVector, "torch.nn.modules.linear.Identity"),
];

/// The outputs of a graph that has the heads inside, each with its task.
const OUTPUTS: [(&str, Task); 2] = [("sparse_vecs", Task::Sparse), ("colbert_vecs", Task::MultiVector)];

/// A further result of a folder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Head {
    pub(crate) task: Task,
    pub(crate) source: Source,
    /// The file of the layer, or the graph's output.
    pub(crate) origin: String,
    pub(crate) ops: Vec<Derived<String>>,
    pub(crate) width: i64,
}

/// The tensor that a head is made of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    /// The states of tokens, by a layer in a file of its own.
    Layer {
        /// The file of the layer.
        file: &'static str,
        /// `config.json` of the layer, as sentence-transformers has it for a Dense.
        config: String,
    },
    /// A further output of the graph.
    Output(GraphTensor),
}

/// The folder of a layer, where op `dense` finds it.
pub(crate) fn folder(file: &str) -> &str {
    file.trim_end_matches(".pt")
}

/// The heads within the graph of a folder whose texts have the vector `dense`, and those that cannot be served, with the reason.
pub(super) fn of_graph(
    file: &GraphFile,
    tokenizer: &Tokenizer,
    dense: &GraphTensor,
) -> (Vec<Head>, Option<Derived<String>>) {
    let (mut heads, mut unserved) = (Vec::new(), None);
    for (name, task) in OUTPUTS {
        let Some(output) = file.graph.output(name).filter(|output| output.name != dense.name) else { continue };
        let is_sparse = task == Task::Sparse;
        let width = output.width().filter(|&width| output.rank() == Some(3) && (width == 1) == is_sparse);
        let has_mask = file.graph.input("attention_mask").is_some();
        let why = match width {
            _ if !has_mask => "without an input attention_mask the padding of shorter texts counts as text",
            None if is_sparse => "it has no weight for each token",
            None => "it has no vector for each token, or their width is open",
            Some(_) if file.graph.ending(name).contains(&EndOp::Select) => {
                "it leaves out the vectors of some tokens, as of the first one"
            }
            Some(width) => {
                let origin = file.place(output);
                let ops = if is_sparse { vec![lexical(tokenizer)] } else { late_ops() };
                heads.push(Head { task, source: Source::Output(output.clone()), origin, ops, width });
                continue;
            }
        };
        unserved = Some(Derived::from(name.to_owned(), format!("{}: {why}", file.place(output))));
    }
    (heads, unserved)
}

/// The ops behind the layer of a vector for each token.
fn late_ops() -> Vec<Derived<String>> {
    vec![
        Derived::from("mask".to_owned(), "BGE-M3's vectors: all but the first token's"),
        Derived::from("normalize".to_owned(), "BGE-M3's vectors have length 1"),
    ]
}

/// The names of the files, for downloads.
pub(super) fn files() -> impl Iterator<Item = &'static str> {
    FILES.into_iter().map(|(file, ..)| file)
}

/// Whether the folder has a head.
pub(super) fn are_there(reader: &Reader<'_>) -> bool {
    files().any(|file| reader.has(file))
}

/// The heads of the folder, for states of this width.
pub(super) fn read(reader: &Reader<'_>, tokenizer: &Tokenizer, width: i64) -> Vec<Head> {
    let there = FILES.into_iter().filter(|(file, ..)| reader.has(file));
    there.filter_map(|(file, task, activation)| head(reader, file, task, activation, tokenizer, width)).collect()
}

fn head(
    reader: &Reader<'_>,
    file: &'static str,
    task: Task,
    activation: &str,
    tokenizer: &Tokenizer,
    width: i64,
) -> Option<Head> {
    let tensors = match torch_file::read(&reader.path(file)) {
        Ok(tensors) => tensors,
        Err(reason) => {
            reader.unreadable(file, format_args!("cannot be read: {reason}"));
            return None;
        }
    };
    let shape = tensors.get("weight").map(|weight| weight.shape.clone()).unwrap_or_default();
    let [outputs, inputs] = shape.as_slice() else {
        let names = tensors.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        reader.fault(format_args!("{file} has no matrix 'weight' of a linear layer, found {names}"));
        return None;
    };
    let expected = (task == Task::Sparse).then_some(1);
    if *inputs as i64 != width || expected.is_some_and(|expected| *outputs != expected) {
        let wide = expected.map_or("any number".to_owned(), |expected| expected.to_string());
        reader.fault(format_args!("{file}: weight has shape {shape:?}, but states of {width} to {wide} are expected"));
        return None;
    }
    let config = serde_json::json!({
        "in_features": inputs, "out_features": outputs, "bias": tensors.contains_key("bias"), "activation_function": activation
    });
    let mut ops = vec![Derived::from(format!("dense:{}", folder(file)), file)];
    match task {
        Task::Sparse => ops.push(lexical(tokenizer)),
        _ => ops.extend(late_ops()),
    }
    let source = Source::Layer { file, config: config.to_string() };
    Some(Head { task, source, origin: file.to_owned(), ops, width: *outputs as i64 })
}

/// The op that makes a sparse vector of the weights of tokens.
pub(super) fn lexical(tokenizer: &Tokenizer) -> Derived<String> {
    let ids = tokenizer.special.iter().map(i64::to_string).collect::<Vec<_>>().join("+");
    let lexical = if ids.is_empty() { "lexical".to_owned() } else { format!("lexical:{ids}") };
    Derived::from(lexical, "BGE-M3's weights: those of special tokens, by their ids, are left out")
}

/// The marks that the tokenizer has to make for the vectors: the first token is not compared.
pub(super) fn late(heads: &[Head], tokenizer: &Tokenizer) -> Late {
    let has_vectors = heads.iter().any(|head| head.task == Task::MultiVector);
    let Some(first) = tokenizer.first.as_ref().filter(|_| has_vectors) else { return Late::default() };
    Late {
        skiplist_words: Some(first.clone().map(|first| serde_json::json!([first]).to_string())),
        skiplist_tasks: Some(Derived::from(r#"["query","document"]"#.to_owned(), "BGE-M3's vectors, of both sides")),
        ..Late::default()
    }
}
