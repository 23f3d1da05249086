//! A chain's result as the tensors that the model declares.

use half::{bf16, f16};
use ndarray::ArrayD;
use trireme_inference::{DataType, Element, InferError, Name, Shape, Tensor, TensorError, TensorSpec};

use crate::{Form, Labels, Signature, Value};

/// The outputs of a model, checked against the result of its chain.
pub(crate) struct Outputs {
    outputs: Vec<Output>,
    labels: Labels,
}

struct Output {
    name: Name,
    datatype: DataType,
    content: Content,
    /// The declared shape has one more axis, of size 1, at the end.
    trailing_axis: bool,
}

/// The part of a value that an output gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// The numbers of the value, or the scores of ranked classes.
    Floats,
    /// The integers of the value, or the indices of ranked classes.
    Ints,
    /// The texts of the value.
    Texts,
    /// The labels of ranked classes.
    Labels,
    /// Ranked classes as `score:index:label`.
    Classification,
    /// The mask of tokens, which is no part of the value.
    TokenMask,
}

// === impl Outputs ===

impl Outputs {
    /// Checks the declared outputs, with their full shapes, against the chain's result. Reports all faults together.
    pub(crate) fn of(specs: &[TensorSpec], result: &Signature, labels: Labels) -> Result<Outputs, Vec<String>> {
        let mut faults = Vec::new();
        let has_parts = matches!(result.form, Form::Ranked | Form::Sparse | Form::Classes);
        let results = specs.iter().filter(|spec| Content::of(&spec.name, result) != Content::TokenMask).count();
        if results == 0 || (results > 1 && !has_parts) {
            faults.push(format!("it declares {} outputs, expected one for the result: {result}", specs.len()));
        }
        let mut outputs = Vec::new();
        for spec in specs {
            let content = Content::of(&spec.name, result);
            let parts = match result.form {
                Form::Sparse => Some(("sparse", ["sparse_indices", "sparse_values"])),
                Form::Classes => Some(("classes", ["scores", "classes"])),
                _ => None,
            };
            if let Some((op, [one, other])) = parts.filter(|(_, names)| !names.contains(&spec.name.as_str())) {
                let name = &spec.name;
                faults.push(format!("unexpected output '{name}' of op {op}, expected '{one}' and '{other}'"));
            }
            if !content.datatypes().contains(&spec.datatype) {
                let names = match content {
                    Content::Classification => {
                        ": op top_k gives scores to an output 'scores', class indices to 'indices' (TYPE_INT64 or TYPE_INT32), labels to \
                         'labels', and texts score:index:label to one of any other name"
                    }
                    _ => "",
                };
                faults.push(format!(
                    "unexpected datatype {} for output '{}', expecting {}{names}",
                    spec.datatype.config_name(),
                    spec.name,
                    content.datatypes().iter().map(|d| d.config_name()).collect::<Vec<_>>().join(" or ")
                ));
            }
            if content == Content::Labels && labels.is_empty() {
                faults.push(format!("output '{}' needs labels: give label_filename or parameter 'labels'", spec.name));
            }
            // The mask is of tokens, not of their components, and the choice is of texts, not of their labels.
            let dims = match content {
                Content::TokenMask => &result.dims[..2],
                Content::Texts if result.form == Form::Classes => &result.dims[..1],
                _ => &result.dims[..],
            };
            let trailing_axis = match spec.shape.split_last() {
                _ if fits(&spec.shape, dims) => false,
                Some((1, rest)) if fits(rest, dims) => true,
                _ => {
                    let dims = Shape::from(dims);
                    faults.push(format!("output '{}' has full shape {}, expected {dims}", spec.name, spec.shape));
                    false
                }
            };
            outputs.push(Output {
                name: spec.name.to_string().into(),
                datatype: spec.datatype,
                content,
                trailing_axis,
            });
        }
        if faults.is_empty() { Ok(Outputs { outputs, labels }) } else { Err(faults) }
    }

    /// The outputs in `wanted`, made from the chain's result and the mask of tokens.
    pub(crate) fn tensors(
        &self,
        value: &Value<'_>,
        mask: Option<&Tensor>,
        wanted: &[Name],
    ) -> Result<Vec<Tensor>, InferError> {
        let outputs = self.outputs.iter().filter(|output| wanted.contains(&output.name));
        let tensor = |output: &Output| match (output.content, mask) {
            (Content::TokenMask, Some(mask)) => output.tensor(&Value::from_tensor(mask)?, &self.labels),
            _ => output.tensor(value, &self.labels),
        };
        outputs.map(tensor).collect()
    }
}

