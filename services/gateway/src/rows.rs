//! Splits a request of many rows into several of few, and joins their answers; cuts tensors into single rows. Pure.
//!
//! The model's configuration decides whether its requests may be split (`max_rows_per_message`): rows are the first dimension of
//! every tensor, and no row's result depends on another row. Where an answer keeps the rows of all windows, those of a text stay together.

use std::cmp::Reverse;

use trireme_inference::{DataType, InferError, Name, Shape, Tensor, TensorError, Window, room_for};

/// The most parts of one request: each is a message of its own, even if it is small.
const MAX_PARTS: usize = 1 << 14;

/// A request's tensors, cut by rows.
#[derive(Clone, Debug)]
pub struct SplitRows {
    /// The tensors of each part.
    pub tensors: Vec<Vec<Tensor>>,
    /// Which rows they are.
    pub order: RowOrder,
}

/// Where the rows of a tensor begin in its bytes. A shape may claim rows without bytes: only rows that have some are
/// listed.
enum Starts {
    /// Every row has this many bytes.
    Even(usize),
    /// Where each row's bytes begin, and where the last one's end.
    Listed(Vec<usize>),
}

/// Tensors that have a row for each text of a request, or for each pair of texts.
pub struct TextRows<'a> {
    tensors: &'a [Tensor],
    starts: Vec<Starts>,
    rows: usize,
}

/// The order of a request's rows in its parts.
#[derive(Clone, Debug)]
pub struct RowOrder {
    rows: usize,
    /// For each row of the parts, one part after the other, its number in the request; `None` where that is the same.
    sorted: Option<Vec<usize>>,
    /// The output that tells the text of each row, where the outputs have a row for each window of the texts.
    windows: Option<Name>,
}

/// Cuts tensors into parts of at most `max_rows` rows, and of at most `max_bytes` bytes where a part has more than one row.
/// `None` when one part holds all rows, or the tensors do not agree on the number of rows. Refuses a request of more than
/// [`MAX_PARTS`] parts.
///
/// Rows of texts are ordered by their bytes, the longest first: a part is padded to its longest text, and the part that takes
/// longest should begin first. Rows that stay in order share their bytes with the request.
pub fn split(tensors: &[Tensor], max_rows: usize, max_bytes: usize) -> Result<Option<SplitRows>, InferError> {
    let Some(rows) = tensors.first().and_then(row_count).filter(|&rows| rows > 1) else { return Ok(None) };
    if tensors.iter().any(|tensor| row_count(tensor) != Some(rows)) {
        return Ok(None);
    }
    let too_many = || {
        InferError::invalid_arg(format!(
            "request of {rows} rows takes more than {MAX_PARTS} messages of at most {max_rows} rows \
             ('max_rows_per_message') and {max_bytes} bytes: send fewer rows at a time"
        ))
    };
    if rows.div_ceil(max_rows.max(1)) > MAX_PARTS {
        return Err(too_many());
    }
    let mut starts: Vec<Starts> = tensors.iter().map(|tensor| row_starts(tensor, rows)).collect();
    if rows <= max_rows && bytes(&starts, 0, rows) <= max_bytes {
        return Ok(None);
    }
    let order = RowOrder { rows, sorted: by_length(&starts, rows), windows: None };
    let mut ordered = tensors.to_vec();
    if let Some(sorted) = &order.sorted {
        for (tensor, starts) in ordered.iter_mut().zip(&mut starts) {
            *tensor = gather(tensor, starts, sorted)?;
            *starts = row_starts(tensor, rows);
        }
    }
    let ranges = ranges(&starts, rows, max_rows, max_bytes).ok_or_else(too_many)?;
    let part = |range: &_| ordered.iter().zip(&starts).map(|(tensor, starts)| cut(tensor, starts, *range)).collect();
    let tensors = ranges.iter().map(part).collect::<Result<_, _>>()?;
    Ok(Some(SplitRows { tensors, order }))
}

/// The outputs of requests of one row each, as those of one request.
pub fn join_rows(rows: Vec<Vec<Tensor>>) -> Result<Vec<Tensor>, InferError> {
    let order = RowOrder { rows: rows.len(), sorted: None, windows: None };
    join(rows, &order)
}

