//! Checks the tensors of an answer against the model's configuration. The bytes of a tensor were checked against its datatype and shape
//! when it was made.

use trireme_inference::{InferError, RequestedOutput, Shape, Tensor, WINDOWS, Window};

use crate::{KnownBackend, ModelConfig, ModelOutput};

/// The tensors that the answer to a request has to have.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedAnswer<'a> {
    /// The outputs that the client asked for; none means all of them.
    pub requested: &'a [RequestedOutput],
    /// The rows of the request, where the model batches and answers all rows at once.
    pub rows: Option<i64>,
    /// The request's parameter `dimensions`: embeddings are cut to so many components.
    pub dimensions: Option<u64>,
    /// The texts of the request, where the answer has a row for each window of them, and the tensor [`WINDOWS`] beside its outputs.
    pub windows_of: Option<usize>,
    /// Whether it may be one of several responses, with some of the outputs.
    pub in_parts: bool,
    /// Whether a step's outputs are made by code of the model's author: as in Triton, nobody checks their datatypes and dimensions,
    /// and it may leave outputs out.
    pub by_user_code: bool,
}

// === impl ModelConfig ===

impl ModelConfig {
    /// Whether the model's answers are made by code of its author.
    pub fn runs_user_code(&self) -> bool {
        KnownBackend::named(&self.backend).is_some_and(|backend| backend.service == Some("python"))
    }

    /// Checks the tensors of an answer. A wrong tensor is the fault of the worker that has sent it.
    pub fn check_answer(&self, tensors: &[Tensor], expected: &ExpectedAnswer<'_>) -> Result<(), InferError> {
        let is_requested = |name: &str| {
            expected.requested.is_empty() || expected.requested.iter().any(|requested| requested.name == name)
        };
        let wanted: Vec<&ModelOutput> = self.outputs.iter().filter(|output| is_requested(&output.name)).collect();
        let names = || wanted.iter().map(|output| format!("'{}'", output.name)).collect::<Vec<_>>().join(", ");
        let windows = expected.windows_of.map(|texts| self.check_windows(tensors, texts)).transpose()?;
        let expected = &ExpectedAnswer { rows: windows.or(expected.rows), ..*expected };
        let is_beside = |name: &str| windows.is_some() && name == WINDOWS && wanted.iter().all(|own| own.name != name);
        for (number, tensor) in tensors.iter().enumerate() {
            if is_beside(tensor.name()) {
                continue;
            }
            let is_twice = tensors[..number].iter().any(|before| before.name() == tensor.name());
            let Some(output) = wanted.iter().find(|output| output.name == tensor.name() && !is_twice) else {
                let what = if is_twice { "twice" } else { "that the request did not ask for" };
                return Err(self.fault(&format!("has output '{}' {what}, expected {}", tensor.name(), names())));
            };
            self.check_output(tensor, output, expected)?;
        }
        let is_there = |output: &ModelOutput| tensors.iter().any(|tensor| tensor.name() == output.name);
        match wanted.iter().find(|output| !is_there(output)) {
            Some(missing) if !expected.in_parts && !expected.by_user_code => {
                Err(self.fault(&format!("has no output '{}', expected {}", missing.name, names())))
            }
            _ => Ok(()),
        }
    }

    /// The rows of an answer with a row for each window of so many texts.
    fn check_windows(&self, tensors: &[Tensor], texts: usize) -> Result<i64, InferError> {
        let tensor = tensors.iter().find(|tensor| tensor.name() == WINDOWS);
        let tensor = tensor
            .ok_or_else(|| self.fault(&format!("has no tensor '{WINDOWS}', which tells the text of each row")))?;
        let windows = Window::read(tensor)?;
        match windows.last().map_or(0, |last| last.text + 1) {
            found if found == texts => Ok(windows.len() as i64),
            found => {
                Err(self.fault(&format!("has windows of {found} texts, expected those of the {texts} in the request")))
            }
        }
    }

    fn check_output(
        &self,
        tensor: &Tensor,
        output: &ModelOutput,
        expected: &ExpectedAnswer<'_>,
    ) -> Result<(), InferError> {
        let (name, shape) = (tensor.name(), tensor.shape());
        if !expected.by_user_code {
            let declared = self.full_shape(&output.dims);
            let is_cut = |shape: &[i64]| {
                let (Some((last, rest)), Some(dimensions)) = (shape.split_last(), expected.dimensions) else {
                    return false;
                };
                u64::try_from(*last) == Ok(dimensions)
                    && declared.split_last().is_some_and(|(_, declared)| Shape::from(declared).accepts(rest))
            };
            if tensor.datatype() != output.datatype || !(declared.accepts(shape) || is_cut(shape)) {
                return Err(self.fault(&format!(
                    "has output '{name}' of datatype {} and shape {shape}, expected {} and {declared}",
                    tensor.datatype(),
                    output.datatype
                )));
            }
        }
        match expected.rows {
            Some(rows) if shape.first() != Some(&rows) => {
                Err(self
                    .fault(&format!("has output '{name}' of shape {shape}, expected {rows} rows as in the request")))
            }
            _ => Ok(()),
        }
    }

