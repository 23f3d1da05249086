//! The rows of a request to a model of spans of words (GLiNER, GLiNER2) in several runs.
//!
//! Such a request shares a run with no other, because its rows hold labels of its own. Its rows are as many as its texts have windows, and a run needs
//! memory for all of them at once. With parameter `token_budget` they run in several runs, each as if its rows had come alone: filled up to the
//! longest of them in tokens and in words.
//!
//! A model is one of spans by its inputs, which are those of the libraries' graphs: `input_ids`, `attention_mask`, `words_mask` `[rows, tokens]`,
//! `text_lengths` `[rows, 1]` in words, `span_idx` `[rows, words × widths, 2]` and `span_mask` `[rows, words × widths]`.

use half::f16;
use ndarray::{ArrayD, ArrayViewD, Axis, Slice};
use trireme_inference::{DataType, Element, InferError, Tensor};
use trireme_model_repository::ModelConfig;

use super::apart::{self, Runs};
use super::merge::{self, Cut};
use super::padding::{PaddedInput, Padding, Steps};

const OF_TOKENS: [&str; 3] = ["input_ids", "attention_mask", "words_mask"];
const OF_SPANS: [&str; 2] = ["span_idx", "span_mask"];
const WORDS: &str = "text_lengths";

/// The logit of what a row does not have: another run's row has more words, or more records. The sigmoid of it is 0, also in 16 bits.
const NONE: f32 = -1e4;

/// How the rows of a request are divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanRows {
    padding: Padding,
    most_tokens: u32,
}

/// A run of some rows of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanRun {
    /// The numbers of the rows, in the order of the run.
    pub rows: Vec<usize>,
    /// Their inputs.
    pub inputs: Vec<Tensor>,
}

/// Whether the configuration is that of a model of spans.
pub fn is_of_spans(config: &ModelConfig) -> bool {
    let has = |name: &&str| {
        let is_it = |datatype| datatype == DataType::Int64 || OF_SPANS.contains(name);
        config.inputs.iter().any(|input| input.name == *name && is_it(input.datatype))
    };
    let joins = |datatype| matches!(datatype, DataType::Fp32 | DataType::Fp16);
    let all_of = [&OF_TOKENS[..], &OF_SPANS, &[WORDS]].concat();
    config.inputs.len() == all_of.len()
        && all_of.iter().all(has)
        && config.outputs.iter().all(|output| joins(output.datatype))
}

// === impl SpanRows ===

impl SpanRows {
    /// Runs of at most so many tokens.
    pub fn new(most_tokens: u32) -> SpanRows {
        let value = vec![0; size_of::<i64>()];
        let input = |name: &str| PaddedInput { name: name.to_owned(), axis: 1, value: value.clone(), left: false };
        let inputs = OF_TOKENS.map(input).into();
        SpanRows { padding: Padding { inputs, outputs: Vec::new(), steps: Steps::default() }, most_tokens }
    }

    /// The runs of a request with these inputs: of at most so many tokens each, or of one row. `None` where one run is enough, and where the inputs
    /// do not tell the tokens and words of each row.
    pub fn runs(&self, inputs: &[Tensor]) -> Result<Option<Vec<SpanRun>>, InferError> {
        let Some(widths) = widths(inputs) else { return Ok(None) };
        let Some(Runs { rows, runs }) = apart::runs(&self.padding, inputs, self.most_tokens)? else { return Ok(None) };
        let run = |of: Vec<usize>| {
            let words = of.iter().filter_map(|&row| longest(&rows[row])).max().unwrap_or(0);
            let own = of.iter().map(|&row| cut(&rows[row], words * widths)).collect::<Result<Vec<_>, _>>()?;
            let own: Vec<&[Tensor]> = own.iter().map(Vec::as_slice).collect();
            let inputs = merge::join(&own, &self.padding.inputs, None)?.into_owned();
            Ok(SpanRun { rows: of, inputs })
        };
        runs.into_iter().map(run).collect::<Result<_, _>>().map(Some)
    }
}

/// The words of the longest row.
fn longest(inputs: &[Tensor]) -> Option<usize> {
    let lengths = inputs.iter().find(|input| input.name() == WORDS)?.values::<i64>().ok()?;
    usize::try_from(*lengths.iter().max()?).ok()
}

