//! The trace extension: settings of all models and of single ones, and the requests that they pick. Where spans are exported
//! these settings thin out what `--trace-ratio` lets through; where they are not, settings are kept and pick nothing.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use trireme_inference::InferError;
use trireme_protocol::tracing::{Change, TraceChanges, TraceLevel, TraceSettings};

use super::Handlers;

/// Trace settings, and how far each of them has counted.
#[derive(Debug)]
pub struct Tracing {
    exporting: bool,
    initial: TraceSettings,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    global: Scope,
    /// Models that have settings of their own.
    models: BTreeMap<String, Own>,
}

/// Settings with what they have counted.
#[derive(Debug)]
struct Scope {
    settings: TraceSettings,
    seen: u64,
}

/// A model's own settings; what is `None` is that of all models.
#[derive(Debug, Default)]
struct Own {
    level: Option<TraceLevel>,
    rate: Option<u32>,
    count: Option<i32>,
    log_frequency: Option<u32>,
    seen: u64,
}

// === impl Tracing ===

impl Tracing {
    /// The settings at start. `exporting` says whether spans go anywhere.
    pub fn new(exporting: bool) -> Tracing {
        let initial = match exporting {
            true => TraceSettings {
                level: TraceLevel { timestamps: true, tensors: false },
                rate: 1,
                count: -1,
                log_frequency: 0,
            },
            // Triton's own.
            false => TraceSettings { level: TraceLevel::default(), rate: 1000, count: -1, log_frequency: 0 },
        };
        let global = Scope { settings: initial, seen: 0 };
        Tracing { exporting, initial, state: Mutex::new(State { global, models: BTreeMap::new() }) }
    }

    /// What makes the traces, in Triton's words.
    pub fn mode(&self) -> &'static str {
        if self.exporting { "opentelemetry" } else { "triton" }
    }

    /// Whether a request for `model` is traced. Counts it. Without an exporter nothing is thinned out.
    pub fn samples(&self, model: &str) -> bool {
        if !self.exporting {
            return true;
        }
        let State { global, models } = &mut *self.state.lock();
        let Some(own) = models.get_mut(model) else {
            let Scope { settings, seen } = global;
            return picks(settings, next(seen)) && spend(&mut settings.count);
        };
        picks(&own.over(&global.settings), next(&mut own.seen))
            && spend(own.count.as_mut().unwrap_or(&mut global.settings.count))
    }

    /// The settings of a model, or of all.
    fn get(&self, model: Option<&str>) -> TraceSettings {
        let state = self.state.lock();
        let own = model.and_then(|model| state.models.get(model));
        own.map_or(state.global.settings, |own| own.over(&state.global.settings))
    }

    fn change(&self, model: Option<&str>, changes: &TraceChanges) {
        let TraceChanges { level, rate, count, log_frequency } = *changes;
        let mut state = self.state.lock();
        match model {
            None => {
                let settings = &mut state.global.settings;
                set(&mut settings.level, level, self.initial.level);
                set(&mut settings.rate, rate, self.initial.rate);
                set(&mut settings.count, count, self.initial.count);
                set(&mut settings.log_frequency, log_frequency, self.initial.log_frequency);
                state.global.seen = 0;
            }
            Some(model) => {
                let own = state.models.entry(model.to_owned()).or_default();
                set_own(&mut own.level, level);
                set_own(&mut own.rate, rate);
                set_own(&mut own.count, count);
                set_own(&mut own.log_frequency, log_frequency);
                own.seen = 0;
                if own.is_empty() {
                    state.models.remove(model);
                }
            }
        }
    }
}

/// Counts one more; returns how many there were before.
fn next(seen: &mut u64) -> u64 {
    let before = *seen;
    *seen = before.wrapping_add(1);
    before
}

/// Whether the request after `seen` others is one that is traced.
fn picks(settings: &TraceSettings, seen: u64) -> bool {
    !settings.level.is_off() && settings.rate > 0 && seen.is_multiple_of(u64::from(settings.rate))
}

