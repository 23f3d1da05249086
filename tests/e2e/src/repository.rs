//! Model repositories: those of the project, and folders that tests create.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::workspace;

/// `tests/repositories/basic`: a model of each kind.
pub fn basic_repository() -> PathBuf {
    workspace().join("tests/repositories/basic")
}

/// `tests/repositories/seed`: a published Triton repository, unchanged except for its tokenizer.
pub fn seed_repository() -> PathBuf {
    workspace().join("tests/repositories/seed")
}

/// Results of the test models for a text, computed without the product.
#[derive(Clone, Debug)]
pub struct Golden {
    /// The text.
    pub text: String,
    /// The output of `tiny_embedding` of the basic repository.
    pub embedding: Vec<f32>,
    /// The first numbers of `ensemble_model` of the seed repository.
    pub ensemble_start: Vec<f32>,
}

/// All values in `tests/models/golden.json`.
pub fn golden() -> Vec<Golden> {
    let text = fs::read(workspace().join("tests/models/golden.json")).expect("the golden values are in the repository");
    let entries: Vec<serde_json::Value> = serde_json::from_slice(&text).expect("the golden values are JSON");
    let numbers = |value: &serde_json::Value| -> Vec<f32> {
        let values = value.as_array().expect("a list of numbers");
        values.iter().map(|number| number.as_f64().expect("a number") as f32).collect()
    };
    let read = |entry: &serde_json::Value| Golden {
        text: entry["text"].as_str().expect("each golden value has its text").to_owned(),
        embedding: numbers(&entry["tiny_embedding"]),
        ensemble_start: numbers(&entry["ensemble_model_first_8"]),
    };
    entries.iter().map(read).collect()
}

/// A model repository that a test creates. It is deleted when dropped.
#[derive(Debug)]
pub struct ModelFolder(TempDir);

// === impl ModelFolder ===

impl Default for ModelFolder {
    fn default() -> Self {
        ModelFolder(tempfile::Builder::new().prefix("trireme-models-").tempdir().expect("a temporary folder"))
    }
}

impl ModelFolder {
    /// An empty repository.
    pub fn new() -> ModelFolder {
        ModelFolder::default()
    }

    /// A copy of these models of the basic repository.
    pub fn basic(models: &[&str]) -> ModelFolder {
        ModelFolder::new().with_basic(models)
    }

    /// Adds these models of the basic repository.
    pub fn with_basic(self, models: &[&str]) -> ModelFolder {
        for model in models {
            copy(&basic_repository().join(model), &self.path().join(model));
        }
        self
    }

    /// A copy of a model repository.
    pub fn copy_of(repository: &Path) -> ModelFolder {
        let folder = ModelFolder::new();
        copy(repository, folder.path());
        folder
    }

    /// Adds a model that is a copy of another.
    pub fn model_like(self, model: &str, name: &str) -> ModelFolder {
        copy(&self.path().join(model), &self.path().join(name));
        self
    }

    /// Adds a model with this configuration and an empty version 1, or replaces the configuration of an existing model.
    pub fn model(self, name: &str, config: &str) -> ModelFolder {
        fs::create_dir_all(self.path().join(name).join("1")).expect("the temporary folder can be written");
        self.file(&format!("{name}/config.pbtxt"), config)
    }

    /// Adds an FP32 identity model whose runs take `delay_ms` and that executes one request after the other.
    pub fn slow(self, name: &str, delay_ms: u64) -> ModelFolder {
        let config = format!(
            "backend: 'identity' input [{{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }}]
             output [{{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }}]
             instance_group [{{ count: 1 kind: KIND_CPU }}]
             parameters {{ key: 'execute_delay_ms' value {{ string_value: '{delay_ms}' }} }}"
        );
        self.model(name, &config)
    }

    /// Appends to the configuration of an existing model.
    pub fn with_setting(self, model: &str, setting: &str) -> ModelFolder {
        let path = format!("{model}/config.pbtxt");
        let config = fs::read_to_string(self.path().join(&path)).expect("the model has a configuration");
        self.file(&path, format!("{config}\n{setting}\n"))
    }

    /// Leaves the basic repository's pooling to the postprocess service, so that the states of the encoder cross the broker.
    pub fn with_pooling_apart(self) -> ModelFolder {
        self.with_setting("tiny_pool", "parameters { key: 'beside_model' value { string_value: 'false' } }")
    }

    /// Writes a file; `path` is relative to the repository.
    pub fn file(self, path: &str, content: impl AsRef<[u8]>) -> ModelFolder {
        fs::write(self.path().join(path), content).expect("the temporary folder can be written");
        self
    }

    /// Deletes a file; `path` is relative to the repository.
    pub fn without(self, path: &str) -> ModelFolder {
        fs::remove_file(self.path().join(path)).expect("there is such a file");
        self
    }

    /// The repository's folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the temporary folder can be written");
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let entry = entry.expect("the folder can be read");
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).expect("the temporary folder can be written")),
        }
    }
}
