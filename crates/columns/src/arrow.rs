//! Arrow files that are read: the file's end names the places of its record batches, which are read one at a time.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, root_as_footer, root_as_message};
use arrow_schema::SchemaRef;

use crate::{ColumnsError, Format, Source};

/// The end of the file: the length of the footer in four bytes, and the magic word.
const TRAILER: usize = 10;

/// The word that a message begins with, before its length, in files of version 5 and later.
const CONTINUED: [u8; 4] = [0xff; 4];

/// An Arrow file. Clones are the same.
#[derive(Clone)]
pub struct ArrowFile {
    source: Arc<dyn Source>,
    decoder: Arc<FileDecoder>,
    schema: SchemaRef,
    /// Each record batch: where it is, and its rows.
    blocks: Arc<[(Block, u64)]>,
}

impl ArrowFile {
    pub fn open(source: Arc<dyn Source>) -> Result<ArrowFile, ColumnsError> {
        let size = source.size();
        let too_short = || unreadable("the file ends too early");
        let trailer_at = size.checked_sub(TRAILER as u64).ok_or_else(too_short)?;
        let trailer = source.read(trailer_at, TRAILER).map_err(unreadable)?;
        let trailer: [u8; TRAILER] = trailer[..].try_into().map_err(unreadable)?;
        let length = read_footer_length(trailer).map_err(unreadable)?;
        let footer_at = trailer_at.checked_sub(length as u64).ok_or_else(too_short)?;
        let footer = source.read(footer_at, length).map_err(unreadable)?;
        let footer = root_as_footer(&footer).map_err(unreadable)?;
        let schema = footer.schema().ok_or_else(|| unreadable("the file has no schema"))?;
        let schema: SchemaRef = Arc::new(try_fb_to_schema(schema).map_err(unreadable)?);
        let mut decoder = FileDecoder::new(schema.clone(), footer.version());
        for block in footer.dictionaries().iter().flatten() {
            let bytes = read_block(source.as_ref(), block)?;
            decoder.read_dictionary(block, &bytes).map_err(unreadable)?;
        }
        let counted = |block: &Block| Ok((*block, rows_of(source.as_ref(), block)?));
        let blocks = footer.recordBatches().iter().flatten().map(counted).collect::<Result<_, ColumnsError>>()?;
        Ok(ArrowFile { source, decoder: Arc::new(decoder), schema, blocks })
    }

    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    pub fn rows(&self) -> u64 {
        self.blocks.iter().map(|(_, rows)| rows).sum()
    }

    pub fn batches(
        &self,
        mut from: u64,
        size: usize,
    ) -> impl Iterator<Item = Result<RecordBatch, ColumnsError>> + Send + use<> {
        let skipped = self.blocks.iter().take_while(|(_, rows)| {
            *rows <= from && {
                from -= rows;
                true
            }
        });
        let (file, first) = (self.clone(), skipped.count());
        (first..self.blocks.len()).flat_map(move |index| {
            let skip = if index == first { from as usize } else { 0 };
            let parts: Vec<_> = match file.batch(index) {
                Err(error) => vec![Err(error)],
                Ok(batch) => {
                    let starts = (skip..batch.num_rows()).step_by(size.max(1));
                    starts.map(|at| Ok(batch.slice(at, size.max(1).min(batch.num_rows() - at)))).collect()
                }
            };
            parts
        })
    }

    fn batch(&self, index: usize) -> Result<RecordBatch, ColumnsError> {
        let (block, rows) = &self.blocks[index];
        let bytes = read_block(self.source.as_ref(), block)?;
        match self.decoder.read_record_batch(block, &bytes).map_err(unreadable)? {
            Some(batch) if batch.num_rows() as u64 == *rows => Ok(batch),
            _ => Err(unreadable(format!("record batch {index} is not the one that the file's end names"))),
        }
    }
}

/// The bytes of a block, aligned for all types.
fn read_block(source: &dyn Source, block: &Block) -> Result<Buffer, ColumnsError> {
    let length = u64::try_from(block.metaDataLength()).ok().zip(u64::try_from(block.bodyLength()).ok());
    let (from, length) = u64::try_from(block.offset()).ok().zip(length.map(|(a, b)| a + b)).ok_or_else(outside)?;
    if from.checked_add(length).is_none_or(|end| end > source.size()) {
        return Err(outside());
    }
    let bytes = source.read(from, length as usize).map_err(unreadable)?;
    // Bytes from a download begin anywhere.
    Ok(Buffer::from_slice_ref(&bytes[..]))
}

/// The rows of a record batch, as its message says them.
fn rows_of(source: &dyn Source, block: &Block) -> Result<u64, ColumnsError> {
    let (from, length) = (block.offset() as u64, block.metaDataLength() as usize);
    if from.checked_add(length as u64).is_none_or(|end| end > source.size()) {
        return Err(outside());
    }
    let bytes = source.read(from, length).map_err(unreadable)?;
    let skipped = if bytes.starts_with(&CONTINUED) { 8 } else { 4 };
    let message = bytes.get(skipped..).ok_or_else(outside)?;
    let message = root_as_message(message).map_err(unreadable)?;
    let batch = message.header_as_record_batch().ok_or_else(|| unreadable("a block holds no record batch"))?;
    u64::try_from(batch.length()).map_err(unreadable)
}

fn outside() -> ColumnsError {
    unreadable("it names a block that is not within the file")
}

fn unreadable(error: impl std::fmt::Display) -> ColumnsError {
    ColumnsError::Unreadable { format: Format::Arrow, why: error.to_string() }
}
