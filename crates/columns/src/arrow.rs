//! Arrow files that are read: the file's end names the places of its record batches, which are read one at a time.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, Message, root_as_footer, root_as_message};
use arrow_schema::{DataType, Schema, SchemaRef};

use crate::limits::{COLUMNS, DECODED, DEPTH, FOOTER};
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
        if length as u64 > FOOTER {
            return Err(unreadable(format!(
                "its end has {length} bytes, expected {FOOTER} at most: write larger record batches"
            )));
        }
        let footer_at = trailer_at.checked_sub(length as u64).ok_or_else(too_short)?;
        let footer = source.read(footer_at, length).map_err(unreadable)?;
        let footer = root_as_footer(&footer).map_err(unreadable)?;
        let schema = footer.schema().ok_or_else(|| unreadable("the file has no schema"))?;
        let schema: SchemaRef = Arc::new(try_fb_to_schema(schema).map_err(unreadable)?);
        check_width(&schema)?;
        let mut decoder = FileDecoder::new(schema.clone(), footer.version());
        let mut dictionaries = 0;
        for block in footer.dictionaries().iter().flatten() {
            let bytes = read_block(source.as_ref(), block)?;
            // The decoder keeps all of them.
            dictionaries += check_size(&bytes, block.metaDataLength() as usize)?;
            if dictionaries > DECODED {
                return Err(unreadable(format!("its dictionaries have more than {DECODED} bytes")));
            }
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
    if length > DECODED {
        return Err(unreadable(format!(
            "a record batch has {length} bytes, expected {DECODED} at most: write smaller record batches"
        )));
    }
    let bytes = source.read(from, length as usize).map_err(unreadable)?;
    check_size(&bytes, block.metaDataLength() as usize)?;
    // Bytes from a download begin anywhere.
    Ok(Buffer::from_slice_ref(&bytes[..]))
}

/// Refuses a schema with more than [`COLUMNS`] columns, or types deeper than [`DEPTH`].
fn check_width(schema: &Schema) -> Result<(), ColumnsError> {
    // The fields whose inner ones are still to be counted, with their depths.
    let mut open: Vec<_> = schema.fields().iter().map(|field| (field.data_type(), 1)).collect();
    let mut columns = 0;
    while let Some((kind, depth)) = open.pop() {
        columns += 1;
        if columns > COLUMNS || depth > DEPTH {
            return Err(unreadable(format!(
                "it has more than {COLUMNS} columns or types deeper than {DEPTH}: write files with fewer columns"
            )));
        }
        match kind {
            DataType::List(inner)
            | DataType::LargeList(inner)
            | DataType::ListView(inner)
            | DataType::LargeListView(inner)
            | DataType::FixedSizeList(inner, _)
            | DataType::Map(inner, _)
            | DataType::RunEndEncoded(_, inner) => open.push((inner.data_type(), depth + 1)),
            DataType::Struct(inner) => open.extend(inner.iter().map(|field| (field.data_type(), depth + 1))),
            DataType::Union(inner, _) => open.extend(inner.iter().map(|(_, field)| (field.data_type(), depth + 1))),
            DataType::Dictionary(_, value) => open.push((value, depth + 1)),
            _ => {}
        }
    }
    Ok(())
}

/// The bytes of a block's buffers without compression. Refuses a block with more than [`DECODED`] bytes. Each compressed buffer begins with
/// its size without compression, in 8 bytes (`BodyCompression` of Arrow's Message.fbs); -1 is a buffer that is not compressed.
fn check_size(block: &[u8], metadata: usize) -> Result<u64, ColumnsError> {
    let (message, body) = block.split_at_checked(metadata).ok_or_else(outside)?;
    let message = message_of(message)?;
    let dictionary = || message.header_as_dictionary_batch()?.data();
    let Some(batch) = message.header_as_record_batch().or_else(dictionary) else { return Ok(body.len() as u64) };
    let mut bytes = body.len() as u64;
    if batch.compression().is_some() {
        let mut claimed = batch.buffers().into_iter().flatten().filter(|buffer| buffer.length() > 0).map(|buffer| {
            let size = usize::try_from(buffer.offset()).ok().and_then(|at| body.get(at..)?.first_chunk::<8>());
            size.map(|size| i64::from_le_bytes(*size).max(0) as u64).ok_or_else(outside)
        });
        bytes = claimed.try_fold(bytes, |sum, bytes| bytes.map(|bytes: u64| sum.saturating_add(bytes)))?;
    }
    match bytes <= DECODED {
        true => Ok(bytes),
        false => Err(unreadable(format!(
            "a record batch has {bytes} bytes without compression, expected {DECODED} at most: write smaller record batches"
        ))),
    }
}

/// The message that a block begins with.
fn message_of(bytes: &[u8]) -> Result<Message<'_>, ColumnsError> {
    let skipped = if bytes.starts_with(&CONTINUED) { 8 } else { 4 };
    root_as_message(bytes.get(skipped..).ok_or_else(outside)?).map_err(unreadable)
}

/// The rows of a record batch, as its message says them.
fn rows_of(source: &dyn Source, block: &Block) -> Result<u64, ColumnsError> {
    let (from, length) = (block.offset() as u64, block.metaDataLength() as usize);
    if from.checked_add(length as u64).is_none_or(|end| end > source.size()) {
        return Err(outside());
    }
    let bytes = source.read(from, length).map_err(unreadable)?;
    let message = message_of(&bytes)?;
    let batch = message.header_as_record_batch().ok_or_else(|| unreadable("a block holds no record batch"))?;
    u64::try_from(batch.length()).map_err(unreadable)
}

fn outside() -> ColumnsError {
    unreadable("it names a block that is not within the file")
}

fn unreadable(error: impl std::fmt::Display) -> ColumnsError {
    ColumnsError::Unreadable { format: Format::Arrow, why: error.to_string() }
}