/// The outputs of all parts as those of one request, with its rows in its order.
pub fn join(parts: Vec<Vec<Tensor>>, order: &RowOrder) -> Result<Vec<Tensor>, InferError> {
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    if let Some(windows) = &order.windows {
        let texts = order.texts(&parts, windows)?;
        return first.iter().map(|tensor| restore_windows(join_output(tensor, &parts)?, windows, &texts)).collect();
    }
    first.iter().map(|tensor| order.restore(join_output(tensor, &parts)?)).collect()
}

/// An output of all parts, with the rows of the texts in their order. `texts` are those of its rows.
fn restore_windows(output: Tensor, windows: &str, texts: &[usize]) -> Result<Tensor, InferError> {
    let output = if output.name() == windows { Window::renumbered(&output, texts)? } else { output };
    match row_count(&output) {
        Some(rows) if rows == texts.len() => {
            let mut order: Vec<usize> = (0..rows).collect();
            // Stable: the windows of a text stay in their order.
            order.sort_by_key(|&row| texts[row]);
            gather(&output, &row_starts(&output, rows), &order)
        }
        rows => Err(InferError::internal(format!(
            "output '{}' of a request sent in parts has {} rows, expected one for each of {} windows",
            output.name(),
            rows.unwrap_or_default(),
            texts.len()
        ))),
    }
}

// === impl SplitRows ===

impl SplitRows {
    /// The same parts where this output tells the text of each row of an answer; `None`: each text has one row.
    pub fn with_windows(mut self, windows: Option<Name>) -> SplitRows {
        self.order.windows = windows;
        self
    }
}

// === impl Starts ===

impl Starts {
    /// Where the bytes of `row` begin; of the row behind the last, where they end.
    fn of(&self, row: usize) -> usize {
        match self {
            Starts::Even(size) => row * size,
            Starts::Listed(starts) => starts[row],
        }
    }
}

// === impl TextRows ===

