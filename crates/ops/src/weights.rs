//! The folder of a module as sentence-transformers writes it: `config.json` and `model.safetensors`.

use std::io;
use std::path::{Component, Path, PathBuf};

use half::{bf16, f16};
use ndarray::{Array1, Array2};
use safetensors::{Dtype, SafeTensors};
use serde::de::DeserializeOwned;

/// A folder in the version directory of a model. Errors name the file.
pub(crate) struct ModuleFolder {
    path: PathBuf,
    weights: Vec<u8>,
}

// === impl ModuleFolder ===

impl ModuleFolder {
    /// Opens the folder that an op's argument names.
    pub(crate) fn open(version_path: &Path, argument: Option<&str>) -> Result<ModuleFolder, String> {
        let argument = argument.ok_or("argument is missing, expected the folder of a module, such as '2_Dense'")?;
        let inside = Path::new(argument).components().all(|part| matches!(part, Component::Normal(_)));
        if !inside || argument.is_empty() {
            return Err(format!(
                "argument is '{argument}', expected a folder in the version folder, such as '2_Dense'"
            ));
        }
        let path = version_path.join(argument);
        let file = path.join("model.safetensors");
        let weights = std::fs::read(&file).map_err(|error| {
            let torch = path.join("pytorch_model.bin");
            if error.kind() == io::ErrorKind::NotFound && torch.exists() {
                return format!(
                    "{} is not read, expected {}: write it with python -c \"import torch; from safetensors.torch import \
                     save_file; save_file({{name: tensor.contiguous() for name, tensor in torch.load('{}', \
                     weights_only=True).items()}}, '{}')\"",
                    torch.display(),
                    file.display(),
                    torch.display(),
                    file.display()
                );
            }
            format!("cannot read {}: {error}", file.display())
        })?;
        Ok(ModuleFolder { path, weights })
    }

    /// `config.json`.
    pub(crate) fn config<T: DeserializeOwned>(&self) -> Result<T, String> {
        let path = self.path.join("config.json");
        let text = std::fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        serde_json::from_slice(&text).map_err(|error| format!("{} is not valid: {error}", path.display()))
    }

    /// The tensor `name` of one dimension.
    pub(crate) fn vector(&self, name: &str, length: usize) -> Result<Array1<f32>, String> {
        Ok(Array1::from(self.tensor(name, &[length])?))
    }

    /// The tensor `name` of two dimensions.
    pub(crate) fn matrix(&self, name: &str, rows: usize, columns: usize) -> Result<Array2<f32>, String> {
        let values = self.tensor(name, &[rows, columns])?;
        Array2::from_shape_vec((rows, columns), values).map_err(|error| self.fault(&error.to_string()))
    }

    /// The values of tensor `name` as f32, row by row.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        let tensors = SafeTensors::deserialize(&self.weights).map_err(|error| self.fault(&error.to_string()))?;
        let tensor = tensors.tensor(name).map_err(|_| {
            let found = tensors.names().into_iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
            self.fault(&format!("it has no tensor '{name}', found {found}"))
        })?;
        if tensor.shape() != shape {
            let found = tensor.shape();
            return Err(self.fault(&format!("tensor '{name}' has shape {found:?}, expected {shape:?} by config.json")));
        }
        let data = tensor.data();
        Ok(match tensor.dtype() {
            Dtype::F32 => elements(data, f32::from_le_bytes),
            Dtype::F64 => elements(data, |bytes| f64::from_le_bytes(bytes) as f32),
            Dtype::F16 => elements(data, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::BF16 => elements(data, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            other => {
                return Err(self.fault(&format!("tensor '{name}' holds {other:?}, expected F32, F64, F16 or BF16")));
            }
        })
    }

    fn fault(&self, reason: &str) -> String {
        format!("{}: {reason}", self.path.join("model.safetensors").display())
    }
}

fn elements<const N: usize>(data: &[u8], convert: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    data.as_chunks::<N>().0.iter().map(|&bytes| convert(bytes)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;

    use safetensors::tensor::TensorView;

    use super::*;

    /// Writes a folder `name` into `directory`.
    pub(crate) fn write(directory: &Path, name: &str, config: &str, tensors: &[(&str, &[usize], &[f32])]) {
        let path = directory.join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("config.json"), config).unwrap();
        let bytes: Vec<Vec<u8>> =
            tensors.iter().map(|(_, _, values)| values.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
        let views: HashMap<&str, TensorView<'_>> = tensors
            .iter()
            .zip(&bytes)
            .map(|((name, shape, _), bytes)| (*name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap()))
            .collect();
        safetensors::serialize_to_file(views, None, &path.join("model.safetensors")).unwrap();
    }

    #[test]
    fn faults_name_file_and_what_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let open = |argument| ModuleFolder::open(directory.path(), argument).err().unwrap_or_default();
        assert!(open(None).starts_with("argument is missing"));
        for outside in ["../other", "/etc", "", "a/../../b"] {
            assert!(open(Some(outside)).contains("expected a folder in the version folder"), "{outside}");
        }
        assert!(open(Some("2_Dense")).contains("2_Dense/model.safetensors"));
        std::fs::create_dir(directory.path().join("old")).unwrap();
        std::fs::write(directory.path().join("old/pytorch_model.bin"), "").unwrap();
        assert!(open(Some("old")).contains("torch.load("), "{}", open(Some("old")));

        write(directory.path(), "m", "{", &[("a", &[2, 1], &[1.0, 2.0])]);
        let folder = ModuleFolder::open(directory.path(), Some("m")).unwrap();
        assert!(folder.config::<serde_json::Value>().unwrap_err().contains("m/config.json is not valid"));
        assert_eq!(folder.matrix("a", 2, 1).unwrap(), ndarray::arr2(&[[1.0], [2.0]]));
        assert!(
            folder.vector("a", 2).unwrap_err().ends_with("tensor 'a' has shape [2, 1], expected [2] by config.json")
        );
        assert!(folder.vector("b", 2).unwrap_err().ends_with("it has no tensor 'b', found 'a'"));
        std::fs::write(directory.path().join("m/model.safetensors"), "nonsense").unwrap();
        assert!(ModuleFolder::open(directory.path(), Some("m")).unwrap().vector("a", 2).is_err());
    }
}
