//! Translates `optimization.execution_accelerators` to options of ONNX Runtime's execution providers.
//!
//! Names and parameters are Triton's. Unknown ones are errors, and so is an accelerator for the CPU of a model that has no instance there.
//! As in Triton, accelerators for GPUs have no effect where no instance is on a GPU; a warning says so. Whether the library has the
//! provider shows in [`super::providers`], when sessions are made.

use std::collections::BTreeMap;
use std::fmt;

use trireme_engine::LoadError;
use trireme_model_repository::{InstanceKind, ModelConfig};

use super::profiles;

/// A provider with its options for ONNX Runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// The provider.
    pub kind: AcceleratorKind,
    /// Its options.
    pub options: BTreeMap<String, String>,
}

/// The supported providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "their names say it")]
pub enum AcceleratorKind {
    OpenVino,
    Cuda,
    TensorRt,
}

/// The place of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstanceDevice {
    /// On the CPU.
    Cpu,
    /// On the GPU of this number.
    Gpu(i32),
}

/// The providers for the instances of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accelerators {
    /// For instances on the CPU, in order of preference.
    pub cpu: Vec<Accelerator>,
    /// For instances on GPUs; CUDA is always the last.
    pub gpu: Vec<Accelerator>,
}

/// A place for each instance of the configuration. A group of `KIND_GPU` that names no GPU has its count on each of `gpus`.
pub fn places(config: &ModelConfig, gpus: &[i32]) -> Vec<InstanceDevice> {
    let mut places = Vec::new();
    for group in &config.instance_groups {
        let count = group.count as usize;
        match group.kind {
            InstanceKind::Gpu => {
                let gpus = if group.gpus.is_empty() { gpus } else { &group.gpus };
                places.extend(gpus.iter().flat_map(|&gpu| std::iter::repeat_n(InstanceDevice::Gpu(gpu), count)));
            }
            _ => places.extend(std::iter::repeat_n(InstanceDevice::Cpu, count)),
        }
    }
    if places.is_empty() {
        places.push(InstanceDevice::Cpu);
    }
    places
}

/// The number of the first instance of each kind of place: those for which `kind` is different.
pub fn firsts<K: PartialEq>(places: &[InstanceDevice], kind: impl Fn(InstanceDevice) -> K) -> Vec<usize> {
    let is_first = |&at: &usize| places[..at].iter().all(|before| kind(*before) != kind(places[at]));
    (0..places.len()).filter(is_first).collect()
}

// === impl InstanceDevice ===

impl InstanceDevice {
    /// Whether it is a GPU, whatever its number.
    pub fn is_gpu(self) -> bool {
        matches!(self, InstanceDevice::Gpu(_))
    }
}

impl fmt::Display for InstanceDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InstanceDevice::Cpu => write!(f, "CPU"),
            InstanceDevice::Gpu(number) => write!(f, "GPU {number}"),
        }
    }
}

// === impl AcceleratorKind ===

impl AcceleratorKind {
    /// The provider's name in ONNX Runtime.
    pub fn provider(self) -> &'static str {
        match self {
            AcceleratorKind::OpenVino => "OpenVINOExecutionProvider",
            AcceleratorKind::Cuda => "CUDAExecutionProvider",
            AcceleratorKind::TensorRt => "TensorrtExecutionProvider",
        }
    }

    /// Its name in config.pbtxt.
    pub fn name(self) -> &'static str {
        match self {
            AcceleratorKind::OpenVino => "openvino",
            AcceleratorKind::Cuda => "cuda",
            AcceleratorKind::TensorRt => "tensorrt",
        }
    }
}

// === impl Accelerators ===

