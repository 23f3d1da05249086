//! Packed environments: an archive is unpacked once per process, into a private folder.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use flate2::read::GzDecoder;
use parking_lot::Mutex;
use trireme_model_repository::TemporaryFolder;

/// File endings of archives that can be unpacked.
const PACKED: [&str; 2] = [".tar.gz", ".tgz"];

/// File endings of archives that cannot.
const OTHERS: [&str; 4] = [".tar", ".zip", ".tar.bz2", ".tar.xz"];

/// An unpacked archive; deleted with the last clone.
#[derive(Clone, Debug)]
pub struct Unpacked(Arc<TemporaryFolder>);

/// An archive as it was when it was unpacked.
type Archive = (PathBuf, Option<SystemTime>, u64);

/// The archives that models of this process have in use.
static UNPACKED: Mutex<Option<HashMap<Archive, Weak<TemporaryFolder>>>> = Mutex::new(None);

// === impl Unpacked ===

impl Unpacked {
    /// The folder of an archive, which is unpacked if no other model of this process uses it. `None` if the path names no
    /// archive. The error names the archive's fault.
    pub fn open(path: &Path) -> Result<Option<Unpacked>, String> {
        let name = path.to_string_lossy();
        if let Some(ending) = OTHERS.iter().find(|&&ending| name.ends_with(ending)) {
            return Err(format!(
                "archives that end in {ending} are not unpacked here; pack it as .tar.gz, or name a folder"
            ));
        }
        if !PACKED.iter().any(|ending| name.ends_with(ending)) || path.is_dir() {
            return Ok(None);
        }
        let describe = |error: std::io::Error| format!("cannot unpack it: {error}");
        let metadata = path.metadata().map_err(describe)?;
        let archive = (path.to_owned(), metadata.modified().ok(), metadata.len());
        // Locked meanwhile: other models that want the same archive wait for it.
        let mut all = UNPACKED.lock();
        let all = all.get_or_insert_default();
        all.retain(|_, folder| folder.strong_count() > 0);
        if let Some(folder) = all.get(&archive).and_then(Weak::upgrade) {
            return Ok(Some(Unpacked(folder)));
        }
        let folder = TemporaryFolder::new("environment").map_err(describe)?;
        unpack(path, folder.path())?;
        let folder = Arc::new(folder);
        all.insert(archive, Arc::downgrade(&folder));
        Ok(Some(Unpacked(folder)))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl PartialEq for Unpacked {
    fn eq(&self, other: &Unpacked) -> bool {
        self.path() == other.path()
    }
}

impl Eq for Unpacked {}

/// Unpacks an archive. One with an entry that would lie outside of the folder is refused.
fn unpack(archive: &Path, folder: &Path) -> Result<(), String> {
    let describe = |error: std::io::Error| format!("cannot unpack it: {error}");
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(archive).map_err(describe)?));
    archive.set_preserve_permissions(true);
    archive.set_overwrite(false);
    for entry in archive.entries().map_err(describe)? {
        let mut entry = entry.map_err(describe)?;
        let path = entry.path().map_err(describe)?.display().to_string();
        // Also false where a link that was unpacked before leads outside.
        let is_inside = entry.unpack_in(folder).map_err(|error| format!("cannot unpack '{path}' of it: {error}"))?;
        if !is_inside {
            return Err(format!("its entry '{path}' would lie outside of the folder that it is unpacked to"));
        }
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use std::io::Write;

    use super::*;

    /// Writes an archive of entries: paths, and contents or, with `->`, the targets of links.
    pub fn pack(path: &Path, entries: &[(&str, &str)]) {
        let writer = flate2::write::GzEncoder::new(File::create(path).unwrap(), flate2::Compression::fast());
        let mut builder = tar::Builder::new(writer);
        for (name, content) in entries {
            let mut header = tar::Header::new_gnu();
            // Not by the library's way, which refuses such names.
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_mode(0o755);
            match content.strip_prefix("->") {
                Some(target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_link_name(target).unwrap();
                    header.set_size(0);
                    header.set_cksum();
                    builder.append(&header, std::io::empty()).unwrap();
                }
                None => {
                    header.set_size(content.len() as u64);
                    header.set_cksum();
                    builder.append(&header, content.as_bytes()).unwrap();
                }
            }
        }
        builder.into_inner().unwrap().finish().unwrap().flush().unwrap();
    }

    #[test]
    fn what_would_lie_outside_is_refused() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let archive = folder.path().join("env.tar.gz");
        let link = format!("->{}", elsewhere.path().display());
        for entries in [
            &[("../evil", "x")][..],
            &[("bin/../../evil", "x")],
            &[("bin", &link), ("bin/evil", "x")],
            &[("up", "->.."), ("up/evil", "x")],
        ] {
            pack(&archive, entries);
            let error = Unpacked::open(&archive).unwrap_err();
            assert!(error.contains("outside") || error.contains("cannot unpack"), "{entries:?}: {error}");
            assert!(!folder.path().join("evil").exists() && !elsewhere.path().join("evil").exists());
        }
        assert!(Unpacked::open(Path::new("env.zip")).unwrap_err().contains("pack it as .tar.gz"));
        assert_eq!(Unpacked::open(folder.path()), Ok(None));
    }

    #[test]
    fn an_archive_is_unpacked_once_and_deleted_with_its_last_user() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("env.tar.gz");
        pack(&archive, &[("./lib/x", "1"), ("bin/python3", "#!"), ("bin/python", "->python3")]);
        let (one, other) = (Unpacked::open(&archive).unwrap().unwrap(), Unpacked::open(&archive).unwrap().unwrap());
        assert_eq!(one, other);
        let path = one.path().to_owned();
        assert_eq!(std::fs::read_to_string(path.join("bin/python")).unwrap(), "#!");
        drop(one);
        assert!(path.exists());
        drop(other);
        assert!(!path.exists());
    }
}
