//! [`ProcessBackend`]: models that are a program of any language, each instance a process of it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trireme_model_repository::digest_of_file;
use trireme_runtime::statistics::own::OwnMetrics;
use trireme_runtime::{Backend, LoadError, LoadedModel, ModelSource};

use crate::args::PythonOptions;
use crate::backend::{arguments, check_allowed, package, start};
use crate::child::Recipe;
use crate::environment::{Interpreter, in_model};

/// The parameter that names the program and its arguments.
const COMMAND: &str = "command";

/// Loads models with `backend: "process"`.
#[derive(Clone, Debug)]
pub struct ProcessBackend {
    options: PythonOptions,
}

// === impl ProcessBackend ===

impl ProcessBackend {
    /// A backend with these options.
    pub fn new(options: PythonOptions) -> ProcessBackend {
        ProcessBackend { options }
    }
}

impl Backend for ProcessBackend {
    fn name(&self) -> &'static str {
        "process"
    }

    fn reshapes(&self) -> bool {
        true
    }

    /// The digest of a program with an absolute path. A program that is found by PATH does not count.
    fn surroundings(&self, source: &ModelSource<'_>) -> Result<String, String> {
        let (program, _) = command(source.config.parameters.get(COMMAND), source.model_path)?;
        match program.is_absolute() {
            true => digest_of_file(&program).map_err(|error| error.to_string()),
            false => Ok(String::new()),
        }
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        check_allowed(&self.options, source, "backend 'process' runs its command")?;
        let config = Arc::new(source.config.clone());
        let folder = source.version_path.canonicalize().map_err(|error| LoadError::File {
            model: config.name.clone(),
            path: source.version_path.to_owned(),
            source: error,
        })?;
        let (program, words) = command(config.parameters.get(COMMAND), source.model_path)
            .map_err(|reason| LoadError::Config(format!("model '{}': {reason}", config.name)))?;
        let package = package(&config.name)?;
        let plain = Interpreter { program: program.clone(), environment: None, unpacked: None };
        let recipe = Recipe {
            model: config.name.clone(),
            program,
            arguments: words,
            file: folder.clone(),
            folder: Some(folder),
            named_by: "parameter 'command'",
            unpacked: None,
            variables: variables(&plain, &self.options, package.path()),
            args: arguments(source, &config),
            decoupled: config.decoupled,
            start_limit: self.options.start_limit,
            memory_limit: self.options.memory_limit,
            package,
            metrics: OwnMetrics::new(&config.name),
            uploaded: source.uploaded.cloned(),
            calls: source.calls.clone(),
        };
        start(recipe, config, &self.options)
    }
}

/// The variables of a program, which sees the package `trireme_python` in case it is one in Python.
fn variables(plain: &Interpreter, options: &PythonOptions, package: &Path) -> Vec<(OsString, OsString)> {
    plain.variables(std::env::vars_os(), &options.environment, package)
}

/// The program of a command and its arguments. Words are separated by blanks, or they are a JSON array.
fn command(parameter: Option<&String>, model_path: &Path) -> Result<(PathBuf, Vec<String>), String> {
    let missing = || format!("backend 'process' needs parameter '{COMMAND}': the program and its arguments");
    let text = parameter.ok_or_else(missing)?;
    let words: Vec<String> = match text.trim_start().starts_with('[') {
        true => serde_json::from_str(text)
            .map_err(|error| format!("parameter '{COMMAND}' is '{text}', expected a JSON array of texts: {error}"))?,
        false => text.split_whitespace().map(str::to_owned).collect(),
    };
    let model_path = model_path.canonicalize().unwrap_or_else(|_| model_path.to_owned());
    let mut words = words.into_iter().map(|word| in_model(&word, &model_path).to_string_lossy().into_owned());
    let program = words.next().filter(|program| !program.is_empty()).ok_or_else(missing)?;
    Ok((program.into(), words.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_words_or_a_list() {
        let command = |text: &str| command(Some(&text.to_owned()), Path::new("/no/model"));
        let (program, words) = command("$$TRITON_MODEL_DIRECTORY/1/run  --fast x").unwrap();
        assert_eq!(
            (program.to_str().unwrap(), &*words),
            ("/no/model/1/run", &["--fast".to_owned(), "x".to_owned()][..])
        );
        let (program, words) = command(r#"["python3", "a file.py"]"#).unwrap();
        assert_eq!((program.to_str().unwrap(), &*words), ("python3", &["a file.py".to_owned()][..]));
        for wrong in ["", " ", "[]", "[1]", "[\"\"]"] {
            assert!(command(wrong).unwrap_err().contains("'command'"), "{wrong}");
        }
    }
}
