//! `model_warmup`: made-up requests that every instance runs before its model is ready, so that the first real one does
//! not pay for lazy allocations and thread starts.

use std::path::Path;

use bytes::Bytes;
use trireme_inference::{DataType, InferError, Shape, Tensor};
use trireme_model_repository::{ModelConfig, ModelWarmup, WarmupData, WarmupInput};

use crate::activity::doing;
use crate::backend::LoadError;
use crate::instance::{ModelInstance, Progress, StepwiseInstance};
use crate::request::ExecuteRequest;

/// The most bytes of one made-up input.
const MAX_INPUT_BYTES: u64 = 1 << 30;

/// The most steps that a sample may take.
const MAX_STEPS: usize = 100_000;

/// Runs the configuration's warm-up samples on `instance`. Files come from `warmup` in `model_path`.
pub fn run(config: &ModelConfig, model_path: &Path, instance: &mut dyn ModelInstance) -> Result<(), LoadError> {
    run_with(config, model_path, |request| {
        instance.execute(std::slice::from_ref(&request)).into_iter().try_for_each(|result| result.map(|_| ()))
    })
}

/// The same on an instance that works step by step.
pub fn run_stepwise(
    config: &ModelConfig,
    model_path: &Path,
    instance: &mut dyn StepwiseInstance,
) -> Result<(), LoadError> {
    run_with(config, model_path, |request| {
        instance.join(0, request)?;
        for _ in 0..MAX_STEPS {
            for (_, progress) in instance.step() {
                if let Progress::Done(result) = progress {
                    return result.map(|_| ());
                }
            }
        }
        instance.leave(0);
        Err(InferError::internal(format!("not done after {MAX_STEPS} steps")))
    })
}

fn run_with(
    config: &ModelConfig,
    model_path: &Path,
    mut execute: impl FnMut(ExecuteRequest) -> Result<(), InferError>,
) -> Result<(), LoadError> {
    for (sample, request) in samples(config, model_path)? {
        for run in 1..=sample.count.max(1) {
            let shapes: Vec<String> =
                request.inputs.iter().map(|input| format!("{} {}", input.name(), input.shape())).collect();
            doing(format!(
                "warm-up sample '{}', run {run} of {}: {}",
                sample.name,
                sample.count.max(1),
                shapes.join(", ")
            ));
            execute(request.clone()).map_err(|error| failed(config, sample, error.message))?;
        }
    }
    Ok(())
}

/// The configuration's warm-up samples with the requests they stand for.
///
/// ```
/// # use std::path::Path;
/// use trireme_engine::warmup::samples;
/// use trireme_model_repository::ModelConfig;
///
/// let config = ModelConfig::parse(
///     "backend: 'identity' max_batch_size: 8
///      model_warmup { name: 'zeros' batch_size: 4
///        inputs { key: 'x' value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } }",
///     "m",
/// )?;
/// let samples = samples(&config, Path::new("models/m"))?;
/// assert_eq!(samples[0].1.inputs[0].shape()[..], [4, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn samples<'c>(
    config: &'c ModelConfig,
    model_path: &Path,
) -> Result<Vec<(&'c ModelWarmup, ExecuteRequest)>, LoadError> {
    let files = model_path.join("warmup");
    let samples = config.warmup.iter().filter(|sample| sample.batch_size > 0);
    let read = |sample| match request(config, sample, &files) {
        Ok(request) => Ok((sample, request)),
        Err(reason) => Err(failed(config, sample, reason)),
    };
    samples.map(read).collect()
}

/// The first of the samples, for the canary.
pub fn first(config: &ModelConfig, model_path: &Path) -> Result<Option<ExecuteRequest>, LoadError> {
    Ok(samples(config, model_path)?.into_iter().next().map(|(_, request)| request))
}

fn failed(config: &ModelConfig, sample: &ModelWarmup, reason: String) -> LoadError {
    let reason = format!("failed to run warmup sample '{}': {reason}", sample.name);
    LoadError::Backend { model: config.name.clone(), reason }
}

fn request(config: &ModelConfig, sample: &ModelWarmup, files: &Path) -> Result<ExecuteRequest, String> {
    let rows = match config.max_batch_size {
        0 => None,
        max if sample.batch_size > max => {
            return Err(format!("batch_size {} exceeds max_batch_size {max}", sample.batch_size));
        }
        _ => Some(sample.batch_size),
    };
    let inputs = sample.inputs.iter().map(|(name, input)| tensor(name, input, rows, files));
    let hidden =
        config.inputs.iter().filter(|input| config.hides(&input.name) && !sample.inputs.contains_key(&input.name));
    let inputs = inputs.chain(hidden.map(|input| {
        let dims = input.dims.iter().map(|&dim| dim.max(1)).collect::<Vec<_>>().as_slice().into();
        let zeros = WarmupInput { datatype: input.datatype, dims, data: WarmupData::Zero };
        tensor(&input.name, &zeros, rows, files)
    }));
    let (id, inputs) = (format!("warmup {}", sample.name), inputs.collect::<Result<_, _>>()?);
    Ok(ExecuteRequest::made_up(id, inputs, config.outputs.iter().map(|output| &output.name)))
}