impl<'a> TextRows<'a> {
    /// The rows of these tensors; `None` where there are none, or the tensors do not agree on their number.
    pub fn of(tensors: &'a [Tensor]) -> Option<TextRows<'a>> {
        let rows = tensors.first().and_then(row_count).filter(|&rows| rows > 0)?;
        let agree = tensors.iter().all(|tensor| row_count(tensor) == Some(rows));
        agree.then(|| TextRows {
            tensors,
            starts: tensors.iter().map(|tensor| row_starts(tensor, rows)).collect(),
            rows,
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// The bytes of a row in each tensor.
    pub fn bytes_of(&self, row: usize) -> impl Iterator<Item = &[u8]> {
        let each = self.tensors.iter().zip(&self.starts);
        each.map(move |(tensor, starts)| &tensor.data()[starts.of(row)..starts.of(row + 1)])
    }

    /// Tensors of these rows, in this order.
    pub fn gather(&self, rows: &[usize]) -> Result<Vec<Tensor>, InferError> {
        self.tensors.iter().zip(&self.starts).map(|(tensor, starts)| gather(tensor, starts, rows)).collect()
    }

    /// Tensors of one row, which share its bytes. The filler of an output up to the longest row of the request is left out; `None` where
    /// no other output tells how much of it is filler.
    pub fn single(&self, row: usize) -> Result<Option<Vec<Tensor>>, InferError> {
        let cut = |(tensor, starts)| cut(tensor, starts, (row, row + 1));
        let own: Vec<Tensor> = self.tensors.iter().zip(&self.starts).map(cut).collect::<Result<_, _>>()?;
        let narrow = |tensor: &Tensor| match measure(tensor.name())
            .filter(|_| filler(tensor.name(), tensor.datatype()).is_some())
        {
            None => Ok(Some(tensor.clone())),
            Some(measure) => {
                own.iter().find(|other| other.name() == measure).map_or(Ok(None), |measure| narrow(tensor, measure))
            }
        };
        own.iter().map(narrow).collect()
    }
}

// === impl RowOrder ===

impl RowOrder {
    /// Values of the rows of all parts, one for each, in the request's order. `None` where they are not so many.
    pub fn restore_values<T: Clone>(&self, values: Vec<T>) -> Option<Vec<T>> {
        if values.len() != self.rows {
            return None;
        }
        Some(match self.places() {
            Some(places) => places.iter().map(|&place| values[place].clone()).collect(),
            None => values,
        })
    }

    /// The text of each row of the parts, by its number in the request.
    fn texts(&self, parts: &[Vec<Tensor>], windows: &str) -> Result<Vec<usize>, InferError> {
        let (mut texts, mut before) = (Vec::new(), 0);
        for (number, part) in parts.iter().enumerate() {
            let tensor = part.iter().find(|tensor| tensor.name() == windows).ok_or_else(|| {
                InferError::internal(format!(
                    "output '{windows}' is missing in part {number} of a request sent in parts"
                ))
            })?;
            let own = Window::read(tensor)?;
            texts.extend(own.iter().map(|window| before + window.text));
            before += own.last().map_or(0, |last| last.text + 1);
        }
        if before != self.rows {
            return Err(InferError::internal(format!(
                "output '{windows}' of a request sent in parts has windows of {before} texts, expected those of {}",
                self.rows
            )));
        }
        Ok(match &self.sorted {
            Some(sorted) => texts.into_iter().map(|text| sorted[text]).collect(),
            None => texts,
        })
    }

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
        let Some(places) = self.places() else { return Ok(output) };
        gather(&output, &row_starts(&output, rows), &places)
    }

    /// For each row of the request, its place among the rows of the parts; `None` where that is the same.
    fn places(&self) -> Option<Vec<usize>> {
        let sorted = self.sorted.as_ref()?;
        let mut places = vec![0; sorted.len()];
        for (place, &row) in sorted.iter().enumerate() {
            places[row] = place;
        }
        Some(places)
    }
}

/// The rows by their bytes, where there are texts among them and their order is another.
fn by_length(starts: &[Starts], rows: usize) -> Option<Vec<usize>> {
    if starts.iter().all(|starts| matches!(starts, Starts::Even(_))) {
        return None;
    }
    let mut order: Vec<usize> = (0..rows).collect();
    // Stable: equal rows stay as they are.
    order.sort_by_key(|&row| Reverse(bytes(starts, row, row + 1)));
    (!order.is_sorted()).then_some(order)
}

/// The bytes of some rows of all tensors.
fn bytes(starts: &[Starts], from: usize, to: usize) -> usize {
    starts.iter().map(|starts| starts.of(to) - starts.of(from)).sum()
}

/// The rows of each part, from the first up to the one behind the last. `None` when there would be too many.
fn ranges(starts: &[Starts], rows: usize, max_rows: usize, max_bytes: usize) -> Option<Vec<(usize, usize)>> {
    let (mut ranges, mut from) = (Vec::new(), 0);
    while from < rows {
        if ranges.len() == MAX_PARTS {
            return None;
        }
        let mut to = from + 1;
        while to < rows && to - from < max_rows && bytes(starts, from, to + 1) <= max_bytes {
            to += 1;
        }
        ranges.push((from, to));
        from = to;
    }
    Some(ranges)
}

fn cut(tensor: &Tensor, starts: &Starts, (from, to): (usize, usize)) -> Result<Tensor, InferError> {
    let data = tensor.data().slice(starts.of(from)..starts.of(to));
    Tensor::new(tensor.name(), tensor.datatype(), with_rows(tensor.shape(), to - from), data).map_err(unlike)
}

/// A tensor of these rows of another one, in this order.
fn gather(tensor: &Tensor, starts: &Starts, order: &[usize]) -> Result<Tensor, InferError> {
    let mut data = Vec::with_capacity(order.iter().map(|&row| starts.of(row + 1) - starts.of(row)).sum());
    for &row in order {
        data.extend_from_slice(&tensor.data()[starts.of(row)..starts.of(row + 1)]);
    }
    Tensor::new(tensor.name(), tensor.datatype(), with_rows(tensor.shape(), order.len()), data.into()).map_err(unlike)
}

fn unlike(error: TensorError) -> InferError {
    InferError::internal(format!("rows of a request sent in parts: {error}"))
}

fn join_output(first: &Tensor, parts: &[Vec<Tensor>]) -> Result<Tensor, InferError> {
    let name = first.name();
    if let Some(filler) = filler(name, first.datatype()) {
        return join_ragged(name, filler, parts);
    }
    // The sum of all sizes, not the first part's size times the parts: its rows may be the longest ones.
    let size = parts.iter().flatten().filter(|tensor| tensor.name() == name).map(|tensor| tensor.data().len()).sum();
    let (mut rows, mut data) = (0, Vec::with_capacity(size));
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

/// The value that fills up an output as wide as its request's longest row; `None` for other outputs.
fn filler(name: &str, datatype: DataType) -> Option<&'static [u8]> {
    match (name, datatype) {
        ("sparse_indices", DataType::Int64) => Some(&[0xff; 8]),
        ("token_mask", DataType::Int64) => Some(&[0; 8]),
        ("sparse_values" | "token_embeddings", DataType::Fp32) => Some(&[0; 4]),
        _ => None,
    }
}

/// The output that tells which places of this one, if it is as wide as its request's longest row, fill it up.
fn measure(name: &str) -> Option<&'static str> {
    match name {
        "sparse_indices" | "sparse_values" => Some("sparse_indices"),
        "token_mask" | "token_embeddings" => Some("token_mask"),
        _ => None,
    }
}

/// The tensor of a row without what fills it up behind the last place that `measure` counts; `None` where the two do not fit together.
fn narrow(tensor: &Tensor, measure: &Tensor) -> Result<Option<Tensor>, InferError> {
    let Some(filler) = filler(measure.name(), measure.datatype()) else { return Ok(None) };
    let places = measure.data().chunks_exact(filler.len());
    let all = places.len();
    if tensor.shape().get(1) != Some(&(all as i64)) {
        return Ok(None);
    }
    let width = all - places.rev().take_while(|place| *place == filler).count();
    let shape: Vec<i64> = [&[1, width as i64], &tensor.shape()[2..]].concat();
    let data = tensor.data().slice(..tensor.data().len() / all.max(1) * width);
    let narrow = Tensor::new(tensor.name(), tensor.datatype(), Shape::from(shape.as_slice()), data);
    narrow.map(Some).map_err(unlike)
}

/// Joins an output whose second dimension is each part's own: all rows are filled up to the widest part.
fn join_ragged(name: &str, filler: &[u8], parts: &[Vec<Tensor>]) -> Result<Tensor, InferError> {
    let of = |part: &Vec<Tensor>| part.iter().find(|tensor| tensor.name() == name).cloned();
    let unlike =
        || InferError::internal(format!("output '{name}' of a request sent in parts is not alike in all of them"));
    let tensors: Vec<Tensor> = parts.iter().map(of).collect::<Option<_>>().ok_or_else(unlike)?;
    let first = tensors.first().ok_or_else(unlike)?;
    let rest = |tensor: &Tensor| tensor.shape().get(2..).map(<[i64]>::to_vec);
    let alike = |tensor: &Tensor| tensor.datatype() == first.datatype() && rest(tensor) == rest(first);
    if rest(first).is_none() || !tensors.iter().all(alike) {
        return Err(unlike());
    }
    let width = tensors.iter().map(|tensor| tensor.shape()[1]).max().unwrap_or_default();
    let rows = tensors.iter().map(|tensor| tensor.shape()[0]).sum();
    let shape: Vec<i64> = [&[rows, width], &first.shape()[2..]].concat();
    let given = tensors.iter().map(|tensor| tensor.data().len()).sum();
    // The rows of short texts are filled up to the longest text's.
    let room = room_for(name, shape.as_slice(), filler.len(), given)?;
    let cell = first.shape()[2..].iter().product::<i64>() as usize * filler.len();
    let mut data = Vec::with_capacity(room * filler.len());
    for tensor in &tensors {
        let own = tensor.shape()[1] as usize * cell;
        let missing = width as usize * cell - own;
        for row in 0..tensor.shape()[0] as usize {
            data.extend_from_slice(&tensor.data()[row * own..(row + 1) * own]);
            data.extend(filler.iter().cycle().take(missing));
        }
    }
    Tensor::new(name, first.datatype(), Shape::from(shape.as_slice()), data.into())
        .map_err(|error| InferError::internal(format!("parts of a request do not join: {error}")))
}

fn row_count(tensor: &Tensor) -> Option<usize> {
    tensor.shape().first().and_then(|&rows| usize::try_from(rows).ok())
}

fn row_starts(tensor: &Tensor, rows: usize) -> Starts {
    let end = tensor.data().len();
    let Ok(elements) = tensor.bytes_elements() else { return Starts::Even(end / rows) };
    if end == 0 {
        return Starts::Even(0);
    }
    // Rows there are no more of than elements, and those have bytes.
    let per_row = tensor.element_count() as usize / rows;
    let mut starts = Vec::with_capacity(rows + 1);
    let mut offset = 0;
    for (index, element) in elements.enumerate() {
        if index % per_row == 0 {
            starts.push(offset);
        }
        offset += element.len() + 4;
    }
    starts.push(end);
    Starts::Listed(starts)
}

fn with_rows(shape: &Shape, rows: usize) -> Shape {
    let rest: Shape = shape[1..].into();
    rest.prepend(rows as i64)
}

#[cfg(test)]
mod tests;
