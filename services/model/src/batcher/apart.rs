//! The rows of a request one by one, each without its padding, for models that run one row only, or whose results other rows or padding
//! change.

use trireme_inference::{InferError, Tensor};

use super::merge::{self, Cut};
use super::padding::{PaddedInput, Padding};

/// The mask that says which tokens of a row are padding.
const MASK: &str = "attention_mask";

/// The rows of a request without their padding. `None` for a lone row, and where the mask does not show the padding: then the request
/// runs as it is.
pub fn rows(padding: &Padding, inputs: &[Tensor]) -> Result<Option<Vec<Vec<Tensor>>>, InferError> {
    let Some((lengths, longest)) = lengths(padding, inputs).zip(padding.length(inputs)) else { return Ok(None) };
    let ones = vec![1; lengths.len()];
    let mut rows = vec![Vec::with_capacity(inputs.len()); lengths.len()];
    for input in inputs {
        let padded = padding.inputs.iter().find(|padded| padded.name == input.name());
        let cut = padded.map(|padded| Cut { axis: padded.axis, lengths: &lengths, padded: longest, left: padded.left });
        for (row, part) in rows.iter_mut().zip(merge::split(input.clone(), &ones, cut)?) {
            row.push(part);
        }
    }
    Ok(Some(rows))
}

/// The most tokens of a run of one request, padding included, where no measurement gives fewer or more. A run needs memory for all of them at once.
pub const MOST_TOKENS: u32 = 8192;

/// A request in several runs.
pub struct Runs {
    /// Its rows without their padding.
    pub rows: Vec<Vec<Tensor>>,
    /// For each run the numbers of its rows, which are of similar length.
    pub runs: Vec<Vec<usize>>,
}

/// The rows of a request of more than `most` tokens, padding included, in runs of at most so many tokens each, or of one row. `None` where the request is
/// no longer than that, and where the mask does not show the padding.
pub fn runs(padding: &Padding, inputs: &[Tensor], most: u32) -> Result<Option<Runs>, InferError> {
    let Some((count, length)) = count(inputs).zip(padding.length(inputs)) else { return Ok(None) };
    if count.saturating_mul(length) <= most {
        return Ok(None);
    }
    let Some(rows) = rows(padding, inputs)? else { return Ok(None) };
    let lengths: Vec<u32> = rows.iter().map(|row| padding.length(row).unwrap_or(1)).collect();
    Ok(Some(Runs { rows, runs: by_length(&lengths, most) }))
}

/// The rows of a request all of whose inputs have as many. A request alone may have an input that is not divided by rows, and runs as it is then.
fn count(inputs: &[Tensor]) -> Option<u32> {
    let count = inputs.first()?.shape().first().copied()?;
    let is_alike = inputs.iter().all(|input| input.shape().first() == Some(&count));
    u32::try_from(count).ok().filter(|_| is_alike)
}

/// The numbers of rows of these lengths in runs of at most `most` tokens, the longest rows first.
fn by_length(lengths: &[u32], most: u32) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(lengths[at]));
    let mut runs: Vec<Vec<usize>> = Vec::new();
    for at in order {
        let has_room = |run: &Vec<usize>| (run.len() as u32 + 1).saturating_mul(lengths[run[0]]) <= most;
        match runs.last_mut().filter(|run| has_room(run)) {
            Some(run) => run.push(at),
            None => runs.push(vec![at]),
        }
    }
    runs
}

/// The rows of a request in parts of at most `most` tokens each, or of one row. `None` where the request is no longer than that, or its rows are not
/// padded alike.
pub fn parts(padding: &Padding, inputs: &[Tensor], most: u32) -> Result<Option<Vec<Vec<Tensor>>>, InferError> {
    let Some((rows, length)) = count(inputs).zip(padding.length(inputs)) else { return Ok(None) };
    let counts = counts(rows, length, most);
    if counts.len() < 2 {
        return Ok(None);
    }
    let mut parts = vec![Vec::with_capacity(inputs.len()); counts.len()];
    for input in inputs {
        for (part, own) in parts.iter_mut().zip(merge::split(input.clone(), &counts, None)?) {
            part.push(own);
        }
    }
    Ok(Some(parts))
}

