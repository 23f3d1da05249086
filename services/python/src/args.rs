//! Flags about models of backend `python`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

/// The models whose code may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AllowPython {
    /// No model's code may run.
    #[default]
    Never,
    /// The code of models in the model repositories may run, downloaded ones included.
    Local,
    /// The code of models whose files or configuration came with a request to load them may run, too.
    Uploads,
}

/// Flags of every process that may host models of backend `python`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Models in Python")]
pub struct PythonArgs {
    /// Run the model.py files of the model repository, which are code with the worker's rights; `uploads` allows also code
    /// that comes with a request to load a model. The value follows a `=`. By default `never`; in `trireme serve` `local`, unless a model is downloaded
    #[arg(long, env = "TRIREME_ALLOW_PYTHON", value_name = "WHICH", value_enum)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "local")]
    pub allow_python: Option<AllowPython>,

    /// The interpreter of models that name no environment of their own (EXECUTION_ENV_PATH); it needs numpy
    #[arg(long, env = "TRIREME_PYTHON", value_name = "FILE", default_value = "python3")]
    pub python: PathBuf,

    /// Variables of the worker's environment that models see besides PATH, HOME, the locale and the like
    #[arg(long, env = "TRIREME_PYTHON_ENVIRONMENT", value_name = "NAME", value_delimiter = ',')]
    pub python_environment: Vec<String>,

    /// Seconds that a model may take from the start of its process until `initialize` has returned
    #[arg(long, env = "TRIREME_PYTHON_START_LIMIT_SECS", value_name = "SECONDS", default_value_t = 300)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub python_start_limit_secs: u64,

    /// Bytes of memory that the process of an instance may have (its resident set); one that has more is ended and started
    /// again, and its requests are tried elsewhere; 0 is no limit
    #[arg(long, env = "TRIREME_PYTHON_MEMORY_LIMIT_BYTES", value_name = "BYTES", default_value_t = 0)]
    pub python_memory_limit_bytes: u64,
}

/// How models of backend `python` are run.
#[derive(Clone, Debug)]
pub struct PythonOptions {
    /// The models whose code may run.
    pub allow: AllowPython,
    /// The interpreter of models that name no environment of their own.
    pub python: PathBuf,
    /// Variables of the worker's environment that models see besides the usual ones.
    pub environment: Vec<String>,
    /// Time from the start of a process until its model is initialized, at most.
    pub start_limit: Duration,
    /// Most bytes of memory that a process may have; `None` is no limit.
    pub memory_limit: Option<u64>,
    /// The time limit of one `execute`; `None` is no limit.
    pub execution_limit: Option<Duration>,
}

// === impl PythonArgs ===

impl PythonArgs {
    /// The models whose code may run without the flag where the user chooses them: those of folders. Somebody else has written what is
    /// downloaded.
    pub fn default_for(downloads: bool) -> AllowPython {
        if downloads { AllowPython::Never } else { AllowPython::Local }
    }

    /// The options that the flags describe. `default` applies if `--allow-python` is not given.
    pub fn options(&self, default: AllowPython, execution_limit: Option<Duration>) -> PythonOptions {
        PythonOptions {
            allow: self.allow_python.unwrap_or(default),
            python: self.python.clone(),
            environment: self.python_environment.clone(),
            start_limit: Duration::from_secs(self.python_start_limit_secs),
            memory_limit: (self.python_memory_limit_bytes > 0).then_some(self.python_memory_limit_bytes),
            execution_limit,
        }
    }
}

// === impl PythonOptions ===

impl Default for PythonOptions {
    fn default() -> Self {
        PythonOptions {
            allow: AllowPython::Never,
            python: "python3".into(),
            environment: Vec::new(),
            start_limit: Duration::from_secs(300),
            memory_limit: None,
            execution_limit: None,
        }
    }
}
