//! The `main` of a service: flags, start, signals, drain, exit code.
//!
//! Every failure ends in one line on standard error that names the remedy, and in an exit code that is not zero.

use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use clap::Args;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, LocalBoxFuture};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use trireme_engine::Backend;
use trireme_telemetry::TelemetryArgs;

use crate::heap;
use crate::host::hostname;
use crate::lifecycle::control_mode::ControlArgs;
use crate::lifecycle::model_args::ModelArgs;
use crate::lifecycle::{LOAD_THREADS, OtherContent, Worker, WorkerOptions};
use crate::observe::admin::Health;
use crate::observe::statistics::Statistics;
use crate::pid1;
use crate::response_cache::CacheArgs;
use crate::signals;

pub use crate::nats_args::NatsArgs;
pub use crate::observe::admin_args::AdminArgs;
pub use crate::queue_args::{BrokerArgs, QueueArgs, Storage};
pub use crate::signals::{at_hangups, shutdown_signal};

/// Most threads for blocking work: reading and writing files, unpacking bodies. Models are loaded on threads of their own.
const BLOCKING_THREADS: usize = 64;

/// How many of them are there from the start.
const KEPT_BLOCKING_THREADS: usize = 4;

/// How long such a thread stays without work.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Flags of every process that hosts models.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs, reason = "flattened groups of flags are documented at their types")]
pub struct WorkerArgs {
    #[command(flatten)]
    pub models: ModelArgs,

    /// Take configurations as they are: do not fill in inputs and outputs from the model file
    #[arg(help_heading = "Models")]
    #[arg(long, env = "TRIREME_DISABLE_AUTO_COMPLETE_CONFIG", value_parser = clap::builder::FalseyValueParser::new())]
    pub disable_auto_complete_config: bool,

    /// The older opposite: `true` is --disable-auto-complete-config
    #[arg(help_heading = "Models")]
    #[arg(long, env = "TRIREME_STRICT_MODEL_CONFIG", value_name = "BOOL", default_value = "false")]
    #[arg(value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set)]
    pub strict_model_config: bool,

    /// Runs instance groups of KIND_GPU on the CPU, with a warning for each model, as many instances as on one GPU
    #[arg(help_heading = "Models")]
    #[arg(long, env = "TRIREME_GPU_GROUPS_ON_CPU", value_parser = clap::builder::FalseyValueParser::new())]
    pub gpu_groups_on_cpu: bool,

    #[command(flatten)]
    pub control: ControlArgs,

    /// Models that are loaded at the same time; the others wait
    #[arg(help_heading = "Models")]
    #[arg(long, env = "TRIREME_MODEL_LOAD_THREAD_COUNT", value_name = "COUNT", default_value_t = LOAD_THREADS)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub model_load_thread_count: usize,

    /// Seconds that the load of a model may take; one past that has failed, and other models are loaded in its place; 0 is no limit
    #[arg(help_heading = "Models")]
    #[arg(long, env = "TRIREME_MODEL_LOAD_LIMIT_SECS", value_name = "SECONDS", default_value_t = 600)]
    pub model_load_limit_secs: u64,

    /// How long a model without requests stays in memory, such as 90s, 5m or 1h; for ever by default. Then it is unloaded from memory and
    /// served on: its next request loads it again, and waits for that up to its deadline
    #[arg(help_heading = "Models")]
    #[arg(long, env = "TRIREME_KEEP_ALIVE", value_name = "DURATION", value_parser = keep_alive)]
    pub keep_alive: Option<Duration>,

    /// Seconds that one execution may take; a worker past it counts as hung, gives its work back and ends; 0 is no limit
    #[arg(help_heading = "Worker")]
    #[arg(long, env = "TRIREME_EXECUTION_LIMIT_SECS", value_name = "SECONDS", default_value_t = 120)]
    pub execution_limit_secs: u64,

    /// Seconds without a request that succeeds, after which a model's idle instances execute a canary request. It is the first
    /// `model_warmup` sample, or a made-up request that the model takes when it is loaded. An instance that has failed several times in
    /// a row executes one, too, whatever waits. A worker in which that fails, or passes the execution limit, ends; 0 is never
    #[arg(help_heading = "Worker")]
    #[arg(long, env = "TRIREME_CANARY_SECS", value_name = "SECONDS", default_value_t = 0)]
    pub canary_secs: u64,

    /// When live workers have other files or flags under the name and version of a model of this one: `wait` until they are gone, or
    /// `switch`, so that they stop to serve it and this worker begins
    #[arg(help_heading = "Worker")]
    #[arg(long, env = "TRIREME_OTHER_CONTENT", value_name = "WHAT", default_value = "wait")]
    pub other_content: OtherContent,

