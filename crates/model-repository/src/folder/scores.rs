//! The ops that turn logits into scores of labels, or into weights of tokens.

use trireme_model_files::onnx::{EndOp, GraphTensor};

use super::chain::{Chain, embedding};
use super::classifier::Head;
use super::described::FolderFiles;
use super::files::Reader;
use super::graphs::GraphFile;
use super::head::{self, Activation};
use super::heads;
use super::modules::ModuleKind;
use super::origin::{Derived, SENTENCE_TRANSFORMERS};
use super::task::{Purpose, Task};
use super::tokenizer::Tokenizer;
use super::widths::{agree, known, width_of};

/// Logits over the vocabulary to weights of tokens.
pub(super) fn sparse(reader: &Reader<'_>, files: &FolderFiles, file: &GraphFile, tokenizer: &Tokenizer) -> Chain {
    let vocabulary = files.config.number(reader, "vocab_size").map(|size| size.map(|size| size as i64));
    let Some(logits) = file.logits(3) else {
        reader.fault(format_args!(
            "{} gives no logits over the vocabulary, found {}; export it again with --task fill-mask",
            file.file.value,
            file.outputs()
        ));
        return Chain::none(Some(Derived::from(1, "")));
    };
    if logits.width() == Some(1) {
        // The head of BGE-M3 within the graph: a weight for each token.
        let (output, place) = (known(logits, 3, None), file.place(logits));
        let ops = vec![heads::lexical(tokenizer)];
        return Chain {
            output: Some(Derived::from(output, place.clone())),
            ops,
            ..Chain::none(Some(Derived::from(1, place)))
        };
    }
    let width = agree(reader, [width_of(file, logits), vocabulary]);
    let splade = files.modules.iter().flatten().find_map(|module| match &module.step {
        ModuleKind::Splade { argument } => Some(argument.clone()),
        _ => None,
    });
    let splade =
        splade.unwrap_or_else(|| Derived::default_of("relu".to_owned(), SENTENCE_TRANSFORMERS, "no module says it"));
    let origin = splade.origin.clone();
    let most = files.own.as_ref().and_then(|own| own.number(reader, "max_active_dims"));
    let last = match most.filter(|most| most.value > 0) {
        Some(most) => most.map(|most| format!("sparse:{most}")),
        None => Derived::from("sparse".to_owned(), origin),
    };
    let ops = vec![splade.map(|argument| format!("splade:{argument}")), last];
    let place = file.place(logits);
    let output = known(logits, 3, width.as_ref());
    Chain { output: Some(Derived::from(output, place)), ops, ..Chain::none(width) }
}

