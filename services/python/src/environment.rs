//! The interpreter of a model, and the environment variables of its processes.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, PoisonError};

use trireme_model_repository::ModelConfig;

use crate::archive::Unpacked;

/// The parameter that names the environment of a model; Triton's.
pub const EXECUTION_ENV_PATH: &str = "EXECUTION_ENV_PATH";

/// Stands for the model's folder in that parameter, as in Triton.
const MODEL_DIRECTORY: &str = "$$TRITON_MODEL_DIRECTORY";

/// The variables that a model sees. None of them usually holds a secret.
const VISIBLE: [&str; 31] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "TMPDIR",
    "TZ",
    "LANG",
    "LANGUAGE",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONHASHSEED",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "XDG_CACHE_HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "TRANSFORMERS_CACHE",
    "TRANSFORMERS_OFFLINE",
    "TORCH_HOME",
    "TOKENIZERS_PARALLELISM",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
];

/// Prints the version of Python, and the packages that a model can import, each with its version.
const PACKAGES: &str = "
import os, platform, sys
found = set()
for folder in sys.path:
    if os.path.isdir(folder):
        found.update(name for name in os.listdir(folder) if name.endswith(('.dist-info', '.egg-info')))
print(platform.python_implementation(), platform.python_version(), *sorted(found), sep='\\n')
";

/// Outputs of interpreters, by program and variables.
static KNOWN: LazyLock<Mutex<HashMap<Asked, String>>> = LazyLock::new(Mutex::default);

/// A program and its variables.
type Asked = (PathBuf, Vec<(OsString, OsString)>);

/// Where a model's interpreter is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// The program.
    pub program: PathBuf,
    /// The folder of the environment that it belongs to, where the model names one.
    pub environment: Option<PathBuf>,
    /// Keeps that folder, where it is an unpacked archive.
    pub unpacked: Option<Unpacked>,
}

/// The interpreter of the model's own environment, or `default` if the model in `model_path` names no environment. The error
/// describes the fault of the environment.
pub fn interpreter(config: &ModelConfig, model_path: &Path, default: &Path) -> Result<Interpreter, String> {
    // As in Triton, an empty text names none, and a relative path is one from the working directory.
    let Some(named) = config.parameters.get(EXECUTION_ENV_PATH).filter(|named| !named.is_empty()) else {
        return Ok(Interpreter { program: default.to_owned(), environment: None, unpacked: None });
    };
    let folder = in_model(named, model_path);
    let folder = std::path::absolute(&folder).unwrap_or(folder);
    let place = folder.display().to_string();
    let refused = |reason: &str| Err(format!("parameter '{EXECUTION_ENV_PATH}' is '{named}' ({place}): {reason}"));
    let unpacked = match Unpacked::open(&folder) {
        Ok(unpacked) => unpacked,
        Err(reason) => return refused(&reason),
    };
    let folder = unpacked.as_ref().map_or(folder, |unpacked| unpacked.path().to_owned());
    let programs = ["bin/python3", "bin/python"].map(|program| folder.join(program));
    match programs.into_iter().find(|program| program.is_file()) {
        Some(program) => Ok(Interpreter { program, environment: Some(folder), unpacked }),
        None => refused(
            "it holds no bin/python3 and no bin/python; expected a virtual or conda environment, or a .tar.gz of one",
        ),
    }
}

/// A text of the configuration, in which [`MODEL_DIRECTORY`] stands for the model's folder, as a path. The folder may be relative: the
/// repository is named so on the command line.
pub fn in_model(named: &str, model_path: &Path) -> PathBuf {
    let absolute = std::path::absolute(model_path).unwrap_or_else(|_| model_path.to_owned());
    PathBuf::from(named.replace(MODEL_DIRECTORY, &absolute.to_string_lossy()))
}

// === impl Interpreter ===

impl Interpreter {
    /// Its version and the packages that are installed for it, with their versions: an equal text on hosts that have the same ones. It is
    /// asked once.
    pub fn packages(&self, variables: &[(OsString, OsString)]) -> Result<String, String> {
        let asked = (self.program.clone(), variables.to_vec());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(packages) = known.get(&asked) {
            return Ok(packages.clone());
        }
        let program = self.program.display();
        let failed = |reason: &dyn Display| format!("'{program}' does not say which packages it has: {reason}");
        let mut command = Command::new(&self.program);
        let said = command.args(["-c", PACKAGES]).env_clear().envs(variables.iter().cloned()).output();
        let said = said.map_err(|error| failed(&error))?;
        if !said.status.success() {
            return Err(failed(&String::from_utf8_lossy(&said.stderr)));
        }
        let packages = String::from_utf8_lossy(&said.stdout).into_owned();
        known.insert(asked, packages.clone());
        Ok(packages)
    }

    /// The variables of a process of this interpreter: the variables in `all` that models may see or that `more` names. PATH
    /// begins with the environment's programs, and PYTHONPATH with `package`.
    pub fn variables(
        &self,
        all: impl IntoIterator<Item = (OsString, OsString)>,
        more: &[String],
        package: &Path,
    ) -> Vec<(OsString, OsString)> {
        let is_visible = |name: &OsStr| {
            name.to_str().is_some_and(|name| {
                VISIBLE.contains(&name) || name.starts_with("LC_") || more.iter().any(|allowed| allowed == name)
            })
        };
        let mut variables: Vec<_> = all.into_iter().filter(|(name, _)| is_visible(name)).collect();
        prepend(&mut variables, "PYTHONPATH", package);
        if let Some(environment) = &self.environment {
            prepend(&mut variables, "PATH", &environment.join("bin"));
            variables.retain(|(name, _)| name != "VIRTUAL_ENV" && name != "CONDA_PREFIX");
            variables.push(("VIRTUAL_ENV".into(), environment.into()));
        }
        // Output reaches the log at once, and Python writes no files beside model.py.
        for (name, value) in [("PYTHONUNBUFFERED", "1"), ("PYTHONDONTWRITEBYTECODE", "1"), ("PYTHONFAULTHANDLER", "1")]
        {
            variables.push((name.into(), value.into()));
        }
        variables
    }
}

