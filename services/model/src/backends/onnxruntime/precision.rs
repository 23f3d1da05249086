//! Compares an accelerated model with the plain fp32 model on the CPU, before it serves.
//!
//! The plain model runs first. Only its outputs are kept, so that the two models need not be in memory together.
//!
//! The inputs are the model's warm-up samples or, without any, random tokens of a few lengths. The comparison is of the
//! direction of each row of each floating-point output (of the whole output, if rows are short), because embeddings and
//! scores are used by their direction. The worst row counts.

use bytes::Bytes;
use trireme_engine::{ExecuteRequest, LoadError, ModelInstance};
use trireme_inference::{DataType, InferError, Tensor, TensorSpec};
use trireme_model_repository::ModelConfig;

use super::settings::PrecisionCheck;
use super::tasks;

/// Rows and lengths of made-up requests.
const SIZES: [(i64, i64); 3] = [(1, 8), (2, 32), (1, 96)];

/// Made-up tokens are below the first of these numbers for which the model's vocabulary is large enough.
const VOCABULARIES: [u64; 3] = [1000, 100, 2];

/// Rows with fewer elements are compared together: the direction of one or two numbers means little.
const SHORT_ROW: usize = 16;

/// The difference between two runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// The lowest cosine of a row.
    pub min_cosine: f64,
    /// The largest difference of an element.
    pub max_difference: f64,
    /// Number of rows compared.
    pub rows: usize,
}

/// The requests of a comparison, with the plain model's outputs.
pub struct Expected {
    requests: Vec<ExecuteRequest>,
    outputs: Vec<Vec<Tensor>>,
}

/// Compares `accelerated` with what the plain model gave. It refuses or warns according to `check`. `provider` names the
/// accelerator and its place, for the message.
pub fn check(
    config: &ModelConfig,
    check: PrecisionCheck,
    expected: &Expected,
    provider: &str,
    accelerated: &mut dyn ModelInstance,
) -> Result<(), LoadError> {
    let refused = |reason: String| refused(config, reason);
    let mut worst = Comparison { min_cosine: 1.0, max_difference: 0.0, rows: 0 };
    for (request, expected) in expected.requests.iter().zip(&expected.outputs) {
        let found = run(accelerated, request);
        let found = found.map_err(|error| refused(format!("{provider} cannot run: {}", error.message)))?;
        for expected in expected {
            let found = found.iter().find(|found| found.name() == expected.name());
            let missing = || refused(format!("output '{}' of {provider} is missing", expected.name()));
            worst = worst.and(compare(expected, found.ok_or_else(missing)?).map_err(refused)?);
        }
    }
    let Comparison { min_cosine, max_difference, rows } = worst;
    if rows == 0 {
        return Err(refused(
            "the model has no floating point output to compare; set 'precision_check' to off".to_owned(),
        ));
    }
    if min_cosine >= check.min_cosine {
        tracing::info!(model = config.name, provider, min_cosine, max_difference, rows, "precision check passed");
        return Ok(());
    }
    let fault = format!(
        "the lowest cosine to the plain fp32 run on the CPU is {min_cosine:.6}, less than {} (largest difference \
         {max_difference:.3e}, {rows} rows, run by {provider})",
        check.min_cosine
    );
    match check.refuse {
        true => Err(refused(format!(
            "{fault}; ask the accelerator for more precision, lower 'precision_min_cosine', or set 'precision_check' to warn"
        ))),
        false => {
            tracing::warn!(model = config.name, "precision check: {fault}");
            Ok(())
        }
    }
}

fn refused(config: &ModelConfig, reason: String) -> LoadError {
    LoadError::Backend { model: config.name.clone(), reason: format!("precision check: {reason}") }
}

// === impl Expected ===

