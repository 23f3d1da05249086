//! Session settings: config.pbtxt, read as Triton reads it, with defaults for text models in containers.

use std::collections::BTreeMap;

use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use trireme_engine::LoadError;
use trireme_inference::nearest;
use trireme_model_repository::ModelConfig;

use super::accelerators::{self, Accelerators, InstanceDevice};
use super::levels::{AccuracyLevel, Levelled};
use super::options::OnnxRuntimeOptions;
use super::providers::RECORD_ASSIGNMENT;
use crate::cpus;

/// The threads of a run wait for each other after each operator. A wait is mostly shorter than a thread needs to go to sleep and wake up,
/// so they spin for some microseconds first (ONNX Runtime 1.26 and newer). They stop with the run: idle threads that spin would take CPU time
/// from the other stages and instances.
const SHORT_SPINNING: [(&str, &str); 2] =
    [("session.intra_op.spin_duration_us", "50"), ("session.force_spinning_stop", "1")];

/// The settings for the sessions of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// A place for each instance.
    pub places: Vec<InstanceDevice>,
    /// The providers of the sessions.
    pub accelerators: Accelerators,
    /// Whether the fastest of the installed providers is to be chosen.
    pub auto: bool,
    /// The choice of how precisely packed weights are multiplied, where the graph leaves it open.
    pub accuracy_level: AccuracyLevel,
    /// The copy of the graph that serves in place of the model's file.
    pub levelled: Option<Levelled>,
    /// The comparison with the plain model before the model serves.
    pub precision: Option<PrecisionCheck>,
    /// Threads of the wide session, if layouts are chosen by load.
    pub wide_threads: Option<usize>,
    /// Whether the one session is wide, and all that can wait is tried while the model serves.
    pub wide_only: bool,
    /// Whether sessions on the CPU share their weights.
    pub share_weights: bool,
    /// Whether the instances on a GPU share its session.
    pub share_sessions: bool,
    /// Session settings that are passed on unchanged.
    pub entries: BTreeMap<String, String>,
    /// Threads within an operator.
    pub intra_threads: usize,
    /// Threads between operators; used only in parallel execution.
    pub inter_threads: usize,
    /// Whether independent operators run at the same time.
    pub parallel: bool,
    /// `optimization.graph.level`, with Triton's numbers.
    pub graph_level: Option<i32>,
    /// Whether to allocate from an arena, which grows and shrinks only on request.
    pub memory_arena: bool,
    /// Whether to plan the memory of a run ahead, which helps only if shapes never change.
    pub memory_pattern: bool,
    /// The devices (`cpu:0`) whose unused arena memory is freed after each run.
    pub arena_shrinkage: Option<String>,
    /// Whether to put weights into the device's allocator instead of the arena.
    pub device_initializers: bool,
}

/// How close a model's outputs have to be to those of the plain model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrecisionCheck {
    /// The lowest accepted cosine.
    pub min_cosine: f64,
    /// Whether a lower one fails the load; otherwise it is a warning.
    pub refuse: bool,
}

/// The default of the lowest accepted cosine.
const MIN_COSINE: f64 = 0.9999;

/// The parameters that this backend and the batcher read. Others are ignored, unless their names are almost known ones.
const KNOWN: [&str; 30] = [
    "accelerator",
    "accuracy_level",
    "arena_extend_strategy",
    "cost_model",
    "cudnn_conv_algo_search",
    "do_copy_in_default_stream",
    "enable_mem_arena",
    "enable_mem_pattern",
    "execution_mode",
    "gpu_mem_limit",
    "inter_op_thread_count",
    "intra_op_thread_count",
    "layouts",
    "max_overtake_microseconds",
    "max_rows",
    "max_rows_per_message",
    "memory.enable_memory_arena_shrinkage",
    "pad_inputs",
    "pad_to_multiple_of",
    "packing",
    "padding_check",
    "padding_side",
    "sample_rows",
    "longest_row",
    "precision_check",
    "precision_min_cosine",
    "session.use_device_allocator_for_initializers",
    "share_weights",
    "token_budget",
    "unpad_outputs",
];

/// Prefixes of parameters that are ONNX Runtime's own session settings.
const PASSED_ON: [&str; 4] = ["session.", "optimization.", "mlas.", "ep."];

// === impl Settings ===