    fn fault(&self, what: &str) -> InferError {
        InferError::internal(format!("the answer of model '{}' {what}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: ExpectedAnswer<'static> = ExpectedAnswer {
        requested: &[],
        rows: Some(2),
        windows_of: None,
        dimensions: None,
        in_parts: false,
        by_user_code: false,
    };

    fn config() -> ModelConfig {
        let text = "backend: 'identity' max_batch_size: 8 input { name: 'X' data_type: TYPE_FP32 dims: 1 }
             output [ { name: 'Y' data_type: TYPE_FP32 dims: [-1] }, { name: 'Z' data_type: TYPE_INT64 dims: [1] } ]";
        ModelConfig::parse(text, "m").unwrap_or_else(|error| panic!("{error}"))
    }

    fn y(rows: i64, width: i64) -> Tensor {
        Tensor::from_values("Y", [rows, width], vec![0f32; (rows * width) as usize]).unwrap()
    }

    fn z(rows: i64) -> Tensor {
        Tensor::from_values("Z", [rows, 1], vec![0i64; rows as usize]).unwrap()
    }

    #[track_caller]
    fn refused(tensors: &[Tensor], expected: &ExpectedAnswer<'_>, why: &str) {
        let error = config().check_answer(tensors, expected).unwrap_err();
        assert_eq!(error.code, trireme_inference::ErrorCode::Internal);
        assert_eq!(error.message, format!("the answer of model 'm' {why}"));
    }

    #[test]
    fn names_rows_datatypes_and_shapes_of_an_answer_are_those_of_the_model() {
        config().check_answer(&[z(2), y(2, 5)], &ASKED).unwrap();
        refused(&[y(2, 5)], &ASKED, "has no output 'Z', expected 'Y', 'Z'");
        refused(&[y(2, 5), z(2), z(2)], &ASKED, "has output 'Z' twice, expected 'Y', 'Z'");
        let other = z(2).renamed("W");
        refused(&[other, y(2, 1)], &ASKED, "has output 'W' that the request did not ask for, expected 'Y', 'Z'");
        refused(&[y(3, 5), z(3)], &ASKED, "has output 'Y' of shape [3,5], expected 2 rows as in the request");
        let datatype = "has output 'Y' of datatype INT64 and shape [2,1], expected FP32 and [-1,-1]";
        refused(&[z(2).renamed("Y"), z(2)], &ASKED, datatype);
        let wide = Tensor::from_values("Z", [2, 2], vec![0i64; 4]).unwrap();
        let shape = "has output 'Z' of datatype INT64 and shape [2,2], expected INT64 and [-1,1]";
        refused(&[y(2, 1), wide], &ASKED, shape);
    }

    #[test]
    fn an_answer_has_the_outputs_that_were_asked_for() {
        let requested = [RequestedOutput { name: "Z".into(), classification: 0 }];
        let asked = ExpectedAnswer { requested: &requested, ..ASKED };
        config().check_answer(&[z(2)], &asked).unwrap();
        refused(&[y(2, 1), z(2)], &asked, "has output 'Y' that the request did not ask for, expected 'Z'");
    }

    #[test]
    fn embeddings_are_as_wide_as_the_request_asks() {
        let text = "backend: 'identity' max_batch_size: 8 input { name: 'X' data_type: TYPE_FP32 dims: 1 }
             output { name: 'Y' data_type: TYPE_FP32 dims: 8 }";
        let config = ModelConfig::parse(text, "m").unwrap_or_else(|error| panic!("{error}"));
        let cut = ExpectedAnswer { dimensions: Some(4), ..ASKED };
        assert!(config.check_answer(&[y(2, 4)], &cut).is_ok() && config.check_answer(&[y(2, 8)], &cut).is_ok());
        assert!(config.check_answer(&[y(2, 5)], &cut).is_err() && config.check_answer(&[y(2, 4)], &ASKED).is_err());
    }

    #[test]
    fn user_code_chooses_datatypes_and_shapes_and_parts_have_some_outputs() {
        let free = ExpectedAnswer { by_user_code: true, ..ASKED };
        config().check_answer(&[z(2).renamed("Y")], &free).unwrap();
        refused(&[y(1, 1)], &free, "has output 'Y' of shape [1,1], expected 2 rows as in the request");
        let part = ExpectedAnswer { in_parts: true, rows: None, ..ASKED };
        config().check_answer(&[y(1, 1)], &part).unwrap();
    }
    #[test]
    fn an_answer_of_windows_has_a_row_for_each_and_says_of_which_text() {
        let kept = ExpectedAnswer { rows: None, windows_of: Some(2), ..ASKED };
        let windows = |texts: [i64; 3]| {
            let numbers: Vec<i64> = texts.iter().flat_map(|&text| [text, 0, 5, 0, 5, 3]).collect();
            Tensor::from_values(WINDOWS, [3, 6], numbers).unwrap()
        };
        config().check_answer(&[y(3, 5), z(3), windows([0, 0, 1])], &kept).unwrap();
        refused(&[y(3, 5), z(3)], &kept, "has no tensor 'windows', which tells the text of each row");
        let few = "has output 'Y' of shape [2,5], expected 3 rows as in the request";
        refused(&[y(2, 5), z(3), windows([0, 0, 1])], &kept, few);
        let texts = "has windows of 1 texts, expected those of the 2 in the request";
        refused(&[y(3, 5), z(3), windows([0, 0, 0])], &kept, texts);
        let other = "has output 'windows' that the request did not ask for, expected 'Y', 'Z'";
        refused(&[y(2, 5), z(2), windows([0, 0, 1])], &ASKED, other);
    }
}
