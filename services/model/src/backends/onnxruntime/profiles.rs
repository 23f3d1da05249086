//! TensorRT's shape profiles, from the model's inputs.
//!
//! Without profiles TensorRT builds an engine for the shapes of the first run, and another one each time a run has larger or
//! smaller shapes. That takes minutes, and requests wait for it. With profiles it builds one engine when the model is loaded. A
//! run outside of the profiles is refused.

use std::collections::BTreeMap;

use trireme_engine::ExecuteRequest;
use trireme_inference::TensorSpec;
use trireme_model_repository::ModelConfig;

use crate::batcher::cost::DEFAULT_TOKEN_BUDGET;
use crate::batcher::{Declaration, USUAL_LENGTH};

/// The provider's options for profiles begin so.
pub const PREFIX: &str = "trt_profile_";

/// The longest text, if no sample is longer: the positions of most encoders.
const LONGEST: i64 = 512;

/// The checks while a model is loaded run two rows.
const LEAST_ROWS: u32 = 2;

/// Profiles for the `inputs` of the model itself that have open dimensions: of one row and one token, of the most rows and the
/// longest text, and of the first of `samples`, or else of a usual run. Empty if the most rows are not known, or if an input's
/// name cannot be written in the option.
pub fn derive(
    inputs: &[TensorSpec],
    config: &ModelConfig,
    declaration: Option<&Declaration>,
    samples: &[ExecuteRequest],
) -> BTreeMap<String, String> {
    let open: Vec<_> = inputs.iter().filter(|input| input.shape.contains(&-1)).collect();
    let most_rows = match (config.max_batch_size, declaration) {
        (0, None) => return BTreeMap::new(),
        (0, Some(declaration)) => declaration.max_rows,
        (rows, _) => rows,
    };
    let most_rows = most_rows.max(LEAST_ROWS);
    if open.is_empty() || open.iter().any(|input| input.name.contains([':', ','])) {
        return BTreeMap::new();
    }
    // The configuration may give a size that the model leaves open.
    let fixed = |input: &TensorSpec, axis: usize| {
        let declared = config.inputs.iter().find(|declared| declared.name == input.name)?;
        let dims = config.full_shape(declared.reshape.as_ref().unwrap_or(&declared.dims));
        dims.get(axis).copied().filter(|&dim| dim > 0)
    };
    let in_sample = |sample: &ExecuteRequest, input: &TensorSpec, axis: usize| {
        let shape = sample.inputs.iter().find(|tensor| tensor.name() == &*input.name)?.shape();
        (shape.len() == input.shape.len()).then(|| shape[axis])
    };
    let lengths = open.iter().flat_map(|input| {
        let axes = (1..input.shape.len()).filter(|&axis| input.shape[axis] == -1);
        axes.flat_map(move |axis| samples.iter().filter_map(move |sample| in_sample(sample, input, axis)))
    });
    let longest = lengths.max().unwrap_or(0).max(LONGEST);
    let budget = declaration.and_then(|declaration| declaration.token_budget).unwrap_or(DEFAULT_TOKEN_BUDGET);
    let usual = |axis: usize| i64::from(if axis == 0 { (budget / USUAL_LENGTH).min(most_rows) } else { USUAL_LENGTH });

    let least = |input: &TensorSpec, axis: usize| fixed(input, axis).unwrap_or(1);
    let most = |input: &TensorSpec, axis: usize| {
        fixed(input, axis).unwrap_or(if axis == 0 { most_rows.into() } else { longest })
    };
    let best = |input: &TensorSpec, axis: usize| {
        let wanted = samples.first().and_then(|sample| in_sample(sample, input, axis)).unwrap_or_else(|| usual(axis));
        wanted.clamp(least(input, axis), most(input, axis))
    };
    let profile = |size: &dyn Fn(&TensorSpec, usize) -> i64| {
        let shape = |input: &&TensorSpec| {
            let dims =
                input.shape.iter().enumerate().map(|(axis, &dim)| if dim == -1 { size(input, axis) } else { dim });
            format!("{}:{}", input.name, dims.map(|dim| dim.to_string()).collect::<Vec<_>>().join("x"))
        };
        open.iter().map(shape).collect::<Vec<_>>().join(",")
    };
    [("min", profile(&least)), ("opt", profile(&best)), ("max", profile(&most))]
        .map(|(which, shapes)| (format!("{PREFIX}{which}_shapes"), shapes))
        .into()
}

#[cfg(test)]
mod tests {
    use trireme_inference::{DataType, Tensor};

    use super::*;

    const INPUTS: &str = "input [{ name: 'ids' data_type: TYPE_INT64 dims: [-1] }, \
                          { name: 'mask' data_type: TYPE_INT64 dims: [-1] }]";
    const OUTPUT: &str = "output [{ name: 'y' data_type: TYPE_FP32 dims: [8] }]";
    const PADDED: &str = "parameters { key: 'pad_inputs' value { string_value: 'ids:0, mask:0' } }";

