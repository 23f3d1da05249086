//! Models whose weights lie beside their graph: every layout, wherever the files are, answers as the one file does.

use std::fs;
use std::os::unix::fs::symlink;

use super::accelerated::{ONE, answers, assert_near, encoder, parameter, plain};
use super::*;

const LAYOUTS: [&str; 3] = ["one", "nested", "several"];

/// Each file of a layout, with its path there.
fn files(layout: &str) -> Vec<(PathBuf, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/external").join(layout);
    let found = super::super::files::beside(&folder.join("model.onnx")).unwrap();
    found.into_iter().map(|file| (file.strip_prefix(&folder).unwrap().to_owned(), file)).collect()
}

fn put(target: &Path, how: impl FnOnce(&Path)) {
    fs::create_dir_all(target.parent().unwrap()).unwrap();
    how(target);
}

/// A model with the files of a layout: in its version folder, in a folder of the model's name there, and as links to files of other names,
/// which lie together, as in Hugging Face's cache.
fn placed(layout: &str) -> [TempDir; 3] {
    let [plain, nested, linked] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    for (number, (name, file)) in files(layout).into_iter().enumerate() {
        let copy = |target: &Path| assert!(fs::copy(&file, target).is_ok());
        put(&plain.path().join("1").join(&name), copy);
        put(&nested.path().join("1/model.onnx").join(&name), copy);
        let blob = linked.path().join(format!("blobs/{number}"));
        put(&blob, copy);
        put(&linked.path().join("1").join(&name), |target| symlink(&blob, target).unwrap());
    }
    [plain, nested, linked]
}

fn assert_answers(model_cache: Option<PathBuf>, text: &str, directory: &TempDir, expected: &[f32]) {
    let backend = OnnxRuntime::new(OnnxRuntimeOptions { model_cache, ..OnnxRuntimeOptions::default() });
    let loaded = conformance::load(&backend, &encoder(text), directory.path());
    for instance in &mut loaded.unwrap_or_else(|error| panic!("{text}: {error}")).instances {
        assert_near(&answers(instance), expected, 1e-6);
    }
}

#[test]
fn weights_beside_the_graph_change_no_answer() {
    let (expected, cache) = (plain(), tempfile::tempdir().unwrap());
    for layout in LAYOUTS {
        let placed = placed(layout);
        for directory in &placed {
            assert_answers(None, "", directory, &expected);
            assert_answers(None, &parameter("layouts", "by_load"), directory, &expected);
        }
        // The second time the optimised model is there.
        let cache = cache.path().join(layout);
        for _ in 0..2 {
            assert_answers(Some(cache.clone()), ONE, &placed[0], &expected);
        }
        let entries: Vec<_> = fs::read_dir(cache).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(entries.len() == 1 && entries[0].join("weights").is_file(), "{entries:?}");
    }
}

/// Whatever is made of a model's file only saves time.
#[test]
fn an_optimised_model_that_cannot_be_opened_is_not_needed() {
    let (expected, cache) = (plain(), tempfile::tempdir().unwrap());
    let options = OnnxRuntimeOptions { model_cache: Some(cache.path().to_owned()), ..OnnxRuntimeOptions::default() };
    let path = committed("tiny_encoder/1/model.onnx");
    for text in [String::new(), parameter("share_weights", "1"), parameter("layouts", "by_load")] {
        let config = encoder(&text);
        let settings = Settings::new(&config.for_execution(), &options, cpus::available(), &[]).unwrap();
        let environment = library::environment(None).unwrap();
        let sessions = Sessions::prepare(&config.name, &environment, &settings, &options, &path);
        let made = fs::read_dir(cache.path()).unwrap().flatten().map(|entry| entry.path());
        for entry in made.collect::<Vec<_>>() {
            fs::write(entry.join("model.onnx"), "no graph").unwrap();
            fs::write(entry.join("weights"), "no weights").unwrap();
        }
        let made: Result<Vec<_>, _> = (0..2).map(|_| sessions.make(InstanceDevice::Cpu, 1)).collect();
        assert!(made.is_ok(), "{text}: {:?}", made.err());
        // Another start finds the damage, and makes the entry again.
        let mut model =
            conformance::load(&OnnxRuntime::new(options.clone()), &config, committed("tiny_encoder")).unwrap();
        assert_near(&answers(&mut model.instances[0]), &expected, 1e-6);
    }
}
