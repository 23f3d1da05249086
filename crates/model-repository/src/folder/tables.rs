//! Models that look their answers up by token, and have no graph.

use trireme_model_files::safetensors;

use super::chain::{self, Chain, token_chain};
use super::described::FolderFiles;
use super::description::{Executor, FolderDescription};
use super::files::Reader;
use super::modules::ModuleKind;
use super::origin::Derived;
use super::task::Task;
use super::tokenizer::{Prompts, Tokenizer};

/// A model that looks up vectors and has no graph: model2vec, StaticEmbedding.
pub(super) fn static_model(
    reader: &Reader<'_>,
    task: Derived<Task>,
    tokenizer: Tokenizer,
    files: &FolderFiles,
    folder: &str,
    prompts: Prompts,
) -> Option<FolderDescription> {
    let file = format!("{folder}model.safetensors");
    let shapes = match safetensors::shapes(&reader.path(&file)) {
        Ok(shapes) => shapes,
        Err(error) => {
            reader.unreadable(&file, format_args!("cannot be read: {error}"));
            return None;
        }
    };
    let table = ["embeddings", "embedding.weight"].iter().find_map(|name| Some((*name, shapes.get(*name)?)));
    let Some((name, &[rows, width])) = table.map(|(name, shape)| (name, shape.as_slice())) else {
        reader.fault(format_args!("{file} has no table 'embeddings' or 'embedding.weight' of rank 2"));
        return None;
    };
    let mapped = shapes.get("mapping").and_then(|shape| shape.first().copied()).unwrap_or(rows);
    if let Some(highest) = tokenizer.highest.as_ref().filter(|highest| highest.value >= mapped) {
        reader.fault(format_args!(
            "{} has ids up to {}, but {file}: {name} has {mapped} rows",
            highest.origin, highest.value
        ));
    }
    let by_config = files.config.flag(reader, "normalize");
    let by_module = files.modules.iter().flatten().find(|module| module.step == ModuleKind::Normalize);
    if let (Some(flag), Some(modules)) = (&by_config, &files.modules)
        && flag.value != by_module.is_some()
        && !modules.is_empty()
    {
        let lists = if by_module.is_some() { "lists a Normalize" } else { "lists no Normalize" };
        reader.fault(format_args!("{} is {}, but modules.json {lists}", flag.origin, flag.value));
    }
    let mut ops = Vec::new();
    let table_width = width;
    let width = Derived::from(width, format!("{file}: {name}"));
    let steps: Vec<_> = files.modules.iter().flatten().collect();
    let width = match steps.is_empty() {
        true => {
            if let Some(flag) = by_config.filter(|flag| flag.value) {
                ops.push(flag.map(|_| "normalize".to_owned()));
            }
            width
        }
        // The lookup pools the table's vectors, so only ops on one vector are left.
        false => token_chain(reader, &steps, width, &mut ops),
    };
    let mut trimmed = Chain { ops, ..Chain::none(Some(width)) };
    chain::trim(reader, files.own.as_ref(), &mut trimmed);
    let (ops, width) = (trimmed.ops, trimmed.width?);
    // model2vec leaves unknown tokens out; sentence-transformers does not.
    let leaves_out = files.config.get("model_type").is_some_and(|kind| kind == "model2vec");
    let unknown = tokenizer.unknown.clone().filter(|_| leaves_out);
    let executor = Executor::Static {
        file: Derived::from(file, "the only weights that are looked up"),
        config: reader.has(&files.config.file).then(|| files.config.file.clone()),
        width: table_width,
        unknown,
    };
    Some(FolderDescription {
        special_tokens: Some(Derived::from(false, task.origin.clone())),
        ops,
        width,
        ..FolderDescription::plain(reader, task, tokenizer, prompts, executor)
    })
}

/// A model that looks up a number for each token, and makes a sparse vector of those of a text: SparseStaticEmbedding.
pub(super) fn token_weights(
    reader: &Reader<'_>,
    task: Derived<Task>,
    mut tokenizer: Tokenizer,
    files: &FolderFiles,
    folder: &str,
    prompts: Prompts,
) -> Option<FolderDescription> {
    const WEIGHT: &str = "weight";
    let file = format!("{folder}model.safetensors");
    let shapes = match safetensors::shapes(&reader.path(&file)) {
        Ok(shapes) => shapes,
        Err(error) => {
            let root = reader.root().display();
            reader.unreadable(
                &file,
                format_args!(
                    "cannot be read: {error}; write it: python -c \"from sentence_transformers import SparseEncoder as S; \
                     S('{root}').save('{root}')\""
                ),
            );
            return None;
        }
    };
    let Some(&[count]) = shapes.get(WEIGHT).map(Vec::as_slice) else {
        reader.fault(format_args!("{file} has no tensor '{WEIGHT}' of one dimension: a number for each token"));
        return None;
    };
    if let Some(highest) = tokenizer.highest.as_ref().filter(|highest| highest.value >= count) {
        reader.fault(format_args!(
            "{} has ids up to {}, but {file}: {WEIGHT} has {count} numbers",
            highest.origin, highest.value
        ));
    }
    if let Some(module) =
        files.modules.iter().flatten().find(|module| !matches!(module.step, ModuleKind::Static { .. }))
    {
        reader.fault(format_args!(
            "{} stands beside a SparseStaticEmbedding, whose weights are the result",
            module.place
        ));
    }
    // The library cuts at the tokenizer's own length, and there only.
    tokenizer.max_length = tokenizer.max_length.filter(|length| !length.is_guess());
    let most = files.own.as_ref().and_then(|own| own.number(reader, "max_active_dims")).filter(|most| most.value > 0);
    let op = match most {
        Some(most) => most.map(|most| format!("distinct:{most}")),
        None => Derived::from("distinct".to_owned(), task.origin.clone()),
    };
    let file = Derived::from(file, "the only weights that are looked up");
    let executor = Executor::Static { file, config: None, width: 0, unknown: None };
    Some(FolderDescription {
        special_tokens: Some(Derived::from(false, task.origin.clone())),
        ops: vec![op],
        ..FolderDescription::plain(reader, task, tokenizer, prompts, executor)
    })
}
