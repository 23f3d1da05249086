//! A file of columns that is written.

use std::io::Write;

use arrow_ipc::writer::FileWriter;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

use crate::{Batch, ColumnsError, EMBEDDING, Format, Layout, SPACE};

/// Bytes of vectors in a row group of Parquet: the writer holds one in memory, and readers read one at a time.
const ROW_GROUP: usize = 64 << 20;

/// Most bytes of a row group that the writer holds, whatever the other columns have.
const LARGEST_GROUP: usize = 2 * ROW_GROUP;

/// Fewest rows of a row group.
const FEWEST_ROWS: usize = 1024;

/// Writes a file of columns. Without [`Writer::finish`] the file has no end and no reader takes it for whole.
pub struct Writer<W: Write + Send>(Kind<W>);

enum Kind<W: Write + Send> {
    Parquet(Box<ArrowWriter<W>>),
    Arrow(Box<FileWriter<W>>),
}

// === impl Writer ===

impl<W: Write + Send> Writer<W> {
    /// Begins a file with these columns.
    pub fn new(format: Format, layout: &Layout, sink: W) -> Result<Writer<W>, ColumnsError> {
        let kind = match format {
            Format::Parquet => {
                let rows = (ROW_GROUP / (4 * layout.width).max(1)).max(FEWEST_ROWS);
                // Vectors do not repeat, and hardly compress.
                let vectors = ColumnPath::from(vec![EMBEDDING.to_owned(), "list".to_owned(), "item".to_owned()]);
                // Readers that know nothing of Arrow find it here.
                let space = layout.schema.metadata.get(SPACE).cloned();
                let properties = WriterProperties::builder()
                    .set_key_value_metadata(space.map(|space| vec![KeyValue::new(SPACE.to_owned(), space)]))
                    .set_compression(Compression::ZSTD(ZstdLevel::default()))
                    .set_column_compression(vectors.clone(), Compression::UNCOMPRESSED)
                    .set_column_dictionary_enabled(vectors, false)
                    .set_max_row_group_row_count(Some(rows))
                    .build();
                let writer = ArrowWriter::try_new(sink, layout.schema.clone(), Some(properties));
                Kind::Parquet(Box::new(writer.map_err(|error| unwritable(format, &error))?))
            }
            Format::Arrow => {
                let writer = FileWriter::try_new(sink, &layout.schema);
                Kind::Arrow(Box::new(writer.map_err(|error| unwritable(format, &error))?))
            }
        };
        Ok(Writer(kind))
    }

    /// Appends rows.
    pub fn write(&mut self, batch: &Batch) -> Result<(), ColumnsError> {
        match &mut self.0 {
            Kind::Parquet(writer) => {
                let written = writer.write(&batch.0).and_then(|()| match writer.memory_size() > LARGEST_GROUP {
                    true => writer.flush(),
                    false => Ok(()),
                });
                written.map_err(|error| unwritable(Format::Parquet, &error))
            }
            Kind::Arrow(writer) => writer.write(&batch.0).map_err(|error| unwritable(Format::Arrow, &error)),
        }
    }

    /// Writes the end of the file, and returns the inner writer.
    pub fn finish(self) -> Result<W, ColumnsError> {
        match self.0 {
            Kind::Parquet(writer) => writer.into_inner().map_err(|error| unwritable(Format::Parquet, &error)),
            Kind::Arrow(writer) => writer.into_inner().map_err(|error| unwritable(Format::Arrow, &error)),
        }
    }
}

fn unwritable(format: Format, error: &dyn std::fmt::Display) -> ColumnsError {
    ColumnsError::Unwritable { format, why: error.to_string() }
}