/// How many rows of this length each run of a request takes: about the same number, so that none is small.
fn counts(rows: u32, length: u32, most: u32) -> Vec<u32> {
    let most = (most / length.max(1)).max(1);
    let runs = rows.div_ceil(most).max(1);
    (0..runs).map(|run| rows / runs + u32::from(run < rows % runs)).collect()
}

/// The rows of a request as they are, all of one length. `None` for a lone row.
pub fn whole(inputs: &[Tensor]) -> Result<Option<Vec<Vec<Tensor>>>, InferError> {
    let Some(count) = count(inputs).filter(|&count| count > 1) else { return Ok(None) };
    let count = count as usize;
    let mut rows = vec![Vec::with_capacity(inputs.len()); count];
    for input in inputs {
        for (row, part) in rows.iter_mut().zip(merge::split(input.clone(), &vec![1; count], None)?) {
            row.push(part);
        }
    }
    Ok(Some(rows))
}

/// The tokens of each row.
fn lengths(padding: &Padding, inputs: &[Tensor]) -> Option<Vec<u32>> {
    let longest = padding.length(inputs)?;
    let left = padding.inputs.iter().find(|padded| padded.name == MASK)?.left;
    let mask = inputs.iter().find(|input| input.name() == MASK)?;
    let mask: Vec<i64> = match mask.values::<i64>() {
        Ok(values) => values.to_vec(),
        Err(_) => mask.values::<i32>().ok()?.iter().map(|&value| i64::from(value)).collect(),
    };
    let length = |row: &[i64]| {
        let length = row.iter().filter(|&&value| value != 0).count();
        let of = if left { row.len() - length..row.len() } else { 0..length };
        // A mask with holes is no padding.
        (length > 0 && row[of].iter().all(|&value| value != 0)).then_some(length as u32)
    };
    let lengths: Vec<u32> = mask.chunks_exact(longest as usize).map(length).collect::<Option<_>>()?;
    let is_whole = lengths.iter().max() == Some(&longest);
    (is_whole && lengths.len() > 1).then_some(lengths)
}