/// Whether a value of shape `given` may fit `declared`; -1 in either is any size.
fn fits(declared: &[i64], given: &[i64]) -> bool {
    declared.len() == given.len() && declared.iter().zip(given).all(|(&d, &g)| d == g || d == -1 || g == -1)
}

// === impl Content ===

impl Content {
    fn of(name: &str, result: &Signature) -> Content {
        match (result.form, name) {
            (Form::Floats, "token_mask") if result.dims.len() == 3 => Content::TokenMask,
            (Form::Sparse, "sparse_indices") => Content::Ints,
            (Form::Floats | Form::Sparse, _) | (Form::Ranked | Form::Classes, "scores") => Content::Floats,
            (Form::Ints, _) | (Form::Ranked, "indices") => Content::Ints,
            (Form::Ranked, "labels") => Content::Labels,
            (Form::Ranked, _) => Content::Classification,
            (Form::Texts | Form::Classes, _) => Content::Texts,
        }
    }

    fn datatypes(self) -> &'static [DataType] {
        match self {
            Content::Floats => &[DataType::Fp32, DataType::Fp16, DataType::Bf16, DataType::Fp64],
            Content::Ints | Content::TokenMask => &[DataType::Int64, DataType::Int32],
            Content::Texts | Content::Labels | Content::Classification => &[DataType::Bytes],
        }
    }
}

// === impl Output ===

impl Output {
    fn tensor(&self, value: &Value<'_>, labels: &Labels) -> Result<Tensor, InferError> {
        let dims = match (self.content, value) {
            (Content::Texts, Value::Classes { chosen, .. }) => chosen.shape(),
            _ => value.dims(),
        };
        let mut shape: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        if self.trailing_axis {
            shape.push(1);
        }
        let shape = Shape::from(shape);
        let tensor = match (self.content, value) {
            (Content::Floats, Value::Floats(array)) => self.floats(shape, array.iter().copied()),
            (Content::Floats, Value::Ranked { scores, .. }) => self.floats(shape, scores.iter().copied()),
            (Content::Floats, Value::Sparse { values, .. }) => self.floats(shape, values.iter().copied()),
            (Content::Floats, Value::Classes { scores, .. }) => self.floats(shape, scores.iter().copied()),
            (Content::Texts, Value::Classes { chosen, .. }) => self.texts(shape, chosen.iter()),
            (Content::Ints, Value::Sparse { indices, .. }) => self.ints(shape, indices.iter().copied()),
            (Content::Ints | Content::TokenMask, Value::Ints(array)) => self.ints(shape, array.iter().copied()),
            (Content::Ints, Value::Ranked { indices, .. }) => self.ints(shape, indices.iter().copied()),
            (Content::Texts, Value::Texts(texts)) => self.texts(shape, texts.iter()),
            (Content::Labels, Value::Ranked { indices, .. }) => {
                self.texts(shape, indices.iter().map(|&index| labels.get(index)))
            }
            (Content::Classification, Value::Ranked { scores, indices }) => {
                self.texts(shape, classifications(scores, indices, labels))
            }
            (content, value) => {
                let message = format!("output '{}' is {content:?} but the chain gave {}", self.name, value.form());
                return Err(InferError::internal(message));
            }
        };
        Ok(tensor?)
    }

    fn floats(&self, shape: Shape, values: impl Iterator<Item = f32>) -> Result<Tensor, TensorError> {
        match self.datatype {
            DataType::Fp16 => self.numbers(shape, values.map(f16::from_f32)),
            DataType::Bf16 => self.numbers(shape, values.map(bf16::from_f32)),
            DataType::Fp64 => self.numbers(shape, values.map(f64::from)),
            _ => self.numbers(shape, values),
        }
    }

    fn ints(&self, shape: Shape, values: impl Iterator<Item = i64>) -> Result<Tensor, TensorError> {
        match self.datatype {
            DataType::Int32 => self.numbers(shape, values.map(|value| value as i32)),
            _ => self.numbers(shape, values),
        }
    }

    fn numbers<T: Element>(&self, shape: Shape, values: impl Iterator<Item = T>) -> Result<Tensor, TensorError> {
        Tensor::from_values(self.name.clone(), shape, values.collect())
    }

    fn texts<T: AsRef<[u8]>>(&self, shape: Shape, texts: impl Iterator<Item = T>) -> Result<Tensor, TensorError> {
        Tensor::from_bytes_elements(self.name.clone(), shape, &texts.collect::<Vec<_>>())
    }
}

