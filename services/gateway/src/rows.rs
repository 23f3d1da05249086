//! A request of many rows as several of few, and their answers as one. Pure.
//!
//! Who may do that is the model's configuration's decision (`max_rows_per_message`): rows are the first dimension of every
//! tensor, and no row's result depends on another row.

use std::cmp::Reverse;

use trireme_inference::{DataType, InferError, Shape, Tensor};

/// A request's tensors, cut by rows.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The tensors of each part.
    pub tensors: Vec<Vec<Tensor>>,
    /// Which rows they are.
    pub order: RowOrder,
}

/// The order of a request's rows in its parts.
#[derive(Clone, Debug)]
pub struct RowOrder {
    rows: usize,
    /// For each row of the parts, one part after the other, its number in the request; `None` where that is the same.
    sorted: Option<Vec<usize>>,
}

/// Tensors cut into parts of at most `max_rows` rows, and of at most `max_bytes` bytes where more than one row is in a part.
/// `None` when one part holds everything, or the tensors do not agree on the number of rows.
///
/// Rows of texts are ordered by their bytes first, the longest before all others: a part is padded to its longest text, and
/// what takes longest had better begin first. Rows that stay in order share their bytes with the request.
pub fn split(tensors: &[Tensor], max_rows: usize, max_bytes: usize) -> Option<Parts> {
    let rows = tensors.first().and_then(row_count)?;
    if tensors.iter().any(|tensor| row_count(tensor) != Some(rows)) {
        return None;
    }
    let mut starts: Vec<Vec<usize>> = tensors.iter().map(|tensor| row_starts(tensor, rows)).collect::<Option<_>>()?;
    if rows < 2 || (rows <= max_rows && bytes(&starts, 0, rows) <= max_bytes) {
        return None;
    }
    let order = RowOrder { rows, sorted: by_length(tensors, &starts, rows) };
    let mut ordered = tensors.to_vec();
    if let Some(sorted) = &order.sorted {
        for (tensor, starts) in ordered.iter_mut().zip(&mut starts) {
            *tensor = gather(tensor, starts, sorted)?;
            *starts = row_starts(tensor, rows)?;
        }
    }
    let ranges = ranges(&starts, rows, max_rows, max_bytes);
    let part = |range: &_| ordered.iter().zip(&starts).map(|(tensor, starts)| cut(tensor, starts, *range)).collect();
    let tensors = ranges.iter().map(part).collect::<Option<_>>()?;
    Some(Parts { tensors, order })
}

/// The outputs of all parts as those of one request, with its rows in its order.
pub fn join(parts: Vec<Vec<Tensor>>, order: &RowOrder) -> Result<Vec<Tensor>, InferError> {
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    first.iter().map(|tensor| order.restore(join_output(tensor, &parts)?)).collect()
}

// === impl RowOrder ===

impl RowOrder {
    /// An output of all parts with its rows in the request's order.
    fn restore(&self, output: Tensor) -> Result<Tensor, InferError> {
        let rows = row_count(&output).unwrap_or_default();
        if rows != self.rows {
            return Err(InferError::internal(format!(
                "output '{}' of a request of {} rows sent in parts has {rows} rows: parameter 'max_rows_per_message' needs \
                 outputs whose first dimension is that of the inputs",
                output.name(),
                self.rows
            )));
        }
        let Some(sorted) = &self.sorted else { return Ok(output) };
        let mut places = vec![0; rows];
        for (place, &row) in sorted.iter().enumerate() {
            places[row] = place;
        }
        let restored = row_starts(&output, rows).and_then(|starts| gather(&output, &starts, &places));
        restored.ok_or_else(|| {
            InferError::internal(format!(
                "rows of output '{}' of a request sent in parts cannot be told",
                output.name()
            ))
        })
    }
}

/// The rows by their bytes, where there are texts among them and their order is another.
fn by_length(tensors: &[Tensor], starts: &[Vec<usize>], rows: usize) -> Option<Vec<usize>> {
    if tensors.iter().all(|tensor| tensor.datatype() != DataType::Bytes) {
        return None;
    }
    let mut order: Vec<usize> = (0..rows).collect();
    // Stable: equal rows stay as they are.
    order.sort_by_key(|&row| Reverse(bytes(starts, row, row + 1)));
    (!order.is_sorted()).then_some(order)
}

