//! Which requests are traced: the settings of all models and of single ones, and the requests that they pick. In mode
//! `opentelemetry` these settings thin out the spans that `--trace-ratio` lets through; in mode `triton` they pick the requests
//! that are written to files.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use trireme_inference::{InferError, InferRequest, ModelKey};
use trireme_protocol::tracing::{SettingChange, TraceChanges, TraceLevel, TraceMode, TraceSettings};
use trireme_server::RequestContext;
use trireme_triton_compat::traces::{OpenTrace, Stream, TraceConfig, TraceTarget, Writer};

/// Trace settings, and how far each of them has counted.
pub struct Tracing {
    initial: TraceSettings,
    target: Target,
    state: Mutex<State>,
}

/// Where traces go.
enum Target {
    /// To a collector, as spans.
    Spans,
    /// Into files. Without a writer no file was named.
    Files { path: String, writer: Option<Arc<Writer>> },
}

struct State {
    global: Scope,
    /// Models that have settings of their own.
    models: BTreeMap<String, Own>,
}

/// Settings, and the number of requests that they have seen.
struct Scope {
    settings: TraceSettings,
    seen: u64,
    stream: Option<Arc<Stream>>,
}

/// A model's own settings; what is `None` is that of all models.
#[derive(Default)]
struct Own {
    level: Option<TraceLevel>,
    rate: Option<u32>,
    count: Option<i32>,
    log_frequency: Option<u32>,
    seen: u64,
    stream: Option<Arc<Stream>>,
}

/// A request that was picked.
struct Picked {
    level: TraceLevel,
    /// Where it is written to a file: the traces of the same settings.
    stream: Option<Arc<Stream>>,
}

// === impl Tracing ===

impl Tracing {
    /// The settings at start. Errors when no thread can be started that writes files.
    pub fn new(config: &TraceConfig) -> std::io::Result<Tracing> {
        let target = match &config.target {
            TraceTarget::Spans => Target::Spans,
            TraceTarget::Files(None) => Target::Files { path: String::new(), writer: None },
            TraceTarget::Files(Some(path)) => {
                let writer = Some(Arc::new(Writer::start(path.clone())?));
                Target::Files { path: path.to_string_lossy().into_owned(), writer }
            }
        };
        let initial = config.settings;
        let state = State { global: Scope { settings: initial, seen: 0, stream: None }, models: BTreeMap::new() };
        let tracing = Tracing { initial, target, state: Mutex::new(state) };
        tracing.renew_streams(&mut tracing.state.lock());
        Ok(tracing)
    }

