//! A file of columns that is read.
//!
//! Damaged files are errors, also where the libraries for columns panic (parquet 60 does, for a column that begins at a negative byte).

use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// The rows of a table, in its order. Nothing follows an error.
pub type Batches = Box<dyn Iterator<Item = Result<Batch, ColumnsError>> + Send>;

/// Batches of a library, until the first error.
struct Guarded<I> {
    batches: Option<I>,
    format: Format,
}

// === impl Table ===

impl Table {
    /// Reads the end of the file, where the names and types of its columns are.
    pub fn open(source: Arc<dyn Source>, format: Format) -> Result<Table, ColumnsError> {
        let file = guarded(format, || match format {
            Format::Parquet => ParquetFile::open(source).map(File::Parquet),
            Format::Arrow => ArrowFile::open(source).map(File::Arrow),
        })?;
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
            File::Parquet(file) => {
                let batches = guarded(Format::Parquet, || file.batches(from, size))?;
                let batches = batches.map(move |batch| plain(batch?));
                Box::new(Guarded { batches: Some(batches), format: Format::Parquet })
            }
            File::Arrow(file) => {
                let batches = file.batches(from, size).map(move |batch| plain(batch?));
                Box::new(Guarded { batches: Some(batches), format: Format::Arrow })
            }
        })
    }
}

// === impl Guarded ===

impl<I: Iterator<Item = Result<Batch, ColumnsError>>> Iterator for Guarded<I> {
    type Item = Result<Batch, ColumnsError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batches = self.batches.as_mut()?;
        let batch = guarded(self.format, || batches.next().transpose()).transpose();
        if !matches!(batch, Some(Ok(_))) {
            self.batches = None;
        }
        batch
    }
}

/// Calls a library for columns, whose panic becomes an error.
fn guarded<T>(format: Format, call: impl FnOnce() -> Result<T, ColumnsError>) -> Result<T, ColumnsError> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(ColumnsError::Unreadable { format, why: "its bytes contradict each other".to_owned() }))
}
