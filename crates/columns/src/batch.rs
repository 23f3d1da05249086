//! Rows, and the columns that are put beside theirs.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, Int64Array, PrimitiveArray, RecordBatch, RecordBatchOptions, StringArray,
    UInt64Array,
};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow_select::take::take;
use serde_json::Value;

use crate::rows::written_out;
use crate::{ColumnsError, EMBEDDING, ERROR, Format, Outcome, RESPONSE, SPACE, Table, WINDOW, WindowRow};

/// Rows of a table.
#[derive(Clone)]
pub struct Batch(pub(crate) RecordBatch);

/// The columns of an output.
#[derive(Clone)]
pub struct Layout {
    pub(crate) schema: SchemaRef,
    pub(crate) width: usize,
}

// === impl Batch ===

impl Batch {
    /// Replaces views and dictionaries: record batches of one file may have different ones, which an Arrow file cannot hold.
    pub(crate) fn plain(batch: &RecordBatch, schema: &SchemaRef) -> Result<Batch, ColumnsError> {
        let columns = batch.columns().iter().zip(schema.fields());
        let columns = columns.map(|(column, field)| written_out(column, field.data_type()));
        let columns = columns.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(schema.clone(), columns, &options).map(Batch).map_err(unreadable)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.0.num_rows()
    }

    /// `count` rows from row `from` on.
    pub fn slice(&self, from: usize, count: usize) -> Batch {
        Batch(self.0.slice(from, count))
    }

    /// The texts of a column; `None` where it has null.
    pub fn texts(&self, column: &str) -> Result<Vec<Option<String>>, ColumnsError> {
        let array = self.column(column)?;
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Ok(match array.data_type() {
            DataType::Utf8 => array.as_string::<i32>().iter().map(owned).collect(),
            DataType::LargeUtf8 => array.as_string::<i64>().iter().map(owned).collect(),
            DataType::Utf8View => array.as_string_view().iter().map(owned).collect(),
            other => return Err(wrong(column, other, "texts (Utf8)")),
        })
    }

