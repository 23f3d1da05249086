//! The reference that a model is compared with: its library in the user's Python, or a file.

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use trireme_model_repository::Task;

/// The script that asks the library.
const SCRIPT: &str = include_str!("reference.py");

/// The text before Python's own error: the packages that the script needs.
const NEEDS: &str = "could not compute the reference; it needs sentence-transformers, transformers or model2vec, and the model's weights \
                     in the folder";

/// Where the expected answers come from.
pub enum Library {
    /// A Python with the model's library.
    Python {
        /// The interpreter.
        python: PathBuf,
        /// The model folder that the library loads.
        folder: PathBuf,
    },
    /// A file of JSON lines.
    File(PathBuf),
}

/// A text and its expected answers.
pub struct Case {
    /// The text.
    pub text: String,
    /// Its second text, for models that take pairs.
    pub pair: Option<String>,
    /// The expected answers as JSON.
    pub line: Value,
}

// === impl Library ===

impl Library {
    /// The reference's name in the report.
    pub fn name(&self) -> String {
        match self {
            Library::Python { folder, .. } => format!("the library of {}", folder.display()),
            Library::File(path) => format!("the author of {}", path.display()),
        }
    }

    /// The cases: those of the file, or the library's answers for `texts`.
    pub fn cases(
        &self,
        tasks: &[Task],
        texts: Vec<String>,
        pairs: Option<Vec<String>>,
        prompt_name: Option<&str>,
        aggregation: &str,
    ) -> anyhow::Result<Vec<Case>> {
        let (name, lines) = match self {
            Library::File(path) => {
                let lines = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                (path.display().to_string(), lines)
            }
            Library::Python { python, folder } => {
                ensure!(folder.is_dir(), "--folder {}: there is no such folder", folder.display());
                let tasks: Vec<&str> = tasks.iter().map(|task| task.name()).collect();
                let ask = json!({
                    "folder": folder, "tasks": tasks, "texts": texts, "pairs": pairs, "prompt_name": prompt_name,
                    "aggregation": aggregation,
                });
                (python.display().to_string(), crate::python::ask(python, SCRIPT, &ask, NEEDS)?)
            }
        };
        let case = |(index, line): (usize, &str)| {
            let place = || format!("{name}, line {}", index + 1);
            let line: Value = serde_json::from_str(line).with_context(place)?;
            if let Some(reason) = line["refused"].as_str() {
                bail!("there is nothing to compare with: {reason}");
            }
            let text = line["text"].as_str().context("there is no 'text'").with_context(place)?.to_owned();
            let pair = line["text_pair"].as_str().map(str::to_owned);
            Ok(Case { text, pair, line })
        };
        lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(case).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_line_by_line_and_faults_name_the_line() {
        let path = std::env::temp_dir().join(format!("trireme-verify-{}.jsonl", std::process::id()));
        let cases = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Library::File(path.clone()).cases(&[Task::Embed], vec![], None, None, "simple")
        };
        let found =
            cases("{\"text\": \"a\", \"embedding\": [1]}\n\n{\"text\": \"b\", \"text_pair\": \"c\"}\n").unwrap();
        assert_eq!((found.len(), found[1].pair.as_deref()), (2, Some("c")));
        let error = format!("{:#}", cases("{\"text\": \"a\"}\n{\"embedding\": []}\n").err().unwrap());
        assert!(error.ends_with("line 2: there is no 'text'"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_python_that_is_not_there_is_named() {
        let library = Library::Python { python: "/nowhere/python".into(), folder: std::env::temp_dir() };
        let error = library.cases(&[Task::Embed], vec![], None, None, "simple").err().unwrap();
        assert!(error.to_string().starts_with("cannot start /nowhere/python: name a Python by --python"), "{error}");
    }
}
