//! Which graphs a folder without an ONNX file needs, for `trireme export`.

use std::io;
use std::path::{Path, PathBuf};

use crate::digest::Digest;

use super::FolderError;
use super::choices::Choices;
use super::files::Reader;
use super::graphs::{self, is_generation_part};
use super::modules;
use super::routes;
use super::spans;
use super::task::{self, Task};

/// How the ONNX file of a folder is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The folder of the transformer, which holds its weights and config.json.
    pub folder: PathBuf,
    /// The model's task.
    pub task: Task,
    /// The task's name for `optimum-cli export onnx`.
    pub export_task: &'static str,
    /// The folder for ONNX files, which need not be there.
    pub output: PathBuf,
    /// The name of the file, or of the first of several files, that the export has to make.
    pub made: &'static str,
}

// === impl Export ===

impl Export {
    /// A digest of all files of the folder `root` that an ONNX file is made of: the same for copies of the same files.
    pub fn digest(root: &Path) -> io::Result<String> {
        let mut digest = Digest::new();
        digest.add_directory(root, |_| true)?;
        Ok(digest.finish())
    }

    /// Reads the model folder at `path`; the choices say a task that its files leave open. A folder that has an ONNX file, or needs none, is
    /// an error.
    pub fn of(path: &Path, choices: &Choices) -> Result<Export, FolderError> {
        let routes = routes::routes(&Reader::new(path, choices.clone())).map(|routes| routes.names());
        let routes = routes.filter(|routes| !routes.is_empty()).map(|routes| routes.into_iter().map(Some).collect());
        let mut all = Vec::new();
        // Of a folder with routes the first one whose graph is missing.
        for route in routes.unwrap_or_else(|| vec![None]) {
            let reader = Reader::new(path, choices.clone());
            let reader = route.iter().fold(reader, |reader, route| reader.on_route(route));
            let found = plan(&reader);
            match (found, reader.into_faults()) {
                (Some(export), faults) if faults.is_empty() => return Ok(export),
                (_, faults) => all.extend(faults),
            }
        }
        Err(FolderError { path: path.to_owned(), faults: all })
    }
}

fn plan(reader: &Reader<'_>) -> Option<Export> {
    if let Some(library) = spans::library(reader) {
        let place = reader.path("");
        if let Some(file) = graphs::listed(reader, "").first() {
            reader
                .fault(format_args!("{file} is there already: serve the folder as it is, or move the file away first"));
        }
        let (task, export_task) = (Task::TokenClassify, library.export());
        return Some(Export { output: place.join("onnx"), folder: place, task, export_task, made: "model.onnx" });
    }
    let modules = modules::read(reader);
    let own = reader.json("config_sentence_transformers.json");
    let folder = modules::base(modules.as_deref()).unwrap_or_default();
    let config = reader.json_or_empty(&format!("{folder}config.json"));
    let purpose = task::purpose(reader, modules.as_deref(), own.as_ref(), &config, &folder);
    if purpose.is_static {
        reader.fault("it looks its vectors up in a table and needs no ONNX file: serve it as it is");
        return None;
    }
    let (task, export_task) = (purpose.task.value, purpose.export());
    let there = graphs::listed(reader, &folder);
    let made = if task == Task::Generate { "encoder_model.onnx" } else { "model.onnx" };
    if let Some(file) = there
        .iter()
        .find(|file| (task == Task::Generate) == is_generation_part(file.strip_prefix(&folder).unwrap_or(file)))
    {
        reader.fault(format_args!("{file} is there already: serve the folder as it is, or move the file away first"));
    }
    let place = reader.path(&folder);
    Some(Export { output: place.join("onnx"), folder: place, task, export_task, made })
}