impl Expected {
    /// Runs `plain` on `samples`, or on made-up requests if there are none.
    pub fn new(
        config: &ModelConfig,
        samples: Vec<ExecuteRequest>,
        plain: &mut dyn ModelInstance,
    ) -> Result<Expected, LoadError> {
        let (requests, outputs) = run_plain(config, samples, plain).map_err(|reason| refused(config, reason))?;
        Ok(Expected { requests, outputs })
    }
}

/// The requests, with the outputs of `plain`.
fn run_plain(
    config: &ModelConfig,
    samples: Vec<ExecuteRequest>,
    plain: &mut dyn ModelInstance,
) -> Result<(Vec<ExecuteRequest>, Vec<Vec<Tensor>>), String> {
    let mut run_all = |requests: &[ExecuteRequest]| -> Result<Vec<Vec<Tensor>>, InferError> {
        requests.iter().map(|request| run(plain, request)).collect()
    };
    if !samples.is_empty() {
        let outputs = run_all(&samples).map_err(|error| format!("cannot run the plain model: {}", error.message))?;
        return Ok((samples, outputs));
    }
    let mut why = String::new();
    for vocabulary in VOCABULARIES {
        let requests = SIZES.iter().map(|&(rows, length)| made_up(config, rows, length, vocabulary));
        let requests = requests.collect::<Result<Vec<_>, _>>()?;
        match run_all(&requests) {
            Ok(outputs) => return Ok((requests, outputs)),
            Err(error) => why = error.message,
        }
    }
    Err(format!("no request could be made up that the model takes: {why}; declare one as model_warmup"))
}

fn run(instance: &mut dyn ModelInstance, request: &ExecuteRequest) -> Result<Vec<Tensor>, InferError> {
    let result = instance.execute(std::slice::from_ref(request)).pop();
    result.unwrap_or_else(|| Err(InferError::internal("no result"))).map(|response| response.outputs)
}

fn made_up(config: &ModelConfig, rows: i64, length: i64, vocabulary: u64) -> Result<ExecuteRequest, String> {
    let rows = if config.max_batch_size > 0 { rows.min(config.max_batch_size.into()) } else { rows };
    let inputs = config.input_specs().into_iter().map(|spec| made_up_input(&spec, rows, length, vocabulary));
    let inputs = inputs.collect::<Result<_, _>>()?;
    let outputs = config.outputs.iter().map(|output| &output.name);
    Ok(tasks::of_first_task(ExecuteRequest::made_up("precision check", inputs, outputs)))
}

