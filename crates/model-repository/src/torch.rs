//! Models of Triton's backend `pytorch`: TorchScript (`model.pt`) and torch.export (`model.pt2`). Nothing here runs them. `trireme export`
//! writes an ONNX file beside such a file, under the same name, and backend `onnxruntime` serves that in its place.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::backends::{ONNXRUNTIME, PYTORCH};
use crate::proto::ModelConfig;

/// The platform of TorchScript files.
const LIBTORCH: &str = "pytorch_libtorch";
/// The platform of files of torch.export.
const AOTI: &str = "torch_aoti";
/// The platform of ONNX files.
const ONNX: &str = "onnxruntime_onnx";
/// The endings of torch's files, in the order in which a version folder is searched for them.
const ENDINGS: [&str; 2] = ["pt", "pt2"];

/// Makes the configuration of a model of backend `pytorch` that of its ONNX file, where a version folder holds one (`files`).
pub(crate) fn replace(message: &mut ModelConfig, files: &BTreeSet<String>) {
    let is_torch = match message.backend.as_str() {
        PYTORCH => true,
        "" => [LIBTORCH, AOTI].contains(&message.platform.as_str()),
        _ => false,
    };
    if !is_torch {
        return;
    }
    message.backend = PYTORCH.to_owned();
    let file = match (message.default_model_filename.as_str(), message.platform.as_str()) {
        ("", AOTI) => "model.pt2",
        ("", _) => "model.pt",
        (file, _) => file,
    };
    let graph = Path::new(file).with_extension("onnx").display().to_string();
    if files.contains(&graph) {
        ONNXRUNTIME.clone_into(&mut message.backend);
        ONNX.clone_into(&mut message.platform);
        message.default_model_filename = graph;
    } else if message.platform == AOTI {
        message.default_model_filename = file.to_owned();
    }
}

/// Whether Triton takes this backend and platform together, beside the backend's usual platform.
pub(crate) fn is_pair(backend: &str, platform: &str) -> bool {
    backend == PYTORCH && platform == AOTI
}

/// The file of torch that lies beside an ONNX file under the same name, and is not served because of it.
pub fn torch_file_beside(graph: &Path) -> Option<PathBuf> {
    ENDINGS.iter().map(|ending| graph.with_extension(ending)).find(|file| file.is_file())
}

/// The file of torch in a version folder: the one that the configuration names (`named`, which may be empty), or the first in the order of
/// names. `None`: the folder has no file of torch.
pub fn torch_file(version_path: &Path, named: &str) -> Option<PathBuf> {
    let is_torch = |path: &PathBuf| path.extension().is_some_and(|found| ENDINGS.iter().any(|ending| found == *ending));
    let named = Some(named).filter(|named| !named.is_empty()).map(|named| version_path.join(named));
    // A configuration that names the ONNX file means the file of torch that it was made from.
    let own = named.clone().filter(is_torch).filter(|path| path.is_file());
    own.or_else(|| torch_file_beside(&named?)).or_else(|| {
        let entries = std::fs::read_dir(version_path).ok()?.flatten().map(|entry| entry.path());
        entries.filter(is_torch).min()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;

    fn config(text: &str, files: &[&str]) -> ModelConfig {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("m");
        std::fs::create_dir_all(model.join("1")).unwrap();
        std::fs::write(model.join("config.pbtxt"), text).unwrap();
        files.iter().for_each(|file| std::fs::write(model.join("1").join(file), "").unwrap());
        let found = crate::RepositoryModel::open("m", &model, &[]).unwrap();
        found.config.as_ref().clone()
    }

    #[test]
    fn the_onnx_file_beside_a_file_of_torch_is_what_is_served() {
        for (text, files, expected) in [
            ("backend: 'pytorch'", &["model.pt"][..], (PYTORCH, LIBTORCH, "model.pt")),
            ("backend: 'pytorch'", &["model.pt", "model.onnx"], (ONNXRUNTIME, ONNX, "model.onnx")),
            ("platform: 'pytorch_libtorch'", &["model.pt", "model.onnx"], (ONNXRUNTIME, ONNX, "model.onnx")),
            ("backend: 'pytorch' default_model_filename: 'a.pt'", &["a.pt", "model.onnx"], (PYTORCH, LIBTORCH, "a.pt")),
            ("backend: 'pytorch' default_model_filename: 'a.pt'", &["a.pt", "a.onnx"], (ONNXRUNTIME, ONNX, "a.onnx")),
            ("platform: 'torch_aoti'", &["model.pt2"], (PYTORCH, AOTI, "model.pt2")),
            (
                "backend: 'pytorch' platform: 'torch_aoti'",
                &["model.pt2", "model.onnx"],
                (ONNXRUNTIME, ONNX, "model.onnx"),
            ),
            ("backend: 'python'", &["model.py", "model.onnx"], ("python", "", "model.py")),
        ] {
            let config = config(text, files);
            let found = (config.backend.as_str(), config.platform.as_str(), config.default_model_filename.as_str());
            assert_eq!(found, expected, "{text} {files:?}");
        }
    }

    #[test]
    fn a_file_of_torch_is_found_by_the_configurations_name_or_its_ending() {
        let folder = tempfile::tempdir().unwrap();
        let found = |named| torch_file(folder.path(), named).map(|path| path.file_name().unwrap().to_owned());
        assert_eq!(found("model.pt"), None);
        ["b.pt", "model.onnx", "c.pt2"].iter().for_each(|file| std::fs::write(folder.path().join(file), "").unwrap());
        assert_eq!(found("model.pt").unwrap(), "b.pt");
        assert_eq!(found("c.onnx").unwrap(), "c.pt2");
        assert_eq!(found("model.onnx").unwrap(), "b.pt", "another name is better than none");
        assert_eq!(torch_file_beside(&folder.path().join("model.onnx")), None);
        std::fs::write(folder.path().join("model.pt"), "").unwrap();
        assert_eq!(found("model.onnx").unwrap(), "model.pt");
        assert_eq!(torch_file_beside(&folder.path().join("model.onnx")), Some(folder.path().join("model.pt")));
    }
}
