//! Finds and loads the ONNX Runtime library, once per process and only when a model needs it.
//!
//! If a path is configured (option or `ORT_DYLIB_PATH`), no other is tried: using another library would hide the
//! mistake. A failed attempt may be repeated; a loaded library stays until the process ends.

use std::ffi::{CStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ort::device::Device;
use ort::environment::Environment;
use ort::logging::LogLevel;
use parking_lot::Mutex;

/// The library's own CPU provider.
pub const CPU: &str = "CPUExecutionProvider";

/// The library's path after the setup script, relative to the checkout.
const SETUP_PATH: &str = ".tools/onnxruntime/libonnxruntime.so";
/// How the library's name begins in its Python wheel, before the version.
const WHEEL_PREFIX: &str = "libonnxruntime.so.";
/// The name for the system's loader.
const SYSTEM_NAME: &str = "libonnxruntime.so";
const HOW_TO_GET: &str = "get one with `make setup` or from the Python wheel `onnxruntime`, and name it with \
                          --onnxruntime-library or ORT_DYLIB_PATH";

/// The oldest recommended version is 1.30: its attention is faster where texts are padded (microsoft/onnxruntime 29719).
const RECOMMENDED_MINOR: u32 = 30;

/// A library that would run models, and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLibrary {
    /// Its file, or a bare name that the system's loader looks up.
    pub path: PathBuf,
    /// As it tells it: `1.31.1`.
    pub version: String,
}

/// Why ONNX Runtime cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages show")]
pub enum LibraryError {
    /// No library was found.
    #[error("no ONNX Runtime library found, looked for {}: {reason}; {HOW_TO_GET}", list(looked_at))]
    NotFound { looked_at: Vec<PathBuf>, reason: String },
    /// There is a file, but it is not ONNX Runtime, or too old.
    #[error(
        "cannot use the ONNX Runtime library: {reason}; version 1.{} or newer is needed: {HOW_TO_GET}",
        ort::MINOR_VERSION
    )]
    Unusable { reason: String },
}

/// ONNX Runtime allows one environment per process, ever.
static ENVIRONMENT: Mutex<Option<Environment>> = Mutex::new(None);

/// The process's environment, made on first use with the library at `explicit`, if that is given.
pub fn environment(explicit: Option<&Path>) -> Result<Environment, LibraryError> {
    let mut slot = ENVIRONMENT.lock();
    if let Some(environment) = &*slot {
        return Ok(environment.clone());
    }
    let candidates = Surroundings::of_this_process().candidates(explicit);
    let path = choose(&candidates)?;
    let environment = load(path)?;
    tracing::info!(path = %path.display(), build = ort::info(), "loaded ONNX Runtime");
    Ok(slot.insert(environment).clone())
}

/// The library at `explicit`, or else the one that this process would find for its first model. It is loaded to ask for its version.
pub fn find(explicit: Option<&Path>) -> Result<FoundLibrary, LibraryError> {
    let candidates = Surroundings::of_this_process().candidates(explicit);
    let path = choose(&candidates)?;
    let version = version(path).map_err(|error| match path.as_os_str() == SYSTEM_NAME {
        true => LibraryError::NotFound { looked_at: candidates.clone(), reason: error.to_string() },
        false => LibraryError::Unusable { reason: error.to_string() },
    })?;
    let found = FoundLibrary { path: path.to_owned(), version };
    match found.minor().is_some_and(|minor| minor < ort::MINOR_VERSION) {
        true => {
            Err(LibraryError::Unusable { reason: format!("{} is version {}", found.path.display(), found.version) })
        }
        false => Ok(found),
    }
}

/// The version that the library at `path` tells.
#[allow(unsafe_code, reason = "ort has no function for the version")]
fn version(path: &Path) -> Result<String, libloading::Error> {
    // SAFETY: the file is one that `ort` would load, and it stays loaded. The symbol has the type of ONNX Runtime's C header. Its
    // result is valid as long as the library, and so is the version, a string that ends with a zero.
    unsafe {
        let library = libloading::Library::new(path)?;
        let base = library.get::<unsafe extern "C" fn() -> *const ort::sys::OrtApiBase>(b"OrtGetApiBase")?;
        let version = CStr::from_ptr(((*base()).GetVersionString)()).to_string_lossy().into_owned();
        std::mem::forget(library);
        Ok(version)
    }
}

