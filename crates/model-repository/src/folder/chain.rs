//! The output of a graph that is used, and the ops that turn it into the result.

use trireme_model_files::onnx::{EndOp, GraphTensor};

use super::described::FolderFiles;
use super::files::{Json, Reader};
use super::graphs::GraphFile;
use super::heads;
use super::in_graph::{self, Place, Shown};
use super::modules::{Module, ModuleKind, Pooling};
use super::not_vectors::{is_other, is_pooler_alone, is_tower};
use super::origin::Derived;
use super::task::{Task, architecture};
use super::widths::{agree, hidden_size, known, width_of};

/// The name of the contradiction between the modules of a folder and the layers in its graph.
const IN_GRAPH: &str = "modules-in-graph";

/// The output of a model, and the ops after it.
pub(super) struct Chain {
    pub(super) output: Option<Derived<GraphTensor>>,
    pub(super) ops: Vec<Derived<String>>,
    pub(super) width: Option<Derived<i64>>,
    pub(super) excludes_prompt: bool,
    /// The op with which the graph ends, where nothing behind it changes numbers: no request can leave it out.
    pub(super) graph_end: Option<Derived<&'static str>>,
}

// === impl Chain ===

impl Chain {
    /// The chain of a folder with faults.
    pub(super) fn none(width: Option<Derived<i64>>) -> Chain {
        Chain { output: None, ops: Vec::new(), width, excludes_prompt: false, graph_end: None }
    }
}

/// Chains that end in vectors, and those of cross-encoders whose scores are made by modules. They begin with the graph's tokens, or with
/// its vectors where the graph pools.
pub(super) fn embedding(reader: &Reader<'_>, task: Task, files: &FolderFiles, file: &GraphFile) -> Chain {
    let after = |step: &ModuleKind| !matches!(step, ModuleKind::Transformer { .. } | ModuleKind::Static { .. });
    let steps: Vec<_> = files.modules.iter().flatten().filter(|module| after(&module.step)).collect();
    // A model for texts whose graph has vectors for late interaction, too: they are not pooled.
    let is_pooling = |module: &&Module| matches!(module.step, ModuleKind::Pooling(_));
    let pooling = steps.iter().position(is_pooling).filter(|_| task == Task::MultiVector);
    let steps = pooling.map_or(steps.as_slice(), |pooling| &steps[..pooling]).to_vec();
    let excludes_prompt =
        steps.iter().any(|module| matches!(&module.step, ModuleKind::Pooling(pooling) if !pooling.include_prompt));
    // A graph that pools may run the layers behind the pooling or not; that of its tokens leaves them to the ops for certain.
    let has_layers = steps.iter().any(|module| module.is_layer());
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
        return Chain::none(Some(Derived::from(1, "")));
    }
    if let Some(output) = pooled
        && (is_other(reader, files, file, output) || is_pooler_alone(reader, files, file, output, &steps))
    {
        return Chain::none(Some(Derived::from(1, "")));
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
                     name one of them with --output, or export it again with --task feature-extraction",
                    file.file.value,
                    file.outputs()
                ));
                return Chain::none(Some(Derived::from(1, "")));
            };
            if task == Task::MultiVector && file.graph.ending(&tokens.value.name).contains(&EndOp::Select) {
                reader.refuse(format_args!(
                    "{} leaves out the vectors of some tokens, as of the first one, so that they do not fit the tokenizer's mask: serve the graph \
                     by a model.py (backend: \"python\", docs/python.md), or export one with a vector for each token",
                    file.place(tokens.value)
                ));
                return Chain::none(Some(Derived::from(1, "")));
            }
            let pooling = steps.iter().find_map(|module| match &module.step {
                ModuleKind::Pooling(Pooling { width, .. }) => {
                    width.clone().map(|width| width.map(|width| width as i64))
                }
                _ => None,
            });
            let is_first = |module: &&&Module| matches!(module.step, ModuleKind::Pooling(_));
            // A Dense before the pooling has changed the width that the pooling gets.
            let pooling = pooling.filter(|_| steps.first().is_some_and(|first| is_first(&first)));
            let hidden = hidden_size(reader, &files.config);
            let left = token_layers(reader, files, file, &tokens, &steps, hidden.as_ref());
            let own = width_of(file, tokens.value);
            let told =
                || files.own.as_ref()?.number(reader, "embedding_dim").map(|width| width.map(|width| width as i64));
            let width = match left.behind {
                Some(behind) => agree(reader, [own, behind.or_else(told)]),
                None => agree(reader, [own, hidden, pooling]),
            };
            let output = tokens.map(|tensor| known(tensor, 3, width.as_ref()));
            let mut ops = Vec::new();
            let width = width.map(|width| token_chain(reader, &left.modules, width, &mut ops));
            for op in ops.iter_mut().filter(|op| op.value.starts_with("dense:") || op.value.starts_with("layer_norm:"))
            {
                if let Some(guess) = &left.guess {
                    *op = Derived::guessed(op.value.clone(), guess);
                }
            }
            finish(reader, task, files, &mut ops);
            let graph_end = length_one(file, &output.value, &ops);
            Chain { output: Some(output), ops, width, excludes_prompt, graph_end }
        }
    }
}