/// Triton's classification strings: `score:index:label`, the score as C's `%f` prints it.
fn classifications(scores: &ArrayD<f32>, indices: &ArrayD<i64>, labels: &Labels) -> impl Iterator<Item = String> {
    scores.iter().zip(indices).map(|(score, &index)| match labels.get(index) {
        "" => format!("{}:{index}", score_text(*score)),
        label => format!("{}:{index}:{label}", score_text(*score)),
    })
}

/// `%f`: six decimals, and `nan` in small letters.
fn score_text(score: f32) -> String {
    if score.is_nan() { "nan".to_owned() } else { format!("{score:.6}") }
}

#[cfg(test)]
mod tests {
    use ndarray::{CowArray, arr1, arr2};

    use super::*;

    fn spec(name: &str, datatype: DataType, shape: &[i64]) -> TensorSpec {
        TensorSpec { name: name.into(), datatype, shape: Shape::from(shape), optional: false }
    }

    fn tensors(specs: &[TensorSpec], value: &Value<'_>, labels: &str) -> Vec<Tensor> {
        let dims: Vec<i64> = value.dims().iter().map(|&d| d as i64).collect();
        let labels = if labels.is_empty() { Labels::default() } else { Labels::from_list(labels) };
        let outputs = Outputs::of(specs, &Signature::new(value.form(), dims), labels).unwrap();
        let wanted: Vec<Name> = specs.iter().map(|spec| spec.name.clone()).collect();
        outputs.tensors(value, None, &wanted).unwrap()
    }

    fn texts(tensor: &Tensor) -> Vec<&str> {
        tensor.bytes_elements().unwrap().map(|e| std::str::from_utf8(e).unwrap()).collect()
    }

