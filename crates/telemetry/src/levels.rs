//! Log levels that can be changed while the process runs.

use std::sync::OnceLock;

use anyhow::Context as _;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::Filter;
use tracing_subscriber::reload;
use tracing_subscriber::{EnvFilter, Registry};

/// The log levels in the form of Triton's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLevels {
    /// Whether information is logged.
    pub info: bool,
    /// Whether warnings are logged.
    pub warning: bool,
    /// Whether errors are logged.
    pub error: bool,
    /// How much more Trireme's own code logs: 0 nothing, 1 the level `debug`, 2 and above `trace`.
    pub verbose_level: u32,
}

type BoxedFilter = Box<dyn Filter<Registry> + Send + Sync>;

struct LevelSwitch {
    handle: reload::Handle<BoxedFilter, Registry>,
    levels: Mutex<LogLevels>,
    /// `--log-level`, as it was given.
    given: String,
}

/// Begins a level that is in a file.
const FILE: &str = "file:";

/// Controls the process's one subscriber.
static SWITCH: OnceLock<LevelSwitch> = OnceLock::new();

/// The filter of `--log-level`: a level, or `file:PATH` with one in the first line.
pub(crate) fn read(given: &str) -> anyhow::Result<EnvFilter> {
    let level = match given.strip_prefix(FILE) {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("--log-level {given} cannot be read"))?;
            text.lines().next().unwrap_or_default().trim().to_owned()
        }
        None => given.to_owned(),
    };
    // The NATS client's log lines only repeat ours. A module in --log-level overrides this.
    EnvFilter::try_new(format!("async_nats=warn,{level}"))
        .map_err(|error| anyhow::anyhow!("--log-level '{level}' is not understood: {error}"))
}

/// Wraps `filter`, which was `given` so, so that [`set_log_levels`] can replace it.
pub(crate) fn reloadable(filter: EnvFilter, given: &str) -> reload::Layer<BoxedFilter, Registry> {
    let levels = LogLevels::of(filter.max_level_hint().unwrap_or(LevelFilter::TRACE));
    let (layer, handle) = reload::Layer::new(Box::new(filter) as BoxedFilter);
    // A second subscriber is refused where it is installed.
    let _ = SWITCH.set(LevelSwitch { handle, levels: Mutex::new(levels), given: given.to_owned() });
    layer
}

/// Reads the level again where `--log-level` names a file, and logs that. Does nothing where it is given itself.
pub fn reread_log_level() {
    let Some(switch) = SWITCH.get().filter(|switch| switch.given.starts_with(FILE)) else { return };
    let given = switch.given.as_str();
    let taken = read(given).and_then(|filter| {
        let mut current = switch.levels.lock();
        *current = LogLevels::of(filter.max_level_hint().unwrap_or(LevelFilter::TRACE));
        Ok(switch.handle.reload(Box::new(filter) as BoxedFilter)?)
    });
    match taken {
        Ok(()) => tracing::info!(file = given, "the log level was read again"),
        Err(error) => {
            let error = format!("{error:#}");
            tracing::error!(file = given, error, "the log level cannot be read again; the last one stays");
        }
    }
}

/// The present log levels.
pub fn log_levels() -> LogLevels {
    SWITCH.get().map_or(LogLevels::of(LevelFilter::OFF), |switch| *switch.levels.lock())
}

/// Logs by `levels` from now on. They replace `--log-level`, its settings for single modules included. Setting the
/// present levels changes nothing. Errors if the subscriber is gone.
pub fn set_log_levels(levels: LogLevels) -> Result<(), reload::Error> {
    let Some(switch) = SWITCH.get() else { return Ok(()) };
    let mut current = switch.levels.lock();
    if *current != levels {
        switch.handle.reload(Box::new(levels.filter()) as BoxedFilter)?;
        *current = levels;
    }
    Ok(())
}

// === impl LogLevels ===

impl LogLevels {
    /// The switches nearest to a level.
    fn of(level: LevelFilter) -> LogLevels {
        LogLevels {
            info: level >= LevelFilter::INFO,
            warning: level >= LevelFilter::WARN,
            error: level >= LevelFilter::ERROR,
            verbose_level: match level {
                LevelFilter::TRACE => 2,
                LevelFilter::DEBUG => 1,
                _ => 0,
            },
        }
    }

    fn filter(self) -> impl Filter<Registry> + Send + Sync {
        // Levels above `info` are used only for Trireme's own code.
        let level = match self.verbose_level {
            0 => "info",
            1 => "info,trireme=debug",
            _ => "info,trireme=trace",
        };
        EnvFilter::new(level).and(filter_fn(move |metadata| match *metadata.level() {
            Level::ERROR => self.error,
            Level::WARN => self.warning,
            Level::INFO => self.info,
            _ => true,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context, SubscriberExt};

    #[test]
    fn a_level_may_be_in_a_file() {
        let path = std::env::temp_dir().join(format!("trireme-level-{}", std::process::id()));
        let given = format!("file:{}", path.display());
        assert!(read(&given).unwrap_err().to_string().contains("cannot be read"));
        std::fs::write(&path, "debug\nand more").unwrap();
        assert_eq!(read(&given).unwrap().max_level_hint(), Some(LevelFilter::DEBUG));
        std::fs::write(&path, "=,=").unwrap();
        assert!(read(&given).unwrap_err().to_string().contains("is not understood"));
        std::fs::remove_file(&path).unwrap();
    }

    struct Count(Arc<AtomicUsize>);

    impl Layer<Registry> for Count {
        fn on_event(&self, _: &tracing::Event<'_>, _: Context<'_, Registry>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The only test of this process that uses `SWITCH`.
    #[test]
    fn levels_change_while_events_come_in() {
        let count = Arc::new(AtomicUsize::new(0));
        let filter = reloadable(EnvFilter::new("warn"), "warn");
        let subscriber = tracing_subscriber::registry().with(Count(count.clone()).with_filter(filter));
        let quiet = LogLevels { info: false, warning: true, error: true, verbose_level: 0 };
        assert_eq!(log_levels(), quiet);
        let events = || {
            tracing::error!(target: "trireme_test", "error");
            tracing::warn!(target: "trireme_test", "warning");
            tracing::info!(target: "trireme_test", "information");
            tracing::debug!(target: "trireme_test", "more");
            tracing::debug!(target: "other", "of no interest");
            tracing::trace!(target: "trireme_test", "all of it");
            count.swap(0, Ordering::Relaxed)
        };
        tracing::subscriber::with_default(subscriber, || {
            assert_eq!(events(), 2);
            let table = [
                (LogLevels { info: true, ..quiet }, 3),
                (LogLevels { info: true, verbose_level: 1, ..quiet }, 4),
                (LogLevels { verbose_level: 7, warning: false, ..quiet }, 3),
                (LogLevels { error: false, warning: false, ..quiet }, 0),
            ];
            for (levels, expected) in table {
                set_log_levels(levels).unwrap();
                assert_eq!((events(), log_levels()), (expected, levels), "{levels:?}");
            }
        });
    }
}
