//! Which files of a model that lies elsewhere have to be downloaded: few of a model folder, which often holds the same weights
//! in several formats; all of a model repository.

use std::collections::BTreeSet;
use std::path::Path;

use trireme_model_files::onnx::Graph;

use super::MARKS;
use super::choices::Choices;
use super::described::FolderFiles;
use super::equivalent_spaces::EQUIVALENT_SPACES;
use super::files::Reader;
use super::graphs::{self, Choice};
use super::heads;
use super::modules;
use super::routes;
use super::spans;
use super::task::{self, Task};
use super::tokenizer;

/// The directory of weights that a module or a static model has.
const WEIGHTS: &str = "model.safetensors";

/// Why no list of files can be named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages show")]
pub enum NeededError {
    /// There is nothing that runs.
    #[error(
        "there is no ONNX file, {there}; let the server make one: trireme serve MODEL --export; or make one with: pip install optimum-onnx && \
         optimum-cli export onnx --model MODEL --task {task} FOLDER, and serve FOLDER"
    )]
    NoGraph { there: String, task: &'static str },
    /// No name says which one to take.
    #[error("there are several ONNX files, none of which is called model.onnx: {0}; name one with --graph FILE")]
    SeveralGraphs(String),
    /// No file has the precision that was asked for.
    #[error("{0}")]
    Lacking(String),
    /// The files of one model of a repository.
    #[error("config.pbtxt is at the top: this is a model of a model repository; name the folder above it")]
    OneModel,
    /// Neither a model folder nor a model repository.
    #[error(
        "this is neither a model folder (config.json, modules.json, tokenizer.json or an ONNX file at its top) nor a model repository \
         (MODEL/config.pbtxt, MODEL/1/…): found {0}"
    )]
    NoModel(String),
}

/// The paths of `listed` that are needed to serve the model by these choices, and are not in the folder `local` yet. The configurations in
/// `local` name further files: download the result and call again, until the result is empty.
pub fn needed_files(local: &Path, listed: &[&str], choices: &Choices) -> Result<Vec<String>, NeededError> {
    let mut needed: Vec<String> = match kind(listed)? {
        Kind::Repository => listed.iter().filter(|name| !is_hidden(name)).map(|name| (*name).to_owned()).collect(),
        Kind::Folder => {
            let record = listed.iter().filter(|name| **name == EQUIVALENT_SPACES).map(|name| (*name).to_owned());
            of_folder(local, listed, choices)?.into_iter().chain(record).collect()
        }
    };
    needed.retain(|name| !local.join(name).is_file());
    needed.sort_unstable();
    needed.dedup();
    Ok(needed)
}

/// As [`needed_files`]; of a model folder without an ONNX file, the files that are needed to make one: its weights in one format, its small
/// files, and its model card, which may name the model's task.
pub fn needed_to_export(local: &Path, listed: &[&str], choices: &Choices) -> Result<Vec<String>, NeededError> {
    let error = match needed_files(local, listed, choices) {
        Err(error @ NeededError::NoGraph { .. }) => error,
        needed => return needed,
    };
    let folder = |name: &str| name.rfind('/').map_or("", |end| &name[..=end]).to_owned();
    let is_weights = |name: &str, end: &str| name.ends_with(end) && !is_hidden(name);
    let safe: Vec<String> =
        listed.iter().filter(|name| is_weights(name, ".safetensors")).map(|name| folder(name)).collect();
    let mut needed: Vec<String> = Vec::new();
    for name in listed {
        let (place, last) = name.split_at(folder(name).len());
        let is_pickled = last.starts_with("pytorch_model") && last.ends_with(".bin");
        if is_weights(name, ".safetensors") || (is_pickled && !safe.contains(&place.to_owned())) {
            needed.push((*name).to_owned());
        }
    }
    if needed.is_empty() {
        return Err(error);
    }
    let folders: BTreeSet<String> = listed.iter().filter(|name| !is_hidden(name)).map(|name| folder(name)).collect();
    needed.extend(folders.iter().flat_map(|folder| small(listed, folder)));
    needed.extend(listed.iter().filter(|name| **name == "README.md").map(|name| (*name).to_owned()));
    needed.retain(|name| !local.join(name).is_file());
    needed.sort_unstable();
    needed.dedup();
    Ok(needed)
}

/// The paths of `listed`, the files of a model folder, that are read to serve it by these choices.
pub(crate) fn read_files(root: &Path, listed: &[&str], choices: &Choices) -> Result<Vec<String>, NeededError> {
    let mut files = of_folder(root, listed, choices)?;
    files.sort();
    files.dedup();
    Ok(files)
}

