//! Parquet files that are read.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use crate::{ColumnsError, Format, Reader, Source};

/// A Parquet file.
pub struct ParquetFile {
    chunks: Chunks,
    metadata: ArrowReaderMetadata,
}

/// A source as the library reads one.
#[derive(Clone)]
struct Chunks(Arc<dyn Source>);

impl ParquetFile {
    pub fn open(source: Arc<dyn Source>) -> Result<ParquetFile, ColumnsError> {
        let chunks = Chunks(source);
        let metadata = ArrowReaderMetadata::load(&chunks, ArrowReaderOptions::new()).map_err(unreadable)?;
        Ok(ParquetFile { chunks, metadata })
    }

    pub fn schema(&self) -> SchemaRef {
        self.metadata.schema().clone()
    }

    pub fn rows(&self) -> u64 {
        self.metadata.metadata().file_metadata().num_rows() as u64
    }

    pub fn batches(
        &self,
        from: u64,
        size: usize,
    ) -> Result<impl Iterator<Item = Result<RecordBatch, ColumnsError>> + Send + use<>, ColumnsError> {
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(self.chunks.clone(), self.metadata.clone());
        let reader = builder.with_batch_size(size).with_offset(from as usize).build().map_err(unreadable)?;
        Ok(reader.map(|batch| batch.map_err(unreadable)))
    }
}

fn unreadable(error: impl std::fmt::Display) -> ColumnsError {
    ColumnsError::Unreadable { format: Format::Parquet, why: error.to_string() }
}

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
