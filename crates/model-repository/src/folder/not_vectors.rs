//! Outputs of graphs that are no vectors, though they have their shape: scores, weights of tokens, what BERT's pooler makes.

use trireme_model_files::onnx::GraphTensor;

use super::described::FolderFiles;
use super::files::{Json, Reader};
use super::graphs::GraphFile;
use super::modules::{Module, ModuleKind};
use super::widths::hidden_size;

/// Whether an output is as wide as the labels or the vocabulary of config.json, so that it holds scores, which is a fault: a graph for
/// vectors was expected.
pub(super) fn is_other(reader: &Reader<'_>, files: &FolderFiles, file: &GraphFile, output: &GraphTensor) -> bool {
    let (Some(width), None) = (output.width(), reader.choices().task) else { return false };
    if hidden_size(reader, &files.config).is_some_and(|hidden| hidden.value == width) {
        return false;
    }
    let config = &files.config.file;
    let labels = files.config.object(reader, "id2label").map(|labels| labels.len() as i64);
    let vocabulary = files.config.number(reader, "vocab_size").map(|size| size.value as i64);
    let place = file.place(output);
    let root = reader.root().display();
    if labels == Some(width) {
        reader.fault(format_args!(
            "{place} is {width} wide, as many as {config}: id2label has labels, so that it holds scores and no vectors: serve it with --task \
             classify, or with --task embed if they are vectors"
        ));
    } else if vocabulary == Some(width) {
        reader.fault(format_args!(
            "{place} is {width} wide, as {config}: vocab_size, so that it holds weights of tokens and no vectors, and they are pooled \
             already: export the model again with the weights of each token: mv {root}/{0} {root}/{0}.pooled && trireme export {root} --task \
             sparse",
            file.file.value
        ));
    } else {
        return false;
    }
    true
}

/// Whether a graph gives the output of BERT's pooler alone where another pooling is wanted, which is a fault.
pub(super) fn is_pooler_alone(
    reader: &Reader<'_>,
    files: &FolderFiles,
    file: &GraphFile,
    output: &GraphTensor,
    steps: &[&Module],
) -> bool {
    // sentence-transformers' LaBSE has a Dense with tanh behind its pooling, which the graph may hold.
    if !file.is_pooler(output) || is_tower(&files.config) || steps.iter().any(|module| module.is_layer()) {
        return false;
    }
    let modes = steps.iter().find_map(|module| match &module.step {
        ModuleKind::Pooling(pooling) => Some(format!("{} ({})", pooling.modes.value.join("+"), pooling.modes.origin)),
        _ => None,
    });
    let root = reader.root().display();
    let before = reader.faults().len();
    reader.contradiction(
        "pooler-output",
        format_args!(
            "{} gives {}, which BERT's pooler makes of the first token for another task, and no vectors of tokens for the pooling {}: export \
             it again: mv {root}/{0} {root}/{0}.pooler && trireme export {root} --task embed",
            file.file.value,
            output.name,
            modes.as_deref().unwrap_or("mean, sentence-transformers' default"),
        ),
        "the pooler's vectors are served as they are",
    );
    reader.faults().len() > before
}

/// Whether the model is the text tower of one for images, whose vector is not made of the vectors of tokens.
pub(super) fn is_tower(config: &Json) -> bool {
    config.get("model_type").and_then(|kind| kind.as_str()).is_some_and(|kind| kind.starts_with("siglip"))
}
