//! The output of a graph that is used, and the ops that turn it into the result.

use trireme_model_files::onnx::{EndOp, GraphTensor};

use super::classifier::Head;
use super::described::FolderFiles;
use super::files::{Json, Reader};
use super::graphs::GraphFile;
use super::head::{self, Activation};
use super::heads;
use super::modules::{Module, ModuleKind, Pooling};
use super::origin::{Derived, SENTENCE_TRANSFORMERS};
use super::task::{Purpose, Task, architecture};

/// The output of a model, and the ops after it.
pub(super) struct Chain {
    pub(super) output: Option<Derived<GraphTensor>>,
    pub(super) ops: Vec<Derived<String>>,
    pub(super) width: Option<Derived<i64>>,
    pub(super) excludes_prompt: bool,
}

/// A width that several files give; each value that differs from the first is a fault.
fn agree(reader: &Reader<'_>, places: impl IntoIterator<Item = Option<Derived<i64>>>) -> Option<Derived<i64>> {
    let mut found = places.into_iter().flatten();
    let first = found.next()?;
    for other in found.filter(|other| other.value != first.value) {
        reader.fault(format_args!("{} is {} wide, but {} is {}", first.origin, first.value, other.origin, other.value));
    }
    Some(first)
}

fn hidden_size(reader: &Reader<'_>, config: &Json) -> Option<Derived<i64>> {
    let keys = ["hidden_size", "d_model", "dim", "n_embd"];
    let key = keys.iter().find(|key| config.get(key).is_some())?;
    config.number(reader, key).map(|size| size.map(|size| size as i64))
}

fn width_of(file: &GraphFile, tensor: &GraphTensor) -> Option<Derived<i64>> {
    tensor.width().map(|width| Derived::from(width, file.place(tensor)))
}

/// Chains that end in vectors, and those of cross-encoders whose scores are made by modules. They begin with the graph's tokens, or with
/// its vectors where the graph pools.
pub(super) fn embedding(reader: &Reader<'_>, task: Task, files: &FolderFiles, file: &GraphFile) -> Chain {
    let after = |step: &ModuleKind| !matches!(step, ModuleKind::Transformer { .. } | ModuleKind::Static { .. });
    let steps: Vec<_> = files.modules.iter().flatten().filter(|module| after(&module.step)).collect();
    let excludes_prompt =
        steps.iter().any(|module| matches!(&module.step, ModuleKind::Pooling(pooling) if !pooling.include_prompt));
    // A graph that pools may run the layers behind the pooling or not; that of its tokens leaves them to the ops for certain.
    let has_layers = steps.iter().any(|module| is_layer(module));
    let needs_tokens = excludes_prompt || has_layers || heads::are_there(reader) || reader.choices().pooling.is_some();
    let tower = || file.graph.output("pooler_output").filter(|_| is_tower(&files.config));
    let pooled = file.pooled().or_else(tower);
    let pooled = pooled.filter(|_| task != Task::MultiVector && !(needs_tokens && file.tokens().is_some()));
    let of_head = |output: &GraphTensor| output.name.ends_with("logits");
    let tokens = file.tokens().map(|tokens| tokens.value);
    if let Some(output) = pooled.or(tokens).filter(|output| of_head(output)) {
        reader.fault(format_args!(
            "{} gives {}, which is no vector, but what a head of {3} makes: for one score of each label say --task classify, or --task rerank for \
             one of each pair; for vectors export it without the head: mv {2}/{0} {2}/{0}.{1} && trireme export {2} --task embed",
            file.file.value,
            output.name,
            reader.root().display(),
            architecture(&files.config)
        ));
        return Chain { output: None, ops: Vec::new(), width: Some(Derived::from(1, "")), excludes_prompt };
    }
    if let Some(output) = pooled
        && (is_other(reader, files, file, output) || is_pooler_alone(reader, files, file, output, &steps))
    {
        return Chain { output: None, ops: Vec::new(), width: Some(Derived::from(1, "")), excludes_prompt };
    }
    match pooled {
        Some(output) => {
            if excludes_prompt {
                reader.fault(format_args!(
                    "{} pools within the graph, but modules.json has a Pooling with include_prompt false; export it again with \
                     --library-name transformers",
                    file.file.value
                ));
            }
            if let Some(mode) = reader.choices().pooling {
                reader.fault(format_args!(
                    "--pooling {mode}: {} pools within the graph and gives no vectors of tokens, found {}; leave the flag out, or export \
                     the graph again with --task feature-extraction --library-name transformers",
                    file.file.value,
                    file.outputs()
                ));
            }
            pooled_chain(reader, files, file, output, &steps)
        }
        None => {
            let Some(tokens) = file.tokens() else {
                reader.fault(format_args!(
                    "{} gives no vectors; expected an output last_hidden_state, token_embeddings or sentence_embedding, found {}; \
                     export it again with --task feature-extraction",
                    file.file.value,
                    file.outputs()
                ));
                return Chain { output: None, ops: Vec::new(), width: Some(Derived::from(1, "")), excludes_prompt };
            };
            let pooling = steps.iter().find_map(|module| match &module.step {
                ModuleKind::Pooling(Pooling { width, .. }) => {
                    width.clone().map(|width| width.map(|width| width as i64))
                }
                _ => None,
            });
            let is_first = |module: &&&Module| matches!(module.step, ModuleKind::Pooling(_));
            // A Dense before the pooling has changed the width that the pooling gets.
            let pooling = pooling.filter(|_| steps.first().is_some_and(|first| is_first(&first)));
            let own = width_of(file, tokens.value);
            let (steps, width) = match file.is_projected(tokens.value) {
                // What stands before the pooling is in the graph, which shows such a layer.
                true => {
                    let (width, left) = without_projections(reader, files, steps);
                    (left, agree(reader, [own, width]))
                }
                false => (steps, agree(reader, [own, hidden_size(reader, &files.config), pooling])),
            };
            let output = tokens.map(|tensor| known(tensor, 3, width.as_ref()));
            let mut ops = Vec::new();
            let width = width.map(|width| token_chain(reader, &steps, width, &mut ops));
            finish(reader, task, files, &mut ops);
            Chain { output: Some(output), ops, width, excludes_prompt }
        }
    }
}