/// The kind of folder that a list of files belongs to.
enum Kind {
    Folder,
    Repository,
}

fn kind(listed: &[&str]) -> Result<Kind, NeededError> {
    let is_mark = |name: &&&str| MARKS.contains(name) || (!name.contains('/') && name.ends_with(".onnx"));
    if listed.iter().any(|name| is_mark(&name)) {
        return Ok(Kind::Folder);
    }
    if listed.contains(&"config.pbtxt") {
        return Err(NeededError::OneModel);
    }
    let is_model = |name: &&str| match name.split('/').collect::<Vec<_>>().as_slice() {
        [_, config] => *config == "config.pbtxt",
        [_, version, ..] => version.parse::<i64>().is_ok(),
        _ => false,
    };
    match listed.iter().any(is_model) {
        true => Ok(Kind::Repository),
        false => Err(NeededError::NoModel(few(listed))),
    }
}

/// The first of some names.
fn few(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 if names.is_empty() => "nothing".to_owned(),
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn is_hidden(name: &str) -> bool {
    name.split('/').any(|part| part.starts_with('.'))
}

fn of_folder(local: &Path, listed: &[&str], choices: &Choices) -> Result<Vec<String>, NeededError> {
    let mut needed = small(listed, "");
    // The other files follow from those.
    let is_there = |needed: &[String]| needed.iter().all(|name| local.join(name).is_file());
    if !is_there(&needed) {
        return Ok(needed);
    }
    let reader = Reader::new(local, choices.clone());
    for (folder, has_weights) in routes::folders(&reader) {
        needed.extend(small(listed, &folder));
        let weights = [WEIGHTS, "pytorch_model.bin"].map(|name| format!("{folder}{name}"));
        needed.extend(weights.into_iter().find(|name| has_weights && listed.contains(&name.as_str())));
    }
    if !is_there(&needed) {
        return Ok(needed);
    }
    let routes = routes::routes(&reader).map(|routes| routes.names()).unwrap_or_default();
    if routes.is_empty() {
        of_chain(&reader, listed, needed)
    } else {
        routes.iter().try_fold(needed, |needed, route| {
            of_chain(&Reader::new(local, choices.clone()).on_route(route), listed, needed)
        })
    }
}

/// The files of a chain of modules, beside those that are known.
fn of_chain(reader: &Reader<'_>, listed: &[&str], mut needed: Vec<String>) -> Result<Vec<String>, NeededError> {
    let (local, choices) = (reader.root(), reader.choices());
    let modules = modules::read(reader);
    let base = modules::base(modules.as_deref());
    let folder = base.unwrap_or_default();
    let own = reader.json("config_sentence_transformers.json");
    let files = FolderFiles { config: reader.json_or_empty(&format!("{folder}config.json")), own, modules };
    if let Some(library) = spans::library(reader) {
        let graphs: Vec<String> = listed
            .iter()
            .filter(|name| name.ends_with(".onnx") && !is_hidden(name))
            .map(|name| (*name).to_owned())
            .collect();
        let graph = match graphs::preferred(&graphs, choices) {
            Choice::None => return Err(no_graph(listed, "", library.export())),
            Choice::Lacking(lacking) => return Err(NeededError::Lacking(lacking)),
            Choice::Unclear => return Err(NeededError::SeveralGraphs(graphs.join(", "))),
            Choice::Only(graph) | Choice::Best(graph) => graph.to_owned(),
        };
        needed.extend(weights_of(local, &graph, listed));
        needed.push(graph);
        return Ok(needed);
    }
    let purpose = task::purpose(reader, files.modules.as_deref(), files.own.as_ref(), &files.config, &folder);
    if purpose.is_static {
        needed.push(format!("{folder}{WEIGHTS}"));
        return Ok(needed);
    }
    if purpose.task.value == Task::Generate {
        let parts: Vec<String> =
            listed.iter().filter(|name| graphs::is_generation_part(name)).map(|name| (*name).to_owned()).collect();
        if parts.is_empty() {
            return Err(no_graph(listed, &folder, purpose.export()));
        }
        needed.extend(parts.iter().flat_map(|part| weights_of(local, part, listed)));
        needed.extend(parts);
        return Ok(needed);
    }
    needed.extend(heads::files().filter(|file| listed.contains(file)).map(str::to_owned));
    let graphs_in = |folder: &str| -> Vec<String> {
        [format!("{folder}onnx/"), folder.to_owned()]
            .iter()
            .flat_map(|place| listed.iter().filter(move |name| is_in(name, place) && name.ends_with(".onnx")))
            .map(|name| (*name).to_owned())
            .collect()
    };
    let is_alone = routes::transformers(reader).len() <= 1;
    let mut graphs = graphs_in(&folder);
    if graphs.is_empty() && is_alone {
        graphs = graphs_in("");
    }
    if graphs.is_empty() && is_alone {
        let anywhere = listed.iter().filter(|name| name.ends_with(".onnx") && !is_hidden(name));
        graphs = anywhere.map(|name| (*name).to_owned()).collect();
    }
    graphs.extend(choices.graph.clone().filter(|graph| listed.contains(&graph.as_str()) && !graphs.contains(graph)));
    let graph = match graphs::preferred(&graphs, choices) {
        Choice::None => return Err(no_graph(listed, &folder, purpose.export())),
        Choice::Lacking(lacking) => return Err(NeededError::Lacking(lacking)),
        Choice::Unclear => return Err(NeededError::SeveralGraphs(graphs.join(", "))),
        Choice::Only(graph) | Choice::Best(graph) => graph.to_owned(),
    };
    needed.extend(weights_of(local, &graph, listed));
    needed.push(graph);
    Ok(needed)
}

/// The files that the graph names as those of its weights; none until it is there. A graph that cannot be read is reported later, when the
/// folder is read.
fn weights_of(local: &Path, graph: &str, listed: &[&str]) -> Vec<String> {
    let external = Graph::read(&local.join(graph)).map(|outline| outline.external).unwrap_or_default();
    let weights = external.iter().map(|name| graphs::beside(graph, name));
    weights.filter(|name| listed.contains(&name.as_str())).collect()
}

/// The small files of a folder: configurations, and what tokenizers are made of.
fn small(listed: &[&str], folder: &str) -> Vec<String> {
    let is_small = |name: &str| name.ends_with(".json") || name.ends_with(".jinja") || tokenizer::FILES.contains(&name);
    let inner = listed.iter().filter(|name| is_in(name, folder) && is_small(&name[folder.len()..]));
    inner.map(|name| (*name).to_owned()).collect()
}

/// Whether a file lies in a folder itself, not deeper. The folder ends with a slash or is the top.
fn is_in(name: &str, folder: &str) -> bool {
    name.strip_prefix(folder).is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
}

fn no_graph(listed: &[&str], folder: &str, task: &'static str) -> NeededError {
    let weights: Vec<&str> = listed
        .iter()
        .copied()
        .filter(|name| is_in(name, folder) && graphs::is_weights(&name[folder.len()..]))
        .collect();
    let there = match weights.is_empty() {
        true => "and no weights of another kind".to_owned(),
        false => format!("only {}", few(&weights)),
    };
    NeededError::NoGraph { there, task }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Asks until nothing is missing; `contents` are of the files that are read.
    fn all(listed: &[&str], contents: &[(&str, &str)]) -> Result<Vec<String>, NeededError> {
        let local = tempfile::tempdir().unwrap();
        let mut all = Vec::new();
        loop {
            let needed = needed_files(local.path(), listed, &Choices::default())?;
            if needed.is_empty() {
                all.sort();
                return Ok(all);
            }
            for name in needed {
                let path = local.path().join(&name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                let content = contents.iter().find(|(file, _)| *file == name).map_or("{}", |(_, content)| content);
                fs::write(path, content).unwrap();
                assert!(!all.contains(&name), "{name} is there already");
                all.push(name);
            }
        }
    }

    #[test]
    fn of_a_folder_its_small_files_and_one_graph_are_needed() {
        let listed = [
            ".gitattributes",
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "README.md",
            "config.json",
            "model.safetensors",
            "modules.json",
            "onnx/model.onnx",
            "onnx/model_O2.onnx",
            "openvino/config.json",
            "pytorch_model.bin",
            "tokenizer.json",
            "vocab.txt",
        ];
        let modules = r#"[{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1_Pooling"},
            {"type": "a.Dense", "path": "2_Dense"}]"#;
        let needed = [
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "config.json",
            "modules.json",
            "onnx/model.onnx",
            "tokenizer.json",
            "vocab.txt",
        ];
        assert_eq!(all(&listed, &[("modules.json", modules)]).unwrap(), needed);
    }

    #[test]
    fn without_a_graph_its_weights_are_needed_to_make_one() {
        let local = tempfile::tempdir().unwrap();
        let listed = [
            ".cache/model.safetensors",
            "1_Pooling/config.json",
            "2_Dense/pytorch_model.bin",
            "README.md",
            "config.json",
            "model.safetensors",
            "pytorch_model.bin",
            "tf_model.h5",
            "tokenizer.json",
        ];
        fs::write(local.path().join("config.json"), "{}").unwrap();
        fs::write(local.path().join("tokenizer.json"), "{}").unwrap();
        let needed = |listed: &[&str]| needed_to_export(local.path(), listed, &Choices::default());
        let expected = ["1_Pooling/config.json", "2_Dense/pytorch_model.bin", "README.md", "model.safetensors"];
        assert_eq!(needed(&listed).unwrap(), expected);
        assert!(matches!(needed(&["config.json", "tf_model.h5"]), Err(NeededError::NoGraph { .. })));
        assert_eq!(needed(&["config.json", "model.safetensors", "onnx/model.onnx"]).unwrap(), ["onnx/model.onnx"]);
    }

    #[test]
    fn static_models_need_their_table_and_encoder_decoders_their_parts() {
        let listed = ["config.json", "model.safetensors", "onnx/model.onnx", "tokenizer.json"];
        let config = ("config.json", r#"{"model_type": "model2vec"}"#);
        assert_eq!(all(&listed, &[config]).unwrap(), ["config.json", "model.safetensors", "tokenizer.json"]);
        let listed = [
            "config.json",
            "onnx/decoder_model.onnx",
            "onnx/encoder_model.onnx",
            "onnx/encoder_model.onnx_data",
            "x.onnx",
        ];
        let config = ("config.json", r#"{"architectures": ["MarianMTModel"]}"#);
        assert_eq!(all(&listed, &[config]).unwrap(), listed[..4]);
    }

    #[test]
    fn files_of_weights_are_needed_by_the_names_that_the_graph_gives() {
        let graph =
            |layout: &str| format!("{}/../../tests/models/external/{layout}/model.onnx", env!("CARGO_MANIFEST_DIR"));
        for (layout, weights) in [
            ("one", vec!["model.onnx_data"]),
            ("nested", vec!["weights/model.onnx.data"]),
            ("several", vec!["2.bin", "3.bin", "4.bin"]),
        ] {
            for (name, config) in [("model", "BertModel"), ("encoder_model", "MarianMTModel")] {
                let local = tempfile::tempdir().unwrap();
                fs::create_dir(local.path().join("onnx")).unwrap();
                let config = format!(r#"{{"architectures": ["{config}"]}}"#);
                fs::write(local.path().join("config.json"), config).unwrap();
                fs::copy(graph(layout), local.path().join(format!("onnx/{name}.onnx"))).unwrap();
                let weights: Vec<_> = weights.iter().map(|file| format!("onnx/{file}")).collect();
                let listed = [
                    vec!["config.json".to_owned(), format!("onnx/{name}.onnx"), "onnx/other.bin".to_owned()],
                    weights.clone(),
                ];
                let listed = listed.concat();
                let listed: Vec<&str> = listed.iter().map(String::as_str).collect();
                assert_eq!(
                    needed_files(local.path(), &listed, &Choices::default()).unwrap(),
                    weights,
                    "{layout}, {name}"
                );
            }
        }
    }

    #[test]
    fn repositories_are_needed_whole() {
        let listed = [".git/config", "a/1/model.onnx", "a/config.pbtxt", "b/config.pbtxt", "b/labels.txt"];
        assert_eq!(all(&listed, &[]).unwrap(), listed[1..]);
    }

    #[test]
    fn what_cannot_be_served_is_not_downloaded() {
        let error = |listed: &[&str]| all(listed, &[]).unwrap_err().to_string();
        let found = error(&["config.json", "model.safetensors"]);
        assert!(
            found.contains("no ONNX file, only model.safetensors") && found.contains("--task feature-extraction"),
            "{found}"
        );
        let found = error(&["config.json", "onnx/a.onnx", "onnx/b.onnx"]);
        assert!(
            found.ends_with("none of which is called model.onnx: onnx/a.onnx, onnx/b.onnx; name one with --graph FILE"),
            "{found}"
        );
        assert!(error(&["config.pbtxt", "1/model.onnx"]).contains("name the folder above it"));
        assert!(error(&["README.md", "a.bin"]).ends_with("found README.md, a.bin"));
    }
}