/// Logits over labels to scores.
pub(super) fn scores(
    reader: &Reader<'_>,
    purpose: &Purpose,
    files: &FolderFiles,
    file: &GraphFile,
    head: &Head,
) -> Chain {
    let pools = files.modules.iter().flatten().any(|module| matches!(module.step, ModuleKind::Pooling(_)));
    if pools && purpose.cross_encoder && file.graph.output("logits").is_none() {
        let mut chain = embedding(reader, purpose.task.value, files, file);
        let told = activation(reader, purpose, files, head);
        let keeps = |op: &Derived<String>| op.value == "normalize";
        let output = chain.output.as_ref().filter(|_| chain.ops.iter().all(keeps));
        let (activation, graph_end) = match output {
            Some(output) => activated(reader, file, &output.value, told),
            None => (told, None),
        };
        chain.graph_end = graph_end;
        chain.ops.extend(activation.value.op().map(|op| Derived::from(op.to_owned(), activation.origin)));
        return chain;
    }
    let rank = if purpose.task.value == Task::TokenClassify { 3 } else { 2 };
    let labels = head.labels.as_ref();
    let count = labels.map(|labels| Derived::from(labels.value.len() as i64, labels.origin.clone()));
    let per_token = || file.logits(3).filter(|_| rank == 2 && file.logits(2).is_none());
    if let Some(scores) = per_token() {
        reader.refuse(format_args!(
            "{} has a score for each token, and {} is served by one for each text: serve the graph by a model.py (backend: \"python\") that \
             takes the scores it wants (docs/python.md), or with --task token_classify if they are labels of tokens",
            file.place(scores),
            purpose.task.value.name()
        ));
        return Chain::none(count);
    }
    let Some(logits) = file.logits(rank) else {
        reader.fault(format_args!(
            "{} gives no logits of rank {rank}, found {}; name the one that is meant with --output, or export it again with --task {}",
            file.file.value,
            file.outputs(),
            purpose.task.value.export()
        ));
        return Chain::none(count);
    };
    if let (Some(width), Some(count)) = (width_of(file, logits), &count)
        && width.value != count.value
    {
        reader.fault(format_args!(
            "{} gives {} scores, but {} has {} labels",
            width.origin, width.value, count.origin, count.value
        ));
    }
    let mut ops = Vec::new();
    let (activation, graph_end) = match purpose.task.value {
        Task::TokenClassify => {
            if let Some((op, ..)) = ending(file, logits) {
                reader.fault(format_args!(
                    "{}: {} ends with {op}, and entities are made of the scores before it: export it again: mv {2}/{0} {2}/{0}.probabilities && \
                     trireme export {2} --task token_classify",
                    file.file.value,
                    logits.name,
                    reader.root().display()
                ));
            }
            // Op `entities` takes the logits.
            (Derived::from(Activation::None, ""), None)
        }
        _ => activated(reader, file, logits, activation(reader, purpose, files, head)),
    };
    if let Some(op) = activation.value.op() {
        ops.push(Derived::from(op.to_owned(), activation.origin));
    }
    if purpose.task.value == Task::TokenClassify {
        ops.push(Derived::from(
            "entities:simple".to_owned(),
            "no file names a strategy: words that follow one another are one entity",
        ));
    }
    let place = file.place(logits);
    let output = known(logits, rank, count.as_ref());
    Chain { output: Some(Derived::from(output, place)), ops, graph_end, ..Chain::none(count) }
}

/// The op that an output ends with, and the activation that it is.
fn ending(file: &GraphFile, output: &GraphTensor) -> Option<(&'static str, Option<Activation>)> {
    match file.graph.ending(&output.name).first()? {
        EndOp::Softmax => Some(("softmax", Some(Activation::Softmax))),
        EndOp::LogSoftmax => Some(("log_softmax", None)),
        EndOp::Sigmoid => Some(("sigmoid", Some(Activation::Sigmoid))),
        EndOp::Tanh => Some(("tanh", Some(Activation::Tanh))),
        _ => None,
    }
}

/// The activation that is left to apply to an output, and the op that the graph has applied already. A warning says if the folder names
/// another one.
fn activated(
    reader: &Reader<'_>,
    file: &GraphFile,
    output: &GraphTensor,
    told: Derived<Activation>,
) -> (Derived<Activation>, Option<Derived<&'static str>>) {
    let place = file.place(output);
    match ending(file, output) {
        None => (told, None),
        // A layer of the model, which its scores are made of.
        Some(("tanh", _)) if told.value != Activation::Tanh => (told, None),
        // Softmax of logarithms of probabilities gives these.
        Some((op @ "log_softmax", _)) if told.value == Activation::Softmax => (told, Some(Derived::from(op, place))),
        Some((op, same)) => {
            if same != Some(told.value) {
                reader.warn(format_args!(
                    "{place} ends with {op}, but {} says {}: scores are served as the graph gives them; export it again without its {op} for \
                     those of the library",
                    told.origin,
                    told.value.op().unwrap_or("none")
                ));
            }
            (Derived::from(Activation::None, format!("{place} ends with {op}")), Some(Derived::from(op, place)))
        }
    }
}

/// A cross-encoder's own activation, else sigmoid for one score and none for several; a classifier's by its problem.
pub(super) fn activation(
    reader: &Reader<'_>,
    purpose: &Purpose,
    files: &FolderFiles,
    head: &Head,
) -> Derived<Activation> {
    let told = head::cross_encoder_activation(reader, &files.config, files.own.as_ref());
    match (told, purpose.task.value, &head.problem) {
        (Some(told), ..) => told,
        (None, Task::Rerank, _) => Derived::from(Activation::Sigmoid, "sentence-transformers' default for one score"),
        (None, _, _) if purpose.cross_encoder => {
            Derived::from(Activation::None, "sentence-transformers' default for several scores")
        }
        (None, _, Some(problem)) => problem.clone().map(|(_, activation)| activation),
        (None, _, None) => Derived::from(Activation::None, ""),
    }
}