    /// The ids of a column, texts or whole numbers, as JSON; null where it has null.
    pub fn ids(&self, column: &str) -> Result<Vec<Value>, ColumnsError> {
        let array = self.column(column)?;
        match array.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => cells(column, array),
            kind if kind.is_integer() => cells(column, array),
            other => Err(wrong(column, other, "texts or whole numbers")),
        }
    }

    /// The cells of a column as JSON: texts, numbers, booleans, and lists of those; null where it has null.
    pub fn json(&self, column: &str) -> Result<Vec<Value>, ColumnsError> {
        cells(column, self.column(column)?)
    }

    /// Columns of texts, all of one length.
    pub fn of_texts(columns: Vec<(&str, Vec<Option<String>>)>) -> Result<Batch, ColumnsError> {
        let array = |texts: Vec<Option<String>>| Arc::new(StringArray::from(texts)) as ArrayRef;
        let columns = columns.into_iter().map(|(name, texts)| (name, array(texts), true));
        RecordBatch::try_from_iter_with_nullable(columns).map(Batch).map_err(unreadable)
    }

    /// These rows with their vectors, or the reasons why they have none. There is one outcome for each row, and each vector
    /// has the layout's width.
    pub fn with_vectors<V: AsRef<[f32]>, E: AsRef<str>>(
        &self,
        layout: &Layout,
        outcomes: &[Result<V, E>],
    ) -> Result<Batch, ColumnsError> {
        let mut numbers = Vec::with_capacity(outcomes.len() * layout.width);
        for outcome in outcomes {
            match outcome {
                Ok(vector) => numbers.extend_from_slice(vector.as_ref()),
                Err(_) => numbers.resize(numbers.len() + layout.width, 0.0),
            }
        }
        let there = NullBuffer::from_iter(outcomes.iter().map(Result::is_ok));
        let values = Arc::new(PrimitiveArray::<Float32Type>::from(numbers));
        let vectors =
            FixedSizeListArray::try_new(item(), layout.width as i32, values, Some(there)).map_err(unreadable)?;
        let errors = StringArray::from_iter(outcomes.iter().map(|outcome| outcome.as_ref().err()));
        let mut columns = self.0.columns().to_vec();
        columns.extend([Arc::new(vectors) as ArrayRef, Arc::new(errors) as ArrayRef]);
        RecordBatch::try_new(layout.schema.clone(), columns).map(Batch).map_err(unreadable)
    }

    /// The inverse of [`Batch::with_vectors`]: the other columns, and the outcome of each row.
    pub fn without_vectors(&self) -> Result<(Batch, Vec<Outcome>), ColumnsError> {
        let vectors = self.column(EMBEDDING)?;
        let lists = vectors.as_fixed_size_list_opt().filter(|lists| lists.value_type() == DataType::Float32);
        let lists = lists.ok_or_else(|| wrong(EMBEDDING, vectors.data_type(), "vectors (FixedSizeList<Float32>)"))?;
        let outcome = |(vector, error): (Option<ArrayRef>, Option<String>)| match vector {
            Some(vector) => Ok(vector.as_primitive::<Float32Type>().values().to_vec()),
            None => Err(error.unwrap_or_default()),
        };
        let outcomes = lists.iter().zip(self.texts(ERROR)?).map(outcome).collect();
        Ok((self.without(&[EMBEDDING, ERROR])?, outcomes))
    }

    /// All columns but these.
    fn without(&self, columns: &[&str]) -> Result<Batch, ColumnsError> {
        let fields = self.0.schema_ref().fields().iter().enumerate();
        let others = fields.filter(|(_, field)| !columns.contains(&field.name().as_str()));
        let others: Vec<usize> = others.map(|(place, _)| place).collect();
        self.0.project(&others).map(Batch).map_err(unreadable)
    }

    /// Rows of these, each with the window that its vector will stand for ([`WINDOW`]).
    pub fn with_windows(&self, rows: &[WindowRow]) -> Result<Batch, ColumnsError> {
        let places = UInt64Array::from_iter_values(rows.iter().map(|row| row.place as u64));
        let taken = self.0.columns().iter().map(|column| take(column, &places, None));
        let mut columns = taken.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
        let mut fields = self.0.schema_ref().fields().to_vec();
        let numbers: [fn(&WindowRow) -> Option<u64>; 4] = [
            |row| Some(row.row),
            |row| row.window.map(|(number, ..)| number),
            |row| row.window.map(|(_, start, _)| start),
            |row| row.window.map(|(.., end)| end),
        ];
        for (field, number) in window_fields().into_iter().zip(numbers) {
            let array =
                Int64Array::from_iter(rows.iter().map(|row| number(row).and_then(|number| i64::try_from(number).ok())));
            fields.push(field);
            columns.push(Arc::new(array));
        }
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map(Batch).map_err(unreadable)
    }

    /// The inverse of [`Batch::with_windows`]: the other columns, and the window of each row.
    pub fn without_windows(&self) -> Result<(Batch, Vec<WindowRow>), ColumnsError> {
        let [rows, numbers, starts, ends] = WINDOW.map(|column| self.counts(column));
        let (rows, numbers, starts, ends) = (rows?, numbers?, starts?, ends?);
        let row = |place: usize| WindowRow {
            place,
            row: rows[place].unwrap_or_default(),
            window: numbers[place]
                .zip(starts[place])
                .zip(ends[place])
                .map(|((number, start), end)| (number, start, end)),
        };
        let others = self.without(&WINDOW)?;
        Ok((others, (0..self.rows()).map(row).collect()))
    }

    /// The numbers from 0 of a column of INT64; `None` where it has null.
    pub fn counts(&self, column: &str) -> Result<Vec<Option<u64>>, ColumnsError> {
        let array = self.column(column)?;
        let numbers = array.as_primitive_opt::<Int64Type>();
        let numbers = numbers.ok_or_else(|| wrong(column, array.data_type(), "whole numbers (Int64)"))?;
        Ok(numbers.iter().map(|number| u64::try_from(number?).ok()).collect())
    }

    /// These rows with their answers as texts of JSON, or the reasons why they have none. There is one outcome for each row.
    pub fn with_answers(&self, layout: &Layout, outcomes: &[Result<String, String>]) -> Result<Batch, ColumnsError> {
        let answers = StringArray::from_iter(outcomes.iter().map(|outcome| outcome.as_ref().ok()));
        let errors = StringArray::from_iter(outcomes.iter().map(|outcome| outcome.as_ref().err()));
        let mut columns = self.0.columns().to_vec();
        columns.extend([Arc::new(answers) as ArrayRef, Arc::new(errors) as ArrayRef]);
        RecordBatch::try_new(layout.schema.clone(), columns).map(Batch).map_err(unreadable)
    }

    fn column(&self, name: &str) -> Result<&ArrayRef, ColumnsError> {
        let missing = || {
            let names: Vec<_> =
                self.0.schema_ref().fields().iter().map(|field| format!("'{}'", field.name())).collect();
            ColumnsError::Missing { column: name.to_owned(), found: names.join(", ") }
        };
        self.0.column_by_name(name).ok_or_else(missing)
    }
}