impl Accelerators {
    /// Reads `config`, whose instances are at `places`.
    pub fn parse(config: &ModelConfig, places: &[InstanceDevice]) -> Result<Accelerators, LoadError> {
        let refused = |reason: String| LoadError::Config(format!("model '{}': {reason}", config.name));
        let wanted = |list: &[(String, BTreeMap<String, String>)]| {
            list.iter().filter(|(name, _)| name != "none").cloned().collect::<Vec<_>>()
        };
        let optimization = &config.optimization;
        let (cpu, gpu) = (wanted(&optimization.cpu_accelerators), wanted(&optimization.gpu_accelerators));
        let on_cpu = places.contains(&InstanceDevice::Cpu);
        let on_gpu = places.iter().any(|place| place.is_gpu());
        let mut accelerators = Accelerators::default();
        for (name, parameters) in cpu {
            if !on_cpu {
                return Err(refused(format!(
                    "cpu_execution_accelerator '{name}' needs an instance group of KIND_CPU, and there is none"
                )));
            }
            let options = match name.as_str() {
                "openvino" => openvino(&parameters),
                _ => Err(unknown(&name)),
            };
            accelerators.cpu.push(Accelerator { kind: AcceleratorKind::OpenVino, options: options.map_err(refused)? });
        }
        for (name, parameters) in gpu {
            if !on_gpu {
                tracing::warn!(
                    model = config.name,
                    accelerator = name,
                    "gpu_execution_accelerator has no effect, because all instances are on the CPU; to run on a GPU, write \
                     instance_group [ {{ kind: KIND_GPU }} ]"
                );
                continue;
            }
            let (kind, options) = match name.as_str() {
                "tensorrt" => (AcceleratorKind::TensorRt, tensorrt(&parameters)),
                "cuda" => (AcceleratorKind::Cuda, Ok(parameters)),
                _ => return Err(refused(unknown(&name))),
            };
            accelerators.gpu.push(Accelerator { kind, options: options.map_err(refused)? });
        }
        if on_gpu {
            // CUDA runs the nodes that TensorRT does not take. KIND_GPU alone means CUDA.
            let given = accelerators.gpu.iter().position(|a| a.kind == AcceleratorKind::Cuda);
            let mut cuda = given.map_or_else(
                || Accelerator { kind: AcceleratorKind::Cuda, options: BTreeMap::new() },
                |at| accelerators.gpu.remove(at),
            );
            cuda.options.extend(cuda_parameters(&config.parameters).map_err(refused)?);
            accelerators.gpu.push(cuda);
        }
        Ok(accelerators)
    }

    /// Whether TensorRT is to run the model, and the configuration gives it no shape profiles.
    pub fn lack_profiles(&self) -> bool {
        let given = |accelerator: &Accelerator| accelerator.options.keys().any(|key| key.starts_with(profiles::PREFIX));
        self.gpu.iter().any(|accelerator| accelerator.kind == AcceleratorKind::TensorRt && !given(accelerator))
    }

    /// The providers of an instance at `place`.
    pub fn at(&self, place: InstanceDevice) -> &[Accelerator] {
        match place {
            InstanceDevice::Cpu => &self.cpu,
            InstanceDevice::Gpu(_) => &self.gpu,
        }
    }
}

fn unknown(name: &str) -> String {
    format!(
        "unknown Execution Accelerator '{name}' is requested; there are openvino for the CPU, tensorrt and cuda for GPUs"
    )
}

/// OpenVINO's properties: names in lower case are defined here; its own, in capitals, are passed on.
fn openvino(parameters: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    let mut options = BTreeMap::new();
    for (key, value) in parameters {
        let (property, value) = match key.as_str() {
            "precision" => {
                let hint = match value.to_ascii_uppercase().as_str() {
                    "FP32" => "f32",
                    "FP16" => "f16",
                    "BF16" => "bf16",
                    _ => {
                        return Err(format!(
                            "parameter 'precision' of accelerator 'openvino' has to be FP32, FP16 or BF16, found '{value}'"
                        ));
                    }
                };
                ("INFERENCE_PRECISION_HINT", hint.to_owned())
            }
            "num_threads" => ("INFERENCE_NUM_THREADS", whole_number(key, value)?),
            "num_streams" => ("NUM_STREAMS", whole_number(key, value)?),
            "cache_dir" => ("CACHE_DIR", value.clone()),
            key if !key.is_empty() && key.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_') => {
                (key, value.clone())
            }
            _ => {
                return Err(format!(
                    "unknown parameter '{key}' is provided for openvino Execution Accelerator; there are precision, \
                     num_threads, num_streams, cache_dir, and OpenVINO's own properties in capitals"
                ));
            }
        };
        options.insert(property.to_owned(), value);
    }
    Ok(options)
}

