//! Copies of graphs whose `MatMulNBits` nodes have an `accuracy_level`. A copy is kept with the optimised models, or in a temporary folder; weights in files
//! beside the graph stay there.
//!
//! Not here: whether a copy serves (`accuracy`).

mod edits;

use std::fmt::{self, Debug, Formatter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trireme_model_repository::TemporaryFolder;

pub use self::edits::Edits;
use super::graph_cache;

/// int8, the least precise level.
pub const LEVEL: u8 = 4;

/// ONNX Runtime's setting of the folder with a graph's weights, where that is not the graph's own.
const WEIGHTS_FOLDER: &str = "session.model_external_initializers_file_folder_path";

/// The choice of the level for nodes without a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AccuracyLevel {
    /// Level 4, where it is precise enough and faster.
    #[default]
    Auto,
    /// ONNX Runtime, which computes in fp32.
    Graph,
}

/// A copy of a model's graph whose nodes have the level.
#[derive(Clone)]
pub struct Levelled {
    path: PathBuf,
    /// The folder of weights that lie in files.
    weights: Option<PathBuf>,
    _folder: Option<Arc<TemporaryFolder>>,
}

// === impl Levelled ===

impl Levelled {
    /// Makes the copy, or finds it in the directory of optimised models.
    pub fn make(model: &str, edits: &Edits, path: &Path, model_cache: Option<&Path>) -> Result<Levelled, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let write = |to: &Path| edits.write(path, to).map_err(failed);
        let circumstances = format!("accuracy_level {LEVEL} {}", env!("CARGO_PKG_VERSION"));
        let entry =
            model_cache.and_then(|directory| graph_cache::Entry::new(directory, model, path, &circumstances).ok());
        let (copy, folder) = match entry {
            Some(entry) => (entry.get_or_make(write)?, None),
            None => {
                let folder = TemporaryFolder::new("levelled").map_err(failed)?;
                let copy = folder.path().join("model.onnx");
                write(&copy)?;
                (copy, Some(Arc::new(folder)))
            }
        };
        let weights = edits.has_external.then(|| path.parent().map(Path::to_owned)).flatten();
        Ok(Levelled { path: copy, weights, _folder: folder })
    }

    /// The graph's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The setting that a session of it needs, if it needs one.
    pub fn entry(&self) -> Option<(&'static str, String)> {
        Some((WEIGHTS_FOLDER, self.weights.as_ref()?.display().to_string()))
    }
}

/// Caches have this text in their keys: it names the level, and not the place of the copy.
impl Debug for Levelled {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "accuracy_level {LEVEL}")
    }
}

impl PartialEq for Levelled {
    fn eq(&self, other: &Levelled) -> bool {
        self.path == other.path
    }
}