    fn spec(name: &str, shape: &[i64]) -> TensorSpec {
        TensorSpec { name: name.into(), datatype: DataType::Int64, shape: shape.to_vec().into(), optional: false }
    }

    fn profiles(text: &str, inputs: &[TensorSpec], samples: &[(i64, i64)]) -> Option<[String; 3]> {
        let config = ModelConfig::parse(&format!("backend: 'onnxruntime' {text} {OUTPUT}"), "m").unwrap();
        let declaration = Declaration::parse(&config).unwrap();
        let sample = |&(rows, length): &(i64, i64)| {
            let tensors = inputs.iter().map(|input| {
                Tensor::from_values(&*input.name, [rows, length], vec![1i64; (rows * length) as usize]).unwrap()
            });
            ExecuteRequest::made_up("test", tensors.collect(), ["y"])
        };
        let samples: Vec<_> = samples.iter().map(sample).collect();
        let mut options = derive(inputs, &config, declaration.as_ref(), &samples);
        let mut take = |which: &str| options.remove(&format!("trt_profile_{which}_shapes"));
        let profiles = [take("min")?, take("opt")?, take("max")?];
        assert!(options.is_empty(), "{options:?}");
        Some(profiles)
    }

    #[test]
    fn profiles_reach_from_one_token_to_the_largest_run() {
        let inputs = [spec("ids", &[-1, -1]), spec("mask", &[-1, -1]), spec("scale", &[1])];
        let found = profiles(&format!("max_batch_size: 64 {INPUTS} {PADDED}"), &inputs, &[]).unwrap();
        assert_eq!(found, ["ids:1x1,mask:1x1", "ids:32x32,mask:32x32", "ids:64x512,mask:64x512"]);
        let few = profiles(&format!("max_batch_size: 1 {INPUTS}"), &inputs, &[]).unwrap();
        assert_eq!(few, ["ids:1x1,mask:1x1", "ids:2x32,mask:2x32", "ids:2x512,mask:2x512"]);
    }

    #[test]
    fn samples_say_what_is_usual_and_may_be_longer() {
        let inputs = [spec("ids", &[-1, -1]), spec("mask", &[-1, -1])];
        let text = format!("max_batch_size: 16 {INPUTS}");
        let found = profiles(&text, &inputs, &[(8, 100), (1, 2048), (2, 5)]).unwrap();
        assert_eq!(found[1..], ["ids:8x100,mask:8x100", "ids:16x2048,mask:16x2048"]);
        let short = profiles(&text, &inputs, &[(1, 4)]).unwrap();
        assert_eq!(short[1..], ["ids:1x4,mask:1x4", "ids:16x512,mask:16x512"], "other requests are longer");
    }

    #[test]
    fn sizes_in_the_configuration_count_and_so_does_the_declared_maximum_of_rows() {
        let fixed = INPUTS.replace("dims: [-1]", "dims: [128]");
        let inputs = [spec("ids", &[-1, -1]), spec("mask", &[-1, -1])];
        let found = profiles(&format!("max_batch_size: 4 {fixed}"), &inputs, &[]).unwrap();
        assert_eq!(found, ["ids:1x128,mask:1x128", "ids:4x128,mask:4x128", "ids:4x128,mask:4x128"]);

        let explicit = INPUTS.replace("dims: [-1]", "dims: [-1, -1]");
        let rows = "parameters { key: 'max_rows' value { string_value: '24' } }";
        let declared = format!("{explicit} {PADDED} {rows}");
        let config = format!("backend: 'onnxruntime' {declared} {}", OUTPUT.replace("[8]", "[-1, 8]"));
        let config = ModelConfig::parse(&config, "m").unwrap();
        let declaration = Declaration::parse(&config).unwrap();
        let found = derive(&inputs, &config, declaration.as_ref(), &[]);
        assert_eq!(found["trt_profile_max_shapes"], "ids:24x512,mask:24x512");
    }

    #[test]
    fn what_cannot_be_known_or_written_has_no_profiles() {
        let inputs = [spec("ids", &[-1, -1]), spec("mask", &[-1, -1])];
        let explicit = INPUTS.replace("dims: [-1]", "dims: [-1, -1]");
        assert_eq!(profiles(&explicit, &inputs, &[(2, 3)]), None, "any number of rows");
        let colon = [spec("ids:0", &[-1, -1])];
        assert_eq!(profiles(&format!("max_batch_size: 4 {}", INPUTS.replace("'ids'", "'ids:0'")), &colon, &[]), None);
        assert_eq!(profiles(&format!("max_batch_size: 4 {INPUTS}"), &[spec("ids", &[4, 4])], &[]), None);
    }
}