impl Settings {
    /// Reads `config`, for a process of `cpus` CPUs that sees `gpus`. Errors on invalid values.
    pub fn new(
        config: &ModelConfig,
        options: &OnnxRuntimeOptions,
        cpus: usize,
        gpus: &[i32],
    ) -> Result<Settings, LoadError> {
        let mut places = accelerators::places(config, gpus);
        let accelerators = Accelerators::parse(config, &places)?;
        let parameters = Parameters { model: &config.name, values: &config.parameters };
        parameters.check_names()?;
        let fixed_shapes = config.max_batch_size == 0
            && !config.inputs.is_empty()
            && config.inputs.iter().all(|input| !input.dims.contains(&-1));
        // Triton's 0 means the library's default, which is the whole machine. Here it counts as not set.
        let threads = |name| Ok(parameters.count(name)?.filter(|&count| count > 0));
        let told = threads("intra_op_thread_count")?.or(options.intra_threads);
        let on_cpu = places.iter().all(|place| *place == InstanceDevice::Cpu);
        let layouts = parameters.choice("layouts", ["fixed", "by_load", "wide"])?.filter(|_| on_cpu);
        let (by_load, wide_only) = (layouts == Some(1), layouts == Some(2));
        let (intra_threads, wide_threads) = if wide_only {
            places.truncate(1);
            (told.unwrap_or(cpus), None)
        } else if by_load {
            let narrow = told.unwrap_or(1).min(cpus);
            places = vec![InstanceDevice::Cpu; (cpus / narrow).max(1)];
            // With a single instance there is no second layout.
            (narrow, (places.len() > 1).then_some(cpus))
        } else {
            (told.unwrap_or_else(|| cpus::per_instance(cpus, places.len())), None)
        };
        let own = ["session.use_device_allocator_for_initializers"];
        let entries: BTreeMap<_, _> = (config.parameters.iter())
            .filter(|(key, _)| PASSED_ON.iter().any(|prefix| key.starts_with(prefix)) && !own.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let plain = accelerators == Accelerators::default();
        let auto = parameters.choice("accelerator", ["none", "auto"])? == Some(1) && plain && on_cpu;
        let accuracy_level = match parameters.choice("accuracy_level", ["auto", "graph"])? {
            Some(0) => AccuracyLevel::Auto,
            Some(_) => AccuracyLevel::Graph,
            None => options.accuracy_level,
        };
        let exact = plain && entries.keys().all(|key| key.starts_with("session."));
        let precision = match parameters.choice("precision_check", ["refuse", "warn", "off"])? {
            Some(2) => None,
            None if exact => None,
            how => Some(PrecisionCheck {
                min_cosine: parameters.share("precision_min_cosine")?.unwrap_or(MIN_COSINE),
                refuse: how != Some(1),
            }),
        };
        parameters.share("precision_min_cosine")?;
        Ok(Settings {
            inter_threads: threads("inter_op_thread_count")?.or(options.inter_threads).unwrap_or(intra_threads),
            parallel: parameters.switch("execution_mode")?.unwrap_or(false),
            graph_level: config.optimization.graph_level,
            memory_arena: parameters.switch("enable_mem_arena")?.unwrap_or(true),
            memory_pattern: parameters.switch("enable_mem_pattern")?.unwrap_or(fixed_shapes),
            arena_shrinkage: config.parameters.get("memory.enable_memory_arena_shrinkage").cloned(),
            device_initializers: parameters.switch("session.use_device_allocator_for_initializers")?.unwrap_or(false),
            share_weights: parameters.switch("share_weights")?.unwrap_or(by_load) && plain,
            share_sessions: parameters.switch("share_weights")?.unwrap_or(true),
            places,
            accelerators,
            auto,
            accuracy_level,
            levelled: None,
            precision,
            wide_threads,
            wide_only,
            entries,
            intra_threads,
        })
    }

    /// The same, for sessions whose precision was checked already.
    pub fn checked(&self) -> Settings {
        Settings { precision: None, ..self.clone() }
    }

    /// Whether bulk requests can run in the background: not on accelerators, which know no priorities of threads.
    pub fn has_background(&self) -> bool {
        let plain = self.accelerators == Accelerators::default();
        plain && self.places.iter().all(|place| *place == InstanceDevice::Cpu)
    }

    /// Triton's number for no optimisation.
    pub const NO_OPTIMISATION: i32 = 2;

    /// The settings of the session to compare with: this model on the plain CPU provider.
    pub fn plain(&self) -> Settings {
        Settings { accelerators: Accelerators::default(), entries: BTreeMap::new(), ..self.clone() }
    }

    /// A session builder with these settings, without providers.
    pub fn builder(&self, environment: &Environment, threads: usize) -> ort::Result<SessionBuilder> {
        let (record, on) = RECORD_ASSIGNMENT;
        let mut builder = Session::builder(environment)?
            .with_optimization_level(optimization_level(self.graph_level))?
            .with_intra_threads(threads)?
            .with_inter_threads(self.inter_threads)?
            .with_intra_op_spinning(true)?
            .with_inter_op_spinning(false)?
            .with_parallel_execution(self.parallel)?
            .with_memory_pattern(self.memory_pattern)?
            .with_config_entry(record, on)?;
        if self.device_initializers {
            builder = builder.with_device_allocated_initializers()?;
        }
        for (key, value) in SHORT_SPINNING {
            builder = builder.with_config_entry(key, value)?;
        }
        for (key, value) in &self.entries {
            builder = builder.with_config_entry(key, value)?;
        }
        if let Some((key, value)) = self.levelled.as_ref().and_then(Levelled::entry) {
            builder = builder.with_config_entry(key, value)?;
        }
        Ok(builder)
    }
}

/// Triton's numbers: unset means everything, 1 extended, -1 basic, 2 none. Other numbers count as unset.
fn optimization_level(graph_level: Option<i32>) -> GraphOptimizationLevel {
    match graph_level {
        Some(1) => GraphOptimizationLevel::Level2,
        Some(-1) => GraphOptimizationLevel::Level1,
        Some(Settings::NO_OPTIMISATION) => GraphOptimizationLevel::Disable,
        _ => GraphOptimizationLevel::All,
    }
}

/// The `parameters` of config.pbtxt, which are strings.
struct Parameters<'a> {
    model: &'a str,
    values: &'a BTreeMap<String, String>,
}

