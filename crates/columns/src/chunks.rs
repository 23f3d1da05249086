//! A source as the library for Parquet reads one.

use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use crate::{Reader, Source};

/// A source as the library reads one. Clones are the same.
#[derive(Clone)]
pub struct Chunks(pub Arc<dyn Source>);

// === impl Chunks ===

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.0.size()
    }
}

impl ChunkReader for Chunks {
    type T = Reader;

    fn get_read(&self, start: u64) -> Result<Reader, ParquetError> {
        Ok(Reader::new(self.0.clone(), start))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        match start.checked_add(length as u64).is_some_and(|end| end <= self.0.size()) {
            true => Ok(self.0.read(start, length)?),
            false => Err(ParquetError::EOF(format!("{length} bytes from byte {start} are behind the end of the file"))),
        }
    }
}
