//! Session settings: what config.pbtxt says, read the way Triton reads it, with defaults for text models in containers.

use std::collections::BTreeMap;

use ort::device::Device;
use ort::ep;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use trireme_model_repository::ModelConfig;
use trireme_runtime::LoadError;

use super::OnnxRuntimeOptions;

/// How the sessions of a model are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Threads within an operator.
    pub intra_threads: usize,
    /// Threads between operators; they matter in parallel execution only.
    pub inter_threads: usize,
    /// Run independent operators at the same time.
    pub parallel: bool,
    /// `optimization.graph.level`, as Triton numbers it.
    pub graph_level: Option<i32>,
    /// Allocate from an arena, which grows and never shrinks unless told to.
    pub memory_arena: bool,
    /// Plan the memory of a run ahead: pays only where shapes never change.
    pub memory_pattern: bool,
    /// Give unused arena memory back after each run, of these devices (`cpu:0`).
    pub arena_shrinkage: Option<String>,
    /// Put weights into the device's allocator instead of the arena.
    pub device_initializers: bool,
}

// === impl Settings ===

impl Settings {
    /// Reads `config`; `share` is the CPUs there are for each instance. Errors on values that make no sense, and on
    /// accelerators that this build lacks.
    pub fn new(config: &ModelConfig, options: &OnnxRuntimeOptions, share: usize) -> Result<Settings, LoadError> {
        refuse_missing_accelerators(config)?;
        let parameters = Parameters { model: &config.name, values: &config.parameters };
        let fixed_shapes = config.max_batch_size == 0
            && !config.inputs.is_empty()
            && config.inputs.iter().all(|input| !input.dims.contains(&-1));
        let threads = |name, default: Option<usize>| match parameters.count(name) {
            // Triton's 0 is "the library's default", which is the whole machine.
            Ok(None | Some(0)) => Ok(default.unwrap_or(share)),
            Ok(Some(count)) => Ok(count),
            Err(error) => Err(error),
        };
        Ok(Settings {
            intra_threads: threads("intra_op_thread_count", options.intra_threads)?,
            inter_threads: threads("inter_op_thread_count", options.inter_threads)?,
            parallel: parameters.switch("execution_mode")?.unwrap_or(false),
            graph_level: config.optimization.graph_level,
            memory_arena: parameters.switch("enable_mem_arena")?.unwrap_or(true),
            memory_pattern: parameters.switch("enable_mem_pattern")?.unwrap_or(fixed_shapes),
            arena_shrinkage: config.parameters.get("memory.enable_memory_arena_shrinkage").cloned(),
            device_initializers: parameters.switch("session.use_device_allocator_for_initializers")?.unwrap_or(false),
        })
    }

    /// A session builder with these settings.
    pub fn builder(&self, environment: &ort::environment::Environment) -> ort::Result<SessionBuilder> {
        let mut builder = Session::builder(environment)?
            .with_execution_providers([ep::CPU::default()
                .with_arena_allocator(self.memory_arena)
                .build()
                .error_on_failure()])?
            // Left to choose, the library takes whatever provider a plugin registered, also for sessions that never asked.
            .with_devices(environment.devices().filter(is_plain_cpu), None)?
            .with_optimization_level(optimization_level(self.graph_level))?
            .with_intra_threads(self.intra_threads)?
            .with_inter_threads(self.inter_threads)?
            // Idle threads that spin burn the CPU that the other stages and instances need.
            .with_intra_op_spinning(false)?
            .with_inter_op_spinning(false)?
            .with_parallel_execution(self.parallel)?
            .with_memory_pattern(self.memory_pattern)?;
        if self.device_initializers {
            builder = builder.with_device_allocated_initializers()?;
        }
        Ok(builder)
    }
}

/// Whether this is the library's own CPU provider.
pub fn is_plain_cpu(device: &Device<'_>) -> bool {
    device.ep().is_ok_and(|provider| provider == "CPUExecutionProvider")
}

/// Triton's numbering: unset is everything, 1 extended, -1 basic, 2 none; it takes other numbers as unset.
fn optimization_level(graph_level: Option<i32>) -> GraphOptimizationLevel {
    match graph_level {
        Some(1) => GraphOptimizationLevel::Level2,
        Some(-1) => GraphOptimizationLevel::Level1,
        Some(2) => GraphOptimizationLevel::Disable,
        _ => GraphOptimizationLevel::All,
    }
}