/// The outputs of rows as those of their request: outputs as long as the inputs are filled up with 0.
pub fn join(padding: &Padding, rows: &[Vec<Tensor>]) -> Result<Vec<Tensor>, InferError> {
    let filled = padding.outputs.iter().filter_map(|output| {
        let own = rows.first()?.iter().find(|tensor| tensor.name() == output.name)?;
        let value = vec![0; own.datatype().element_size()?];
        Some(PaddedInput { name: output.name.clone(), axis: output.axis, value, left: output.left })
    });
    let rows: Vec<&[Tensor]> = rows.iter().map(Vec::as_slice).collect();
    Ok(merge::join(&rows, &filled.collect::<Vec<_>>(), None)?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::super::padding::{Steps, UnpaddedOutput};
    use super::*;

    fn padding(left: bool) -> Padding {
        let input = |name: &str| PaddedInput { name: name.into(), axis: 1, value: vec![0; 8], left };
        Padding {
            inputs: vec![input("ids"), input(MASK)],
            outputs: vec![UnpaddedOutput { name: "ids".into(), axis: 1, left }],
            steps: Steps::default(),
        }
    }

    fn ints(name: &str, shape: [i64; 2], values: &[i64]) -> Tensor {
        Tensor::from_values(name, shape, values.to_vec()).unwrap()
    }

    #[test]
    fn rows_lose_their_padding_and_get_it_back() {
        for (left, ids, mask) in [(false, [7, 0, 8, 9], [1, 0, 1, 1]), (true, [0, 7, 8, 9], [0, 1, 1, 1])] {
            let request = [ints("ids", [2, 2], &ids), ints(MASK, [2, 2], &mask)];
            let rows = rows(&padding(left), &request).unwrap().unwrap();
            assert_eq!(rows[0], [ints("ids", [1, 1], &[7]), ints(MASK, [1, 1], &[1])]);
            assert_eq!(rows[1], [ints("ids", [1, 2], &[8, 9]), ints(MASK, [1, 2], &[1, 1])]);
            let outputs: Vec<_> = rows.into_iter().map(|row| vec![row[0].clone()]).collect();
            assert_eq!(join(&padding(left), &outputs).unwrap(), [ints("ids", [2, 2], &ids)]);
        }
    }

    #[test]
    fn rows_of_one_length_stay_as_they_are() {
        let request = [ints("ids", [2, 2], &[7, 0, 8, 9]), ints(MASK, [2, 2], &[1, 0, 1, 1])];
        let rows = whole(&request).unwrap().unwrap();
        assert_eq!(rows[0], [ints("ids", [1, 2], &[7, 0]), ints(MASK, [1, 2], &[1, 0])]);
        assert_eq!(rows[1], [ints("ids", [1, 2], &[8, 9]), ints(MASK, [1, 2], &[1, 1])]);
        assert_eq!(whole(&rows[0]).unwrap(), None);
    }

    #[test]
    fn many_tokens_are_several_runs() {
        let counted = |rows, length| counts(rows, length, MOST_TOKENS);
        assert_eq!(counted(128, 512), [16; 8]);
        assert_eq!(counted(17, 512), [9, 8]);
        assert_eq!(counted(16, 512), [16]);
        assert_eq!(counted(3, 9000), [1, 1, 1]);
        assert_eq!((counted(0, 0), counted(1, 9000)), (vec![0], vec![1]));
        let request = |rows: i64| {
            let values: Vec<i64> = (0..rows * 4096).collect();
            [ints("ids", [rows, 4096], &values), ints(MASK, [rows, 4096], &vec![1; values.len()])]
        };
        let request = request(5);
        let in_parts = |request: &[Tensor]| parts(&padding(false), request, MOST_TOKENS).unwrap();
        let parts = in_parts(&request).unwrap();
        let rows: Vec<i64> = parts.iter().map(|part| part[0].shape()[0]).collect();
        assert_eq!((parts.len(), rows.as_slice()), (3, &[2, 2, 1][..]));
        let all: Vec<&[Tensor]> = parts.iter().map(Vec::as_slice).collect();
        assert_eq!(merge::join(&all, &[], None).unwrap().into_owned(), request, "no row is lost or moved");
        assert_eq!(in_parts(&parts[0]), None);
    }

    #[test]
    fn a_request_with_an_input_that_has_no_rows_runs_as_it_is() {
        let row = |name| ints(name, [2, 3], &[1, 1, 1, 1, 1, 0]);
        let task = Tensor::from_values("task", [1], vec![7i64]).unwrap();
        let request = [row("ids"), row(MASK), task];
        assert!(runs(&padding(false), &request, 3).unwrap().is_none());
        assert_eq!(parts(&padding(false), &request, 3).unwrap(), None);
        assert!(runs(&padding(false), &request[..2], 3).unwrap().is_some());
    }

    #[test]
    fn runs_have_rows_of_similar_length_and_few_tokens() {
        assert_eq!(by_length(&[3, 9, 4, 8, 9], 18), [vec![1, 4], vec![3, 2], vec![0]]);
        assert_eq!(by_length(&[30, 2, 1], 8), [vec![0], vec![1, 2]], "a row that is too long runs all the same");
        for left in [false, true] {
            let mask: [i64; 6] = if left { [0, 0, 1, 1, 1, 1] } else { [1, 0, 0, 1, 1, 1] };
            let ids = if left { [0, 0, 7, 8, 9, 10] } else { [7, 0, 0, 8, 9, 10] };
            let request = [ints("ids", [2, 3], &ids), ints(MASK, [2, 3], &mask)];
            assert!(runs(&padding(left), &request, 6).unwrap().is_none(), "it is short enough");
            let Runs { rows, runs } = runs(&padding(left), &request, 5).unwrap().unwrap();
            assert_eq!(runs, [vec![1], vec![0]]);
            let outputs: Vec<_> = rows.into_iter().map(|row| vec![row[0].clone()]).collect();
            assert_eq!(join(&padding(left), &outputs).unwrap(), [ints("ids", [2, 3], &ids)]);
        }
    }

    #[test]
    fn what_is_no_padding_stays() {
        let apart =
            |mask: &[i64; 4]| rows(&padding(false), &[ints("ids", [2, 2], &[1; 4]), ints(MASK, [2, 2], mask)]).unwrap();
        assert_eq!(
            apart(&[1, 1, 1, 1]).map(|rows| rows.len()),
            Some(2),
            "rows of one length may depend on one another, too"
        );
        assert_eq!(apart(&[0, 1, 1, 1]), None, "a hole on the other side");
        assert_eq!(apart(&[1, 0, 1, 0]), None, "padding of a request to a length of its own");
    }
}
