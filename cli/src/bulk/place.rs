//! Where files lie: on this machine, in an object store, on a web server.

#![allow(clippy::disallowed_methods, reason = "the threads are the command's own")]

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, ensure};
use bytes::{Bytes, BytesMut};
use tokio::runtime::Handle;
use trireme_columns::Source;
use trireme_model_source::{Object, Upload, is_remote};

use super::identity::{Hasher, Identity};

/// Bytes that are fetched from a remote file at once, and how many such pieces are kept: a reader of columns goes on in each
/// of them by turns.
const PIECE: u64 = 4 << 20;
const PIECES: usize = 16;

/// Bytes of a part of an upload.
const PART: usize = 8 << 20;

/// Links that are followed from one to the next.
const MOST_LINKS: usize = 40;

/// A file, or the beginning of the names of several.
#[derive(Clone)]
pub enum Place {
    Local(PathBuf),
    Remote(Object, Handle),
}

/// The end of the names of files that are being written.
const PARTIAL: &str = ".partial";

/// A file that is written and appears under its name when it is whole.
pub struct Sink {
    way: Way,
    written: Hasher,
}

enum Way {
    Local { file: File, partial: PathBuf, target: PathBuf },
    Remote { upload: Box<Upload>, part: BytesMut, runtime: Handle },
}

/// A file on this machine.
struct LocalFile {
    file: File,
    size: u64,
}

/// A file elsewhere.
struct RemoteFile {
    object: Object,
    runtime: Handle,
    size: u64,
    /// The pieces that were read last, by their first bytes.
    pieces: Mutex<VecDeque<(u64, Bytes)>>,
}

// === impl Place ===

impl Place {
    /// The place that a word of the command line names.
    pub fn of(word: &str, runtime: &Handle) -> anyhow::Result<Place> {
        match is_remote(word) {
            true => Ok(Place::Remote(Object::at(word)?, runtime.clone())),
            false => Ok(Place::Local(word.into())),
        }
    }

    /// The place of an output. Links are followed, so that one file has one place.
    pub fn of_output(word: &str, runtime: &Handle) -> anyhow::Result<Place> {
        let is_web = word.starts_with("http://") || word.starts_with("https://");
        ensure!(!is_web, "{word}: a web server takes no files; write to a local file, s3://, gs:// or az://");
        Ok(match Place::of(word, runtime)? {
            Place::Local(path) => Place::Local(behind_links(path).with_context(|| format!("cannot write {word}"))?),
            remote => remote,
        })
    }

