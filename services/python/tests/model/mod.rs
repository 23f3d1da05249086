//! A model in a folder of its own, loaded by the backend: real files, a real interpreter.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use trireme_inference::{InferError, Tensor};
use trireme_model_repository::ModelConfig;
use trireme_python::{AllowPython, PythonBackend, PythonOptions};
use trireme_runtime::{Backend, ExecuteRequest, ExecuteResponse, Instance, LoadError, LoadedModel, ModelSource};

/// A model's files.
pub struct Model {
    folder: TempDir,
    config: ModelConfig,
    pub options: PythonOptions,
}

/// The interpreter of tests, which has numpy: what `make` sets up.
pub fn python() -> PathBuf {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/python/bin/python");
    std::env::var_os("TRIREME_PYTHON").map_or(ours, PathBuf::from)
}

impl Model {
    /// A model with one BYTES input `IN` and one BYTES output `OUT`, and whatever else `config` says.
    pub fn texts(config: &str, code: &str) -> Model {
        let io = "input [{ name: 'IN' data_type: TYPE_STRING dims: [-1] }]
                  output [{ name: 'OUT' data_type: TYPE_STRING dims: [-1] }]";
        Model::new(&format!("{io} {config}"), code)
    }

    /// A model with this configuration and this model.py.
    pub fn new(config: &str, code: &str) -> Model {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("m/1")).unwrap();
        let text = format!("import triton_python_backend_utils as pb_utils\nimport numpy as np\n{code}");
        std::fs::write(folder.path().join("m/1/model.py"), text).unwrap();
        let config = ModelConfig::parse(&format!("backend: 'python' {config}"), "m").unwrap();
        let options = PythonOptions { allow: AllowPython::Local, python: python(), ..PythonOptions::default() };
        Model { folder, config, options }
    }

    /// The version's folder.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("m/1")
    }

    /// Loads it.
    pub fn load(&self) -> Result<LoadedModel, LoadError> {
        let (model_path, version_path) = (self.folder.path().join("m"), self.path());
        PythonBackend::new(self.options.clone()).load(&ModelSource {
            config: &self.config,
            version: 1,
            model_path: &model_path,
            version_path: &version_path,
            auto_complete: true,
            uploaded: None,
            calls: Default::default(),
        })
    }

    /// Its first instance.
    pub fn instance(&self) -> Instance {
        self.load().unwrap_or_else(|error| panic!("it loads: {error}")).instances.remove(0)
    }

    /// Why it cannot be loaded.
    pub fn fault(&self) -> String {
        self.load().err().expect("it cannot be loaded").to_string()
    }
}

/// A request with these texts in `IN`.
pub fn request(texts: &[&str]) -> ExecuteRequest {
    let input = Tensor::from_bytes_elements("IN", [texts.len() as i64], texts).unwrap();
    ExecuteRequest { client_id: "client's".into(), ..ExecuteRequest::made_up("ours", vec![input], ["OUT"]) }
}

/// Has an instance execute a batch.
pub fn execute(instance: &mut Instance, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
    instance.as_batch().unwrap().execute(requests)
}

/// The texts of a tensor.
pub fn texts(tensor: &Tensor) -> Vec<String> {
    tensor.bytes_elements().unwrap().map(|element| String::from_utf8_lossy(element).into_owned()).collect()
}

/// The texts that an instance answers texts with.
pub fn answer(instance: &mut Instance, input: &[&str]) -> Result<Vec<String>, InferError> {
    execute(instance, &[request(input)]).remove(0).map(|response| texts(&response.outputs[0]))
}