    fn ranked() -> Value<'static> {
        Value::Ranked {
            scores: arr2(&[[3.3, 0.1], [f32::NAN, f32::NEG_INFINITY]]).into_dyn(),
            indices: arr2(&[[1, 0], [0, 2]]).into_dyn(),
        }
    }

    #[test]
    fn numbers_are_cast_to_the_declared_datatype() {
        let value = Value::Floats(CowArray::from(arr2(&[[0.5, -2.0]]).into_dyn()));
        let tensor = |datatype| tensors(&[spec("y", datatype, &[-1, 2])], &value, "").remove(0);
        assert_eq!(*tensor(DataType::Fp32).values::<f32>().unwrap(), [0.5, -2.0]);
        assert_eq!(*tensor(DataType::Fp64).values::<f64>().unwrap(), [0.5, -2.0]);
        assert_eq!(*tensor(DataType::Fp16).values::<f16>().unwrap(), [f16::from_f32(0.5), f16::from_f32(-2.0)]);
        assert_eq!(*tensor(DataType::Bf16).values::<bf16>().unwrap(), [bf16::from_f32(0.5), bf16::from_f32(-2.0)]);
    }

    #[test]
    fn a_declared_axis_of_size_one_is_added() {
        let value = Value::Ints(CowArray::from(arr1(&[3i64, 4]).into_dyn()));
        let tensor = tensors(&[spec("class", DataType::Int32, &[-1, 1])], &value, "").remove(0);
        assert_eq!((&**tensor.shape(), &*tensor.values::<i32>().unwrap()), (&[2, 1][..], &[3, 4][..]));
        let tensor = tensors(&[spec("class", DataType::Int64, &[-1])], &value, "").remove(0);
        assert_eq!(**tensor.shape(), [2]);
    }

    #[test]
    fn ranked_classes_are_classification_strings() {
        let specs = [spec("class", DataType::Bytes, &[-1, 2])];
        let tensor = tensors(&specs, &ranked(), "no,yes").remove(0);
        assert_eq!(texts(&tensor), ["3.300000:1:yes", "0.100000:0:no", "nan:0:no", "-inf:2"]);
        assert_eq!(texts(&tensors(&specs, &ranked(), "")[0]), ["3.300000:1", "0.100000:0", "nan:0", "-inf:2"]);
    }

    #[test]
    fn ranked_classes_come_apart_in_outputs_of_their_own() {
        let specs = [
            spec("labels", DataType::Bytes, &[-1, -1]),
            spec("scores", DataType::Fp32, &[-1, 2]),
            spec("indices", DataType::Int64, &[-1, 2]),
        ];
        let tensors = tensors(&specs, &ranked(), "no,yes");
        assert_eq!(texts(&tensors[0]), ["yes", "no", "no", ""]);
        assert_eq!(tensors[1].values::<f32>().unwrap()[..2], [3.3, 0.1]);
        assert_eq!(*tensors[2].values::<i64>().unwrap(), [1, 0, 0, 2]);
    }

    #[test]
    fn components_come_apart_in_indices_and_values() {
        let value =
            Value::Sparse { indices: arr2(&[[1i64, -1]]).into_dyn(), values: arr2(&[[0.5f32, 0.0]]).into_dyn() };
        let indices = || spec("sparse_indices", DataType::Int64, &[-1, -1]);
        let tensors = tensors(&[indices(), spec("sparse_values", DataType::Fp32, &[-1, -1])], &value, "");
        assert_eq!(
            (&*tensors[0].values::<i64>().unwrap(), &*tensors[1].values::<f32>().unwrap()),
            (&[1, -1][..], &[0.5, 0.0][..])
        );
        let result = Signature::new(Form::Sparse, [-1, -1]);
        let specs = [indices(), spec("weights", DataType::Fp32, &[-1, -1])];
        let faults = Outputs::of(&specs, &result, Labels::default()).err().unwrap();
        assert_eq!(faults, ["unexpected output 'weights' of op sparse, expected 'sparse_indices' and 'sparse_values'"]);
    }

    #[test]
    fn scores_of_labels_and_the_labels_that_count_come_apart() {
        let value =
            Value::Classes { scores: arr2(&[[0.25f32, 0.75]]).into_dyn(), chosen: arr1(&["{}".to_owned()]).into_dyn() };
        let specs = [spec("scores", DataType::Fp32, &[-1, -1]), spec("classes", DataType::Bytes, &[-1])];
        let tensors = tensors(&specs, &value, "");
        assert_eq!((&**tensors[0].shape(), &*tensors[0].values::<f32>().unwrap()), (&[1, 2][..], &[0.25, 0.75][..]));
        assert_eq!((&**tensors[1].shape(), texts(&tensors[1])), (&[1][..], vec!["{}"]));
        let result = Signature::new(Form::Classes, [-1, -1]);
        let faults = Outputs::of(&[spec("labels", DataType::Bytes, &[-1])], &result, Labels::default()).err().unwrap();
        assert_eq!(faults, ["unexpected output 'labels' of op classes, expected 'scores' and 'classes'"]);
    }

    #[test]
    fn the_mask_of_tokens_is_an_output_beside_their_vectors() {
        let specs =
            [spec("token_embeddings", DataType::Fp32, &[-1, -1, 2]), spec("token_mask", DataType::Int64, &[-1, -1])];
        let outputs = Outputs::of(&specs, &Signature::new(Form::Floats, [-1, -1, 2]), Labels::default()).unwrap();
        let value = Value::Floats(ndarray::arr3(&[[[1.0, 2.0], [0.0, 0.0]]]).into_dyn().into());
        let mask = Tensor::from_values("attention_mask", [1, 2], vec![1i32, 0]).unwrap();
        let wanted = ["token_embeddings", "token_mask"].map(Name::new);
        let tensors = outputs.tensors(&value, Some(&mask), &wanted).unwrap();
        assert_eq!((&**tensors[1].shape(), &*tensors[1].values::<i64>().unwrap()), (&[1, 2][..], &[1, 0][..]));
        assert_eq!(tensors[1].name(), "token_mask");
    }

    #[test]
    fn outputs_that_do_not_fit_are_refused_together() {
        let faults = |specs: &[TensorSpec], form| {
            let dims = [-1, 384];
            Outputs::of(specs, &Signature::new(form, dims), Labels::default()).err().unwrap().join("; ")
        };
        let specs = [spec("y", DataType::Bytes, &[-1, 768])];
        assert_eq!(
            faults(&specs, Form::Floats),
            "unexpected datatype TYPE_STRING for output 'y', expecting TYPE_FP32 or TYPE_FP16 or TYPE_BF16 or TYPE_FP64; \
             output 'y' has full shape [-1,768], expected [-1,384]"
        );
        assert_eq!(
            faults(&[], Form::Floats),
            "it declares 0 outputs, expected one for the result: floating point numbers of shape [-1,384]"
        );
        let found = faults(&[spec("best", DataType::Fp32, &[-1, 384])], Form::Ranked);
        assert!(
            found.contains("'best', expecting TYPE_STRING: op top_k gives scores to an output 'scores'"),
            "{found}"
        );
        let specs = [spec("labels", DataType::Bytes, &[-1, -1])];
        assert_eq!(
            faults(&specs, Form::Ranked),
            "output 'labels' needs labels: give label_filename or parameter 'labels'"
        );
    }
}
