//! A file of columns that is read.
//!
//! Damaged files are errors, also where the libraries for columns panic (parquet 60 does, for a column that begins at a negative byte).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};

use crate::arrow::ArrowFile;
use crate::parquet::ParquetFile;
use crate::{Batch, ColumnsError, Format, Source, rows};

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
            File::Arrow(file) => Arc::new(Schema::new(rows::plain(file.schema().fields(), false))),
        };
        Ok(Table { schema, file })
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

    /// The rows from row `from` on, `size` rows a batch at most; fewer where the file has smaller batches, or rows are large.
    pub fn batches(&self, from: u64, size: usize) -> Result<Batches, ColumnsError> {
        Ok(match &self.file {
            File::Parquet(file) => {
                let batches = guarded(Format::Parquet, || file.batches(from, size))?;
                self.given_away(batches, Format::Parquet)
            }
            File::Arrow(file) => self.given_away(file.batches(from, size), Format::Arrow),
        })
    }

    /// Batches of a library, in parts of bounded size and until the first error.
    fn given_away(
        &self,
        batches: impl Iterator<Item = Result<RecordBatch, ColumnsError>> + Send + 'static,
        format: Format,
    ) -> Batches {
        let schema = self.schema.clone();
        let parts = move |batch: Result<RecordBatch, ColumnsError>| {
            let parts = batch.and_then(|batch| match rows::parts(&batch) {
                Ok(parts) => Ok((batch, parts)),
                Err(why) => Err(ColumnsError::Unreadable { format, why }),
            });
            let schema = schema.clone();
            let (batch, error) = match parts {
                Ok(batch) => (Some(batch), None),
                Err(error) => (None, Some(Err(error))),
            };
            let given = batch.into_iter().flat_map(move |(batch, parts)| {
                let schema = schema.clone();
                parts.into_iter().map(move |part| Batch::plain(&batch.slice(part.start, part.len()), &schema))
            });
            given.chain(error)
        };
        Box::new(Guarded { batches: Some(batches.flat_map(parts)), format })
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
