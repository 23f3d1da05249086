//! Which models a process serves, and when that may change: Triton's model control modes, as flags.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum};
use trireme_model_repository::Repository;

/// When the set of served models changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ControlMode {
    /// Never: all models are loaded at the start.
    #[default]
    None,
    /// By request: those of --load-model are loaded at the start.
    Explicit,
    /// When the model repository changes.
    Poll,
}

/// Flags of every process with a model repository; all processes of a deployment need the same.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Models")]
pub struct ControlArgs {
    /// When models are loaded and unloaded: `none` all at the start, `explicit` by request, `poll` as the repository changes
    #[arg(long, env = "TRIREME_MODEL_CONTROL_MODE", value_name = "MODE", default_value = "none")]
    pub model_control_mode: ControlMode,

    /// Model to load at the start with --model-control-mode=explicit; may be given several times, `*` is every model
    #[arg(long = "load-model", env = "TRIREME_LOAD_MODEL", value_name = "NAME", value_delimiter = ',')]
    pub load_models: Vec<String>,

    /// Seconds between looks at the repository with --model-control-mode=poll
    #[arg(long, env = "TRIREME_REPOSITORY_POLL_SECS", value_name = "SECONDS", default_value_t = 15)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub repository_poll_secs: u64,

    /// Whether a model that cannot be loaded at the start ends the process; if not, the others are served
    #[arg(long, env = "TRIREME_EXIT_ON_ERROR", value_name = "BOOL", default_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), num_args = 0..=1, default_missing_value = "true")]
    #[arg(action = ArgAction::Set)]
    pub exit_on_error: bool,
}

/// The flags' values.
#[derive(Clone, Debug)]
pub struct ControlOptions {
    /// When the set of served models changes.
    pub mode: ControlMode,
    /// Models to load at the start, in explicit mode.
    pub load: Vec<String>,
    /// Time between looks at the repository, in poll mode.
    pub poll: Duration,
    /// Whether the process ends when a model cannot be loaded at the start.
    pub exit_on_error: bool,
}

// === impl ControlArgs ===

impl ControlArgs {
    /// The options from the flags. Errors name the flag.
    pub fn options(&self) -> anyhow::Result<ControlOptions> {
        if !self.load_models.is_empty() && self.model_control_mode != ControlMode::Explicit {
            anyhow::bail!("use of '--load-model' requires setting '--model-control-mode=explicit' as well");
        }
        Ok(ControlOptions {
            mode: self.model_control_mode,
            load: self.load_models.clone(),
            poll: Duration::from_secs(self.repository_poll_secs),
            exit_on_error: self.exit_on_error,
        })
    }
}

// === impl ControlOptions ===

impl Default for ControlOptions {
    fn default() -> Self {
        ControlOptions { mode: ControlMode::None, load: Vec::new(), poll: Duration::from_secs(15), exit_on_error: true }
    }
}

impl ControlOptions {
    /// Whether a fault of this model is an error at the start.
    pub fn concerns(&self, model: &str) -> bool {
        self.mode != ControlMode::Explicit || self.load.iter().any(|name| name == "*" || name == model)
    }

    /// The models that are loaded at the start, and the models that they are composed of.
    pub fn initial(&self, repository: &Repository) -> BTreeSet<String> {
        let all = self.mode != ControlMode::Explicit || self.load.iter().any(|name| name == "*");
        let named = match all {
            true => repository.models().map(|model| model.name.clone()).collect(),
            false => self.load.clone(),
        };
        let mut initial = BTreeSet::new();
        for name in named {
            initial.extend(repository.composing(&name));
            initial.insert(name);
        }
        initial
    }
}