/// The cells of an array as JSON.
fn cells(column: &str, array: &ArrayRef) -> Result<Vec<Value>, ColumnsError> {
    use arrow_array::types::{
        Float64Type, Int8Type, Int16Type, Int32Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
    };
    macro_rules! numbers {
        ($type:ty) => {
            array.as_primitive::<$type>().iter().map(Value::from).collect()
        };
    }
    let lists = |lists: &mut dyn Iterator<Item = Option<ArrayRef>>| {
        lists.map(|list| list.map_or(Ok(Value::Null), |list| Ok(Value::Array(cells(column, &list)?)))).collect()
    };
    Ok(match array.data_type() {
        DataType::Null => vec![Value::Null; array.len()],
        DataType::Boolean => array.as_boolean().iter().map(Value::from).collect(),
        DataType::Int8 => numbers!(Int8Type),
        DataType::Int16 => numbers!(Int16Type),
        DataType::Int32 => numbers!(Int32Type),
        DataType::Int64 => numbers!(Int64Type),
        DataType::UInt8 => numbers!(UInt8Type),
        DataType::UInt16 => numbers!(UInt16Type),
        DataType::UInt32 => numbers!(UInt32Type),
        DataType::UInt64 => numbers!(UInt64Type),
        DataType::Float32 => numbers!(Float32Type),
        DataType::Float64 => numbers!(Float64Type),
        DataType::Utf8 => array.as_string::<i32>().iter().map(Value::from).collect(),
        DataType::LargeUtf8 => array.as_string::<i64>().iter().map(Value::from).collect(),
        DataType::Utf8View => array.as_string_view().iter().map(Value::from).collect(),
        DataType::List(_) => return lists(&mut array.as_list::<i32>().iter()),
        DataType::LargeList(_) => return lists(&mut array.as_list::<i64>().iter()),
        DataType::FixedSizeList(..) => return lists(&mut array.as_fixed_size_list().iter()),
        other => return Err(wrong(column, other, "texts, numbers, booleans or lists of those")),
    })
}

fn wrong(column: &str, found: &DataType, expected: &'static str) -> ColumnsError {
    ColumnsError::Type { column: column.to_owned(), found: found.to_string(), expected }
}

fn unreadable(error: impl std::fmt::Display) -> ColumnsError {
    ColumnsError::Unreadable { format: Format::Arrow, why: error.to_string() }
}

/// The numbers of a vector.
fn item() -> FieldRef {
    Arc::new(Field::new("item", DataType::Float32, true))
}

/// The columns of windows.
fn window_fields() -> [FieldRef; 4] {
    WINDOW.map(|name| Arc::new(Field::new(name, DataType::Int64, true)))
}

