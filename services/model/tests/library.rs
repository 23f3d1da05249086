//! Finding the ONNX Runtime library, in a process that has not loaded one: a process loads it once, for good.

use std::path::{Path, PathBuf};

use trireme_engine::{LoadError, LoadedModel, ModelSource};
use trireme_model::{OnnxRuntimeOptions, backends};
use trireme_model_repository::ModelConfig;

fn load(library: Option<PathBuf>) -> Result<LoadedModel, LoadError> {
    load_as("backend: 'onnxruntime'", OnnxRuntimeOptions { library, ..OnnxRuntimeOptions::default() })
}

fn load_as(config: &str, options: OnnxRuntimeOptions) -> Result<LoadedModel, LoadError> {
    let model_path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/repositories/basic/autocomplete");
    let config = ModelConfig::parse(config, "autocomplete").expect("a valid configuration");
    let version_path = model_path.join("1");
    let source = ModelSource {
        config: &config,
        version: 1,
        model_path: &model_path,
        version_path: &version_path,
        auto_complete: true,
        uploaded: None,
        calls: Default::default(),
    };
    let backends = backends(options);
    let backend = backends.iter().find(|backend| backend.name() == "onnxruntime").expect("it is in the table");
    backend.load(&source)
}

#[test]
fn a_library_that_cannot_be_used_is_an_error_and_a_good_one_still_loads_afterwards() {
    let fail = |library: &Path| load(Some(library.to_owned())).err().expect("not a library to load").to_string();
    let advice = "get one with `make setup` or from the Python wheel `onnxruntime`, and name it with \
                  --onnxruntime-library or ORT_DYLIB_PATH";

    let missing = fail(Path::new("/nowhere/libonnxruntime.so"));
    assert_eq!(
        missing,
        format!(
            "model 'autocomplete': no ONNX Runtime library found, looked for /nowhere/libonnxruntime.so: no such file; {advice}"
        )
    );

    let directory = tempfile::tempdir().expect("a temporary directory");
    let text = directory.path().join("libonnxruntime.so");
    std::fs::write(&text, "not a library").expect("a file in it");
    let text = fail(&text);
    assert!(text.starts_with("model 'autocomplete': cannot use the ONNX Runtime library: failed to load"), "{text}");
    assert!(text.ends_with(advice), "{text}");

    // A library, but another one: the C library that this process runs on.
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the process's own memory map");
    let libc = maps.split_whitespace().find(|word| word.contains("/libc.so")).expect("a process uses the C library");
    let other = fail(Path::new(libc));
    assert!(other.contains("does not export `OrtGetApiBase`"), "{other}");

    let model = load(None).expect("the library that `make setup` fetches");
    assert_eq!(model.config.max_batch_size, 4);

    let accelerated = "backend: 'onnxruntime' optimization { execution_accelerators {
        cpu_execution_accelerator: [{ name: 'openvino' }] } }";
    let openvino_library = Some("/nowhere/plugin.so".into());
    let options = OnnxRuntimeOptions { openvino_library, ..OnnxRuntimeOptions::default() };
    let plugin = load_as(accelerated, options).err().expect("no plugin to load").to_string();
    assert_eq!(
        plugin,
        "model 'autocomplete': cannot read the OpenVINO plugin /nowhere/plugin.so: no such file; get it with \
         scripts/fetch-openvino.sh, and name it with --openvino-library or TRIREME_OPENVINO_LIBRARY"
    );
}
