//! The steps that both kinds of export share: they ask a script, and move the files that it makes into their place.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;

/// The exit code where the file could not be compared.
pub const NOT_COMPARED: u8 = 2;

/// The ending of a file that is served wrong; no process takes it for an ONNX file.
const REJECTED: &str = "rejected";

/// Prints what people read.
pub fn print(text: &str) {
    crate::output::write_out(text.as_bytes());
}

/// Prints the files that `by` has made.
pub fn print_files(files: &[PathBuf], by: &str) {
    for file in files {
        let megabytes = fs::metadata(file).map_or(0.0, |found| found.len() as f64 / 1e6);
        print(&format!("wrote {} ({megabytes:.1} MB), made by {by}\n", file.display()));
    }
}

/// Asks a script, whose answer is a JSON object. An answer with `refused` is an error.
pub fn ask(python: &Path, script: &str, question: &Value) -> anyhow::Result<Value> {
    let answer = crate::python::ask(python, script, question, "could not export the model")?;
    let answer: Value = serde_json::from_str(answer.trim()).context("the export script wrote no JSON")?;
    if let Some(reason) = answer["refused"].as_str() {
        bail!("no ONNX file was made: {reason}");
    }
    Ok(answer)
}

/// The exporter that an answer names.
pub fn exporter(answer: &Value) -> String {
    answer["by"].as_str().unwrap_or("an exporter without a name").to_owned()
}

/// Moves these files of `work` to `place`, and returns them there. The graph goes last, so that no process finds it without its weights.
pub fn put(work: &Path, mut made: Vec<String>, place: &Path) -> anyhow::Result<Vec<PathBuf>> {
    made.sort_by_key(|name| name.ends_with(".onnx"));
    let mut files = Vec::new();
    for name in made {
        let target = place.join(&name);
        fs::rename(work.join(&name), &target).with_context(|| format!("cannot write {}", target.display()))?;
        files.push(target);
    }
    Ok(files)
}

/// Takes a graph out of the way of servers. The name of the file that is kept.
pub fn reject(graph: &Path) -> anyhow::Result<PathBuf> {
    let kept = PathBuf::from(format!("{}.{REJECTED}", graph.display()));
    fs::rename(graph, &kept).with_context(|| format!("cannot rename {}", graph.display()))?;
    Ok(kept)
}

/// The names of a folder's entries, in order.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}