/// Translates Triton's names of TensorRT's options; `trt_…` are the provider's own.
fn tensorrt(parameters: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    let mut options = BTreeMap::new();
    for (key, value) in parameters {
        match (key.as_str(), value.as_str()) {
            ("precision_mode", "FP32") => {}
            ("precision_mode", "FP16") => drop(options.insert("trt_fp16_enable".to_owned(), "1".to_owned())),
            ("precision_mode", "INT8") => drop(options.insert("trt_int8_enable".to_owned(), "1".to_owned())),
            ("precision_mode", other) => return Err(format!("unsupported precision mode '{other}' is requested")),
            ("max_workspace_size_bytes", size) => {
                options.insert("trt_max_workspace_size".to_owned(), whole_number(key, size)?);
            }
            ("int8_calibration_table_name", table) => {
                options.insert("trt_int8_calibration_table_name".to_owned(), table.to_owned());
            }
            ("int8_use_native_calibration_table", switch) => {
                options.insert("trt_int8_use_native_calibration_table".to_owned(), switch.to_owned());
            }
            (own, value) if own.starts_with("trt_") => drop(options.insert(own.to_owned(), value.to_owned())),
            _ => return Err(format!("unknown parameter '{key}' is provided for TensorRT Execution Accelerator")),
        }
    }
    Ok(options)
}

/// Options of CUDA in the model's `parameters`, as in Triton.
fn cuda_parameters(parameters: &BTreeMap<String, String>) -> Result<Vec<(String, String)>, String> {
    let mut options = Vec::new();
    let choices = |key: &str, names: &[&str]| match parameters.get(key) {
        None => Ok(None),
        Some(value) => match value.parse::<usize>().ok().and_then(|index| names.get(index)) {
            Some(name) => Ok(Some((key.to_owned(), (*name).to_owned()))),
            None => Err(format!("parameter '{key}' has to be a number from 0 to {}, found '{value}'", names.len() - 1)),
        },
    };
    options.extend(choices("cudnn_conv_algo_search", &["EXHAUSTIVE", "HEURISTIC", "DEFAULT"])?);
    options.extend(choices("arena_extend_strategy", &["kNextPowerOfTwo", "kSameAsRequested"])?);
    options.extend(choices("do_copy_in_default_stream", &["0", "1"])?);
    if let Some(limit) = parameters.get("gpu_mem_limit") {
        options.push(("gpu_mem_limit".to_owned(), whole_number("gpu_mem_limit", limit)?));
    }
    Ok(options)
}