    /// Whether both are one file, by whatever names.
    pub fn is_same(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Local(one), Place::Local(other)) => {
                let file = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
                file(one).is_some_and(|found| file(other) == Some(found))
            }
            (Place::Remote(..), Place::Remote(..)) => self.to_string() == other.to_string(),
            _ => false,
        }
    }

    /// Whether it is on this machine, where a file may be read twice.
    pub fn is_local(&self) -> bool {
        matches!(self, Place::Local(_))
    }

    /// The file, to be read.
    pub fn open(&self) -> anyhow::Result<Arc<dyn Source>> {
        match self {
            Place::Local(path) => {
                let file = File::open(path).with_context(|| format!("cannot read {self}"))?;
                let found = file.metadata()?;
                ensure!(!found.is_dir(), "cannot read {self}: it is a folder; name a file in it");
                ensure!(
                    found.is_file(),
                    "cannot read {self}: it is no regular file; write its content to a file first"
                );
                Ok(Arc::new(LocalFile { file, size: found.len() }))
            }
            Place::Remote(object, runtime) => {
                let size = runtime.block_on(object.size())?.with_context(|| format!("there is no {self}"))?;
                let (object, runtime) = (object.clone(), runtime.clone());
                Ok(Arc::new(RemoteFile { object, runtime, size, pieces: Mutex::default() }))
            }
        }
    }

    /// Whether the file is there.
    pub fn exists(&self) -> anyhow::Result<bool> {
        match self {
            Place::Local(path) => Ok(path.try_exists()?),
            Place::Remote(object, runtime) => Ok(runtime.block_on(object.size())?.is_some()),
        }
    }

    /// The place whose name is this one's and `suffix`.
    pub fn with(&self, suffix: &str) -> anyhow::Result<Place> {
        match self {
            Place::Local(path) => {
                let mut name = path.clone().into_os_string();
                name.push(suffix);
                Ok(Place::Local(name.into()))
            }
            Place::Remote(object, runtime) => Ok(Place::Remote(object.with(suffix)?, runtime.clone())),
        }
    }

    /// The names of the files in this folder, sorted.
    pub fn names(&self) -> anyhow::Result<Vec<String>> {
        let mut names = match self {
            Place::Local(path) if !path.is_dir() => Vec::new(),
            Place::Local(path) => {
                let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
                let read = fs::read_dir(path).and_then(|entries| entries.map(name).collect::<io::Result<Vec<_>>>());
                read.with_context(|| format!("cannot read {self}"))?
            }
            Place::Remote(object, runtime) => runtime.block_on(object.names())?,
        };
        names.sort();
        Ok(names)
    }

    /// Whether it is a folder of this machine.
    pub fn is_folder(&self) -> bool {
        matches!(self, Place::Local(path) if path.is_dir())
    }

    /// Puts a small file there, whole or not at all; until then it is in `folder`, which is made where it is missing.
    pub fn put(&self, bytes: Vec<u8>, folder: &Place) -> anyhow::Result<()> {
        match self {
            Place::Local(_) => {
                let mut sink = self.create(folder)?;
                sink.write_all(&bytes).with_context(|| format!("cannot write {self}"))?;
                sink.finish(|_| Ok(()))
            }
            Place::Remote(object, runtime) => Ok(runtime.block_on(object.put(bytes.into()))?),
        }
    }

    /// Begins the file, in `folder` until it is whole.
    pub fn create(&self, folder: &Place) -> anyhow::Result<Sink> {
        let way = match (self, folder) {
            (Place::Local(path), Place::Local(folder)) => {
                let mut name = path.file_name().unwrap_or_default().to_owned();
                name.push(PARTIAL);
                let partial = folder.join(name);
                let file = fs::create_dir_all(folder).and_then(|()| File::create(&partial));
                let file = file.with_context(|| format!("cannot write {}", partial.display()))?;
                Way::Local { file, partial, target: path.clone() }
            }
            (Place::Remote(object, runtime), _) => {
                let upload = Box::new(runtime.block_on(object.upload())?);
                Way::Remote { upload, part: BytesMut::new(), runtime: runtime.clone() }
            }
            (Place::Local(_), Place::Remote(..)) => anyhow::bail!("cannot write {self}: its parts lie elsewhere"),
        };
        Ok(Sink { way, written: Hasher::new() })
    }

    /// Removes the file, if it is there.
    pub fn delete(&self) -> anyhow::Result<()> {
        match self {
            Place::Local(path) => match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("cannot remove {self}"))
                }
                _ => Ok(()),
            },
            Place::Remote(object, runtime) => Ok(runtime.block_on(object.delete())?),
        }
    }

    /// Removes files of this folder, and the folder where it is empty then.
    pub fn remove(&self, names: &[String]) -> anyhow::Result<()> {
        match self {
            Place::Local(path) => {
                for name in names {
                    fs::remove_file(path.join(name))
                        .with_context(|| format!("cannot remove {}", path.join(name).display()))?;
                }
                // Somebody else's files stay.
                let _ = fs::remove_dir(path);
            }
            Place::Remote(object, runtime) => {
                for name in names {
                    runtime.block_on(object.with(&format!("/{name}"))?.delete())?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a file of this name was being written when a run was cut off.
pub fn is_partial(name: &str) -> bool {
    name.ends_with(PARTIAL)
}

/// The file that a path leads to, whether or not it is there.
fn behind_links(mut path: PathBuf) -> io::Result<PathBuf> {
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            Ok(target) => path = path.parent().map(|folder| folder.join(&target)).unwrap_or(target),
            // The file may be there or not, but it is no link.
            Err(_) => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok();
                let real = folder.zip(path.file_name()).map(|(folder, name)| folder.join(name));
                return Ok(real.unwrap_or(path));
            }
        }
    }
    Err(io::Error::other("its links lead in a circle"))
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Local(path) => path.display().fmt(f),
            Place::Remote(object, _) => object.fmt(f),
        }
    }
}

