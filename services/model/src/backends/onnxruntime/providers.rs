//! Execution providers of a session: adding them, and checking afterwards that they are used.
//!
//! ONNX Runtime falls back to the CPU for nodes that a provider does not take, and may choose a registered plugin for a
//! session that did not ask for it. So every session names its devices, and [`assigned`] returns the providers that run
//! its graph.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::{Path, PathBuf};

use ort::AsPointer;
use ort::device::Device;
use ort::environment::Environment;
use ort::ep::{self, ArbitrarilyConfigurableExecutionProvider, ExecutionProvider, ExecutionProviderDispatch};
use ort::memory::DeviceType;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use parking_lot::Mutex;
use trireme_engine::CPU_INSTEAD;

use super::accelerators::{Accelerator, AcceleratorKind, InstanceDevice};
use super::library::{self, CPU, is_plain_cpu};

/// The OpenVINO plugin's path after the setup script, relative to the checkout.
const OPENVINO_SETUP_PATH: &str = ".tools/openvino/libonnxruntime_providers_openvino_plugin.so";
const OPENVINO_HOW_TO_GET: &str =
    "get it with scripts/fetch-openvino.sh, and name it with --openvino-library or TRIREME_OPENVINO_LIBRARY";

/// Plugins are registered once per process, like the environment they belong to.
static OPENVINO: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The number of graph nodes by provider.
pub type Assignment = BTreeMap<String, usize>;

fn is_openvino_on_cpu(device: &Device<'_>) -> bool {
    device.ep().is_ok_and(|provider| provider == AcceleratorKind::OpenVino.provider())
        && device.hardware_device().ty() == DeviceType::CPU
}

/// Whether OpenVINO can run models on the CPU: its plugin is there and takes this processor, or the library has it built in. The plugin is
/// not loaded where it could not be used. The error is about a plugin that cannot be loaded.
pub fn has_openvino(environment: &Environment, library: Option<&Path>) -> Result<bool, String> {
    if ep::OpenVINO::is_available().unwrap_or(false) {
        return Ok(true);
    }
    let of_intel = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|info| info.contains("GenuineIntel"));
    let found = of_intel && openvino_plugin(environment, library)?;
    Ok(found && environment.devices().any(|device| is_openvino_on_cpu(&device)))
}

/// Gives `builder` the providers of `accelerators`, followed by the CPU for nodes that they do not take. Without any,
/// only the CPU. `threads` is for providers that run on the CPU.
pub fn apply(
    builder: SessionBuilder,
    environment: &Environment,
    accelerators: &[Accelerator],
    place: InstanceDevice,
    threads: usize,
    arena: bool,
    openvino_library: Option<&Path>,
) -> Result<SessionBuilder, String> {
    let message = |error: ort::Error<SessionBuilder>| trireme_engine::one_line(error.message());
    let cpu = || ep::CPU::default().with_arena_allocator(arena).build().error_on_failure();
    let mut dispatches: Vec<(AcceleratorKind, ExecutionProviderDispatch)> = Vec::new();
    let mut plugin_options: Option<Vec<(String, String)>> = None;
    for accelerator in accelerators {
        let missing = || {
            let way_out = match accelerator.kind {
                AcceleratorKind::OpenVino => String::new(),
                AcceleratorKind::Cuda | AcceleratorKind::TensorRt => {
                    format!("; to run on the CPU, write {CPU_INSTEAD}")
                }
            };
            format!(
                "execution accelerator '{}' is not available: this ONNX Runtime ({}) has no {}{way_out}",
                accelerator.kind.name(),
                ort::info(),
                accelerator.kind.provider()
            )
        };
        let available = |found: ort::Result<bool>| match found {
            Ok(true) => Ok(()),
            _ => Err(missing()),
        };
        match accelerator.kind {
            AcceleratorKind::OpenVino => {
                let config = openvino_config(&accelerator.options, threads);
                let registered = openvino_plugin(environment, openvino_library)?;
                if environment.devices().any(|device| is_openvino_on_cpu(&device)) {
                    let provider = accelerator.kind.provider();
                    plugin_options = Some(vec![(format!("{provider}.load_config"), config)]);
                } else {
                    let plugin = match registered {
                        true => "its plugin offers no CPU device here: it takes processors of Intel only".to_owned(),
                        false => format!("there is no plugin: {OPENVINO_HOW_TO_GET}"),
                    };
                    available(ep::OpenVINO::is_available()).map_err(|missing| format!("{missing}, and {plugin}"))?;
                    let provider = ep::OpenVINO::default().with_device_type("CPU");
                    let provider = provider.with_arbitrary_config("load_config", config);
                    dispatches.push((accelerator.kind, provider.build()));
                }
            }
            AcceleratorKind::TensorRt => {
                available(ep::TensorRT::is_available())?;
                let provider = ep::TensorRT::default().with_device_id(gpu(place));
                dispatches.push((accelerator.kind, with_options(provider, &accelerator.options).build()));
            }
            AcceleratorKind::Cuda => {
                available(ep::CUDA::is_available())?;
                let provider = ep::CUDA::default().with_device_id(gpu(place));
                dispatches.push((accelerator.kind, with_options(provider, &accelerator.options).build()));
            }
        }
    }
    let Some(options) = plugin_options else {
        // If the library may choose, it uses any provider that a plugin registered, even in a session that did not ask
        // for it.
        let builder = register(builder, dispatches)?.with_execution_providers([cpu()]).map_err(message)?;
        return builder.with_devices(environment.devices().filter(is_plain_cpu), None).map_err(message);
    };
    // Devices named first come first: the plugin before the CPU.
    let plugins = environment.devices().filter(is_openvino_on_cpu);
    let devices = plugins.chain(environment.devices().filter(is_plain_cpu));
    let builder = builder.with_devices(devices, Some(&options)).map_err(message)?;
    register(builder, dispatches)?.with_execution_providers([cpu()]).map_err(message)
}