fn refuse_missing_accelerators(config: &ModelConfig) -> Result<(), LoadError> {
    let name = &config.name;
    let optimization = &config.optimization;
    let mut accelerators = optimization.gpu_accelerators.iter().chain(&optimization.cpu_accelerators);
    if let Some((accelerator, _)) = accelerators.find(|(accelerator, _)| accelerator != "none") {
        return Err(LoadError::Config(format!(
            "model '{name}': execution accelerator '{accelerator}' is not available in this build; remove it from \
             optimization.execution_accelerators"
        )));
    }
    Ok(())
}

/// `parameters` of config.pbtxt, which are strings.
struct Parameters<'a> {
    model: &'a str,
    values: &'a BTreeMap<String, String>,
}

// === impl Parameters ===

impl Parameters<'_> {
    /// A whole number, not negative.
    fn count(&self, name: &str) -> Result<Option<usize>, LoadError> {
        self.read(name, "a whole number up to 1024", |text| text.parse().ok().filter(|&count| count <= 1024))
    }

    /// Triton's `0` or `1`; `false` and `true` are taken too.
    fn switch(&self, name: &str) -> Result<Option<bool>, LoadError> {
        self.read(name, "0 or 1", |text| match text {
            "0" | "false" => Some(false),
            "1" | "true" => Some(true),
            _ => None,
        })
    }

    fn read<T>(&self, name: &str, want: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, LoadError> {
        let Some(text) = self.values.get(name) else { return Ok(None) };
        parse(text.trim()).map(Some).ok_or_else(|| {
            LoadError::Config(format!("model '{}': parameter '{name}' has to be {want}, found '{text}'", self.model))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<Settings, String> {
        let config = ModelConfig::parse(&format!("backend: 'onnxruntime' {text}"), "m").unwrap();
        Settings::new(&config, &OnnxRuntimeOptions::default(), 8).map_err(|error| error.to_string())
    }

    fn parameter(key: &str, value: &str) -> String {
        format!(" parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}")
    }

    #[test]
    fn threads_are_the_instances_share_unless_told_otherwise() {
        let shared = settings("").unwrap();
        assert_eq!((shared.intra_threads, shared.inter_threads, shared.parallel), (8, 8, false));
        let told = parameter("intra_op_thread_count", "1") + &parameter("execution_mode", "1");
        let told = settings(&told).unwrap();
        assert_eq!((told.intra_threads, told.inter_threads, told.parallel), (1, 8, true));
        assert_eq!(settings(&parameter("intra_op_thread_count", "0")).unwrap().intra_threads, 8);
    }

    #[test]
    fn memory_is_planned_ahead_only_where_shapes_are_fixed() {
        let model = |batch: u32, dims: &str| {
            format!(
                "max_batch_size: {batch} input [{{ name: 'x' data_type: TYPE_FP32 dims: {dims} }}]
                 output [{{ name: 'y' data_type: TYPE_FP32 dims: [1] }}]"
            )
        };
        assert!(settings(&model(0, "[2, 3]")).unwrap().memory_pattern);
        for open in [model(0, "[-1, 3]"), model(4, "[3]"), String::new()] {
            assert!(!settings(&open).unwrap().memory_pattern, "{open}");
        }
        let told = model(4, "[3]") + &parameter("enable_mem_pattern", "1") + &parameter("enable_mem_arena", "0");
        let told = settings(&told).unwrap();
        assert!(told.memory_pattern && !told.memory_arena);
    }

    #[test]
    fn graph_levels_are_tritons() {
        let level = |text: &str| optimization_level(settings(text).unwrap().graph_level);
        assert!(matches!(level(""), GraphOptimizationLevel::All));
        assert!(matches!(level("optimization { graph { level: 1 } }"), GraphOptimizationLevel::Level2));
        assert!(matches!(level("optimization { graph { level: -1 } }"), GraphOptimizationLevel::Level1));
        assert!(matches!(level("optimization { graph { level: 2 } }"), GraphOptimizationLevel::Disable));
    }

    #[test]
    fn what_is_not_there_is_never_replaced_in_silence() {
        let accelerator =
            "optimization { execution_accelerators { cpu_execution_accelerator: [{ name: 'openvino' }] } }";
        let accelerator = settings(accelerator).unwrap_err();
        assert!(
            accelerator.starts_with("model 'm': execution accelerator 'openvino' is not available"),
            "{accelerator}"
        );
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(
            settings(&parameter("intra_op_thread_count", "many")).unwrap_err(),
            "model 'm': parameter 'intra_op_thread_count' has to be a whole number up to 1024, found 'many'"
        );
        assert!(settings(&parameter("intra_op_thread_count", "-1")).is_err());
        assert_eq!(
            settings(&parameter("enable_mem_arena", "yes")).unwrap_err(),
            "model 'm': parameter 'enable_mem_arena' has to be 0 or 1, found 'yes'"
        );
    }
}