    /// Where traces go, in Triton's words.
    pub fn mode(&self) -> TraceMode<'_> {
        match &self.target {
            Target::Spans => TraceMode::OpenTelemetry,
            Target::Files { path, .. } => TraceMode::Triton { file: path },
        }
    }

    /// Whether a request for `model` may have spans. Counts it. Where traces go to files nothing is thinned out.
    pub fn samples(&self, model: &str) -> bool {
        matches!(self.target, Target::Files { .. }) || self.pick(model).is_some()
    }

    /// The trace of a request, if it is one that is written to a file. Counts it.
    pub fn begin(&self, request: &InferRequest, context: &RequestContext) -> Option<Arc<OpenTrace>> {
        let Target::Files { writer: Some(writer), .. } = &self.target else { return None };
        // Files are about the requests of clients.
        let port = context.port()?;
        let Picked { level, stream } = self.pick(&request.model)?;
        let model = ModelKey { name: request.model.as_str().into(), version: request.version.unwrap_or(-1) };
        let (id, times) = (request.id.clone(), context.times().clone());
        let trace = Arc::new(OpenTrace::begin(writer.clone(), stream?, level, port, model, id, times));
        context.keep(trace.clone());
        Some(trace)
    }

    /// How many traces of requests were not written, since the start.
    pub fn dropped(&self) -> u64 {
        match &self.target {
            Target::Files { writer: Some(writer), .. } => writer.dropped(),
            Target::Files { writer: None, .. } | Target::Spans => 0,
        }
    }

    /// Writes all traces that have ended. Blocks until that is done.
    pub fn finish(&self) {
        if let Target::Files { writer: Some(writer), .. } = &self.target {
            writer.finish();
        }
    }

    /// Counts a request for `model`, and picks it where it is its turn.
    fn pick(&self, model: &str) -> Option<Picked> {
        let State { global, models } = &mut *self.state.lock();
        let (settings, stream, count, is_shared) = match models.get_mut(model) {
            None => {
                let settings = global.settings;
                (
                    picks(&settings, &mut global.seen).then_some(settings)?,
                    &global.stream,
                    &mut global.settings.count,
                    true,
                )
            }
            Some(own) => {
                let settings = own.over(&global.settings);
                let settings = picks(&settings, &mut own.seen).then_some(settings)?;
                match &mut own.count {
                    Some(count) => (settings, &own.stream, count, false),
                    None => (settings, &own.stream, &mut global.settings.count, true),
                }
            }
        };
        if !spend(count) {
            return None;
        }
        let is_last = *count == 0;
        let picked = Picked { level: settings.level, stream: stream.clone() };
        if let Some(stream) = &picked.stream {
            stream.begin(is_last);
        }
        if is_last && is_shared {
            let others = models.values().filter(|own| own.count.is_none()).map(|own| &own.stream);
            others.chain([&global.stream]).flatten().for_each(|stream| stream.use_up());
        }
        Some(picked)
    }

    /// The settings of a model, or of all.
    pub fn get(&self, model: Option<&str>) -> TraceSettings {
        let state = self.state.lock();
        let own = model.and_then(|model| state.models.get(model));
        own.map_or(state.global.settings, |own| own.over(&state.global.settings))
    }

    /// Changes the settings of a model, or of all.
    pub fn change(&self, model: Option<&str>, changes: &TraceChanges) -> Result<(), InferError> {
        let TraceChanges { level, rate, count, log_frequency } = *changes;
        let mut state = self.state.lock();
        match model {
            None => {
                let mut settings = state.global.settings;
                set(&mut settings.level, level, self.initial.level);
                set(&mut settings.rate, rate, self.initial.rate);
                set(&mut settings.count, count, self.initial.count);
                set(&mut settings.log_frequency, log_frequency, self.initial.log_frequency);
                self.check(&settings)?;
                state.global.settings = settings;
                state.global.seen = 0;
            }
            Some(model) => {
                let mut own = state.models.get(model).map(Own::values).unwrap_or_default();
                set_own(&mut own.level, level);
                set_own(&mut own.rate, rate);
                set_own(&mut own.count, count);
                set_own(&mut own.log_frequency, log_frequency);
                self.check(&own.over(&state.global.settings))?;
                if own.is_empty() {
                    state.models.remove(model);
                } else {
                    state.models.insert(model.to_owned(), own);
                }
            }
        }
        self.renew_streams(&mut state);
        Ok(())
    }

    /// Refuses settings that could trace nothing, as Triton does; those that say so are right.
    fn check(&self, settings: &TraceSettings) -> Result<(), InferError> {
        let Target::Files { writer, .. } = &self.target else { return Ok(()) };
        let reason = match writer {
            _ if settings.level.is_off() => return Ok(()),
            _ if settings.rate == 0 => "sample rate must be non-zero",
            None => "trace file name is not given",
            Some(_) => return Ok(()),
        };
        Err(InferError::invalid_arg(format!("Attempting to set invalid trace setting :{reason}")))
    }

    /// Lets the traces that begin from now on go to streams of the present settings. Those before are written to their end.
    fn renew_streams(&self, state: &mut State) {
        let Target::Files { writer: Some(writer), .. } = &self.target else { return };
        let State { global, models } = state;
        let stream = |settings: &TraceSettings| Some(writer.stream(settings.log_frequency, settings.count != -1));
        global.stream = stream(&global.settings);
        for own in models.values_mut() {
            own.stream = stream(&own.over(&global.settings));
        }
    }
}

