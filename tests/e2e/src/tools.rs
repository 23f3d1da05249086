//! Paths of the product's binaries, and of files that the set-up fetched.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("this crate lies two folders deep")
}

/// The environment of every process: it listens on this machine only, chooses its ports itself, and logs so that tests
/// can read it. Binaries ignore variables for which they have no flag.
const ENVIRONMENT: [(&str, &str); 7] = [
    ("TRIREME_HTTP_ADDRESS", "127.0.0.1"),
    ("TRIREME_HTTP_PORT", "0"),
    ("TRIREME_GRPC_ADDRESS", "127.0.0.1"),
    ("TRIREME_GRPC_PORT", "0"),
    ("TRIREME_METRICS_ADDRESS", "127.0.0.1"),
    ("TRIREME_METRICS_PORT", "0"),
    ("TRIREME_LOG_FORMAT", "json"),
];

/// A command that runs one of the product's binaries, from the profile in which this test was built. It listens on
/// 127.0.0.1 at ports of its choice and logs JSON. Variables that are set for the tests themselves are not passed on.
///
/// # Panics
/// When the binary or the library is missing; the text names the remedy.
pub fn product(binary: &str) -> Command {
    let test = std::env::current_exe().expect("a running program has a path");
    let folder = test.parent().expect("a program lies in a folder");
    // Binaries are in target/<profile>, tests in a folder below it.
    let profile = if folder.ends_with("deps") { folder.parent().expect("deps is no root") } else { folder };
    let path = profile.join(binary);
    assert!(path.is_file(), "{} is missing: run `cargo build --workspace` first, or `make test`", path.display());
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"TRIREME_") {
            command.env_remove(name);
        }
    }
    command.envs(ENVIRONMENT).env("ORT_DYLIB_PATH", onnxruntime_library());
    command
}

/// The ONNX Runtime library: from the environment, or the one that the set-up fetched.
pub fn onnxruntime_library() -> PathBuf {
    named_or_fetched("ORT_DYLIB_PATH", ".tools/onnxruntime/libonnxruntime.so")
}

/// The Python for client scripts: from the environment, or the one that the set-up created.
pub fn python() -> PathBuf {
    named_or_fetched("TRIREME_PYTHON", ".tools/python/bin/python")
}

/// The demo's model repository: from the environment, or the one that the set-up created.
pub fn demo_repository() -> PathBuf {
    named_or_fetched("TRIREME_DEMO_REPOSITORY", ".tools/demo-repository")
}

fn named_or_fetched(variable: &str, fetched: &str) -> PathBuf {
    let path = std::env::var_os(variable).map_or_else(|| workspace().join(fetched), PathBuf::from);
    assert!(path.exists(), "{} is missing: run `make setup`, or name another with {variable}", path.display());
    path
}

/// Calls `ask` until it returns a value, for `limit` at most.
///
/// # Panics
/// When there is no value by then; the text names `what`.
#[track_caller]
pub fn wait_until<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + limit;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < give_up, "waited {} s in vain: {what}", limit.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}