/// The widths of spans that each word begins, where the inputs of spans have as many words as the longest row.
fn widths(inputs: &[Tensor]) -> Option<usize> {
    let words = longest(inputs).filter(|&words| words > 0)?;
    let mut spans = OF_SPANS.iter().map(|name| {
        let input = inputs.iter().find(|input| input.name() == *name)?;
        usize::try_from(*input.shape().get(1)?).ok()
    });
    let first = spans.next()??;
    let is_whole = spans.all(|other| other == Some(first)) && first > 0 && first.is_multiple_of(words);
    is_whole.then_some(first / words)
}

/// A row with so many spans.
fn cut(row: &[Tensor], spans: usize) -> Result<Vec<Tensor>, InferError> {
    let cut = |input: &Tensor| match input.shape().get(1) {
        Some(&padded) if OF_SPANS.contains(&input.name()) => {
            let cut = Cut { axis: 1, lengths: &[spans as u32], padded: padded as u32, left: false };
            merge::split(input.clone(), &[1], Some(cut))
        }
        _ => Ok(vec![input.clone()]),
    };
    Ok(row.iter().map(cut).collect::<Result<Vec<_>, _>>()?.concat())
}

/// The outputs of runs, each with the numbers of its rows, as those of their request. The rows of one run may have more words or records than those of
/// another: the others have no spans there.
pub fn join(runs: &[(Vec<usize>, Vec<Tensor>)]) -> Result<Vec<Tensor>, InferError> {
    let Some((_, first)) = runs.first() else { return Ok(Vec::new()) };
    let join = |(at, output): (usize, &Tensor)| {
        let parts = runs.iter().map(|(rows, outputs)| (rows.as_slice(), outputs.get(at)));
        let parts: Vec<_> = parts.filter_map(|(rows, output)| Some((rows, output?))).collect();
        match output.datatype() {
            DataType::Fp32 => join_one(&parts, NONE),
            DataType::Fp16 => join_one(&parts, f16::from_f32(NONE)),
            other => Err(format!("is {other}, expected FP32 or FP16")),
        }
        .map_err(|fault| InferError::internal(format!("output '{}' of several runs {fault}", output.name())))
    };
    first.iter().enumerate().map(join).collect()
}