/// Puts a folder in front of a list of folders.
fn prepend(variables: &mut Vec<(OsString, OsString)>, name: &str, folder: &Path) {
    let before = variables.iter().position(|(known, _)| known == name).map(|index| variables.remove(index).1);
    let mut list = folder.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        list.push(":");
        list.push(before);
    }
    variables.push((name.into(), list));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(path: &str) -> ModelConfig {
        let text = format!(
            "backend: 'python' parameters {{ key: 'EXECUTION_ENV_PATH' value {{ string_value: '{path}' }} }}
             input [{{ name: 'a' data_type: TYPE_FP32 dims: [1] }}] output [{{ name: 'b' data_type: TYPE_FP32 dims: [1] }}]"
        );
        ModelConfig::parse(&text, "m").unwrap()
    }

    #[test]
    fn the_interpreter_of_the_models_own_environment_is_taken() {
        let model = tempfile::tempdir().unwrap();
        let bin = model.path().join("env/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join("python"), "").unwrap();
        let found = interpreter(&config("$$TRITON_MODEL_DIRECTORY/env"), model.path(), Path::new("python3")).unwrap();
        assert_eq!(found.program, bin.join("python"));
        let of_relative = in_model("$$TRITON_MODEL_DIRECTORY/env", Path::new("repository/m"));
        assert_eq!(of_relative, std::env::current_dir().unwrap().join("repository/m/env"));
        let variables = found.variables([("PATH".into(), "/bin".into())], &[], Path::new("/package"));
        let path = variables.iter().find(|(name, _)| name == "PATH").unwrap();
        assert_eq!(path.1.to_str().unwrap(), format!("{}:/bin", bin.display()));
    }

    #[test]
    fn an_empty_text_names_no_environment() {
        let found = interpreter(&config(""), Path::new("/m"), Path::new("python3")).unwrap();
        assert_eq!((found.program, found.environment), (PathBuf::from("python3"), None));
    }

    #[test]
    fn an_interpreter_says_its_packages() {
        let none = Interpreter { program: "false".into(), environment: None, unpacked: None };
        let path = || ("PATH".into(), std::env::var_os("PATH").unwrap());
        let refused = none.packages(&[path()]).unwrap_err();
        assert!(refused.starts_with("'false' does not say which packages it has"), "{refused}");
        let real = Interpreter { program: "python3".into(), environment: None, unpacked: None };
        let folder = tempfile::tempdir().unwrap();
        let ask = |folder: &Path| real.packages(&[path(), ("PYTHONPATH".into(), folder.into())]).unwrap();
        std::fs::create_dir(folder.path().join("numpy-9.9.9.dist-info")).unwrap();
        let said = ask(folder.path());
        assert!(said.starts_with("CPython\n3.") && said.contains("\nnumpy-9.9.9.dist-info\n"), "{said}");
    }

    #[test]
    fn a_packed_environment_is_unpacked() {
        let model = tempfile::tempdir().unwrap();
        crate::archive::tests::pack(&model.path().join("env.tar.gz"), &[("bin/python3", "#!")]);
        let named = config("$$TRITON_MODEL_DIRECTORY/env.tar.gz");
        let found = interpreter(&named, model.path(), Path::new("python3")).unwrap();
        assert!(found.program.is_file() && !found.program.starts_with(model.path()), "{found:?}");
    }

    #[test]
    fn an_environment_that_is_none_is_refused() {
        let refused = |path: &str| interpreter(&config(path), Path::new("/m"), Path::new("python3")).unwrap_err();
        assert!(refused("$$TRITON_MODEL_DIRECTORY/env.tar.gz").contains("cannot unpack it"));
        assert!(refused("$$TRITON_MODEL_DIRECTORY/env.zip").contains("pack it as .tar.gz"));
        let relative = refused("env");
        let here = std::env::current_dir().unwrap().join("env").display().to_string();
        assert!(relative.contains(&here) && relative.contains("no bin/python3"), "{relative}");
        assert!(refused("$$TRITON_MODEL_DIRECTORY/env").contains("no bin/python3"));
    }

    #[test]
    fn secrets_stay_with_the_worker() {
        let plain = Interpreter { program: "python3".into(), environment: None, unpacked: None };
        let all = ["PATH", "LC_ALL", "TRIREME_NATS_PASSWORD", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "OURS"];
        let all = all.map(|name| (OsString::from(name), OsString::from("x")));
        let names = |more: &[String]| -> Vec<String> {
            let variables = plain.variables(all.clone(), more, Path::new("/package"));
            variables
                .into_iter()
                .map(|(name, _)| name.into_string().unwrap())
                .filter(|n| !n.starts_with("PYTHON"))
                .collect()
        };
        assert_eq!(names(&[]), ["PATH", "LC_ALL"]);
        assert_eq!(names(&["OURS".to_owned()]), ["PATH", "LC_ALL", "OURS"]);
    }
}
