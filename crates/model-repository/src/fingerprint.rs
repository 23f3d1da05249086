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