/// The bytes of some rows of all tensors.
fn bytes(starts: &[Vec<usize>], from: usize, to: usize) -> usize {
    starts.iter().map(|starts| starts[to] - starts[from]).sum()
}

/// The rows of each part, from the first up to the one behind the last.
fn ranges(starts: &[Vec<usize>], rows: usize, max_rows: usize, max_bytes: usize) -> Vec<(usize, usize)> {
    let (mut ranges, mut from) = (Vec::new(), 0);
    while from < rows {
        let mut to = from + 1;
        while to < rows && to - from < max_rows && bytes(starts, from, to + 1) <= max_bytes {
            to += 1;
        }
        ranges.push((from, to));
        from = to;
    }
    ranges
}

fn cut(tensor: &Tensor, starts: &[usize], (from, to): (usize, usize)) -> Option<Tensor> {
    let data = tensor.data().slice(starts[from]..starts[to]);
    Tensor::new(tensor.name(), tensor.datatype(), with_rows(tensor.shape(), to - from), data).ok()
}

/// A tensor with its rows in another order.
fn gather(tensor: &Tensor, starts: &[usize], order: &[usize]) -> Option<Tensor> {
    let mut data = Vec::with_capacity(tensor.data().len());
    for &row in order {
        data.extend_from_slice(&tensor.data()[starts[row]..starts[row + 1]]);
    }
    Tensor::new(tensor.name(), tensor.datatype(), tensor.shape().clone(), data.into()).ok()
}

fn join_output(first: &Tensor, parts: &[Vec<Tensor>]) -> Result<Tensor, InferError> {
    let name = first.name();
    let (mut rows, mut data) = (0, Vec::with_capacity(first.data().len() * parts.len()));
    for (number, part) in parts.iter().enumerate() {
        let tensor = part.iter().find(|tensor| tensor.name() == name).ok_or_else(|| {
            InferError::internal(format!("output '{name}' is missing in part {number} of a request sent in parts"))
        })?;
        let alike = tensor.datatype() == first.datatype() && tensor.shape().get(1..) == first.shape().get(1..);
        let Some(count) = row_count(tensor).filter(|_| alike) else {
            return Err(InferError::internal(format!(
                "output '{name}' of a request sent in parts is {} of shape {} in part 0 and {} of shape {} in part \
                 {number}: parameter 'max_rows_per_message' needs outputs whose shape does not depend on other rows",
                first.datatype(),
                first.shape(),
                tensor.datatype(),
                tensor.shape()
            )));
        };
        rows += count;
        data.extend_from_slice(tensor.data());
    }
    let joined = Tensor::new(name, first.datatype(), with_rows(first.shape(), rows), data.into());
    joined.map_err(|error| InferError::internal(format!("parts of a request do not join: {error}")))
}

fn row_count(tensor: &Tensor) -> Option<usize> {
    tensor.shape().first().and_then(|&rows| usize::try_from(rows).ok())
}

/// Where each row's bytes begin, and where the last one's end.
fn row_starts(tensor: &Tensor, rows: usize) -> Option<Vec<usize>> {
    let end = tensor.data().len();
    if rows == 0 {
        return None;
    }
    let Ok(elements) = tensor.bytes_elements() else {
        return Some((0..=rows).map(|row| row * (end / rows)).collect());
    };
    let per_row = usize::try_from(tensor.element_count()).ok()? / rows;
    if per_row == 0 {
        return Some(vec![0; rows + 1]);
    }
    let mut starts = Vec::with_capacity(rows + 1);
    let mut offset = 0;
    for (index, element) in elements.enumerate() {
        if index % per_row == 0 {
            starts.push(offset);
        }
        offset += element.len() + 4;
    }
    starts.push(end);
    Some(starts)
}

fn with_rows(shape: &Shape, rows: usize) -> Shape {
    let rest: Shape = shape[1..].into();
    rest.prepend(rows as i64)
}

#[cfg(test)]
mod tests;