fn tensor(name: &str, input: &WarmupInput, rows: Option<u32>, files: &Path) -> Result<Tensor, String> {
    let shape = rows.map_or_else(|| input.dims.clone(), |rows| input.dims.prepend(i64::from(rows)));
    let data = match &input.data {
        WarmupData::Zero => zeros(name, input.datatype, &shape)?,
        WarmupData::Random => randomize(input.datatype, zeros(name, input.datatype, &shape)?),
        WarmupData::File(file) => {
            let path = files.join(file);
            std::fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?
        }
    };
    Tensor::new(name, input.datatype, shape, Bytes::from(data)).map_err(|error| error.to_string())
}

/// Zero bytes for a tensor; a zero length prefix is an empty string.
fn zeros(name: &str, datatype: DataType, shape: &Shape) -> Result<Vec<u8>, String> {
    let count =
        shape.element_count().ok_or_else(|| format!("input '{name}' needs a shape without -1, found {shape}"))?;
    let size = count.saturating_mul(datatype.element_size().unwrap_or(4) as u64);
    if size > MAX_INPUT_BYTES {
        return Err(format!("input '{name}' of shape {shape} takes {size} bytes, more than {MAX_INPUT_BYTES}"));
    }
    Ok(vec![0; size as usize])
}

/// Random zeros and ones: the numbers that are valid ids, masks, segments and flags alike, where larger ones would run out
/// of some embedding table. Floats are random between 0 and 1; strings stay empty. The same on every start.
fn randomize(datatype: DataType, mut data: Vec<u8>) -> Vec<u8> {
    let Some(size) = datatype.element_size() else { return data };
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for element in data.chunks_exact_mut(size) {
        // xorshift: only its variety matters here.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let fraction = (state >> 40) as f32 / (1u32 << 24) as f32;
        match datatype {
            DataType::Fp16 => element.copy_from_slice(&half::f16::from_f32(fraction).to_le_bytes()),
            DataType::Bf16 => element.copy_from_slice(&half::bf16::from_f32(fraction).to_le_bytes()),
            DataType::Fp32 => element.copy_from_slice(&fraction.to_le_bytes()),
            DataType::Fp64 => element.copy_from_slice(&f64::from(fraction).to_le_bytes()),
            _ => element[0] = (state >> 63) as u8,
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(datatype: DataType, dims: &[i64], data: WarmupData) -> WarmupInput {
        WarmupInput { datatype, dims: dims.into(), data }
    }

    #[test]
    fn zeros_have_the_batch_dimension_and_empty_strings() {
        let nowhere = Path::new("/nowhere");
        let zero = tensor("x", &input(DataType::Bytes, &[2], WarmupData::Zero), Some(3), nowhere).unwrap();
        assert_eq!(zero.shape()[..], [3, 2]);
        assert!(zero.bytes_elements().unwrap().all(<[u8]>::is_empty));
        let zero = tensor("x", &input(DataType::Int64, &[2], WarmupData::Zero), None, nowhere).unwrap();
        assert_eq!(*zero.values::<i64>().unwrap(), [0, 0]);
    }

    #[test]
    fn random_numbers_are_small() {
        for datatype in DataType::ALL {
            let random = tensor("x", &input(datatype, &[64], WarmupData::Random), None, Path::new("")).unwrap();
            match datatype {
                DataType::Int64 => {
                    let values = random.values::<i64>().unwrap().into_owned();
                    assert!(values.contains(&0) && values.contains(&1) && values.iter().all(|v| (0..=1).contains(v)));
                }
                DataType::Fp32 => {
                    let values = random.values::<f32>().unwrap().into_owned();
                    assert!(values.iter().all(|v| (0.0..1.0).contains(v)) && values[0] != values[1]);
                }
                _ => assert_eq!(random.element_count(), 64),
            }
        }
    }

    #[test]
    fn files_are_read_and_their_size_is_checked() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("x.bin"), [1u8, 2, 3, 4]).unwrap();
        let file = |dims: &[i64], name: &str| {
            let input = input(DataType::Uint8, dims, WarmupData::File(name.to_owned()));
            tensor("x", &input, None, directory.path())
        };
        assert_eq!(file(&[4], "x.bin").unwrap().data()[..], [1, 2, 3, 4]);
        assert_eq!(file(&[3], "x.bin").unwrap_err(), "tensor 'x' of datatype UINT8 and shape [3] takes 3 bytes, got 4");
        assert!(file(&[4], "y.bin").unwrap_err().starts_with("cannot read "));
    }

    #[test]
    fn open_and_absurd_shapes_are_refused() {
        let fail = |dims: &[i64]| zeros("x", DataType::Fp32, &dims.into()).unwrap_err();
        assert_eq!(fail(&[-1]), "input 'x' needs a shape without -1, found [-1]");
        assert_eq!(
            fail(&[1 << 40]),
            "input 'x' of shape [1099511627776] takes 4398046511104 bytes, more than 1073741824"
        );
    }
}