// === impl Layout ===

impl Layout {
    /// The columns of `table`, and behind them those of vectors of `width` numbers and of errors.
    pub fn of(table: &Table, width: usize) -> Result<Layout, ColumnsError> {
        match [EMBEDDING, ERROR].into_iter().find(|column| table.has(column)) {
            Some(column) => Err(ColumnsError::Taken { column }),
            None => Layout::behind(table.schema(), width),
        }
    }

    /// A column `id` of texts, and behind it those of vectors of `width` numbers and of errors.
    pub fn of_ids(width: usize) -> Result<Layout, ColumnsError> {
        Layout::behind(&Batch::of_texts(vec![("id", Vec::new())])?.0.schema(), width)
    }

    /// The columns of a table that has vectors and errors already, behind its others.
    pub fn with_vectors(table: &Table) -> Result<Layout, ColumnsError> {
        let schema = table.schema().clone();
        let missing = |column: &str| ColumnsError::Missing { column: column.to_owned(), found: table.columns() };
        let (Some((_, vectors)), true) = (schema.column_with_name(EMBEDDING), table.has(ERROR)) else {
            return Err(missing(if table.has(ERROR) { EMBEDDING } else { ERROR }));
        };
        let width = match vectors.data_type() {
            DataType::FixedSizeList(_, width) => usize::try_from(*width).map_err(unreadable)?,
            other => return Err(wrong(EMBEDDING, other, "vectors (FixedSizeList<Float32>)")),
        };
        Ok(Layout { schema, width })
    }

    /// Numbers of each vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The same columns with those of windows ([`WINDOW`]) before the vectors.
    pub fn with_windows(self) -> Result<Layout, ColumnsError> {
        if let Some(column) = WINDOW.into_iter().find(|column| self.schema.column_with_name(column).is_some()) {
            return Err(ColumnsError::Taken { column });
        }
        let mut fields = self.schema.fields().to_vec();
        let vectors = fields.len().saturating_sub(2);
        fields.splice(vectors..vectors, window_fields());
        Ok(Layout { schema: Arc::new(Schema::new_with_metadata(fields, self.schema.metadata.clone())), ..self })
    }

    /// The same columns in a file whose metadata says which space its vectors are of ([`SPACE`]); `None` says nothing.
    pub fn with_space(self, space: Option<&str>) -> Layout {
        let mut schema = self.schema.as_ref().clone();
        match space {
            Some(space) => drop(schema.metadata.insert(SPACE.to_owned(), space.to_owned())),
            None => drop(schema.metadata.remove(SPACE)),
        }
        Layout { schema: Arc::new(schema), ..self }
    }

    /// The columns of a batch, and no others.
    pub fn plain(batch: &Batch) -> Layout {
        Layout { schema: batch.0.schema(), width: 0 }
    }

    /// The columns of `table`, and behind them those of answers (texts of JSON) and of errors.
    pub fn answers(table: &Table) -> Result<Layout, ColumnsError> {
        if let Some(column) = [RESPONSE, EMBEDDING, ERROR].into_iter().find(|column| table.has(column)) {
            return Err(ColumnsError::Taken { column });
        }
        let mut fields = table.schema().fields().to_vec();
        fields.extend([RESPONSE, ERROR].map(|name| Arc::new(Field::new(name, DataType::Utf8, true))));
        Ok(Layout { schema: Arc::new(Schema::new(fields)), width: 0 })
    }

    fn behind(schema: &Schema, width: usize) -> Result<Layout, ColumnsError> {
        let size = i32::try_from(width).map_err(unreadable)?;
        let mut fields = schema.fields().to_vec();
        fields.push(Arc::new(Field::new(EMBEDDING, DataType::FixedSizeList(item(), size), true)));
        fields.push(Arc::new(Field::new(ERROR, DataType::Utf8, true)));
        Ok(Layout { schema: Arc::new(Schema::new(fields)), width })
    }
}