/// Random tokens; ones for masks, zeros for segments, ascending numbers for positions; random floats.
fn made_up_input(spec: &TensorSpec, rows: i64, length: i64, vocabulary: u64) -> Result<Tensor, String> {
    const LARGEST: i64 = 1 << 24;
    let size = |(axis, &dim): (usize, &i64)| match (axis, dim) {
        (0, -1) => rows,
        (_, -1) => length,
        (_, dim) => dim,
    };
    let shape: Vec<i64> = spec.shape.iter().enumerate().map(size).collect();
    let count = shape.iter().try_fold(1i64, |count, dim| count.checked_mul(*dim)).filter(|count| *count <= LARGEST);
    let count =
        count.ok_or_else(|| format!("input '{}' is too large to make up; declare it as model_warmup", spec.name))?;
    let lower = spec.name.to_lowercase();
    let columns = shape.last().copied().unwrap_or(1).max(1) as u64;
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ spec.name.len() as u64;
    let mut next = || {
        // xorshift: only its variety matters here.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    };
    let mut integer = |index: u64| match () {
        () if lower.contains("mask") => 1,
        () if lower.contains("type") || lower.contains("segment") => 0,
        () if lower.contains("position") => index % columns,
        () => next() % vocabulary,
    };
    let mut data = Vec::new();
    for index in 0..count as u64 {
        let whole = integer(index);
        let fraction = (whole as f64 / vocabulary as f64) as f32;
        match spec.datatype {
            DataType::Bytes => {
                return Err(format!("input '{}' of strings cannot be made up; declare it as model_warmup", spec.name));
            }
            DataType::Fp16 => data.extend(half::f16::from_f32(fraction).to_le_bytes()),
            DataType::Bf16 => data.extend(half::bf16::from_f32(fraction).to_le_bytes()),
            DataType::Fp32 => data.extend(fraction.to_le_bytes()),
            DataType::Fp64 => data.extend(f64::from(fraction).to_le_bytes()),
            DataType::Bool => data.push((whole & 1) as u8),
            datatype => {
                let size = datatype.element_size().unwrap_or(1);
                data.extend_from_slice(&(whole & if size == 1 { 0x7f } else { u64::MAX }).to_le_bytes()[..size]);
            }
        }
    }
    Tensor::new(spec.name.clone(), spec.datatype, shape, Bytes::from(data)).map_err(|error| error.to_string())
}

/// Compares one output. An output that is not floating point has no direction.
fn compare(expected: &Tensor, found: &Tensor) -> Result<Comparison, String> {
    if expected.shape() != found.shape() || expected.datatype() != found.datatype() {
        return Err(format!(
            "output '{}' is {} {}, of the plain model {} {}",
            expected.name(),
            found.datatype(),
            found.shape(),
            expected.datatype(),
            expected.shape()
        ));
    }
    let (Some(expected_values), Some(found_values)) = (floats(expected), floats(found)) else {
        return Ok(Comparison { min_cosine: 1.0, max_difference: 0.0, rows: 0 });
    };
    let rows = expected.shape().first().map_or(1, |&rows| rows.max(1) as usize);
    let width = match expected_values.len() / rows {
        width if width < SHORT_ROW => expected_values.len(),
        width => width,
    };
    let mut comparison = Comparison { min_cosine: 1.0, max_difference: 0.0, rows: 0 };
    for (left, right) in expected_values.chunks(width.max(1)).zip(found_values.chunks(width.max(1))) {
        let difference = left.iter().zip(right).map(|(l, r)| (l - r).abs());
        // A NaN is the largest difference; `max` and `min` would ignore it.
        let difference = difference.fold(0.0, |most: f64, d| if d.is_nan() { f64::INFINITY } else { most.max(d) });
        let cosine = cosine(left, right);
        comparison = comparison.and(Comparison {
            min_cosine: if cosine.is_nan() { -1.0 } else { cosine },
            max_difference: difference,
            rows: 1,
        });
    }
    Ok(comparison)
}

fn cosine(left: &[f64], right: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let length = (dot(left, left) * dot(right, right)).sqrt();
    if length == 0.0 {
        return if left == right { 1.0 } else { 0.0 };
    }
    dot(left, right) / length
}

fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
    Some(match tensor.datatype() {
        DataType::Fp16 => tensor.values::<half::f16>().ok()?.iter().map(|v| v.to_f64()).collect(),
        DataType::Bf16 => tensor.values::<half::bf16>().ok()?.iter().map(|v| v.to_f64()).collect(),
        DataType::Fp32 => tensor.values::<f32>().ok()?.iter().map(|&v| f64::from(v)).collect(),
        DataType::Fp64 => tensor.values::<f64>().ok()?.to_vec(),
        _ => return None,
    })
}

// === impl Comparison ===

