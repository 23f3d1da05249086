//! `fold:KIND`: one row for each text, of those of its windows: the input `windows` of a tokenizer ([`super::windows`]). A request may choose the
//! kind by its parameter `fold`. The kind `keep` leaves every row: the answer has one for each window.
//!
//! The row of a text that has one window stays as it is. With `+normalize` folded rows get length 1, as those of the windows have.

use ndarray::{Array2, ArrayView1, ArrayViewMut1, CowArray, Ix2};
use trireme_inference::InferError;

use super::normalize::normalize_vector;
use super::op::{Op, OpEntry, Resources};
use super::windows::{Owned, owned};
use crate::inputs::Side;
use crate::options::Fold;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "fold",
    usage: "fold:mean|first|max|keep[+normalize]",
    doc: "one row for each text, of those of its windows: [rows, width] to [texts, width]; 'keep' leaves the rows",
    inputs: &["windows"],
    embeds: true,
    reduces: false,
    build,
};

/// The end of an argument that asks for vectors of length 1.
const NORMALIZE: &str = "+normalize";

struct Folding {
    fold: Fold,
    normalizes: bool,
}

/// Makes the op.
fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    let expected = || format!("expected {}, and '{NORMALIZE}' behind it for vectors of length 1", Fold::EXPECTED);
    let argument = argument.ok_or_else(|| format!("argument is missing, {}", expected()))?;
    let (kind, normalizes) = argument.strip_suffix(NORMALIZE).map_or((argument, false), |kind| (kind, true));
    let fold = Fold::named(kind.trim()).ok_or_else(|| format!("argument is '{argument}', {}", expected()))?;
    if resources.inputs.windows.is_none() {
        return Err("needs an input 'windows' of TYPE_INT64 or TYPE_INT32, which the model does not declare".to_owned());
    }
    Ok(Box::new(Folding { fold, normalizes }))
}

// === impl Folding ===

impl Op for Folding {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        let dims = &input.expect(Form::Floats, 2..=2)?.dims;
        Ok(Signature::new(Form::Floats, [-1, dims[1]]))
    }

    fn apply<'a>(&self, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        let rows = value.into_floats()?.into_dimensionality::<Ix2>();
        let rows = rows.map_err(|_| InferError::internal("fold takes numbers of rank 2"))?;
        let (count, width) = rows.dim();
        let windows = side.windows.ok_or_else(|| InferError::invalid_arg("input 'windows' is missing"))?;
        let texts = owned(windows, count)?;
        let fold = match side.options.fold.unwrap_or(self.fold) {
            _ if texts.len() == count => None,
            Fold::Keep => None,
            Fold::Mean => Some(mean as OneRow),
            Fold::First => Some(first as OneRow),
            Fold::Max => Some(highest as OneRow),
        };
        let Some(fold) = fold else { return Ok(Value::Floats(CowArray::from(rows.into_dyn()))) };
        let normalizes = self.normalizes && side.options.normalize;
        let mut folded = Array2::zeros((texts.len(), width));
        for (of, mut row) in texts.iter().zip(folded.outer_iter_mut()) {
            if let [only] = of.as_slice() {
                row.assign(&rows.row(only.row));
                continue;
            }
            let windows: Vec<_> = of.iter().map(|Owned { row, tokens, .. }| (rows.row(*row), *tokens)).collect();
            fold(&windows, row.view_mut());
            if normalizes {
                normalize_vector(row);
            }
        }
        Ok(Value::Floats(CowArray::from(folded.into_dyn())))
    }
}

/// Makes one row of those of a text's windows, each with its number of tokens.
type OneRow = fn(&[(ArrayView1<'_, f32>, usize)], ArrayViewMut1<'_, f32>);

fn first(rows: &[(ArrayView1<'_, f32>, usize)], mut folded: ArrayViewMut1<'_, f32>) {
    if let Some((first, _)) = rows.first() {
        folded.assign(first);
    }
}

fn highest(rows: &[(ArrayView1<'_, f32>, usize)], mut folded: ArrayViewMut1<'_, f32>) {
    folded.fill(f32::NEG_INFINITY);
    for (row, _) in rows {
        // A number that is none shows.
        folded.zip_mut_with(row, |high, &value| {
            if value > *high || value.is_nan() {
                *high = value;
            }
        });
    }
}

fn mean(rows: &[(ArrayView1<'_, f32>, usize)], mut folded: ArrayViewMut1<'_, f32>) {
    let (mut sums, mut all) = (vec![0.0f64; folded.len()], 0.0f64);
    for (row, tokens) in rows {
        // Rows without tokens weigh as little as rows can.
        let weight = (*tokens).max(1) as f64;
        sums.iter_mut().zip(row).for_each(|(sum, &value)| *sum += weight * f64::from(value));
        all += weight;
    }
    folded.iter_mut().zip(sums).for_each(|(value, sum)| *value = (sum / all) as f32);
}

#[cfg(test)]
mod tests;