/// The modules that are left to run on a graph's vectors of tokens.
struct Left<'a> {
    modules: Vec<&'a Module>,
    /// Where the graph runs some layers, or more than the folder lists: the width that these give, as far as it is known.
    behind: Option<Option<Derived<i64>>>,
    /// The guesses.
    guess: Option<String>,
}

/// Finds the layers before the pooling that the graph runs.
fn token_layers<'a>(
    reader: &Reader<'_>,
    files: &FolderFiles,
    file: &GraphFile,
    tokens: &Derived<&GraphTensor>,
    steps: &[&'a Module],
    hidden: Option<&Derived<i64>>,
) -> Left<'a> {
    let plain = |modules, behind| Left { modules, behind, guess: None };
    let is_pooling = |module: &&Module| matches!(module.step, ModuleKind::Pooling(_));
    let pooling = steps.iter().position(is_pooling).unwrap_or(steps.len());
    let layers: Vec<_> = steps[..pooling].iter().copied().filter(|module| module.is_layer()).collect();
    let place = Place::BehindLayers { own_projection: in_graph::has_own_projection(&files.config) };
    let names = || layers.iter().map(|module| module.place.as_str()).collect::<Vec<_>>().join(", ");
    let whole = file.place(tokens.value);
    let root = reader.root().display();
    match in_graph::shown(file, tokens.value, &place, &layers, hidden.map(|hidden| hidden.value)) {
        Shown::First(0) => plain(steps.to_vec(), None),
        Shown::First(count) => plain(left(steps, layers[count - 1]), Some(behind(&layers[..count]))),
        // A model for late interaction: its one layer is in the graph.
        Shown::Other(_) if layers.is_empty() && is_late(files, reader) => plain(steps.to_vec(), Some(None)),
        Shown::Other(found) => {
            let listed = match layers.as_slice() {
                [] => "none before the pooling: say --task multi_vector for a vector of each token, or export it again without such layers".to_owned(),
                _ => format!("others, {}: export it again without such layers", names()),
            };
            let what = if found == 1 { "a linear layer".to_owned() } else { format!("{found} linear layers") };
            reader.contradiction(
                IN_GRAPH,
                format_args!(
                    "{whole} goes through {what} behind those of the model, but the folder lists {listed}: mv {root}/{0} {root}/{0}.projected && \
                     trireme export {root}",
                    file.file.value
                ),
                "the graph counts as running all layers before the pooling",
            );
            plain(layers.last().map_or_else(|| steps.to_vec(), |last| left(steps, last)), Some(behind(&layers)))
        }
        // transformers' own output has no modules in it.
        Shown::Open if tokens.value.name == "last_hidden_state" => plain(steps.to_vec(), None),
        Shown::Open => {
            let guess = format!("nothing shows whether the graph runs {} before it gives {whole}", names());
            Left { guess: Some(guess), ..plain(steps.to_vec(), None) }
        }
    }
}

/// Whether a person says that the model has a vector for each token, or a file in a folder without modules.
fn is_late(files: &FolderFiles, reader: &Reader<'_>) -> bool {
    let told = files.own.as_ref().is_some_and(|own| own.get("model_type").is_some());
    reader.choices().task == Some(Task::MultiVector) || (files.modules.is_none() && told)
}

/// The modules behind the last one that the graph runs.
fn left<'a>(steps: &[&'a Module], last: &Module) -> Vec<&'a Module> {
    steps.iter().copied().skip_while(|module| !std::ptr::eq(*module, last)).skip(1).collect()
}

/// The width behind layers that the graph runs.
fn behind(layers: &[&Module]) -> Option<Derived<i64>> {
    layers.iter().rev().find_map(|module| match &module.step {
        ModuleKind::Dense { to, .. } => Some(Derived::from(*to as i64, format!("{}, a Dense,", module.place))),
        _ => None,
    })
}

/// Whether the graph gives vectors of length 1, which the ops leave as they are.
fn length_one(file: &GraphFile, output: &GraphTensor, ops: &[Derived<String>]) -> Option<Derived<&'static str>> {
    let keeps = |op: &Derived<String>| op.value == "normalize" || op.value == "mask";
    let ends = file.graph.ending(&output.name).first() == Some(&EndOp::Normalize);
    (ends && ops.iter().all(keeps)).then(|| Derived::from("normalize", file.place(output)))
}