impl Comparison {
    fn and(self, other: Comparison) -> Comparison {
        Comparison {
            min_cosine: self.min_cosine.min(other.min_cosine),
            max_difference: self.max_difference.max(other.max_difference),
            rows: self.rows + other.rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use trireme_engine::ExecuteResponse;

    use super::*;

    /// Returns its values, scaled and bent.
    struct Fake {
        bend: f32,
    }

    impl ModelInstance for Fake {
        fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
            let answer = |request: &ExecuteRequest| {
                let input = &request.inputs[0];
                let values = input.values::<i64>().unwrap();
                if values.iter().any(|token| *token >= 100) {
                    return Err(InferError::invalid_arg("index out of bounds"));
                }
                let values = values.iter().enumerate().map(|(i, &v)| v as f32 + if i == 3 { self.bend } else { 0.0 });
                let output = Tensor::from_values("y", input.shape().clone(), values.collect::<Vec<_>>()).unwrap();
                Ok(ExecuteResponse { outputs: vec![output], ..ExecuteResponse::default() })
            };
            requests.iter().map(answer).collect()
        }
    }

    fn config() -> ModelConfig {
        let text = "backend: 'onnxruntime' input [{ name: 'input_ids' data_type: TYPE_INT64 dims: [-1, -1] }]
            output [{ name: 'y' data_type: TYPE_FP32 dims: [-1, -1] }]";
        ModelConfig::parse(text, "m").unwrap()
    }

    fn outcome(bend: f32, refuse: bool) -> Result<(), String> {
        let asked = PrecisionCheck { min_cosine: 0.9999, refuse };
        let expected = Expected::new(&config(), Vec::new(), &mut Fake { bend: 0.0 }).unwrap();
        check(&config(), asked, &expected, "SomeProvider on GPU 1", &mut Fake { bend })
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_model_that_is_bent_is_refused_or_warned_of() {
        assert_eq!(outcome(0.0, true), Ok(()));
        let refused = outcome(500.0, true).unwrap_err();
        assert!(
            refused.starts_with("model 'm': precision check: the lowest cosine to the plain fp32 run"),
            "{refused}"
        );
        assert!(refused.contains("less than 0.9999") && refused.contains("run by SomeProvider on GPU 1)"), "{refused}");
        assert_eq!(outcome(500.0, false), Ok(()));
        assert!(outcome(f32::NAN, true).unwrap_err().contains("is -1.000000"));
    }

    #[test]
    fn made_up_inputs_suit_text_models() {
        let spec =
            |name: &str, datatype| TensorSpec { name: name.into(), datatype, shape: [-1, -1].into(), optional: false };
        let of = |name: &str| {
            made_up_input(&spec(name, DataType::Int64), 2, 4, 1000).unwrap().values::<i64>().unwrap().to_vec()
        };
        assert_eq!(of("attention_mask"), [1; 8]);
        assert_eq!(of("token_type_ids"), [0; 8]);
        assert_eq!(of("position_ids"), [0, 1, 2, 3, 0, 1, 2, 3]);
        let tokens = of("input_ids");
        assert!(tokens.iter().all(|token| (0..1000).contains(token)) && tokens[0] != tokens[1]);
        for datatype in DataType::ALL.into_iter().filter(|datatype| *datatype != DataType::Bytes) {
            assert_eq!(made_up_input(&spec("x", datatype), 2, 4, 1000).unwrap().element_count(), 8);
        }
        assert!(made_up_input(&spec("x", DataType::Bytes), 2, 4, 1000).unwrap_err().contains("model_warmup"));
    }

    #[test]
    fn rows_count_each_unless_they_are_short() {
        let tensor = |rows: i64, values: &[f32]| {
            Tensor::from_values("y", [rows, values.len() as i64 / rows], values.to_vec()).unwrap()
        };
        let (one, mut other) = ([1f32; 64], [1f32; 64]);
        other[32..48].fill(-1.0);
        let by_row = compare(&tensor(2, &one), &tensor(2, &other)).unwrap();
        assert_eq!((by_row.rows, by_row.min_cosine, by_row.max_difference), (2, 0.0, 2.0));
        let scores = compare(&tensor(2, &[1.0, 2.0]), &tensor(2, &[1.0, 2.0])).unwrap();
        assert_eq!((scores.rows, scores.max_difference), (1, 0.0));
        assert!(
            compare(&tensor(2, &one), &tensor(1, &one))
                .unwrap_err()
                .contains("FP32 [1,64], of the plain model FP32 [2,32]")
        );
    }
}