/// A file that the setup scripts put into the checkout, if it exists.
pub fn beside_setup(file: &str) -> Option<PathBuf> {
    Surroundings::of_this_process().beside_setup(file).into_iter().find(|path| path.is_file())
}

/// The parts of the environment that the search depends on.
struct Surroundings {
    variable: Option<OsString>,
    directory: Option<PathBuf>,
    executable: Option<PathBuf>,
}

// === impl FoundLibrary ===

impl FoundLibrary {
    /// The number behind the first point; `None` of a version that is no 1.x.
    fn minor(&self) -> Option<u32> {
        self.version.strip_prefix("1.")?.split('.').next()?.parse().ok()
    }

    /// The advice for a version that is older than recommended.
    pub fn advice(&self) -> Option<String> {
        self.minor().filter(|minor| *minor < RECOMMENDED_MINOR).map(|_| {
            format!(
                "ONNX Runtime {} at {} is older than 1.{RECOMMENDED_MINOR}, from which on attention over padded texts is faster; \
                 {HOW_TO_GET}",
                self.version,
                self.path.display()
            )
        })
    }
}

// === impl Surroundings ===

impl Surroundings {
    fn of_this_process() -> Surroundings {
        Surroundings {
            variable: std::env::var_os("ORT_DYLIB_PATH").filter(|value| !value.is_empty()),
            directory: std::env::current_dir().ok(),
            executable: std::env::current_exe().ok(),
        }
    }

    /// The paths to try, best first. The last one may be a bare name, which the system's loader looks up.
    fn candidates(&self, explicit: Option<&Path>) -> Vec<PathBuf> {
        let directory = self.directory.as_deref().unwrap_or(Path::new(""));
        if let Some(named) = explicit.or(self.variable.as_deref().map(Path::new)) {
            return vec![directory.join(named)];
        }
        let mut places = self.beside_setup(SETUP_PATH);
        places.extend(self.in_wheel());
        places.push(PathBuf::from(SYSTEM_NAME));
        places
    }

    /// The library in the Python wheel `onnxruntime`, where this executable came with a wheel into the same environment:
    /// `bin/trireme`, `lib/python3.12/site-packages/onnxruntime/capi/libonnxruntime.so.1.31.1`.
    fn in_wheel(&self) -> Option<PathBuf> {
        let environment = self.executable.as_deref()?.parent()?.parent()?;
        let inner = |folder: PathBuf, prefix: &str| {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
            let matches =
                |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
            let mut found: Vec<PathBuf> = entries.filter(matches).collect();
            found.sort();
            found
        };
        let pythons = ["lib", "lib64"].into_iter().flat_map(|lib| inner(environment.join(lib), "python3"));
        let folders = pythons.map(|python| python.join("site-packages/onnxruntime/capi"));
        folders.flat_map(|folder| inner(folder, WHEEL_PREFIX)).next_back()
    }

    /// The paths at which the setup script may have put a file: in the working directory's checkout, or the
    /// executable's.
    fn beside_setup(&self, file: &str) -> Vec<PathBuf> {
        let directory = self.directory.as_deref().unwrap_or(Path::new(""));
        let ancestors = self.executable.iter().flat_map(|executable| executable.ancestors().skip(1));
        let mut places: Vec<_> = std::iter::once(directory).chain(ancestors).map(|dir| dir.join(file)).collect();
        places.dedup();
        places
    }
}

/// The first candidate that exists; a bare name is always accepted.
fn choose(candidates: &[PathBuf]) -> Result<&Path, LibraryError> {
    let found = candidates.iter().find(|path| path.as_os_str() == SYSTEM_NAME || path.is_file());
    found
        .map(PathBuf::as_path)
        .ok_or_else(|| LibraryError::NotFound { looked_at: candidates.to_vec(), reason: "no such file".to_owned() })
}

