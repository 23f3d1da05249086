//! The same words in a program that was built without the formats: every file is refused when it is opened.

use std::convert::Infallible;
use std::io::Write;
use std::marker::PhantomData;
use std::sync::Arc;

use serde_json::Value;

use crate::{ColumnsError, Format, Outcome, Source, WindowRow};

/// A file of columns.
pub struct Table(Infallible);

/// Rows of a table.
#[derive(Clone)]
pub struct Batch(Infallible);

/// The columns of an output.
#[derive(Clone)]
pub struct Layout(Infallible);

/// Writes a file of columns.
pub struct Writer<W>(Infallible, PhantomData<W>);

/// The rows of a table.
pub type Batches = Box<dyn Iterator<Item = Result<Batch, ColumnsError>> + Send>;

#[allow(missing_docs, reason = "as with the feature")]
impl Table {
    pub fn open(_: Arc<dyn Source>, format: Format) -> Result<Table, ColumnsError> {
        Err(ColumnsError::NotBuilt { format })
    }

    pub fn rows(&self) -> u64 {
        match self.0 {}
    }

    pub fn has(&self, _: &str) -> bool {
        match self.0 {}
    }

    pub fn columns(&self) -> String {
        match self.0 {}
    }

    pub fn batches(&self, _: u64, _: usize) -> Result<Batches, ColumnsError> {
        match self.0 {}
    }
}

#[allow(missing_docs, reason = "as with the feature")]
impl Batch {
    pub fn rows(&self) -> usize {
        match self.0 {}
    }

    pub fn slice(&self, _: usize, _: usize) -> Batch {
        match self.0 {}
    }

    pub fn texts(&self, _: &str) -> Result<Vec<Option<String>>, ColumnsError> {
        match self.0 {}
    }

    pub fn ids(&self, _: &str) -> Result<Vec<Value>, ColumnsError> {
        match self.0 {}
    }

    pub fn json(&self, _: &str) -> Result<Vec<Value>, ColumnsError> {
        match self.0 {}
    }

    pub fn with_windows(&self, _: &[WindowRow]) -> Result<Batch, ColumnsError> {
        match self.0 {}
    }

    pub fn without_windows(&self) -> Result<(Batch, Vec<WindowRow>), ColumnsError> {
        match self.0 {}
    }

    pub fn counts(&self, _: &str) -> Result<Vec<Option<u64>>, ColumnsError> {
        match self.0 {}
    }

    pub fn with_answers(&self, _: &Layout, _: &[Result<String, String>]) -> Result<Batch, ColumnsError> {
        match self.0 {}
    }

    pub fn of_texts(_: Vec<(&str, Vec<Option<String>>)>) -> Result<Batch, ColumnsError> {
        Err(ColumnsError::NotBuilt { format: Format::Parquet })
    }

    pub fn with_vectors<V, E>(&self, _: &Layout, _: &[Result<V, E>]) -> Result<Batch, ColumnsError> {
        match self.0 {}
    }

    pub fn without_vectors(&self) -> Result<(Batch, Vec<Outcome>), ColumnsError> {
        match self.0 {}
    }
}

#[allow(missing_docs, reason = "as with the feature")]
impl Layout {
    pub fn of(table: &Table, _: usize) -> Result<Layout, ColumnsError> {
        match table.0 {}
    }

    pub fn with_vectors(table: &Table) -> Result<Layout, ColumnsError> {
        match table.0 {}
    }

    pub fn width(&self) -> usize {
        match self.0 {}
    }

    pub fn with_windows(self) -> Result<Layout, ColumnsError> {
        match self.0 {}
    }

    pub fn with_space(self, _: Option<&str>) -> Layout {
        match self.0 {}
    }

    pub fn plain(batch: &Batch) -> Layout {
        match batch.0 {}
    }

    pub fn answers(table: &Table) -> Result<Layout, ColumnsError> {
        match table.0 {}
    }

    pub fn of_ids(_: usize) -> Result<Layout, ColumnsError> {
        Err(ColumnsError::NotBuilt { format: Format::Parquet })
    }
}

#[allow(missing_docs, reason = "as with the feature")]
impl<W: Write + Send> Writer<W> {
    pub fn new(_: Format, layout: &Layout, _: W) -> Result<Writer<W>, ColumnsError> {
        match layout.0 {}
    }

    pub fn write(&mut self, _: &Batch) -> Result<(), ColumnsError> {
        match self.0 {}
    }

    pub fn finish(self) -> Result<W, ColumnsError> {
        match self.0 {}
    }
}
