//! Memory files that the worker and a child have mapped, both.
//!
//! Copying to a mapping is several times faster than writing to its file, which the kernel does page by page. A file that another
//! process may make smaller is never mapped: touching a page behind its end would end this process.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

/// A mapped memory file whose size is fixed.
#[derive(Debug)]
pub struct Mapped {
    file: File,
    map: MmapRaw,
    identity: Identity,
}

/// Device, number and size of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64, u64, u64);

impl Mapped {
    /// A new file of so many bytes, which nobody can make smaller.
    pub fn create(bytes: u64) -> io::Result<Mapped> {
        let file = File::from(memfd_create(c"trireme", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.set_len(bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK)?;
        let (map, identity) = (MmapRaw::map_raw(&file)?, Identity::of(&file)?);
        Ok(Mapped { file, map, identity })
    }

    /// Maps a file of another process. Gives the file back if it may become smaller.
    pub fn open(file: File) -> io::Result<Result<Mapped, File>> {
        if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return Ok(Err(file));
        }
        let (map, identity) = (MmapOptions::new().map_raw_read_only(&file)?, Identity::of(&file)?);
        // The file may have grown between the two.
        match identity.bytes() == map.len() as u64 {
            true => Ok(Ok(Mapped { file, map, identity })),
            false => Ok(Err(file)),
        }
    }

    /// Which file it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Copies bytes into a file of [`Mapped::create`]. Errors where they reach behind its end.
    #[allow(unsafe_code, reason = "other processes may use the mapping, so there can be no reference to its bytes")]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = usize::try_from(offset).ok();
        let Some(at) = at.filter(|at| at.checked_add(bytes.len()).is_some_and(|end| end <= self.map.len())) else {
            return Err(io::ErrorKind::WriteZero.into());
        };
        // SAFETY: the bytes lie within the mapping, and within the file, which does not become smaller. `bytes` cannot overlap with
        // them: no reference to the mapping's bytes is ever made. This process does not read these bytes again.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(at), bytes.len()) };
        Ok(())
    }

    /// Copies the first bytes of the file. A process that writes to the file meanwhile decides on the outcome, but not on what is
    /// read of the copy later. Errors if there are fewer.
    #[allow(unsafe_code, reason = "other processes may use the mapping, so there can be no reference to its bytes")]
    pub fn read(&self, into: &mut [u8]) -> io::Result<()> {
        if into.len() > self.map.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the bytes lie within the mapping, and within the file, which does not become smaller. `into` cannot overlap with
        // them: no reference to the mapping's bytes is ever made. Every pattern of bits is a valid byte.
        unsafe { std::ptr::copy_nonoverlapping(self.map.as_ptr(), into.as_mut_ptr(), into.len()) };
        Ok(())
    }
}

impl AsFd for Mapped {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Identity {
    /// Which file this is.
    pub fn of(file: &File) -> io::Result<Identity> {
        let status = file.metadata()?;
        Ok(Identity(status.dev(), status.ino(), status.size()))
    }

    /// The file's size.
    pub fn bytes(&self) -> u64 {
        self.2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_same_bytes() {
        let ours = Mapped::create(8).unwrap();
        ours.write(2, &[1, 2, 3]).unwrap();
        assert!(ours.write(6, &[0; 3]).is_err() && ours.write(u64::MAX, &[0; 3]).is_err());
        let theirs = Mapped::open(ours.file.try_clone().unwrap()).unwrap().unwrap();
        assert_eq!(theirs.identity(), ours.identity());
        let mut bytes = [9; 8];
        theirs.read(&mut bytes).unwrap();
        assert_eq!(bytes, [0, 0, 1, 2, 3, 0, 0, 0]);
        assert!(theirs.read(&mut [0; 9]).is_err());
        assert!(ours.file.set_len(7).is_err(), "its size is fixed");
    }

    #[test]
    fn a_file_that_may_become_smaller_is_not_mapped() {
        let file = File::from(memfd_create(c"x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(8).unwrap();
        assert!(Mapped::open(file).unwrap().is_err());
        assert!(Mapped::open(tempfile::tempfile().unwrap()).unwrap().is_err());
    }
}
