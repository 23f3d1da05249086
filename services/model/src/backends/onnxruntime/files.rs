//! The files that a model is made of: its graph, and whatever lies in the graph's directory, which may contain its weights.

use std::io;
use std::path::{Path, PathBuf};

/// The most levels of directories; a loop of links ends there.
const MAX_DEPTH: usize = 8;

/// The files in the directory of `graph` and in those within it, sorted.
pub fn beside(graph: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = below(graph.parent().unwrap_or(Path::new(".")), 0)?;
    files.sort_unstable();
    Ok(files)
}

fn below(directory: &Path, depth: usize) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        match path.is_dir() {
            true if depth < MAX_DEPTH => files.extend(below(&path, depth + 1)?),
            true => {}
            false => files.push(path),
        }
    }
    Ok(files)
}