/// The chain of a graph that pools. The modules behind the pooling in modules.json are in the graph, or are left for the ops: its nodes
/// tell, or the width of its vectors, where the modules change it.
fn pooled_chain(
    reader: &Reader<'_>,
    files: &FolderFiles,
    file: &GraphFile,
    output: &GraphTensor,
    steps: &[&Module],
) -> Chain {
    let pooling = steps.iter().find_map(|module| match &module.step {
        ModuleKind::Pooling(Pooling { width: Some(width), modes, .. }) => {
            Some(Derived::from(width.value as i64 * modes.value.len() as i64, width.origin.clone()))
        }
        _ => None,
    });
    let is_behind =
        steps.iter().position(|module| matches!(module.step, ModuleKind::Pooling(_))).map_or(0, |at| at + 1);
    let layers: Vec<_> = steps[is_behind..].iter().copied().filter(|module| module.is_layer()).collect();
    let projected = files.config.number(reader, "projection_dim").filter(|_| output.name == "text_embeds");
    let own = width_of(file, output).or(projected.map(|width| width.map(|width| width as i64)));
    let place = file.place(output);
    let before = pooling.as_ref().map(|width| width.value);
    check_pooling(reader, file, output, steps);
    let shown = match layers.is_empty() {
        true => Shown::First(0),
        false => in_graph::shown(file, output, &Place::BehindPooling, &layers, before),
    };
    let count = match shown {
        Shown::First(count) => count,
        Shown::Open | Shown::Other(_) => {
            let names: Vec<_> = layers.iter().map(|module| module.place.as_str()).collect();
            let found = match shown {
                Shown::Other(found) => format!("{found} linear layers behind it, which are not"),
                _ => "nothing that shows whether it runs".to_owned(),
            };
            reader.contradiction(
                IN_GRAPH,
                format_args!(
                    "{place} is made by the graph's own pooling, and has {found} {}. Export it again with --task feature-extraction \
                     --library-name transformers, which leaves all modules to the server",
                    names.join(", ")
                ),
                "the graph counts as running all modules",
            );
            layers.len()
        }
    };
    let steps = match count {
        0 => steps[is_behind..].to_vec(),
        count => left(steps, layers[count - 1]),
    };
    // A graph that leaves the width of its vectors open may say that of its tokens. The load compares it with real vectors.
    let of_tokens = || width_of(file, file.tokens().filter(|_| !file.is_projected(output))?.value);
    let hidden = || hidden_size(reader, &files.config).filter(|_| layers.is_empty() && !file.is_projected(output));
    let width = agree(reader, [own, behind(&layers[..count]).or(pooling)]).or_else(of_tokens).or_else(hidden);
    let output = known(output, 2, width.as_ref());
    let mut ops = Vec::new();
    let width = width.map(|width| token_chain(reader, &steps, width, &mut ops));
    let graph_end = length_one(file, &output, &ops);
    let taken = match file.is_told(&output) {
        true => Derived::from(output, place),
        false => {
            Derived::guessed(output, &format!("the only output of {} that can be vectors of texts", file.file.value))
        }
    };
    Chain { output: Some(taken), ops, width, excludes_prompt: false, graph_end }
}

/// A graph that takes one token's vector where the folder pools all of them, or the other way round, gives other vectors.
fn check_pooling(reader: &Reader<'_>, file: &GraphFile, output: &GraphTensor, steps: &[&Module]) {
    let modes = steps.iter().find_map(|module| match &module.step {
        ModuleKind::Pooling(pooling) => Some(&pooling.modes),
        _ => None,
    });
    let Some((modes, [mode])) = modes.map(|modes| (modes, modes.value.as_slice())) else { return };
    let pools = |op: &&EndOp| matches!(op, EndOp::Select | EndOp::Reduce);
    let Some(pooled) = file.graph.ending(&output.name).iter().find(pools) else { return };
    let of_one = ["cls", "last"].contains(mode);
    if (*pooled == EndOp::Select) != of_one {
        let found = if of_one { "is pooled over all tokens" } else { "is the vector of one token" };
        let root = reader.root().display();
        reader.contradiction(
            "pooling-in-graph",
            format_args!(
                "{0} {found} within the graph, but {1} is {mode}: export it again without its pooling: mv {root}/{2} {root}/{2}.pooled && trireme \
                 export {root}",
                file.place(output),
                modes.origin,
                file.file.value
            ),
            "the graph's vectors count",
        );
    }
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
        // A module that cannot be read is a fault already.
        (Task::Embed, Some(_)) if !has("pool:") && reader.faults().is_empty() => {
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