// === impl Parameters ===

impl Parameters<'_> {
    /// Refuses misspelt names, which would be ignored.
    fn check_names(&self) -> Result<(), LoadError> {
        let unknown = self.values.keys().filter(|key| !KNOWN.contains(&key.as_str()));
        let meant = unknown.filter_map(|key| Some((key, nearest(key, KNOWN)?)));
        let faults: Vec<_> =
            meant.map(|(key, meant)| format!("unknown parameter '{key}', did you mean '{meant}'?")).collect();
        match faults.is_empty() {
            true => Ok(()),
            false => Err(LoadError::Config(format!("model '{}': {}", self.model, faults.join("; ")))),
        }
    }

    /// A whole number that is not negative.
    fn count(&self, name: &str) -> Result<Option<usize>, LoadError> {
        self.read(name, "a whole number up to 1024", |text| text.parse().ok().filter(|&count| count <= 1024))
    }

    /// Triton's `0` or `1`; `false` and `true` are accepted too.
    fn switch(&self, name: &str) -> Result<Option<bool>, LoadError> {
        self.read(name, "0 or 1", |text| match text {
            "0" | "false" => Some(false),
            "1" | "true" => Some(true),
            _ => None,
        })
    }

    /// The index of the value among `words`.
    fn choice<const N: usize>(&self, name: &str, words: [&str; N]) -> Result<Option<usize>, LoadError> {
        let (last, others) = words.split_last().expect("there is something to choose from");
        let want = format!("{} or {last}", others.join(", "));
        self.read(name, &want, |text| words.iter().position(|word| *word == text))
    }

    /// A number from 0 to 1.
    fn share(&self, name: &str) -> Result<Option<f64>, LoadError> {
        self.read(name, "a number from 0 to 1", |text| text.parse().ok().filter(|share| (0.0..=1.0).contains(share)))
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
        Settings::new(&config, &OnnxRuntimeOptions::default(), 8, &[0, 1]).map_err(|error| error.to_string())
    }

    fn parameter(key: &str, value: &str) -> String {
        format!(" parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}")
    }

    #[test]
    fn bulk_requests_run_in_the_background_on_cpus() {
        assert!(settings("").unwrap().has_background());
        assert!(!settings("instance_group [{ kind: KIND_GPU gpus: [0] }]").unwrap().has_background());
    }

    #[test]
    fn threads_are_the_instances_share_unless_told_otherwise() {
        let shared = settings("").unwrap();
        assert_eq!((shared.intra_threads, shared.inter_threads, shared.parallel), (4, 4, false));
        let told = parameter("intra_op_thread_count", "1") + &parameter("execution_mode", "1");
        let told = settings(&told).unwrap();
        assert_eq!((told.intra_threads, told.inter_threads, told.parallel), (1, 1, true));
        assert_eq!(settings(&parameter("intra_op_thread_count", "0")).unwrap().intra_threads, 4);
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
    fn entries_of_the_library_are_passed_on() {
        let entry = parameter("session.intra_op.allow_spinning", "1") + &parameter("mlas.something", "2");
        let own = parameter("session.use_device_allocator_for_initializers", "1") + &parameter("other.thing", "3");
        let entries = settings(&(entry + &own)).unwrap().entries;
        assert_eq!(entries.into_keys().collect::<Vec<_>>(), ["mlas.something", "session.intra_op.allow_spinning"]);
    }

    #[test]
    fn precision_is_checked_where_it_could_suffer() {
        let check = |text: &str| settings(text).map(|settings| settings.precision);
        let accelerated =
            "optimization { execution_accelerators { cpu_execution_accelerator: [{ name: 'openvino' }] } }";
        let refuse = |min_cosine| Some(PrecisionCheck { min_cosine, refuse: true });
        assert_eq!(check("").unwrap(), None);
        assert_eq!(check(accelerated).unwrap(), refuse(0.9999));
        assert_eq!(check(&parameter("mlas.something", "1")).unwrap(), refuse(0.9999));
        assert_eq!(check(&parameter("session.intra_op.allow_spinning", "1")).unwrap(), None);
        assert_eq!(check(&parameter("precision_check", "refuse")).unwrap(), refuse(0.9999));
        let told = accelerated.to_owned() + &parameter("precision_min_cosine", "0.99");
        assert_eq!(check(&told).unwrap(), refuse(0.99));
        let warn = told.clone() + &parameter("precision_check", "warn");
        assert_eq!(check(&warn).unwrap(), Some(PrecisionCheck { min_cosine: 0.99, refuse: false }));
        assert_eq!(check(&(told + &parameter("precision_check", "off"))).unwrap(), None);
        assert!(
            check(&parameter("precision_check", "maybe")).unwrap_err().contains("refuse, warn or off, found 'maybe'")
        );
        assert!(check(&parameter("precision_min_cosine", "1.5")).unwrap_err().contains("from 0 to 1, found '1.5'"));
    }

    #[test]
    fn the_accelerator_is_left_to_a_measurement_on_cpus_alone() {
        let auto = |text: &str| settings(&(parameter("accelerator", "auto") + text)).map(|settings| settings.auto);
        assert_eq!(
            (auto(""), settings(&parameter("accelerator", "none")).map(|settings| settings.auto)),
            (Ok(true), Ok(false))
        );
        let named = "optimization { execution_accelerators { cpu_execution_accelerator: [{ name: 'openvino' }] } }";
        for told in [named, "instance_group [{ kind: KIND_GPU gpus: [0] }]"] {
            assert_eq!(auto(told), Ok(false), "{told}");
        }
        assert!(settings(&parameter("accelerator", "fast")).unwrap_err().contains("none or auto, found 'fast'"));
    }

    #[test]
    fn layouts_by_load_have_an_instance_for_each_cpu() {
        let by_load = settings(&parameter("layouts", "by_load")).unwrap();
        assert_eq!((by_load.intra_threads, by_load.places.len(), by_load.wide_threads), (1, 8, Some(8)));
        let pairs = settings(&(parameter("layouts", "by_load") + &parameter("intra_op_thread_count", "2"))).unwrap();
        assert_eq!((pairs.intra_threads, pairs.places.len(), pairs.wide_threads), (2, 4, Some(8)));
        let wide = parameter("layouts", "wide");
        let one = settings(&("instance_group [{ count: 2 kind: KIND_CPU }]".to_owned() + &wide)).unwrap();
        assert_eq!((one.intra_threads, one.places.len(), one.wide_threads), (8, 1, None));
        assert!(one.wide_only && !one.share_weights, "the one session needs no copy of the weights");
        assert!(!settings(&("instance_group [{ kind: KIND_GPU gpus: [0] }]".to_owned() + &wide)).unwrap().wide_only);
        let fixed = settings("instance_group [{ count: 2 kind: KIND_CPU }]").unwrap();
        assert_eq!((fixed.intra_threads, fixed.places.len(), fixed.wide_threads), (4, 2, None));
        assert!(settings(&parameter("layouts", "both")).unwrap_err().contains("fixed, by_load or wide, found 'both'"));
    }

    #[test]
    fn instances_share_weights_on_gpus_unless_told_otherwise() {
        let shares =
            |text: &str| settings(text).map(|settings| (settings.share_weights, settings.share_sessions)).unwrap();
        let gpu = "instance_group [{ kind: KIND_GPU gpus: [0] count: 2 }]";
        assert_eq!((shares(""), shares(gpu)), ((false, true), (false, true)));
        assert_eq!(shares(&(gpu.to_owned() + &parameter("share_weights", "0"))), (false, false));
        assert_eq!(shares(&parameter("share_weights", "1")), (true, true));
    }

    #[test]
    fn names_that_are_nearly_right_are_refused() {
        let refused = |name| settings(&parameter(name, "1")).unwrap_err();
        assert_eq!(refused("pad_input"), "model 'm': unknown parameter 'pad_input', did you mean 'pad_inputs'?");
        assert!(refused("Layouts").ends_with("did you mean 'layouts'?"));
        assert!(settings(&parameter("somebody_else_s", "1")).is_ok());
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