/// Takes one of the traces that are left; -1 has no end.
fn spend(count: &mut i32) -> bool {
    match *count {
        0 => false,
        -1 => true,
        _ => {
            *count -= 1;
            true
        }
    }
}

fn set<T>(value: &mut T, change: Change<T>, initial: T) {
    match change {
        Change::Keep => {}
        Change::Clear => *value = initial,
        Change::Set(new) => *value = new,
    }
}

fn set_own<T>(value: &mut Option<T>, change: Change<T>) {
    match change {
        Change::Keep => {}
        Change::Clear => *value = None,
        Change::Set(new) => *value = Some(new),
    }
}

// === impl Own ===

impl Own {
    fn over(&self, global: &TraceSettings) -> TraceSettings {
        TraceSettings {
            level: self.level.unwrap_or(global.level),
            rate: self.rate.unwrap_or(global.rate),
            count: self.count.unwrap_or(global.count),
            log_frequency: self.log_frequency.unwrap_or(global.log_frequency),
        }
    }

    fn is_empty(&self) -> bool {
        self.level.is_none() && self.rate.is_none() && self.count.is_none() && self.log_frequency.is_none()
    }
}

impl Handlers {
    /// The trace settings of a model, or of all, and what makes the traces. Errors when there is no such model.
    pub fn trace_settings(&self, model: Option<&str>) -> Result<(TraceSettings, &'static str), InferError> {
        self.check_traced_model(model)?;
        Ok((self.tracing.get(model), self.tracing.mode()))
    }

    /// Changes the trace settings of a model, or of all. Errors when there is no such model.
    pub fn change_trace_settings(&self, model: Option<&str>, changes: &TraceChanges) -> Result<(), InferError> {
        self.check_traced_model(model)?;
        self.tracing.change(model, changes);
        Ok(())
    }

    fn check_traced_model(&self, model: Option<&str>) -> Result<(), InferError> {
        match model {
            Some(model) if self.registry.catalog().find(model, None).is_err() => {
                Err(InferError::invalid_arg(format!("Request for unknown model : {model}")))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(tracing: &Tracing, model: &str, requests: usize) -> Vec<bool> {
        (0..requests).map(|_| tracing.samples(model)).collect()
    }

    #[test]
    fn rate_and_count_pick_requests() {
        let tracing = Tracing::new(true);
        assert_eq!(sampled(&tracing, "m", 3), [true; 3]);
        let changes = TraceChanges { rate: Change::Set(2), count: Change::Set(2), ..TraceChanges::default() };
        tracing.change(None, &changes);
        assert_eq!(sampled(&tracing, "m", 6), [true, false, true, false, false, false]);
        assert_eq!(tracing.get(None).count, 0);
        tracing.change(None, &TraceChanges { count: Change::Clear, rate: Change::Set(0), ..TraceChanges::default() });
        assert_eq!((tracing.get(None).count, tracing.samples("m")), (-1, false));
    }

    #[test]
    fn a_model_has_its_own_settings_until_they_are_cleared() {
        let tracing = Tracing::new(true);
        tracing
            .change(Some("m"), &TraceChanges { level: Change::Set(TraceLevel::default()), ..TraceChanges::default() });
        tracing.change(None, &TraceChanges { rate: Change::Set(7), ..TraceChanges::default() });
        assert!(tracing.get(Some("m")).level.is_off() && !tracing.get(Some("other")).level.is_off());
        assert_eq!(tracing.get(Some("m")).rate, 7);
        assert!(!tracing.samples("m") && tracing.samples("other"));
        tracing.change(Some("m"), &TraceChanges { level: Change::Clear, ..TraceChanges::default() });
        assert_eq!(tracing.get(Some("m")), tracing.get(None));
    }

    #[test]
    fn without_an_exporter_settings_are_only_kept() {
        let tracing = Tracing::new(false);
        assert!(tracing.get(None).level.is_off() && tracing.samples("m"));
        assert_eq!((tracing.get(None).rate, tracing.mode()), (1000, "triton"));
    }
}
