//! The files of traces: a file that grows, and numbered files beside it. Each file is a JSON array, complete after every write.

use std::fs::{File, OpenOptions};
use std::io::{Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The files with one path.
#[derive(Debug)]
pub struct TraceFiles {
    path: PathBuf,
    /// The file that grows, once something was written to it.
    growing: Option<File>,
    /// The number of the next numbered file.
    next: u64,
}

// === impl TraceFiles ===

impl TraceFiles {
    /// Files with this path, of which there are none so far. Files of an earlier process are overwritten.
    pub fn new(path: PathBuf) -> TraceFiles {
        TraceFiles { path, growing: None, next: 0 }
    }

    /// The path of the file that grows.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds records to the file that grows. If that fails, the file is as it was before.
    pub fn append(&mut self, records: &[u8]) -> Result<()> {
        match &mut self.growing {
            Some(file) => {
                // The new records take the place of the closing bracket.
                let end = file.seek(SeekFrom::End(-1))?;
                let written = file.write_all(&[b",", records, b"]"].concat());
                if written.is_err() {
                    // A full disk has room for the one byte that was there.
                    file.set_len(end + 1)?;
                    file.seek(SeekFrom::Start(end))?;
                    file.write_all(b"]")?;
                }
                written
            }
            None => {
                let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&self.path)?;
                file.write_all(&[b"[", records, b"]"].concat())?;
                self.growing = Some(file);
                Ok(())
            }
        }
    }

    /// Writes records to the next numbered file.
    pub fn number(&mut self, records: &[u8]) -> Result<()> {
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".{}", self.next));
        self.next += 1;
        let written = std::fs::write(&path, [b"[", records, b"]"].concat());
        if written.is_err() {
            // A part of a file is of no use. Where there is no file, there is nothing to remove.
            let _ = std::fs::remove_file(&path);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_whole_after_every_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.json");
        std::fs::write(&path, "that of an earlier process, which was longer").unwrap();
        let mut files = TraceFiles::new(path.clone());
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        files.append(b"1").unwrap();
        assert_eq!(read("t.json"), "[1]");
        files.append(b"2,3").unwrap();
        assert_eq!(read("t.json"), "[1,2,3]");
        files.number(b"4").unwrap();
        files.number(b"5").unwrap();
        assert_eq!((read("t.json.0"), read("t.json.1")), ("[4]".to_owned(), "[5]".to_owned()));
        assert!(TraceFiles::new(path.join("no-folder")).append(b"1").is_err());
    }
}