/// Gives `builder` each of the providers. This loads their libraries, which look for their devices.
fn register(
    builder: SessionBuilder,
    dispatches: Vec<(AcceleratorKind, ExecutionProviderDispatch)>,
) -> Result<SessionBuilder, String> {
    dispatches.into_iter().try_fold(builder, |builder, (kind, dispatch)| {
        let registered = builder.with_execution_providers([dispatch.error_on_failure()]);
        registered.map_err(|error| unusable(kind, &trireme_engine::one_line(error.message())))
    })
}

/// A library's error about the provider, without the positions in the library's sources.
fn unusable(kind: AcceleratorKind, message: &str) -> String {
    // … [ONNXRuntimeError] : number : name : reason ; GPU=number ; hostname=…
    let reason = message.split_once("[ONNXRuntimeError] : ").and_then(|(_, error)| error.splitn(3, " : ").nth(2));
    let reason = reason.unwrap_or(message);
    let reason = reason.split_once(" ; GPU=").map_or(reason, |(reason, _)| reason);
    let no_driver = ["libcuda.so.1", "CUDA driver", "no CUDA-capable device"].iter().any(|sign| reason.contains(sign));
    let driver = match no_driver {
        true => format!(
            "; the host needs NVIDIA's driver, and a container has to be given the GPU (docker run --gpus all); to run on the CPU, write \
             {CPU_INSTEAD}"
        ),
        false => String::new(),
    };
    format!("execution accelerator '{}' cannot be used here: {reason}{driver}", kind.name())
}

fn with_options<P: ArbitrarilyConfigurableExecutionProvider>(provider: P, options: &BTreeMap<String, String>) -> P {
    options.iter().fold(provider, |provider, (key, value)| provider.with_arbitrary_config(key, value))
}

fn gpu(place: InstanceDevice) -> i32 {
    match place {
        InstanceDevice::Gpu(index) => index,
        InstanceDevice::Cpu => 0,
    }
}

/// OpenVINO's properties as JSON for its provider. Properties have to be under their device's name.
fn openvino_config(options: &BTreeMap<String, String>, threads: usize) -> String {
    let mut properties: serde_json::Map<String, serde_json::Value> = serde_json::Map::new();
    // One stream, because a session runs one request at a time and has to stay within its instance's share of the CPUs.
    properties.insert("NUM_STREAMS".to_owned(), "1".into());
    properties.insert("INFERENCE_NUM_THREADS".to_owned(), threads.to_string().into());
    // If they were pinned, the threads of every session would be on the same CPUs, starting with the first.
    properties.insert("ENABLE_CPU_PINNING".to_owned(), "NO".into());
    properties.extend(options.iter().map(|(key, value)| (key.clone(), value.as_str().into())));
    serde_json::json!({ "CPU": properties }).to_string()
}