/// Whether an output is as wide as the labels or the vocabulary of config.json, so that it holds scores, which is a fault: a graph for
/// vectors was expected.
fn is_other(reader: &Reader<'_>, files: &FolderFiles, file: &GraphFile, output: &GraphTensor) -> bool {
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
fn is_pooler_alone(
    reader: &Reader<'_>,
    files: &FolderFiles,
    file: &GraphFile,
    output: &GraphTensor,
    steps: &[&Module],
) -> bool {
    // sentence-transformers' LaBSE has a Dense with tanh behind its pooling, which the graph may hold.
    if !file.is_pooler(output) || is_tower(&files.config) || steps.iter().any(|module| is_layer(module)) {
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

/// The modules that are left to run where a graph multiplies the vectors of tokens by weights: those from the pooling on, and the width that
/// the layers before it give.
fn without_projections<'a>(
    reader: &Reader<'_>,
    files: &FolderFiles,
    steps: Vec<&'a Module>,
) -> (Option<Derived<i64>>, Vec<&'a Module>) {
    let pooling = steps.iter().position(|module| matches!(module.step, ModuleKind::Pooling(_))).unwrap_or(steps.len());
    let last = steps[..pooling].iter().rev().find_map(|module| match &module.step {
        ModuleKind::Dense { to, .. } => Some(Derived::from(*to as i64, format!("{}, a Dense,", module.place))),
        _ => None,
    });
    let told = || {
        let own = files.own.as_ref()?;
        Some(own.number(reader, "embedding_dim")?.map(|width| width as i64))
    };
    let left = steps.into_iter().enumerate().filter(|(at, module)| *at >= pooling || !is_layer(module));
    (last.or_else(told), left.map(|(_, module)| module).collect())
}

fn is_layer(module: &Module) -> bool {
    matches!(module.step, ModuleKind::Dense { .. } | ModuleKind::LayerNorm { .. })
}

/// Whether the model is the text tower of one for images, whose vector is not made of the vectors of tokens.
fn is_tower(config: &Json) -> bool {
    config.get("model_type").and_then(|kind| kind.as_str()).is_some_and(|kind| kind.starts_with("siglip"))
}

/// A tensor with this rank and width in place of those that its file leaves open.
fn known(tensor: &GraphTensor, rank: usize, width: Option<&Derived<i64>>) -> GraphTensor {
    let mut dims = tensor.dims.clone().unwrap_or_else(|| vec![-1; rank]);
    if let (Some(last), Some(width)) = (dims.last_mut(), width) {
        *last = width.value;
    }
    GraphTensor { dims: Some(dims), ..tensor.clone() }
}

/// The chain of a graph that pools. The modules behind the pooling in modules.json are in the graph, or are left for the ops: the width
/// of the graph's vectors tells, where the modules change it.
fn pooled_chain(
    reader: &Reader<'_>,
    files: &FolderFiles,
    file: &GraphFile,
    output: &GraphTensor,
    steps: &[&Module],
) -> Chain {
    const IN_GRAPH: &str = "modules-in-graph";
    let pooling = steps.iter().find_map(|module| match &module.step {
        ModuleKind::Pooling(Pooling { width: Some(width), modes, .. }) => {
            Some(Derived::from(width.value as i64 * modes.value.len() as i64, width.origin.clone()))
        }
        _ => None,
    });
    let layers: Vec<_> = steps.iter().copied().filter(|module| is_layer(module)).collect();
    let last = layers.iter().rev().find_map(|module| match &module.step {
        ModuleKind::Dense { to, .. } => Some(Derived::from(*to as i64, format!("{}, a Dense,", module.place))),
        _ => None,
    });
    let is_behind =
        steps.iter().position(|module| matches!(module.step, ModuleKind::Pooling(_))).map_or(0, |at| at + 1);
    let projected = files.config.number(reader, "projection_dim").filter(|_| output.name == "text_embeds");
    let own = width_of(file, output).or(projected.map(|width| width.map(|width| width as i64)));
    let (before, after) = (pooling.as_ref().map(|w| w.value), last.as_ref().map(|w| w.value));
    let place = file.place(output);
    let mut ops = Vec::new();
    let in_graph = match (&own, before, after) {
        _ if layers.is_empty() => true,
        (Some(own), _, Some(after)) if own.value == after && before != Some(after) => true,
        (Some(own), Some(before), Some(after)) if own.value == before && before != after => false,
        (Some(own), Some(before), Some(after)) if own.value != before && own.value != after => true,
        _ => {
            let names: Vec<_> = layers.iter().map(|module| module.place.as_str()).collect();
            reader.contradiction(
                IN_GRAPH,
                format_args!(
                    "{place} is made by the graph's own pooling, and nothing shows whether the graph runs {} as well. Export it again with \
                     --task feature-extraction --library-name transformers, which leaves all modules to the server",
                    names.join(", ")
                ),
                "the graph counts as running all modules",
            );
            true
        }
    };
    if !in_graph {
        let output = known(output, 2, own.as_ref());
        let width = own.map(|own| token_chain(reader, &steps[is_behind..], own, &mut ops));
        return Chain { output: Some(Derived::from(output, place)), ops, width, excludes_prompt: false };
    }
    // A graph that leaves the width of its vectors open may say that of its tokens.
    let of_tokens = || width_of(file, file.tokens().filter(|_| !file.is_projected(output))?.value);
    let width = agree(reader, [own, last.or(pooling)]).or_else(of_tokens);
    if let Some(Module { place, step: ModuleKind::Normalize }) = steps.last() {
        ops.push(Derived::from("normalize".to_owned(), place.clone()));
    }
    let output = known(output, 2, width.as_ref());
    Chain { output: Some(Derived::from(output, place)), ops, width, excludes_prompt: false }
}

/// Cuts vectors to `truncate_dim`, as sentence-transformers does behind all modules, and does what a person says about their length.
pub(super) fn trim(reader: &Reader<'_>, own: Option<&Json>, chain: &mut Chain) {
    match reader.choices().normalize {
        Some(false) => chain.ops.retain(|op| op.value != "normalize"),
        Some(true) if chain.ops.last().is_none_or(|op| op.value != "normalize") => {
            chain.ops.push(Derived::from("normalize".to_owned(), "--normalize"));
        }
        _ => {}
    }
    let wanted =
        own.and_then(|own| own.number(reader, "truncate_dim")).map(|wanted| wanted.map(|wanted| wanted as i64));
    if let (Some(wanted), Some(width)) = (wanted, &chain.width)
        && wanted.value < width.value
    {
        chain.ops.push(wanted.clone().map(|wanted| format!("slice:{wanted}")));
        chain.width = Some(wanted);
    }
}

/// The modules as ops, for vectors of this width; gives the width of the last one.
pub(super) fn token_chain(
    reader: &Reader<'_>,
    steps: &[&Module],
    mut width: Derived<i64>,
    ops: &mut Vec<Derived<String>>,
) -> Derived<i64> {
    let expect = |module: &Module, expected: u64, width: &Derived<i64>| {
        if expected as i64 != width.value {
            reader.fault(format_args!(
                "{} takes vectors {expected} wide, but {} is {} wide",
                module.place, width.origin, width.value
            ));
        }
    };
    for module in steps {
        let op = match &module.step {
            ModuleKind::Pooling(pooling) => {
                if let Some(mode) = reader.choices().pooling {
                    ops.push(Derived::from(format!("pool:{mode}"), "--pooling"));
                    continue;
                }
                let modes = pooling.modes.value.len() as i64;
                if modes > 1 {
                    width = Derived::from(width.value * modes, pooling.modes.origin.clone());
                }
                ops.push(pooling.modes.clone().map(|modes| format!("pool:{}", modes.join("+"))));
                continue;
            }
            ModuleKind::Dense { folder, from, to } => {
                expect(module, *from, &width);
                width = Derived::from(*to as i64, format!("{folder}config.json: out_features"));
                format!("dense:{}", folder.trim_end_matches('/'))
            }
            ModuleKind::LayerNorm { folder, width: own } => {
                expect(module, *own, &width);
                format!("layer_norm:{}", folder.trim_end_matches('/'))
            }
            ModuleKind::Normalize => "normalize".to_owned(),
            ModuleKind::Mask { .. } => "mask".to_owned(),
            ModuleKind::Splade { .. }
            | ModuleKind::LogitScore { .. }
            | ModuleKind::Transformer { .. }
            | ModuleKind::Static { .. } => continue,
        };
        ops.push(Derived::from(op, module.place.clone()));
    }
    width
}

/// The op that a chain of tokens has to have: one that pools, or one that leaves out padding.
fn finish(reader: &Reader<'_>, task: Task, files: &FolderFiles, ops: &mut Vec<Derived<String>>) {
    let has = |start: &str| ops.iter().any(|op| op.value.starts_with(start));
    match (task, &files.modules) {
        (Task::MultiVector, _) if !has("mask") => ops.push(Derived::from("mask".to_owned(), "padding takes no part")),
        (Task::Embed, Some(_)) if !has("pool:") => {
            reader.fault("modules.json lists no Pooling, which makes one vector of all those of a text");
        }
        (Task::Embed, None) if reader.choices().pooling.is_some() => {
            let mode = reader.choices().pooling.unwrap_or_default();
            ops.push(Derived::from(format!("pool:{mode}"), "--pooling"));
        }
        (Task::Embed, None) => {
            let (mode, why) = match is_causal(&files.config) {
                true => ("last", "no modules.json; sentence-transformers' default for causal language models"),
                false => ("mean", "no modules.json; sentence-transformers' default"),
            };
            ops.push(Derived::guessed(format!("pool:{mode}"), why));
        }
        _ => {}
    }
}

/// Whether a model was trained to look at earlier tokens alone, by the library's own rule.
fn is_causal(config: &Json) -> bool {
    architecture(config).ends_with("ForCausalLM") && config.get("is_causal").is_none_or(|flag| flag != false)
}

/// Logits over the vocabulary to weights of tokens.
pub(super) fn sparse(reader: &Reader<'_>, files: &FolderFiles, file: &GraphFile) -> Chain {
    let chain = |output, ops, width| Chain { output, ops, width, excludes_prompt: false };
    let vocabulary = files.config.number(reader, "vocab_size").map(|size| size.map(|size| size as i64));
    let Some(logits) = file.logits(3) else {
        reader.fault(format_args!(
            "{} gives no logits over the vocabulary, found {}; export it again with --task fill-mask",
            file.file.value,
            file.outputs()
        ));
        return chain(None, Vec::new(), Some(Derived::from(1, "")));
    };
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
    chain(Some(Derived::from(output, place)), ops, width)
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
        let activation = activation(reader, purpose, files, head);
        chain.ops.extend(activation.value.op().map(|op| Derived::from(op.to_owned(), activation.origin)));
        return chain;
    }
    let rank = if purpose.task.value == Task::TokenClassify { 3 } else { 2 };
    let labels = head.labels.as_ref();
    let count = labels.map(|labels| Derived::from(labels.value.len() as i64, labels.origin.clone()));
    let Some(logits) = file.logits(rank) else {
        reader.fault(format_args!(
            "{} gives no logits of rank {rank}, found {}; export it again with --task {}",
            file.file.value,
            file.outputs(),
            purpose.task.value.export()
        ));
        return Chain { output: None, ops: Vec::new(), width: count, excludes_prompt: false };
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
    let in_graph = match file.graph.ending(&logits.name).first() {
        Some(EndOp::Softmax) => Some("Softmax"),
        Some(EndOp::Sigmoid) => Some("Sigmoid"),
        _ => None,
    };
    let activation = match (purpose.task.value, in_graph) {
        (Task::TokenClassify, Some(op)) => {
            reader.fault(format_args!(
                "{}: {} ends with {op}, and entities are made of the scores before it: export it again: mv {2}/{0} {2}/{0}.probabilities && \
                 trireme export {2} --task token_classify",
                file.file.value,
                logits.name,
                reader.root().display()
            ));
            Derived::from(Activation::None, "")
        }
        // Op `entities` takes the logits.
        (Task::TokenClassify, None) => Derived::from(Activation::None, ""),
        (_, Some(op)) => Derived::from(Activation::None, format!("{} ends with {op}", file.place(logits))),
        (_, None) => activation(reader, purpose, files, head),
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
    Chain { output: Some(Derived::from(output, place)), ops, width: count, excludes_prompt: false }
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
