//! `trireme verify --all DIR`: every model folder under a directory, one after the other, and one table.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::ensure;
use trireme_model_repository::{hub_name, is_model_folder, snapshot};

use super::comparison::Verified;
use super::one::{VerifyArgs, verify};
use crate::style::{Cell, Style, cell, colours, harmless, paint, table};

/// The exit code where nothing could be compared.
pub const NOT_COMPARED: u8 = 2;

/// The most levels of directories that are searched.
const MAX_DEPTH: usize = 8;

/// The file of a model of a model repository, whose versions are no model folders.
const CONFIG: &str = "config.pbtxt";

/// A folder under its name in the report, and what the comparison gave.
type Outcome = (String, anyhow::Result<Verified>);

/// Compares every folder, and gives the table with the exit code: 1 where one differs, else 2 where one could not be compared.
pub async fn verify_all(args: &VerifyArgs) -> anyhow::Result<(String, ExitCode)> {
    let root = Path::new(&args.target);
    ensure!(
        root.is_dir(),
        "--all: '{}' is no directory: name one that holds model folders, as a hub's cache",
        root.display()
    );
    let folders = folders_in(root);
    ensure!(!folders.is_empty(), "--all: there is no model folder under {}", root.display());
    let mut outcomes = Vec::new();
    for folder in &folders {
        let found = verify(&args.for_folder(folder)).await;
        let shown = shown(root, folder);
        match &found {
            Ok(found) => tracing::info!(folder = shown, passed = found.passed, "{}", found.sentence),
            Err(error) => tracing::warn!(folder = shown, "not compared: {error:#}"),
        }
        outcomes.push((shown, found));
    }
    Ok(summary(&outcomes))
}

/// The model folders under `root` in order. A folder within a model folder, such as a module's, is no model folder. The model folder of a model
/// in Hugging Face's cache is that of its branch `main`.
fn folders_in(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    search(root, 0, &mut found);
    found
}

fn search(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    if let Some(folder) = snapshot(directory) {
        return search(&folder, depth + 1, found);
    }
    if is_model_folder(directory) {
        found.push(directory.to_owned());
        return;
    }
    if depth >= MAX_DEPTH || directory.join(CONFIG).is_file() {
        return;
    }
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_hidden = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    let mut inner: Vec<PathBuf> = entries.filter(|path| path.is_dir() && !is_hidden(path)).collect();
    inner.sort();
    inner.iter().for_each(|inner| search(inner, depth + 1, found));
}

/// A folder's name on the hub, or its path under `root`.
fn shown(root: &Path, folder: &Path) -> String {
    let path = folder.strip_prefix(root).ok().filter(|path| !path.as_os_str().is_empty()).unwrap_or(folder);
    hub_name(folder).unwrap_or_else(|| path.display().to_string())
}

fn summary(outcomes: &[Outcome]) -> (String, ExitCode) {
    let lines: Vec<Vec<Cell>> = outcomes.iter().map(line).collect();
    let mut out = String::new();
    table(&mut out, &["folder", "task", ">lowest", "verdict"], &lines, colours());
    let count =
        |wanted: fn(&anyhow::Result<Verified>) -> bool| outcomes.iter().filter(|(_, found)| wanted(found)).count();
    let same = count(|found| found.as_ref().is_ok_and(|found| found.passed));
    let other = count(|found| found.as_ref().is_ok_and(|found| !found.passed));
    let none = outcomes.len() - same - other;
    let (style, code) = match (other, none) {
        (0, 0) => (Style::Good, ExitCode::SUCCESS),
        (0, _) => (Style::Bad, ExitCode::from(NOT_COMPARED)),
        _ => (Style::Bad, ExitCode::FAILURE),
    };
    let sentence = format!(
        "of {} model folders {same} are served as their libraries compute, {other} differ, {none} could not be compared",
        outcomes.len()
    );
    out.push_str(&format!("{}\n", paint(&sentence, style, colours())));
    (out, code)
}

fn line((name, found): &Outcome) -> Vec<Cell> {
    let name = cell(name);
    match found {
        Ok(found) => {
            let (style, verdict) = match found.passed {
                true => (Style::Good, "the library's answers".to_owned()),
                false => (Style::Bad, format!("differs: {}", found.sentence)),
            };
            vec![name, cell(&found.tasks), cell(format!("{:.7}", found.lowest)), (verdict, style)]
        }
        Err(error) => vec![name, cell(""), cell(""), (harmless(&format!("not compared: {error:#}")), Style::Bad)],
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn model_folders_are_found_at_any_depth_and_not_within_others() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "{}").unwrap();
        };
        for name in [
            "team/a/config.json",
            "team/a/1_Pooling/config.json",
            "b/modules.json",
            "hub/models--org--c/snapshots/1111/config.json",
            "hub/models--org--c/snapshots/2222/config.json",
            "repository/m/config.pbtxt",
            "repository/m/1/model.onnx",
            ".hidden/config.json",
        ] {
            write(name);
        }
        fs::create_dir_all(root.path().join("hub/models--org--c/refs")).unwrap();
        fs::write(root.path().join("hub/models--org--c/refs/main"), "2222\n").unwrap();
        let found: Vec<String> = folders_in(root.path()).iter().map(|folder| shown(root.path(), folder)).collect();
        assert_eq!(found, ["b", "org/c", "team/a"]);
    }

    #[test]
    fn one_that_differs_decides_and_one_that_was_not_compared_is_told_with_its_reason() {
        let verified = |passed| Verified {
            text: String::new(),
            passed,
            sentence: "it is another model".to_owned(),
            tasks: "embed".to_owned(),
            lowest: 0.5,
        };
        let outcomes = |all: &[Option<bool>]| -> Vec<Outcome> {
            let one = |passed: &Option<bool>| match passed {
                Some(passed) => ("m".to_owned(), Ok(verified(*passed))),
                None => ("m".to_owned(), Err(anyhow::anyhow!("no graph").context("not loaded"))),
            };
            all.iter().map(one).collect()
        };
        let (text, code) = summary(&outcomes(&[Some(true), None, Some(false)]));
        assert_eq!(code, ExitCode::FAILURE);
        assert!(text.contains("not compared: not loaded: no graph"), "{text}");
        assert!(text.contains("differs: it is another model"), "{text}");
        assert!(
            text.contains("of 3 model folders 1 are served as their libraries compute, 1 differ, 1 could not"),
            "{text}"
        );
        assert_eq!(summary(&outcomes(&[Some(true), None])).1, ExitCode::from(NOT_COMPARED));
        assert_eq!(summary(&outcomes(&[Some(true)])).1, ExitCode::SUCCESS);
    }
}
