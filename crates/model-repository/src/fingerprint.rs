//! Detects changed files by a hash over their names, sizes and times.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::SystemTime;

/// The most levels of directories that are hashed; a loop of links ends there.
const MAX_DEPTH: usize = 8;

/// A hash over all entries of the directory `path` whose own name `counts`. An unreadable entry counts as missing.
pub(crate) fn of(path: &Path, counts: impl Fn(&str) -> bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    add(&mut hasher, path, &counts, 0);
    hasher.finish()
}

/// When the newest file beneath the directory `path` was changed whose first name `counts`. An unreadable entry counts as missing.
pub(crate) fn newest(path: &Path, counts: impl Fn(&str) -> bool) -> Option<SystemTime> {
    newest_beneath(path, &counts, 0)
}

fn newest_beneath(path: &Path, counts: &dyn Fn(&str) -> bool, depth: usize) -> Option<SystemTime> {
    let entries = fs::read_dir(path).ok()?.flatten().filter(|entry| counts(&entry.file_name().to_string_lossy()));
    let of = |entry: fs::DirEntry| {
        let metadata = fs::metadata(entry.path()).ok()?;
        match metadata.is_dir() {
            true if depth < MAX_DEPTH => newest_beneath(&entry.path(), &|_| true, depth + 1),
            true => None,
            false => metadata.modified().ok(),
        }
    };
    entries.filter_map(of).max()
}

/// A value's hash.
pub(crate) fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn add(hasher: &mut DefaultHasher, path: &Path, counts: &dyn Fn(&str) -> bool, depth: usize) {
    let Ok(entries) = fs::read_dir(path) else { return };
    let mut entries: Vec<_> = entries.flatten().map(|entry| (entry.file_name(), entry.path())).collect();
    entries.sort();
    for (name, path) in entries {
        let Ok(metadata) = fs::metadata(&path) else { continue };
        if !counts(&name.to_string_lossy()) {
            continue;
        }
        name.hash(hasher);
        if metadata.is_dir() {
            if depth < MAX_DEPTH {
                add(hasher, &path, &|_| true, depth + 1);
            }
        } else {
            metadata.len().hash(hasher);
            metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH).hash(hasher);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_newest_file_is_found_at_any_depth_and_hidden_ones_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(newest(folder.path(), |_| true), None);
        fs::create_dir_all(folder.path().join("onnx/deep")).unwrap();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (name, seconds) in [("config.json", 1000), ("onnx/deep/model.onnx", 3000), (".cache", 9000)] {
            let file = fs::File::create(folder.path().join(name)).unwrap();
            file.set_modified(at(seconds)).unwrap();
        }
        assert_eq!(newest(folder.path(), |name| !name.starts_with('.')), Some(at(3000)));
        assert_eq!(newest(folder.path(), |name| name == "config.json"), Some(at(1000)));
        assert_eq!(newest(&folder.path().join("none"), |_| true), None);
    }
}