fn whole_number(key: &str, value: &str) -> Result<String, String> {
    match value.trim().parse::<u64>() {
        Ok(number) if number > 0 => Ok(number.to_string()),
        _ => Err(format!("parameter '{key}' has to be a whole number from 1, found '{value}'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Accelerators, String> {
        let config = ModelConfig::parse(&format!("backend: 'onnxruntime' {text}"), "m").unwrap();
        Accelerators::parse(&config, &places(&config, &[0])).map_err(|error| error.to_string())
    }

    fn accelerators(which: &str, list: &str) -> String {
        format!(" optimization {{ execution_accelerators {{ {which}_execution_accelerator: [{list}] }} }}")
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    const GPU: &str = "instance_group [{ kind: KIND_GPU gpus: [1, 2] count: 2 }, { kind: KIND_CPU count: 1 }]";

    #[test]
    fn a_group_has_its_count_on_each_of_its_gpus() {
        let config = ModelConfig::parse(&format!("backend: 'onnxruntime' {GPU}"), "m").unwrap();
        let expected = [
            InstanceDevice::Gpu(1),
            InstanceDevice::Gpu(1),
            InstanceDevice::Gpu(2),
            InstanceDevice::Gpu(2),
            InstanceDevice::Cpu,
        ];
        assert_eq!(places(&config, &[0, 1, 2]), expected);
    }

    #[test]
    fn a_group_without_gpus_has_its_count_on_every_gpu() {
        let text = "backend: 'onnxruntime' instance_group [{ kind: KIND_GPU count: 2 }]";
        let config = ModelConfig::parse(text, "m").unwrap();
        let on = |gpus: &[i32]| places(&config, gpus);
        assert_eq!(on(&[0]), [InstanceDevice::Gpu(0); 2]);
        assert_eq!(on(&[0, 1]), [0, 0, 1, 1].map(InstanceDevice::Gpu));
    }

    #[test]
    fn each_place_has_a_first_instance_and_so_has_each_kind() {
        let config = ModelConfig::parse(&format!("backend: 'onnxruntime' {GPU}"), "m").unwrap();
        let places = places(&config, &[]);
        let named = |firsts: Vec<usize>| firsts.into_iter().map(|at| places[at].to_string()).collect::<Vec<_>>();
        assert_eq!(named(firsts(&places, |place| place)), ["GPU 1", "GPU 2", "CPU"]);
        assert_eq!(named(firsts(&places, InstanceDevice::is_gpu)), ["GPU 1", "CPU"]);
    }

    #[test]
    fn openvino_takes_its_parameters_and_properties() {
        let text = "{ name: 'openvino' parameters { key: 'precision' value: 'fp16' } parameters { key: 'num_streams' \
                    value: '2' } parameters { key: 'PERFORMANCE_HINT' value: 'LATENCY' } }";
        let parsed = parse(&accelerators("cpu", text)).unwrap();
        let expected =
            map(&[("INFERENCE_PRECISION_HINT", "f16"), ("NUM_STREAMS", "2"), ("PERFORMANCE_HINT", "LATENCY")]);
        assert_eq!(parsed.cpu, [Accelerator { kind: AcceleratorKind::OpenVino, options: expected }]);
        assert!(parsed.gpu.is_empty());
        assert_eq!(parse(&accelerators("cpu", "{ name: 'none' }")).unwrap(), Accelerators::default());
    }

    #[test]
    fn tensorrt_comes_before_cuda_with_tritons_options() {
        let text = "{ name: 'cuda' parameters { key: 'use_tf32' value: '0' } }, { name: 'tensorrt' \
                    parameters { key: 'precision_mode' value: 'FP16' } parameters { key: 'max_workspace_size_bytes' \
                    value: '1073741824' } parameters { key: 'trt_engine_cache_enable' value: '1' } }";
        let limit = " parameters { key: 'gpu_mem_limit' value { string_value: '64' } }
                      parameters { key: 'arena_extend_strategy' value { string_value: '1' } }";
        let parsed = parse(&format!("{GPU} {} {limit}", accelerators("gpu", text))).unwrap();
        assert_eq!(parsed.gpu[0].kind, AcceleratorKind::TensorRt);
        let tensorrt = map(&[
            ("trt_engine_cache_enable", "1"),
            ("trt_fp16_enable", "1"),
            ("trt_max_workspace_size", "1073741824"),
        ]);
        assert_eq!(parsed.gpu[0].options, tensorrt);
        let cuda = map(&[("arena_extend_strategy", "kSameAsRequested"), ("gpu_mem_limit", "64"), ("use_tf32", "0")]);
        assert_eq!(parsed.gpu[1], Accelerator { kind: AcceleratorKind::Cuda, options: cuda });
        assert!(parsed.lack_profiles());
        let own = "{ name: 'tensorrt' parameters { key: 'trt_profile_min_shapes' value: 'x:1x1' } }";
        assert!(!parse(&format!("{GPU} {}", accelerators("gpu", own))).unwrap().lack_profiles());
        let cuda = parse(GPU).unwrap();
        assert_eq!(cuda.gpu[0].kind, AcceleratorKind::Cuda, "KIND_GPU alone means CUDA");
        assert!(!cuda.lack_profiles());
    }

    #[test]
    fn accelerators_for_gpus_have_no_effect_on_the_cpu() {
        for accelerator in
            ["{ name: 'tensorrt' parameters { key: 'precision_mode' value: 'FP16' } }", "{ name: 'cuda' }"]
        {
            for group in ["", "instance_group [{ kind: KIND_CPU }]", "instance_group [{ kind: KIND_AUTO }]"] {
                let parsed = parse(&format!("{group} {}", accelerators("gpu", accelerator)));
                assert_eq!(parsed, Ok(Accelerators::default()), "{group} {accelerator}");
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let parameter = |key: &str, value: &str| {
            let text = format!("{{ name: 'tensorrt' parameters {{ key: '{key}' value: '{value}' }} }}");
            parse(&format!("{GPU} {}", accelerators("gpu", &text))).unwrap_err()
        };
        assert_eq!(parameter("precision_mode", "FP8"), "model 'm': unsupported precision mode 'FP8' is requested");
        assert!(
            parameter("speed", "1")
                .ends_with("unknown parameter 'speed' is provided for TensorRT Execution Accelerator")
        );
        assert!(parameter("max_workspace_size_bytes", "-1").contains("has to be a whole number from 1, found '-1'"));
        let unknown = parse(&accelerators("cpu", "{ name: 'magic' }")).unwrap_err();
        assert!(unknown.starts_with("model 'm': unknown Execution Accelerator 'magic' is requested"), "{unknown}");
        let typo = "{ name: 'openvino' parameters { key: 'presicion' value: 'FP16' } }";
        assert!(parse(&accelerators("cpu", typo)).unwrap_err().contains("unknown parameter 'presicion'"));
        let fast = "{ name: 'openvino' parameters { key: 'precision' value: 'fast' } }";
        assert!(parse(&accelerators("cpu", fast)).unwrap_err().contains("FP32, FP16 or BF16, found 'fast'"));
    }
}