/// Registers the OpenVINO plugin, once: the one at `explicit`, or else the setup script's. `false` if there is no
/// plugin.
fn openvino_plugin(environment: &Environment, explicit: Option<&Path>) -> Result<bool, String> {
    let mut registered = OPENVINO.lock();
    if registered.is_some() {
        return Ok(true);
    }
    let found = match explicit {
        Some(path) if !path.is_file() => {
            return Err(format!(
                "cannot read the OpenVINO plugin {}: no such file; {OPENVINO_HOW_TO_GET}",
                path.display()
            ));
        }
        Some(path) => Some(path.to_owned()),
        None => library::beside_setup(OPENVINO_SETUP_PATH),
    };
    let Some(path) = found else { return Ok(false) };
    // The loader uses a path with a slash as it is, and finds the plugin's neighbours from there.
    let path = std::path::absolute(&path).unwrap_or(path);
    environment.register_ep_library(AcceleratorKind::OpenVino.provider(), &path).map_err(|error| {
        format!("cannot load the OpenVINO plugin {}: {}", path.display(), trireme_engine::one_line(error.message()))
    })?;
    tracing::info!(path = %path.display(), "registered the OpenVINO plugin");
    *registered = Some(path);
    Ok(true)
}

/// The providers that run the session's graph. The session has to be made with [`RECORD_ASSIGNMENT`].
#[allow(unsafe_code, reason = "ort has no safe function for it")]
pub fn assigned(session: &Session) -> ort::Result<Assignment> {
    let api = ort::api();
    let mut assignment = Assignment::new();
    // SAFETY: the session is alive for the whole call and owns the subgraphs, their names and nodes, which are only
    // read. Each function writes a pointer and its count, and the slice is made from exactly those.
    unsafe {
        let (mut subgraphs, mut count) = (std::ptr::null(), 0usize);
        let status = (api.Session_GetEpGraphAssignmentInfo)(session.ptr(), &mut subgraphs, &mut count);
        ort::Error::result_from_status(status)?;
        let subgraphs = if count == 0 { &[][..] } else { std::slice::from_raw_parts(subgraphs, count) };
        for &subgraph in subgraphs {
            let mut name = std::ptr::null();
            ort::Error::result_from_status((api.EpAssignedSubgraph_GetEpName)(subgraph, &mut name))?;
            let (mut nodes, mut count) = (std::ptr::null(), 0usize);
            ort::Error::result_from_status((api.EpAssignedSubgraph_GetNodes)(subgraph, &mut nodes, &mut count))?;
            *assignment.entry(CStr::from_ptr(name).to_string_lossy().into_owned()).or_default() += count;
        }
    }
    Ok(assignment)
}

/// The session setting that [`assigned`] needs.
pub const RECORD_ASSIGNMENT: (&str, &str) = ("session.record_ep_graph_assignment_info", "1");

/// Checks `assignment` against `accelerators`: each has to run nodes (CUDA after TensorRT may have none left), and
/// except for the CPU no other provider may.
pub fn check_assignment(assignment: &Assignment, accelerators: &[Accelerator]) -> Result<(), String> {
    let asked: Vec<_> = accelerators.iter().map(|accelerator| accelerator.kind.provider()).collect();
    if let Some(first) = accelerators.first()
        && !assignment.contains_key(first.kind.provider())
    {
        return Err(format!(
            "execution accelerator '{}' took none of the model's nodes: they went to {}",
            first.kind.name(),
            describe(assignment)
        ));
    }
    match assignment.keys().find(|provider| *provider != CPU && !asked.contains(&provider.as_str())) {
        Some(uninvited) => Err(format!("{uninvited} took part of the model, and nobody asked for it")),
        None => Ok(()),
    }
}

