//! A file of columns that is read.

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};

use crate::arrow::ArrowFile;
use crate::parquet::ParquetFile;
use crate::{Batch, ColumnsError, Format, Source};

/// A file of columns: its rows can be read from any row on.
pub struct Table {
    file: File,
    schema: SchemaRef,
}

enum File {
    Parquet(ParquetFile),
    Arrow(ArrowFile),
}

/// The rows of a table, in its order.
pub type Batches = Box<dyn Iterator<Item = Result<Batch, ColumnsError>> + Send>;

// === impl Table ===

impl Table {
    /// Reads the end of the file, where the names and types of its columns are.
    pub fn open(source: Arc<dyn Source>, format: Format) -> Result<Table, ColumnsError> {
        let file = match format {
            Format::Parquet => File::Parquet(ParquetFile::open(source)?),
            Format::Arrow => File::Arrow(ArrowFile::open(source)?),
        };
        let schema = match &file {
            File::Parquet(file) => file.schema(),
            File::Arrow(file) => file.schema(),
        };
        let plain: Vec<_> = schema.fields().iter().map(crate::batch::plain_field).collect();
        Ok(Table { schema: Arc::new(Schema::new(plain)), file })
    }

    /// Rows of the table.
    pub fn rows(&self) -> u64 {
        match &self.file {
            File::Parquet(file) => file.rows(),
            File::Arrow(file) => file.rows(),
        }
    }

    /// Whether there is a column of this name.
    pub fn has(&self, column: &str) -> bool {
        self.schema.column_with_name(column).is_some()
    }

    /// The columns' names, for people.
    pub fn columns(&self) -> String {
        let names: Vec<_> = self.schema.fields().iter().map(|field| format!("'{}'", field.name())).collect();
        names.join(", ")
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The rows from row `from` on, `size` rows a batch at most; a file may have smaller ones.
    pub fn batches(&self, from: u64, size: usize) -> Result<Batches, ColumnsError> {
        let schema = self.schema.clone();
        let plain = move |batch| Batch::plain(batch, &schema);
        Ok(match &self.file {
            File::Parquet(file) => Box::new(file.batches(from, size)?.map(move |batch| plain(batch?))),
            File::Arrow(file) => Box::new(file.batches(from, size).map(move |batch| plain(batch?))),
        })
    }
}