fn load(path: &Path) -> Result<Environment, LibraryError> {
    use ort::LoadDynamicError::Dlopen;
    let builder = ort::init_from(path).map_err(|error| match error {
        Dlopen { error, .. } if path.as_os_str() == SYSTEM_NAME => LibraryError::NotFound {
            looked_at: Surroundings::of_this_process().candidates(None),
            reason: error.to_string(),
        },
        other => LibraryError::Unusable { reason: other.to_string() },
    })?;
    let environment = builder
        .with_name("trireme")
        .with_telemetry(false)
        .with_logger(Arc::new(log))
        .build()
        .map_err(|error| LibraryError::Unusable { reason: error.to_string() })?;
    // Sessions get this device and no other. Without it the library would choose a device itself.
    if !environment.devices().any(|device| is_plain_cpu(&device)) {
        return Err(LibraryError::Unusable { reason: format!("{} offers no CPU device", path.display()) });
    }
    // With a logger of our own, the environment's default level is the most verbose one, which formats several lines
    // per run.
    environment.set_log_level(LogLevel::Warning);
    Ok(environment)
}

/// The library also returns its errors as results, which are logged elsewhere. So its log lines are only debug output.
fn log(level: LogLevel, category: &str, _id: &str, location: &str, message: &str) {
    match level {
        LogLevel::Fatal => tracing::error!(target: "onnxruntime", category, location, "{message}"),
        _ => tracing::debug!(target: "onnxruntime", category, location, "{message}"),
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Whether this is the library's own CPU provider.
pub fn is_plain_cpu(device: &Device<'_>) -> bool {
    device.ep().is_ok_and(|provider| provider == CPU)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surroundings(variable: Option<&str>) -> Surroundings {
        Surroundings {
            variable: variable.map(OsString::from),
            directory: Some("/checkout".into()),
            executable: Some("/opt/bin/trireme".into()),
        }
    }

    #[test]
    fn what_was_named_is_the_only_candidate() {
        let both = surroundings(Some("/env/lib.so"));
        assert_eq!(both.candidates(Some(Path::new("mine.so"))), [Path::new("/checkout/mine.so")]);
        assert_eq!(both.candidates(None), [Path::new("/env/lib.so")]);
    }

    #[test]
    fn without_a_name_the_checkout_then_the_system_is_searched() {
        let found = surroundings(None).candidates(None);
        let expected = ["/checkout/", "/opt/bin/", "/opt/", "/"].map(|dir| PathBuf::from(format!("{dir}{SETUP_PATH}")));
        assert_eq!(found[..4], expected);
        assert_eq!(found[4..], [PathBuf::from(SYSTEM_NAME)]);
    }

    #[test]
    fn an_executable_of_a_wheel_finds_the_library_of_another_wheel() {
        let environment = tempfile::tempdir().unwrap();
        let capi = environment.path().join("lib/python3.12/site-packages/onnxruntime/capi");
        std::fs::create_dir_all(&capi).unwrap();
        for name in ["libonnxruntime.so.1.31.1", "libonnxruntime_providers_shared.so"] {
            std::fs::write(capi.join(name), "").unwrap();
        }
        let executable = environment.path().join("bin/trireme");
        let found = Surroundings { executable: Some(executable), ..surroundings(None) }.candidates(None);
        let place = found.iter().position(|path| *path == capi.join("libonnxruntime.so.1.31.1"));
        assert_eq!(place, Some(found.len() - 2), "before the system's: {found:?}");
    }

    #[test]
    fn the_version_is_told_and_an_old_one_has_advice() {
        let found = find(None).unwrap();
        assert!(found.minor() >= Some(ort::MINOR_VERSION), "{found:?}");
        let advice = |version: &str| {
            FoundLibrary { path: "/lib/libonnxruntime.so".into(), version: version.to_owned() }.advice()
        };
        let old = advice("1.29.2").unwrap();
        assert!(old.starts_with("ONNX Runtime 1.29.2 at /lib/libonnxruntime.so is older than 1.30, "), "{old}");
        assert!(old.ends_with(HOW_TO_GET), "{old}");
        assert_eq!((advice("1.30.0"), advice("1.31.1"), advice("2.0.0")), (None, None, None));
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = find(Some(file.path())).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot use the ONNX Runtime library: ") && error.contains("or newer is needed"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_library_is_an_error_that_says_how_to_get_one() {
        let message = choose(&["/nowhere/libonnxruntime.so".into()]).unwrap_err().to_string();
        assert!(message.contains("looked for /nowhere/libonnxruntime.so: no such file; get one with `make setup`"));
    }
}
