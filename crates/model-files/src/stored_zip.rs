//! ZIP archives whose files are stored, not compressed, as torch writes them.
//!
//! Not here: compression, encryption, archives of more than 4 GiB. The crates for these would bring them into every program that reads
//! model folders.

use std::ops::Range;

/// An archive and the places of its files.
pub struct StoredZip<'a> {
    bytes: &'a [u8],
    entries: Vec<(String, Range<usize>)>,
}

/// The signatures of the end of the directory, of an entry of it, and of a file.
const END: [u8; 4] = *b"PK\x05\x06";
const ENTRY: [u8; 4] = *b"PK\x01\x02";
const FILE: [u8; 4] = *b"PK\x03\x04";

/// The bytes of the end of the directory without its comment, and the longest comment.
const END_BYTES: usize = 22;
const LONGEST_COMMENT: usize = 0xffff;

// === impl StoredZip ===

impl<'a> StoredZip<'a> {
    /// Reads the directory of the archive. The error names the unexpected part of it.
    pub fn new(bytes: &'a [u8]) -> Result<StoredZip<'a>, String> {
        let tail = bytes.len().saturating_sub(END_BYTES + LONGEST_COMMENT);
        let end = bytes[tail..].windows(END.len()).rposition(|window| window == END);
        let end = tail + end.ok_or("it has no directory")?;
        let count = u16_at(bytes, end + 10)?;
        let mut at = u32_at(bytes, end + 16)?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            if bytes.get(at..at + ENTRY.len()) != Some(&ENTRY) {
                return Err("its directory is damaged".to_owned());
            }
            let (method, size) = (u16_at(bytes, at + 10)?, u32_at(bytes, at + 20)?);
            let lengths = [u16_at(bytes, at + 28)?, u16_at(bytes, at + 30)?, u16_at(bytes, at + 32)?];
            let file = u32_at(bytes, at + 42)?;
            let name = bytes.get(at + 46..at + 46 + lengths[0]).ok_or("its directory is cut off")?;
            let name = String::from_utf8_lossy(name).into_owned();
            if method != 0 {
                return Err(format!("its file {name} is compressed, expected a stored one"));
            }
            if bytes.get(file..file + FILE.len()) != Some(&FILE) {
                return Err(format!("its file {name} is not where the directory says"));
            }
            let start = file + 30 + u16_at(bytes, file + 26)? + u16_at(bytes, file + 28)?;
            if start + size > bytes.len() {
                return Err(format!("its file {name} is cut off"));
            }
            entries.push((name, start..start + size));
            at += 46 + lengths.iter().sum::<usize>();
        }
        Ok(StoredZip { bytes, entries })
    }

    /// The names of the files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    /// The content of a file.
    pub fn entry(&self, name: &str) -> Option<&'a [u8]> {
        let (_, place) = self.entries.iter().find(|(known, _)| known == name)?;
        self.bytes.get(place.clone())
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Result<usize, String> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map(|bytes| usize::from(u16::from_le_bytes(*bytes))).ok_or("it is cut off".to_owned())
}

fn u32_at(bytes: &[u8], at: usize) -> Result<usize, String> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map(|bytes| u32::from_le_bytes(*bytes) as usize).ok_or("it is cut off".to_owned())
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An archive of these files.
    pub fn zip(files: &[(String, &[u8])]) -> Vec<u8> {
        let (mut out, mut directory) = (Vec::new(), Vec::new());
        for (name, content) in files {
            let (place, size) = (out.len() as u32, (content.len() as u32).to_le_bytes());
            let length = (name.len() as u16).to_le_bytes();
            let sizes = [&[0; 4][..], &size, &size, &length].concat();
            out.extend([&FILE[..], &[0; 10], &sizes, &[0; 2], name.as_bytes(), content].concat());
            let rest = [&[0; 12][..], &place.to_le_bytes(), name.as_bytes()].concat();
            directory.extend([&ENTRY[..], &[0; 12], &sizes, &rest].concat());
        }
        let (start, size) = ((out.len() as u32).to_le_bytes(), (directory.len() as u32).to_le_bytes());
        let count = (files.len() as u16).to_le_bytes();
        out.extend(directory);
        out.extend([&END[..], &[0; 4], &count, &count, &size, &start, &[0; 2]].concat());
        out
    }

    #[test]
    fn stored_files_are_found_and_others_refused() {
        let bytes = zip(&[("a/x".to_owned(), b"one"), ("a/y".to_owned(), b"")]);
        let archive = StoredZip::new(&bytes).unwrap();
        assert_eq!(archive.names().collect::<Vec<_>>(), ["a/x", "a/y"]);
        assert_eq!(
            (archive.entry("a/x"), archive.entry("a/y"), archive.entry("b")),
            (Some(&b"one"[..]), Some(&b""[..]), None)
        );
        assert_eq!(StoredZip::new(b"nonsense").err().unwrap(), "it has no directory");
        let mut packed = bytes.clone();
        let entry = packed.windows(4).position(|window| window == ENTRY).unwrap();
        packed[entry + 10] = 8;
        assert_eq!(StoredZip::new(&packed).err().unwrap(), "its file a/x is compressed, expected a stored one");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(at in 0usize..200, value: u8) {
            let mut bytes = zip(&[("a/x".to_owned(), b"one"), ("a/y".to_owned(), b"two")]);
            let at = at % bytes.len();
            bytes[at] = value;
            if let Ok(archive) = StoredZip::new(&bytes) {
                let names: Vec<String> = archive.names().map(str::to_owned).collect();
                for name in names {
                    let _ = archive.entry(&name);
                }
            }
        }
    }
}
