//! Parquet files that are read.
//!
//! Texts are read as views: a text that a dictionary holds once and thousands of rows name stays one in memory, until the rows are
//! given away in small batches.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, RowSelection, RowSelector,
};
use parquet::arrow::{FieldLevels, ProjectionMask, parquet_to_arrow_field_levels};
use parquet::basic::Type;
use parquet::file::metadata::ParquetMetaData;

use crate::chunks::Chunks;
use crate::limits::{FOOTER, ROW, ROWS};
use crate::pages::{Decoded, Groups};
use crate::rows::{plain, views};
use crate::{ColumnsError, Format, Source, thrift};

/// The end of the file: the length of the footer in four bytes, and the magic word.
const TRAILER: u64 = 8;

/// A Parquet file.
pub struct ParquetFile {
    chunks: Chunks,
    metadata: Arc<ParquetMetaData>,
    schema: SchemaRef,
    levels: FieldLevels,
    rows: u64,
    /// Rows that may be read together.
    together: usize,
}

// === impl ParquetFile ===

impl ParquetFile {
    pub fn open(source: Arc<dyn Source>) -> Result<ParquetFile, ColumnsError> {
        check_end(source.as_ref())?;
        let chunks = Chunks(source);
        let loaded = ArrowReaderMetadata::load(&chunks, ArrowReaderOptions::new()).map_err(unreadable)?;
        let schema = Arc::new(Schema::new(plain(loaded.schema().fields(), true)));
        let hint = views(schema.fields());
        let levels = parquet_to_arrow_field_levels(loaded.parquet_schema(), ProjectionMask::all(), Some(&hint));
        let levels = levels.map_err(unreadable)?;
        let metadata = loaded.metadata().clone();
        let (rows, together) = (count(&metadata)?, together(&metadata)?);
        Ok(ParquetFile { chunks, metadata, schema, levels, rows, together })
    }

    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    pub fn batches(
        &self,
        from: u64,
        size: usize,
    ) -> Result<impl Iterator<Item = Result<RecordBatch, ColumnsError>> + Send + use<>, ColumnsError> {
        let (mut first, mut skip) = (0, from.min(self.rows));
        let sizes = self.metadata.row_groups().iter().map(|group| group.num_rows() as u64);
        for rows in sizes.take_while(|rows| {
            let is_before = *rows <= skip;
            skip -= if is_before { *rows } else { 0 };
            is_before
        }) {
            debug_assert!(rows <= self.rows);
            first += 1;
        }
        let decoded = Decoded::default();
        let (chunks, metadata) = (self.chunks.clone(), self.metadata.clone());
        let groups = Groups { chunks, metadata, first, decoded: decoded.clone() };
        let left = usize::try_from(self.rows - from.min(self.rows)).map_err(unreadable)?;
        let behind = RowSelection::from(vec![RowSelector::skip(skip as usize), RowSelector::select(left)]);
        let selection = (skip > 0).then_some(behind);
        let size = size.clamp(1, self.together);
        let reader = ParquetRecordBatchReader::try_new_with_row_groups(&self.levels, &groups, size, selection);
        let mut reader = reader.map_err(unreadable)?;
        Ok(std::iter::from_fn(move || {
            decoded.next_batch();
            Some(reader.next()?.map_err(unreadable))
        }))
    }
}

/// Looks through the footer before the library reads it.
fn check_end(source: &dyn Source) -> Result<(), ColumnsError> {
    let too_short = || unreadable("the file ends too early");
    let trailer_at = source.size().checked_sub(TRAILER).ok_or_else(too_short)?;
    let trailer = source.read(trailer_at, TRAILER as usize).map_err(unreadable)?;
    let length = trailer.first_chunk().map(|length| u64::from(u32::from_le_bytes(*length))).ok_or_else(too_short)?;
    if !trailer.ends_with(b"PAR1") {
        return Err(unreadable("the file does not end with PAR1"));
    }
    if length > FOOTER {
        return Err(unreadable(format!(
            "its end has {length} bytes, expected {FOOTER} at most: write larger row groups"
        )));
    }
    let at = trailer_at.checked_sub(length).ok_or_else(too_short)?;
    let footer = source.read(at, length as usize).map_err(unreadable)?;
    thrift::check_footer(&footer).map_err(unreadable)
}

/// The rows of all row groups, which are those of the file.
fn count(metadata: &ParquetMetaData) -> Result<u64, ColumnsError> {
    let groups = metadata.row_groups().iter().map(|group| u64::try_from(group.num_rows()).ok());
    let sum = groups.into_iter().try_fold(0u64, |sum, rows| sum.checked_add(rows?));
    let said = u64::try_from(metadata.file_metadata().num_rows()).ok();
    match (sum, said) {
        (Some(sum), Some(said)) if sum == said => Ok(sum),
        _ => Err(unreadable("its row groups have another number of rows than the file")),
    }
}

/// How many rows may be read together, so that they have [`ROWS`] bytes on average. The sizes that the file states may be wrong: pages and
/// rows are checked when they are read.
fn together(metadata: &ParquetMetaData) -> Result<usize, ColumnsError> {
    let (mut largest, mut fixed) = (1, 0);
    for column in metadata.file_metadata().schema_descr().columns() {
        if column.physical_type() == Type::FIXED_LEN_BYTE_ARRAY {
            fixed += u64::try_from(column.type_length()).map_err(unreadable)?;
        }
    }
    if fixed > ROW {
        return Err(unreadable(format!("a row has {fixed} bytes, expected {ROW} at most")));
    }
    for group in metadata.row_groups() {
        let values: i64 = group.columns().iter().map(|column| column.num_values().max(0)).fold(0, i64::saturating_add);
        let bytes = (group.total_byte_size().max(0) as u64).saturating_add((values as u64).saturating_mul(16));
        largest = largest.max(bytes / (group.num_rows() as u64).max(1)).max(fixed);
    }
    Ok(usize::try_from(ROWS / largest).unwrap_or(usize::MAX).max(1))
}

fn unreadable(error: impl std::fmt::Display) -> ColumnsError {
    ColumnsError::Unreadable { format: Format::Parquet, why: error.to_string() }
}
