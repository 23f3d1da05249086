//! Log levels that can be changed while the process runs.

use std::sync::OnceLock;

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
}

/// Controls the process's one subscriber.
static SWITCH: OnceLock<LevelSwitch> = OnceLock::new();

/// Wraps `filter` so that [`set_log_levels`] can replace it.
pub(crate) fn reloadable(filter: EnvFilter) -> reload::Layer<BoxedFilter, Registry> {
    let levels = LogLevels::of(filter.max_level_hint().unwrap_or(LevelFilter::TRACE));
    let (layer, handle) = reload::Layer::new(Box::new(filter) as BoxedFilter);
    // A second subscriber is refused where it is installed.
    let _ = SWITCH.set(LevelSwitch { handle, levels: Mutex::new(levels) });
    layer
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
        let filter = reloadable(EnvFilter::new("warn"));
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
