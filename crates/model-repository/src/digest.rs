//! Digests of the contents of models, by which processes tell whether they serve the same files under one name.
//!
//! A digest is SHA-256 over names and bytes of files, whatever their times, so that two hosts with copies of the same files have
//! the same one. A file is read once: its digest is kept in memory for as long as its size and its time of change stay. Hidden files
//! and `__pycache__` are left out: tools write them where they work.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::SystemTime;

use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use trireme_model_files::regular;

/// The most levels of directories that are read; a loop of links ends there.
const MAX_DEPTH: usize = 8;

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

/// From this number of files on, the digests of all files are forgotten.
const MAX_KNOWN: usize = 10_000;

/// The digest of a file's bytes.
type FileDigest = [u8; SHA256_OUTPUT_LEN];

/// The digest of a file, and the size and time that the file had. Locked while the file is read, so that it is read once.
type Known = Arc<Mutex<Option<(u64, SystemTime, FileDigest)>>>;

static KNOWN: LazyLock<Mutex<HashMap<PathBuf, Known>>> = LazyLock::new(Mutex::default);

/// A digest that is made of parts.
pub(crate) struct Digest(Context);

// === impl Digest ===

impl Digest {
    pub fn new() -> Digest {
        Digest(Context::new(&SHA256))
    }

    /// Adds a part; its length counts, so that parts do not run into each other.
    pub fn add(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    /// Adds a file under a name.
    pub fn add_file(&mut self, name: &str, path: &Path) -> io::Result<()> {
        self.add(name.as_bytes());
        self.add(&file(path)?);
        Ok(())
    }

    /// Adds the files beneath `directory` whose first name `counts`.
    pub fn add_directory(&mut self, directory: &Path, counts: impl Fn(&str) -> bool) -> io::Result<()> {
        files(directory, "", &counts, 0, &mut |name, path| self.add_file(name, path))
    }

    /// The whole digest: `sha256:` and 64 hexadecimal digits.
    pub fn finish(self) -> String {
        format!("sha256:{}", self.digits())
    }

    /// The whole digest as 64 hexadecimal digits.
    pub fn digits(self) -> String {
        let digest = self.0.finish();
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A digest of a file's bytes.
pub fn digest_of_file(path: &Path) -> io::Result<String> {
    let mut digest = Digest::new();
    digest.add_file("", path)?;
    Ok(digest.finish())
}

/// The names of the files beneath `directory`, by their paths from there.
pub(crate) fn names(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    files(directory, "", &|_| true, 0, &mut |name, _| {
        names.push(name.to_owned());
        Ok(())
    })?;
    Ok(names)
}

/// An error that names the first file beneath `directory`, of those whose first name `counts`, that is a pipe or a device.
pub(crate) fn check_regular(directory: &Path, counts: impl Fn(&str) -> bool) -> io::Result<()> {
    files(directory, "", &counts, 0, &mut |_, path| regular::look(path).map_err(|error| at(path, &error)))
}

/// Visits the files beneath `directory` whose first name `counts`, in order of name.
pub(crate) fn visit_files(
    directory: &Path,
    counts: impl Fn(&str) -> bool,
    mut visit: impl FnMut(&str, &Path) -> io::Result<()>,
) -> io::Result<()> {
    files(directory, "", &counts, 0, &mut visit)
}

/// Visits the files beneath `directory` in order of name.
fn files(
    directory: &Path,
    prefix: &str,
    counts: &dyn Fn(&str) -> bool,
    depth: usize,
    visit: &mut dyn FnMut(&str, &Path) -> io::Result<()>,
) -> io::Result<()> {
    let entries = fs::read_dir(directory).map_err(|error| at(directory, &error))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(|error| at(directory, &error))?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    for name in names {
        if name.starts_with('.') || name == "__pycache__" || !counts(&name) {
            continue;
        }
        let path = directory.join(&name);
        let name = format!("{prefix}{name}");
        if path.is_dir() {
            if depth < MAX_DEPTH {
                files(&path, &format!("{name}/"), &|_| true, depth + 1, visit)?;
            }
        } else {
            visit(&name, &path)?;
        }
    }
    Ok(())
}

/// The digest of a file's bytes.
fn file(path: &Path) -> io::Result<FileDigest> {
    let known = {
        let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_KNOWN {
            all.clear();
        }
        all.entry(path.to_owned()).or_default().clone()
    };
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    let read = || {
        let mut file = regular::open(path)?;
        let metadata = file.metadata()?;
        let (size, changed) = (metadata.len(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
        if let Some((_, _, digest)) = known.filter(|known| (known.0, known.1) == (size, changed)) {
            return Ok((size, changed, digest));
        }
        let (mut context, mut chunk) = (Context::new(&SHA256), vec![0; CHUNK]);
        loop {
            match file.read(&mut chunk)? {
                0 => break,
                bytes => context.update(&chunk[..bytes]),
            }
        }
        let mut digest = FileDigest::default();
        digest.copy_from_slice(context.finish().as_ref());
        Ok((size, changed, digest))
    };
    let found = read().map_err(|error: io::Error| at(path, &error))?;
    *known = Some(found);
    Ok(found.2)
}

/// An error that names its path.
fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
