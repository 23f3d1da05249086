//! The pages of a Parquet file, each of which is looked at before it is decompressed.

use std::sync::Arc;

use parking_lot::Mutex;
use parquet::arrow::arrow_reader::RowGroups;
use parquet::basic::Type;
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::ChunkReader;
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::ColumnDescriptor;

use crate::chunks::Chunks;
use crate::limits::{DECODED, PAGE};
use crate::thrift::PageHeader;

/// First look at a page's header, and the longest header: statistics in it may have whole texts.
const LOOK: u64 = 256;
const LONGEST_HEADER: u64 = 1 << 20;

/// Bytes of a value beside its own: two levels, and where a text is.
const LEVELS: u64 = 4;
const VIEW: u64 = 16;

/// Encodings by their numbers in the format.
const DELTA_LENGTH: i64 = 6;
const DELTA_BYTES: i64 = 7;

/// The row groups of a file from `first` on.
pub struct Groups {
    pub chunks: Chunks,
    pub metadata: Arc<ParquetMetaData>,
    pub first: usize,
    pub decoded: Decoded,
}

/// The bytes that a reader has decoded. Clones are the same.
#[derive(Clone, Default)]
pub struct Decoded(Arc<Mutex<Held>>);

/// Bytes in memory.
#[derive(Default)]
struct Held {
    /// The batch that is read.
    batch: u64,
    /// Of the page and the dictionary that each column is at.
    pages: u64,
    /// Of pages that the present batch has left behind, and of the values of its lists.
    behind: u64,
}

/// The pages of a column in all row groups.
struct Column {
    groups: Groups,
    index: usize,
    next: usize,
}

/// The pages of a column in one row group.
struct Pages {
    inner: SerializedPageReader<Chunks>,
    source: Chunks,
    at: u64,
    end: u64,
    column: Arc<ColumnDescriptor>,
    decoded: Decoded,
    /// Bytes of the present page, and the batch that it was taken in; bytes of the dictionary.
    page: u64,
    taken_in: u64,
    dictionary: u64,
}

// === impl Decoded ===

impl Decoded {
    /// Another batch begins: the arrays of the last one are not counted any more.
    pub fn next_batch(&self) {
        let mut held = self.0.lock();
        held.batch += 1;
        held.behind = 0;
    }
}

// === impl Groups ===

impl Groups {
    fn again(&self) -> Groups {
        let (chunks, metadata) = (self.chunks.clone(), self.metadata.clone());
        Groups { chunks, metadata, first: self.first, decoded: self.decoded.clone() }
    }
}

impl RowGroups for Groups {
    fn num_rows(&self) -> usize {
        self.row_groups().map(|group| group.num_rows() as usize).sum()
    }

    fn column_chunks(&self, index: usize) -> Result<Box<dyn PageIterator>> {
        Ok(Box::new(Column { groups: self.again(), index, next: self.first }))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(self.metadata.row_groups().iter().skip(self.first))
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }
}

// === impl Column ===

impl Iterator for Column {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        let group = self.groups.metadata.row_groups().get(self.next)?;
        self.next += 1;
        let chunk = group.column(self.index);
        let (at, length) = chunk.byte_range();
        let source = self.groups.chunks.clone();
        let inner = SerializedPageReader::new(Arc::new(source.clone()), chunk, group.num_rows() as usize, None);
        Some(inner.map(|inner| {
            let (column, decoded) = (chunk.column_descr_ptr(), self.groups.decoded.clone());
            let end = at.saturating_add(length);
            Box::new(Pages { inner, source, at, end, column, decoded, page: 0, taken_in: 0, dictionary: 0 }) as _
        }))
    }
}

impl PageIterator for Column {}

// === impl Pages ===

impl Pages {
    fn refused(&self, why: &str) -> ParquetError {
        ParquetError::General(format!("column '{}': {why}", self.column.path().string()))
    }

    /// The header of the page that comes next; `None` at the end.
    fn header(&self) -> Result<Option<PageHeader>> {
        let left = self.end.saturating_sub(self.at);
        if left == 0 {
            return Ok(None);
        }
        let mut length = LOOK;
        loop {
            let bytes = self.source.get_bytes(self.at, length.min(left) as usize)?;
            match PageHeader::read(&bytes) {
                Some(header) => return Ok(Some(header)),
                None if length < left.min(LONGEST_HEADER) => length *= 8,
                None => return Err(self.refused("the header of a page is damaged")),
            }
        }
    }

