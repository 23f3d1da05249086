//! Puts derived models into a model repository: configurations written, files linked or copied.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use trireme_model_files::{regular, torch_file};

use super::repository::DerivedModel;
use crate::repository::{CONFIG_FILE, check_kind, read_config};
use crate::{ModelConfig, RepositoryError};

/// How the files of a model folder come into a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// A symbolic link: the repository takes no room, and the folder's files stay as they are. A hard link would count as a second name of
    /// the file, for which Python's `onnx` refuses weights beside a graph.
    Link,
    /// A copy, which later changes of the folder do not reach.
    Copy,
}

/// Writes `models`, made of the folder `root`, into the repository `directory` as version `version`. Where a model has other versions
/// already, they stay as they are, and its new configuration lies in the version's directory. If the version exists, or the model is
/// of another kind, returns an error and writes nothing.
pub fn place(
    models: &[DerivedModel],
    root: &Path,
    directory: &Path,
    version: i64,
    placement: Placement,
) -> Result<(), RepositoryError> {
    let cannot = |path: &Path| {
        let path = path.to_owned();
        move |source| RepositoryError::Write { path, source }
    };
    for model in models {
        let folder = directory.join(&model.name);
        let path = folder.join(version.to_string());
        if path.exists() {
            return Err(cannot(&path)(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "it is there already; remove it, or choose another name or version, as in NAME or NAME@2",
            )));
        }
        if let Some(shared) = read_config(&folder, &model.name)? {
            check_kind(&shared, &ModelConfig::parse(&model.config, &model.name)?, version)?;
        }
    }
    for model in models {
        let folder = directory.join(&model.name);
        let version = folder.join(version.to_string());
        fs::create_dir_all(&version).map_err(cannot(&version))?;
        let folder = if folder.join(CONFIG_FILE).exists() { version.clone() } else { folder };
        let config = folder.join(CONFIG_FILE);
        fs::write(&config, &model.config).map_err(cannot(&config))?;
        for (name, text) in &model.texts {
            let path = folder.join(name);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(cannot(parent))?;
            }
            fs::write(&path, text).map_err(cannot(&path))?;
        }
        for (name, source) in &model.files {
            let target = version.join(name);
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent).map_err(cannot(parent))?;
            }
            bring(&root.join(source), &target, placement).map_err(cannot(&target))?;
        }
        for (name, source) in &model.converted {
            let target = version.join(name);
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent).map_err(cannot(parent))?;
            }
            let converted = torch_file::to_safetensors(&root.join(source));
            let converted = converted.map_err(|reason| io::Error::other(format!("{source} cannot be read: {reason}")));
            fs::write(&target, converted.map_err(cannot(&target))?).map_err(cannot(&target))?;
        }
    }
    Ok(())
}

/// Links are to the file itself: in Hugging Face's cache a model's files are links already, relative ones.
fn bring(source: &Path, target: &Path, placement: Placement) -> io::Result<()> {
    let source = source.canonicalize()?;
    regular::look(&source)?;
    match placement {
        Placement::Copy => fs::copy(&source, target).map(drop),
        Placement::Link => symlink(&source, target),
    }
}
