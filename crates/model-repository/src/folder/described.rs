//! The JSON files of a folder that several modules look into.

use super::files::Json;
use super::modules::Module;

/// The JSON files that several parts look into.
pub(super) struct FolderFiles {
    pub(super) config: Json,
    pub(super) own: Option<Json>,
    pub(super) modules: Option<Vec<Module>>,
}