    /// Bytes that the values of a page take beside the page itself, if each of them is decoded.
    fn values(&self, header: &PageHeader) -> u64 {
        let width = match self.column.physical_type() {
            Type::BYTE_ARRAY => VIEW,
            Type::FIXED_LEN_BYTE_ARRAY => u64::try_from(self.column.type_length()).unwrap_or_default(),
            _ => 8,
        };
        header.values.saturating_mul(width + LEVELS)
    }

    /// Checks the page that comes next, and counts it in place of the present one.
    fn take(&mut self) -> Result<()> {
        let Some(header) = self.header()? else { return Ok(()) };
        let is_dictionary = header.kind == PageHeader::DICTIONARY;
        // A page without lists is decoded batch by batch; the values of a list belong to one row, however many they are.
        let whole = is_dictionary || self.column.max_rep_level() > 0 || header.encoding == DELTA_LENGTH;
        let values = if whole { self.values(&header) } else { 0 };
        let bytes = header.size.saturating_add(values);
        if bytes > PAGE {
            return Err(self.refused(&format!(
                "a page of {} values has {bytes} bytes once it is decoded, expected {PAGE} at most: write smaller pages",
                header.values
            )));
        }
        if header.encoding == DELTA_BYTES {
            return Err(self.refused("its encoding is DELTA_BYTE_ARRAY, expected PLAIN or a dictionary"));
        }
        let mut held = self.decoded.0.lock();
        match is_dictionary {
            true => {
                held.pages = held.pages.saturating_sub(self.dictionary) + bytes;
                self.dictionary = bytes;
            }
            false => {
                if self.taken_in == held.batch {
                    held.behind += self.page;
                }
                held.pages = held.pages.saturating_sub(self.page) + bytes;
                (self.page, self.taken_in) = (bytes, held.batch);
            }
        }
        let all = held.pages + held.behind;
        drop(held);
        if all > DECODED {
            return Err(self.refused(&format!(
                "with it the rows that are read together have {all} bytes, expected {DECODED} at most: write smaller pages and shorter lists"
            )));
        }
        self.at += header.length + header.stored;
        Ok(())
    }

    /// The page `page` has as many lengths of texts as it has values: the library makes room for as many as the page says.
    fn check_lengths(&self, page: &Page) -> Result<()> {
        let Page::DataPage { buf, num_values, encoding, .. } = page else {
            let Page::DataPageV2 { buf, num_values, encoding, def_levels_byte_len, rep_levels_byte_len, .. } = page
            else {
                return Ok(());
            };
            let levels = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
            return self.check_count(buf.get(levels..), *num_values, *encoding as i64);
        };
        let mut rest = Some(&buf[..]);
        for level in [self.column.max_rep_level(), self.column.max_def_level()] {
            if level > 0 {
                rest = rest.and_then(|rest| {
                    let length = u32::from_le_bytes(*rest.first_chunk()?) as usize;
                    rest.get(4..)?.get(length..)
                });
            }
        }
        self.check_count(rest, *num_values, *encoding as i64)
    }

    fn check_count(&self, values: Option<&[u8]>, expected: u32, encoding: i64) -> Result<()> {
        if encoding != DELTA_LENGTH {
            return Ok(());
        }
        let mut numbers = values.unwrap_or_default().iter();
        let mut varint = || {
            let mut value = 0u64;
            for shift in (0..35).step_by(7) {
                let byte = numbers.next()?;
                value |= u64::from(byte & 0x7f) << shift;
                if byte & 0x80 == 0 {
                    return Some(value);
                }
            }
            None
        };
        // The size of a block and the number of its parts come first.
        match (varint(), varint(), varint()) {
            (Some(_), Some(_), Some(count)) if count <= u64::from(expected) => Ok(()),
            _ => Err(self.refused("a page has more lengths of texts than values")),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let mut held = self.decoded.0.lock();
        held.pages = held.pages.saturating_sub(self.page + self.dictionary);
        // The present batch may go on with the next row group.
        held.behind += self.page + self.dictionary;
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.take()?;
        let page = self.inner.get_next_page()?;
        if let Some(page) = &page {
            self.check_lengths(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        if let Some(header) = self.header()? {
            self.at += header.length + header.stored;
        }
        self.inner.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.inner.at_record_boundary()
    }
}