fn join_one<T: Element>(parts: &[(&[usize], &Tensor)], none: T) -> Result<Tensor, String> {
    let values: Vec<_> = parts.iter().map(|(_, part)| part.values::<T>()).collect::<Result<_, _>>().map_err(text)?;
    let views = parts.iter().zip(&values).map(|((_, part), values)| {
        let dims: Vec<usize> = part.shape().iter().map(|&dim| dim as usize).collect();
        ArrayViewD::from_shape(dims, values)
    });
    let views: Vec<_> = views.collect::<Result<_, _>>().map_err(text)?;
    let rank = views[0].ndim();
    if rank == 0
        || parts.iter().zip(&views).any(|((rows, _), view)| view.ndim() != rank || view.shape()[0] != rows.len())
    {
        let shapes: Vec<_> = parts.iter().map(|(_, part)| part.shape().to_string()).collect();
        return Err(format!("has shapes {}, whose first dimension has to be the rows of each run", shapes.join(", ")));
    }
    let longest = |axis: usize| views.iter().map(|view| view.shape()[axis]).max().unwrap_or(0);
    let mut dims: Vec<usize> = (0..rank).map(longest).collect();
    dims[0] = parts.iter().map(|(rows, _)| rows.len()).sum();
    let mut joined = ArrayD::from_elem(dims.as_slice(), none);
    for ((rows, _), view) in parts.iter().zip(&views) {
        for (&row, own) in rows.iter().zip(view.outer_iter()) {
            let mut place = joined.index_axis_mut(Axis(0), row);
            place.slice_each_axis_inplace(|axis| Slice::from(..own.len_of(axis.axis)));
            place.assign(&own);
        }
    }
    let shape: Vec<i64> = dims.iter().map(|&dim| dim as i64).collect();
    Tensor::from_values(parts[0].1.name(), shape, joined.into_raw_vec_and_offset().0).map_err(text)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// Rows of so many tokens and words, with 2 widths; the tokens and spans of row `n` begin with 100 × n.
    fn request(sizes: &[(usize, usize)]) -> Vec<Tensor> {
        let rows = sizes.len() as i64;
        let (tokens, words) =
            (sizes.iter().map(|size| size.0).max().unwrap(), sizes.iter().map(|size| size.1).max().unwrap());
        let matrix = |name: &str, value: &dyn Fn(usize, usize) -> i64| {
            let values = sizes
                .iter()
                .enumerate()
                .flat_map(|(row, size)| (0..tokens).map(move |at| if at < size.0 { value(row, at) } else { 0 }));
            Tensor::from_values(name, [rows, tokens as i64], values.collect::<Vec<_>>()).unwrap()
        };
        let lengths: Vec<i64> = sizes.iter().map(|size| size.1 as i64).collect();
        let spans = 2 * words;
        let index = sizes.iter().enumerate().flat_map(|(row, size)| {
            (0..spans).flat_map(move |at| if at < 2 * size.1 { [(100 * row + at) as i64, at as i64] } else { [0, 0] })
        });
        let mask = sizes.iter().flat_map(|size| (0..spans).map(move |at| u8::from(at < 2 * size.1)));
        vec![
            matrix("input_ids", &|row, at| (100 * row + at + 1) as i64),
            matrix("attention_mask", &|_, _| 1),
            matrix("words_mask", &|_, at| at as i64),
            Tensor::from_values("text_lengths", [rows, 1], lengths).unwrap(),
            Tensor::from_values("span_idx", [rows, spans as i64, 2], index.collect::<Vec<_>>()).unwrap(),
            Tensor::new("span_mask", DataType::Bool, [rows, spans as i64], mask.collect::<Bytes>()).unwrap(),
        ]
    }

    fn declared(without: &str, datatype: &str, parameters: &str) -> Option<SpanRows> {
        let inputs = [&OF_TOKENS[..], &OF_SPANS, &[WORDS]].concat().into_iter().filter(|name| *name != without);
        let inputs: Vec<_> =
            inputs.map(|name| format!("{{ name: '{name}' data_type: TYPE_INT64 dims: [-1, -1] }}")).collect();
        let output = format!("output [{{ name: 'logits' data_type: {datatype} dims: [-1, -1, -1, -1] }}]");
        let text = format!("backend: 'onnxruntime' input [{}] {output} {parameters}", inputs.join(","));
        let config = ModelConfig::parse(&text, "m").unwrap();
        let is_refused = super::super::Declaration::parse(&config).is_err();
        let rows = super::super::Declaration::of_spans(&config);
        assert_eq!(is_refused, rows.is_none() && !parameters.is_empty(), "a parameter without effect is refused");
        rows
    }

    #[test]
    fn a_budget_divides_the_rows_of_models_of_spans_alone() {
        let budget = "parameters { key: 'token_budget' value { string_value: '2048' } }";
        assert_eq!(declared("", "TYPE_FP32", budget), Some(SpanRows::new(2048)));
        assert_eq!(declared("", "TYPE_FP16", budget), Some(SpanRows::new(2048)));
        assert_eq!(declared("", "TYPE_FP32", ""), None);
        assert_eq!(declared("", "TYPE_FP32", &budget.replace("2048", "0")), None);
        assert_eq!(declared("words_mask", "TYPE_FP32", budget), None);
        assert_eq!(
            declared(
                "words_mask",
                "TYPE_FP32",
                &format!("input [{{ name: 'words_mask' data_type: TYPE_INT32 dims: [-1, -1] }}] {budget}")
            ),
            None
        );
        assert_eq!(declared("", "TYPE_INT64", budget), None);
    }

    #[test]
    fn runs_have_the_rows_as_if_they_had_come_alone() {
        let sizes = [(4, 2), (9, 5), (3, 0), (8, 6)];
        let runs = SpanRows::new(18).runs(&request(&sizes)).unwrap().unwrap();
        let rows: Vec<_> = runs.iter().map(|run| run.rows.clone()).collect();
        assert_eq!(rows, [vec![1, 3], vec![0, 2]], "rows of similar length together");
        // The numbers in the tensors are those of the rows in the request.
        let shapes = |run: &SpanRun| run.inputs.iter().map(|input| input.shape().to_vec()).collect::<Vec<_>>();
        let alone =
            |sizes: &[(usize, usize)]| request(sizes).iter().map(|input| input.shape().to_vec()).collect::<Vec<_>>();
        assert_eq!(shapes(&runs[0]), alone(&[sizes[1], sizes[3]]));
        assert_eq!(shapes(&runs[1]), alone(&[sizes[0], sizes[2]]));
        assert_eq!(*runs[1].inputs[0].values::<i64>().unwrap(), [1, 2, 3, 4, 201, 202, 203, 0]);
        assert_eq!(*runs[1].inputs[4].values::<i64>().unwrap(), [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(runs[1].inputs[5].data().as_ref(), [1, 1, 1, 1, 0, 0, 0, 0]);
        assert_eq!(runs[0].inputs[5].data().iter().filter(|&&is_span| is_span == 1).count(), 2 * 5 + 2 * 6);
    }

    #[test]
    fn a_request_that_one_run_takes_stays_whole() {
        let short = request(&[(4, 2), (9, 5)]);
        assert_eq!(SpanRows::new(18).runs(&short).unwrap(), None);
        assert!(SpanRows::new(17).runs(&short).unwrap().is_some());
        assert_eq!(SpanRows::new(1).runs(&request(&[(9, 5)])).unwrap(), None, "a lone row");
        assert_eq!(SpanRows::new(1).runs(&request(&[(3, 0), (3, 0)])).unwrap(), None, "no words");
    }

    #[test]
    fn a_request_whose_spans_are_not_those_of_its_words_stays_whole() {
        let mut odd = request(&[(4, 3), (9, 5)]);
        odd[3] = Tensor::from_values("text_lengths", [2, 1], vec![3i64, 7]).unwrap();
        assert_eq!(SpanRows::new(9).runs(&odd).unwrap(), None);
        odd[3] = Tensor::from_values("text_lengths", [2, 1], vec![-1i64, i64::MIN]).unwrap();
        assert_eq!(SpanRows::new(9).runs(&odd).unwrap(), None);
        odd.remove(3);
        assert_eq!(SpanRows::new(9).runs(&odd).unwrap(), None);
    }

    #[test]
    fn outputs_are_in_the_order_of_the_rows_and_filled_up() {
        let logits = |shape: [i64; 3], values: &[f32]| Tensor::from_values("logits", shape, values.to_vec()).unwrap();
        let classes = |values: [f32; 1]| Tensor::from_values("class_logits", [1, 1], values.to_vec()).unwrap();
        let runs = [
            (vec![1], vec![logits([1, 2, 1], &[3.0, 4.0]), classes([7.0])]),
            (vec![0], vec![logits([1, 1, 2], &[1.0, 2.0]), classes([8.0])]),
        ];
        let joined = join(&runs).unwrap();
        assert_eq!(joined[0], logits([2, 2, 2], &[1.0, 2.0, NONE, NONE, 3.0, NONE, 4.0, NONE]));
        assert_eq!(*joined[1].values::<f32>().unwrap(), [8.0, 7.0]);
        let half = |values: [f32; 2]| {
            let values = values.map(f16::from_f32).to_vec();
            vec![Tensor::from_values("logits", [1, values.len() as i64], values).unwrap()]
        };
        let joined = join(&[(vec![1], half([1.0, 2.0])), (vec![0], half([3.0, 4.0]))]).unwrap();
        assert_eq!(
            joined[0].values::<f16>().unwrap().iter().map(|value| value.to_f32()).collect::<Vec<_>>(),
            [3.0, 4.0, 1.0, 2.0]
        );
        let odd = [(vec![1, 0], vec![logits([1, 1, 2], &[1.0, 2.0])])];
        assert!(join(&odd).unwrap_err().message.contains("'logits' of several runs has shapes [1,1,2]"));
        assert_eq!(join(&[]).unwrap(), []);
    }
}
