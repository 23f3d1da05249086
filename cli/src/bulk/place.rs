//! Where files lie: on this machine, in an object store, on a web server.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, ensure};
use bytes::{Bytes, BytesMut};
use tokio::runtime::Handle;
use trireme_columns::Source;
use trireme_model_source::{Object, Upload, is_remote};

/// Bytes that are fetched from a remote file at once, and how many such pieces are kept: a reader of columns goes on in each
/// of them by turns.
const PIECE: u64 = 4 << 20;
const PIECES: usize = 16;

/// Bytes of a part of an upload.
const PART: usize = 8 << 20;

/// A file, or the beginning of the names of several.
#[derive(Clone)]
pub enum Place {
    Local(PathBuf),
    Remote(Object, Handle),
}

/// A file that is written and appears under its name when it is whole.
pub enum Sink {
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

    /// Whether a file can be continued where it ends.
    pub fn can_append(&self) -> bool {
        matches!(self, Place::Local(_))
    }

    /// The file, to be read.
    pub fn open(&self) -> anyhow::Result<Arc<dyn Source>> {
        match self {
            Place::Local(path) => {
                let file = File::open(path).with_context(|| format!("cannot read {self}"))?;
                let size = file.metadata()?.len();
                Ok(Arc::new(LocalFile { file, size }))
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

    /// Puts a small file there, whole or not at all. Makes its folder.
    pub fn put(&self, bytes: Vec<u8>) -> anyhow::Result<()> {
        match self {
            Place::Local(path) => {
                let write = || {
                    path.parent().map_or(Ok(()), fs::create_dir_all)?;
                    let partial = partial(path);
                    let mut file = File::create(&partial)?;
                    file.write_all(&bytes)?;
                    file.sync_all()?;
                    fs::rename(&partial, path)
                };
                write().with_context(|| format!("cannot write {self}"))
            }
            Place::Remote(object, runtime) => Ok(runtime.block_on(object.put(bytes.into()))?),
        }
    }

    /// Begins the file.
    pub fn create(&self) -> anyhow::Result<Sink> {
        match self {
            Place::Local(path) => {
                let partial = partial(path);
                let file = File::create(&partial).with_context(|| format!("cannot write {}", partial.display()))?;
                Ok(Sink::Local { file, partial, target: path.clone() })
            }
            Place::Remote(object, runtime) => {
                let upload = Box::new(runtime.block_on(object.upload())?);
                Ok(Sink::Remote { upload, part: BytesMut::new(), runtime: runtime.clone() })
            }
        }
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

/// The name under which a file is written.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(".partial");
    name.into()
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
    /// Makes the file whole, under its name.
    pub fn finish(self) -> anyhow::Result<()> {
        match self {
            Sink::Local { file, partial, target } => {
                let done = file.sync_all().and_then(|()| fs::rename(&partial, &target));
                done.with_context(|| format!("cannot write {}", target.display()))
            }
            Sink::Remote { mut upload, part, runtime } => Ok(runtime.block_on(async {
                upload.write(part.freeze()).await?;
                upload.complete().await
            })?),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Local { file, .. } => file.write(bytes),
            Sink::Remote { upload, part, runtime } => {
                part.extend_from_slice(bytes);
                if part.len() >= PART {
                    runtime.block_on(upload.write(std::mem::take(part).freeze())).map_err(io::Error::other)?;
                }
                Ok(bytes.len())
            }
        }
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

/// Refuses a place that is only read.
pub fn check_writable(word: &str) -> anyhow::Result<()> {
    let is_web = word.starts_with("http://") || word.starts_with("https://");
    ensure!(!is_web, "{word}: a web server takes no files; write to a local file, s3://, gs:// or az://");
    Ok(())
}