/// Whether the next request is one that is traced: as with Triton, the last of each `rate` requests. Counts it.
fn picks(settings: &TraceSettings, seen: &mut u64) -> bool {
    *seen = seen.wrapping_add(1);
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

fn set<T>(value: &mut T, change: SettingChange<T>, initial: T) {
    match change {
        SettingChange::Keep => {}
        SettingChange::Clear => *value = initial,
        SettingChange::Set(new) => *value = new,
    }
}

fn set_own<T>(value: &mut Option<T>, change: SettingChange<T>) {
    match change {
        SettingChange::Keep => {}
        SettingChange::Clear => *value = None,
        SettingChange::Set(new) => *value = Some(new),
    }
}

// === impl Own ===

impl Own {
    /// The same settings, nothing counted.
    fn values(&self) -> Own {
        let Own { level, rate, count, log_frequency, .. } = *self;
        Own { level, rate, count, log_frequency, seen: 0, stream: None }
    }

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

#[cfg(test)]
mod tests {
    use trireme_triton_compat::traces::TraceArgs;

    use super::*;

    fn tracing(options: &[&str]) -> Tracing {
        let options = options.iter().map(|option| option.parse().expect("a setting")).collect();
        Tracing::new(&TraceArgs { trace_config: options }.config(false)).unwrap()
    }

    fn spans() -> Tracing {
        tracing(&["mode=opentelemetry", "level=TIMESTAMPS", "rate=1"])
    }

    fn sampled(tracing: &Tracing, model: &str, requests: usize) -> Vec<bool> {
        (0..requests).map(|_| tracing.samples(model)).collect()
    }

    #[test]
    fn rate_and_count_pick_requests() {
        let tracing = spans();
        assert_eq!(sampled(&tracing, "m", 3), [true; 3]);
        let changes =
            TraceChanges { rate: SettingChange::Set(2), count: SettingChange::Set(2), ..TraceChanges::default() };
        tracing.change(None, &changes).unwrap();
        assert_eq!(sampled(&tracing, "m", 7), [false, true, false, true, false, false, false]);
        assert_eq!(tracing.get(None).count, 0);
        let changes =
            TraceChanges { count: SettingChange::Clear, rate: SettingChange::Set(0), ..TraceChanges::default() };
        tracing.change(None, &changes).unwrap();
        assert_eq!((tracing.get(None).count, tracing.samples("m")), (-1, false));
    }

    #[test]
    fn a_model_has_its_own_settings_until_they_are_cleared() {
        let tracing = spans();
        let off = TraceChanges { level: SettingChange::Set(TraceLevel::default()), ..TraceChanges::default() };
        tracing.change(Some("m"), &off).unwrap();
        tracing.change(None, &TraceChanges { rate: SettingChange::Set(7), ..TraceChanges::default() }).unwrap();
        assert!(tracing.get(Some("m")).level.is_off() && !tracing.get(Some("other")).level.is_off());
        assert_eq!(tracing.get(Some("m")).rate, 7);
        assert!(!tracing.samples("m"));
        assert_eq!(sampled(&tracing, "other", 7).last(), Some(&true));
        tracing.change(Some("m"), &TraceChanges { level: SettingChange::Clear, ..TraceChanges::default() }).unwrap();
        assert_eq!(tracing.get(Some("m")), tracing.get(None));
    }

    #[test]
    fn files_are_written_by_settings_that_could_write_them() {
        let on = |rate| {
            let level = TraceLevel { timestamps: true, tensors: false };
            TraceChanges { level: SettingChange::Set(level), rate, ..TraceChanges::default() }
        };
        let without = tracing(&[]);
        assert_eq!((without.get(None).rate, without.mode()), (1000, TraceMode::Triton { file: "" }));
        let refused = |tracing: &Tracing, model, rate| tracing.change(model, &on(rate)).unwrap_err().message;
        let message = "Attempting to set invalid trace setting :trace file name is not given";
        assert_eq!(refused(&without, None, SettingChange::Keep), message);
        assert!(without.get(None).level.is_off() && without.samples("m"), "spans are not thinned out");

        let folder = tempfile::tempdir().unwrap();
        let file = format!("triton,file={}", folder.path().join("t").display());
        let with = tracing(&[&file]);
        let message = "Attempting to set invalid trace setting :sample rate must be non-zero";
        assert_eq!(refused(&with, Some("m"), SettingChange::Set(0)), message);
        with.change(Some("m"), &on(SettingChange::Set(1))).unwrap();
        assert!(with.pick("m").is_some_and(|picked| picked.stream.is_some()) && with.pick("other").is_none());
    }
}