// === impl Sink ===

impl Sink {
    /// Makes the file whole, under its name. `before` hears its content just before.
    pub fn finish(self, before: impl FnOnce(Identity) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let content = self.written.finish();
        match self.way {
            Way::Local { file, partial, target } => {
                let cannot = || format!("cannot write {}", target.display());
                file.sync_all().with_context(cannot)?;
                before(content)?;
                // The name is durable when its folder is.
                let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let renamed = fs::rename(&partial, &target).and_then(|()| File::open(folder)?.sync_all());
                renamed.with_context(cannot)
            }
            Way::Remote { mut upload, part, runtime } => {
                runtime.block_on(upload.write(part.freeze()))?;
                before(content)?;
                Ok(runtime.block_on(upload.complete())?)
            }
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = match &mut self.way {
            Way::Local { file, .. } => file.write(bytes)?,
            Way::Remote { upload, part, runtime } => {
                part.extend_from_slice(bytes);
                if part.len() >= PART {
                    runtime.block_on(upload.write(std::mem::take(part).freeze())).map_err(io::Error::other)?;
                }
                bytes.len()
            }
        };
        self.written.add(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl LocalFile ===

impl Source for LocalFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, from: u64, length: usize) -> io::Result<Bytes> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, from)?;
        Ok(bytes.into())
    }
}

// === impl RemoteFile ===

impl RemoteFile {
    /// The piece that begins at byte `from`, a multiple of [`PIECE`].
    fn piece(&self, from: u64) -> io::Result<Bytes> {
        let poisoned = |_| io::Error::other("a reader of this file has panicked");
        let kept =
            self.pieces.lock().map_err(poisoned)?.iter().find(|(at, _)| *at == from).map(|(_, bytes)| bytes.clone());
        if let Some(bytes) = kept {
            return Ok(bytes);
        }
        let bytes = self.fetch(from..self.size.min(from + PIECE))?;
        let mut pieces = self.pieces.lock().map_err(poisoned)?;
        if pieces.len() == PIECES {
            pieces.pop_front();
        }
        pieces.push_back((from, bytes.clone()));
        Ok(bytes)
    }

    fn fetch(&self, range: Range<u64>) -> io::Result<Bytes> {
        self.runtime.block_on(self.object.read(range)).map_err(io::Error::other)
    }
}

impl Source for RemoteFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, from: u64, length: usize) -> io::Result<Bytes> {
        let end = from.checked_add(length as u64).filter(|end| *end <= self.size);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let first = from - from % PIECE;
        if end <= first + PIECE {
            let piece = self.piece(first)?;
            let within = (from - first) as usize;
            let bytes = piece.get(within..within + length).ok_or(io::ErrorKind::UnexpectedEof)?;
            return Ok(piece.slice_ref(bytes));
        }
        let mut bytes = BytesMut::with_capacity(length);
        let mut at = from;
        while at < end {
            let first = at - at % PIECE;
            let piece = self.piece(first)?;
            let part = piece.get((at - first) as usize..piece.len().min((end - first) as usize)).unwrap_or_default();
            if part.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            bytes.extend_from_slice(part);
            at += part.len() as u64;
        }
        Ok(bytes.freeze())
    }
}
