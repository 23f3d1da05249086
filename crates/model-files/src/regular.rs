//! Files that can be read to their end. Whoever opens a named pipe waits until somebody writes into it, and a device may have no end: neither
//! is opened.

use std::fs::{self, File, FileType};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Opens a file to read it; links are followed.
pub fn open(path: &Path) -> io::Result<File> {
    look(path)?;
    File::open(path)
}

/// The bytes of a file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    look(path)?;
    fs::read(path)
}

/// An error if the file at this path is a pipe or a device. A file that is missing is none.
pub fn look(path: &Path) -> io::Result<()> {
    fs::metadata(path).map_or(Ok(()), |metadata| check(metadata.file_type()))
}

fn check(kind: FileType) -> io::Result<()> {
    let found = if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("found {found}, expected a regular file")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_not_opened() {
        assert_eq!(open(Path::new("/dev/zero")).unwrap_err().to_string(), "found a device, expected a regular file");
        assert_eq!(read(Path::new("/no/such/file")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(look(Path::new("/no/such/file")).is_ok() && look(Path::new("/")).is_ok());
    }
}