    /// Seconds to finish requests in progress when stopping
    #[arg(help_heading = "Worker")]
    #[arg(long, env = "TRIREME_EXIT_TIMEOUT_SECS", value_name = "SECONDS", default_value_t = 30)]
    pub exit_timeout_secs: u64,

    /// Name of this worker, unique among all; made up from host and process by default
    #[arg(help_heading = "Worker")]
    #[arg(long, env = "TRIREME_WORKER_NAME", value_name = "NAME")]
    pub worker_name: Option<String>,
}

/// Flags of a stage service.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs, reason = "flattened groups of flags are documented at their types")]
pub struct ServiceArgs {
    #[command(flatten)]
    pub worker: WorkerArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub nats: NatsArgs,
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
    #[command(flatten)]
    pub admin: AdminArgs,
}

// === impl WorkerArgs ===

impl WorkerArgs {
    /// The worker these flags describe; models that lie elsewhere are downloaded, and model folders read. Errors name the flag.
    pub fn options<'a>(&'a self, service: &'a str) -> BoxFuture<'a, anyhow::Result<WorkerOptions>> {
        Box::pin(async move {
            let sources = self.models.open_some(self.control.exit_on_error).await?;
            let name = self.worker_name.clone().unwrap_or_else(|| process_name(service));
            let statistics = Statistics::new(name.as_str());
            let defaults = WorkerOptions::new(service, sources.repositories.clone(), statistics);
            Ok(WorkerOptions {
                sources: Some(Arc::new(sources)),
                auto_complete: !(self.disable_auto_complete_config || self.strict_model_config),
                gpu_groups_on_cpu: self.gpu_groups_on_cpu,
                control: self.control.options()?,
                load_threads: self.model_load_thread_count,
                load_limit: (self.model_load_limit_secs > 0).then(|| Duration::from_secs(self.model_load_limit_secs)),
                execution_limit: self.execution_limit(),
                keep_alive: self.keep_alive,
                canary: (self.canary_secs > 0).then(|| Duration::from_secs(self.canary_secs)),
                other_content: self.other_content,
                ..defaults
            })
        })
    }

    /// The time limit of one execution; `None` is no limit.
    pub fn execution_limit(&self) -> Option<Duration> {
        (self.execution_limit_secs > 0).then(|| Duration::from_secs(self.execution_limit_secs))
    }

    /// The time limit of a drain.
    pub fn exit_timeout(&self) -> Duration {
        Duration::from_secs(self.exit_timeout_secs)
    }
}

/// A duration with its unit that is not zero.
fn keep_alive(text: &str) -> Result<Duration, String> {
    let expected = |found: String| format!("expected a duration such as 90s, 5m or 1h, found '{text}': {found}");
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => {
            Err(expected("a model that no request keeps would be loaded for each of them".to_owned()))
        }
        parsed => parsed.map_err(|error| expected(error.to_string())),
    }
}

/// A name that no other process has: service, host, process id and start time.
pub fn process_name(service: &str) -> String {
    let started = trireme_inference::UnixMicros::now().0 % 1_000_000_000;
    let host: String = hostname().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("{service}-{host}-{}-{started}", std::process::id())
}

/// Runs a stage service until a signal to stop, then drains it.
pub fn run(service: &'static str, args: &ServiceArgs, backends: &[Arc<dyn Backend>]) -> ExitCode {
    if args.admin.healthcheck {
        return healthcheck(&args.admin);
    }
    block_on(service, &args.telemetry, async {
        let health = Health::default();
        let shutdown = shutdown_signal()?;
        let Some(options) = or_shutdown(&shutdown, args.worker.options(service)).await? else { return Ok(()) };
        let options = WorkerOptions { cache: args.cache.cache_config, ..options };
        args.nats.tell_expiry(&options.statistics);
        args.admin.listen(&health, &options.statistics)?;
        let Some(bus) = or_shutdown(&shutdown, args.nats.connect(service, &options.name)).await? else { return Ok(()) };
        health.follow(bus.as_ref());
        let opening = Worker::open(bus.clone(), backends, &options);
        let Some(worker) = or_shutdown(&shutdown, opening).await? else { return Ok(()) };
        let serving = async {
            worker.load().await?;
            health.set_ready();
            tracing::info!(worker = options.name, models = list(&worker.models()), "ready");
            std::future::pending().await
        };
        // A model takes work as soon as it is loaded, while others are still being loaded.
        let outcome = tokio::select! {
            outcome = serving => outcome,
            outcome = until_shutdown(&shutdown, &worker) => outcome,
            never = options.statistics.clone().watch_certificates() => match never {},
        };
        health.set_stopping();
        tracing::info!("draining");
        let unfinished = worker.drain(args.worker.exit_timeout()).await;
        bus.close().await;
        report_drained(unfinished);
        outcome
    })
}