/// As text for the log.
pub fn describe(assignment: &Assignment) -> String {
    assignment.iter().map(|(provider, nodes)| format!("{provider} {nodes}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment(pairs: &[(&str, usize)]) -> Assignment {
        pairs.iter().map(|(provider, nodes)| ((*provider).to_owned(), *nodes)).collect()
    }

    #[test]
    fn a_provider_that_runs_nothing_or_was_not_asked_for_is_an_error() {
        let openvino = [Accelerator { kind: AcceleratorKind::OpenVino, options: BTreeMap::new() }];
        let both = assignment(&[("CPUExecutionProvider", 3), ("OpenVINOExecutionProvider", 200)]);
        assert_eq!(check_assignment(&both, &openvino), Ok(()));
        assert_eq!(
            check_assignment(&both, &[]).unwrap_err(),
            "OpenVINOExecutionProvider took part of the model, and nobody asked for it"
        );
        let none = assignment(&[("CPUExecutionProvider", 3)]);
        assert_eq!(check_assignment(&none, &[]), Ok(()));
        assert_eq!(
            check_assignment(&none, &openvino).unwrap_err(),
            "execution accelerator 'openvino' took none of the model's nodes: they went to CPUExecutionProvider 3"
        );
    }

    #[test]
    fn what_a_provider_misses_is_told() {
        // The tests' library has no CUDA, or the machine has no GPU with this number.
        let environment = library::environment(None).unwrap();
        let builder = Session::builder(&environment).unwrap();
        let cuda = ep::CUDA::default().with_device_id(1000).build();
        let error = register(builder, vec![(AcceleratorKind::Cuda, cuda)]).err().expect("there is no GPU 1000");
        assert!(error.starts_with("execution accelerator 'cuda' cannot be used here: "), "{error}");
        assert!(!error.contains("onnxruntime_src") && !error.contains("ONNXRuntimeError"), "{error}");

        let message = "/src/provider_bridge_ort.cc:2043 onnxruntime::Provider& Get() [ONNXRuntimeError] : 1 : FAIL : Failed \
                       to load library libonnxruntime_providers_cuda.so with error: libcuda.so.1: cannot open shared \
                       object file: No such file or directory";
        assert_eq!(
            unusable(AcceleratorKind::Cuda, message),
            "execution accelerator 'cuda' cannot be used here: Failed to load library \
             libonnxruntime_providers_cuda.so with error: libcuda.so.1: cannot open shared object file: No such file or \
             directory; the host needs NVIDIA's driver, and a container has to be given the GPU (docker run --gpus all); to run on the \
             CPU, write instance_group [ { kind: KIND_CPU } ], or serve such groups on the CPU with --gpu-groups-on-cpu"
        );
        let message = "/src/info.cc:63 static Info Options() [ONNXRuntimeError] : 1 : FAIL : utils.h:187 Parse Failed to parse \
                       provider option \"device_id\": CUDA failure 100: no CUDA-capable device is detected ; GPU=-1 ; \
                       hostname=h ; file=/src/info.cc ; line=70 ; expr=cudaGetDeviceCount(&n);";
        assert_eq!(
            unusable(AcceleratorKind::Cuda, message),
            "execution accelerator 'cuda' cannot be used here: utils.h:187 Parse Failed to parse provider option \
             \"device_id\": CUDA failure 100: no CUDA-capable device is detected; the host needs NVIDIA's driver, and a \
             container has to be given the GPU (docker run --gpus all); to run on the CPU, write \
             instance_group [ { kind: KIND_CPU } ], or serve such groups on the CPU with --gpu-groups-on-cpu"
        );
        assert_eq!(
            unusable(AcceleratorKind::TensorRt, "libnvinfer.so.10: cannot open shared object file"),
            "execution accelerator 'tensorrt' cannot be used here: libnvinfer.so.10: cannot open shared object file"
        );
    }

    #[test]
    fn openvino_keeps_to_the_instances_threads_unless_told_otherwise() {
        let read = |options: &BTreeMap<String, String>| {
            serde_json::from_str::<serde_json::Value>(&openvino_config(options, 3)).unwrap()
        };
        let own = read(&BTreeMap::new());
        assert_eq!(own["CPU"]["INFERENCE_NUM_THREADS"], "3");
        assert_eq!(own["CPU"]["NUM_STREAMS"], "1");
        assert_eq!(own["CPU"]["ENABLE_CPU_PINNING"], "NO");
        let told = BTreeMap::from([("INFERENCE_NUM_THREADS".to_owned(), "5".to_owned())]);
        assert_eq!(read(&told)["CPU"]["INFERENCE_NUM_THREADS"], "5");
    }
}