/// Waits until the process gets a signal to stop. Errors when a task of the worker has died.
pub async fn until_shutdown(shutdown: &CancellationToken, worker: &Worker) -> anyhow::Result<()> {
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        task = worker.failed() => Err(anyhow::anyhow!("task '{task}' died")),
    }
}

/// Logs how a drain ended.
pub fn report_drained(unfinished: usize) {
    match unfinished {
        0 => tracing::info!("stopped"),
        _ => tracing::warn!(unfinished, "stopped before all requests were finished; the bus delivers them again"),
    }
}

/// Runs `starting`. Returns `None` if the process gets a signal to stop before it is done.
pub async fn or_shutdown<T, E>(
    shutdown: &CancellationToken,
    starting: impl Future<Output = Result<T, E>>,
) -> Result<Option<T>, E> {
    tokio::select! {
        started = starting => started.map(Some),
        () = shutdown.cancelled() => Ok(None),
    }
}

/// Raises the limit of open files as far as the system allows: each client's connection is a file, and the usual limit is low.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || limit.maximum.is_none() {
        // A limit that cannot be raised stays; the gateway logs how many connections it allows.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

/// Starts the threads for blocking work that are always there. Such a thread, once started, stays: where no other can be started, work
/// waits for it. Without one the work would wait for ever, or panic.
fn keep_blocking_threads(runtime: &Runtime) -> anyhow::Result<()> {
    // Each waits for the others, so that none does the work of two.
    let met = Arc::new(Barrier::new(KEPT_BLOCKING_THREADS + 1));
    // A thread that the system refuses would never come to the barrier.
    let room = trireme_engine::promise(KEPT_BLOCKING_THREADS)?;
    for _ in 0..KEPT_BLOCKING_THREADS {
        let met = met.clone();
        drop(runtime.spawn_blocking(move || _ = met.wait()));
    }
    met.wait();
    drop(room);
    Ok(())
}

/// Runs a process's async main with telemetry set up. An error becomes one line on standard error and exit code 1.
pub fn block_on(
    service: &'static str,
    telemetry: &TelemetryArgs,
    main: impl Future<Output = anyhow::Result<()>>,
) -> ExitCode {
    block_on_boxed(service, telemetry, main.boxed_local())
}

/// [`block_on`], compiled once and not for each `main`.
fn block_on_boxed(
    service: &'static str,
    telemetry: &TelemetryArgs,
    main: LocalBoxFuture<'_, anyhow::Result<()>>,
) -> ExitCode {
    signals::unblock();
    if let Some(code) = pid1::stand_before_the_program() {
        return code;
    }
    raise_file_limit();
    heap::return_large_allocations();
    trireme_model_repository::remove_leftovers();
    let outcome = heap::return_free_pages()
        .and_then(|()| {
            tokio::runtime::Builder::new_multi_thread()
                .thread_name(service)
                .max_blocking_threads(BLOCKING_THREADS)
                .thread_keep_alive(FOR_EVER)
                .enable_all()
                .build()
        })
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            keep_blocking_threads(&runtime)?;
            let outcome = runtime.block_on(async {
                let telemetry = trireme_telemetry::init(service, telemetry)?;
                let outcome = main.await;
                telemetry.shutdown();
                outcome
            });
            // A thread that hangs in a model must not hold up the exit.
            runtime.shutdown_timeout(Duration::from_millis(500));
            outcome
        });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// The health check that a process runs instead of serving.
pub fn healthcheck(admin: &AdminArgs) -> ExitCode {
    match admin.check() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Writes an error to standard error, in the style in which flags are refused, and returns the exit code of a failure.
pub fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {}", harmless(&format!("{error:#}")));
    ExitCode::FAILURE
}

/// Text in which control characters are escaped, except the ends of lines: errors hold texts of servers and files, and a terminal would obey
/// them.
fn harmless(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c.is_control() && c != '\n' {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
        out
    })
}

fn list<T: std::fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_steers_no_terminal() {
        assert_eq!(harmless("a\x1b[2J\u{9b}b\r\nc"), "a\\u{1b}[2J\\u{9b}b\\r\nc");
    }

    #[test]
    fn a_model_is_kept_for_a_duration_with_a_unit() {
        assert_eq!(keep_alive("5m"), Ok(Duration::from_secs(300)));
        for (text, fault) in
            [("5", "found '5': time unit needed"), ("0s", "would be loaded for each"), ("-1s", "found '-1s'")]
        {
            let error = keep_alive(text).unwrap_err();
            assert!(error.contains(fault) && error.contains("such as 90s, 5m or 1h"), "{error}");
        }
    }

    #[test]
    fn the_limit_of_open_files_is_raised_to_what_is_allowed() {
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(256), ..before }).expect("a limit can be lowered");
        raise_file_limit();
        assert_eq!(getrlimit(Resource::Nofile), Rlimit { current: before.maximum, ..before });
    }
}
