//! The v2 protocol over HTTP/1.1 and HTTP/2. Routes are in [`routes`], one file per resource; those of other servers' clients in
//! [`dialects`]. [`HttpListener::serve`] has the layers that every request passes before a route, from the last one to the first.

mod args;
mod dialects;
mod jobs;
mod prefer;
mod routes;
mod routing;
mod runner;
mod state;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use trireme_bus::Bus;
use trireme_inference::Lane;
use trireme_jobs::Jobs;
use trireme_runtime::TaskSet;
use trireme_server::connections::{ConnectionLimiter, Connections, Http2, Limits, Protocol, Tls};
use trireme_server::http::access_log::{AccessLog, Observer};
use trireme_server::http::paths::Paths;
use trireme_server::http::{HttpTransport, LogThread, LogWriter};
use trireme_server::{HttpLayers, Intake, Port, Stack};

use crate::handlers::SharedHandlers;
pub use args::HttpArgs;
use args::HttpOptions;
pub use jobs::JobArgs;
pub use jobs::webhooks::{Target, WebhookSecret, Webhooks};
use runner::Runner;
use state::HttpState;

/// Where durable work is kept.
pub struct JobsSetup {
    /// The bus with the stores.
    pub bus: Arc<dyn Bus>,
    /// The name of this gateway.
    pub own: String,
    /// The limits.
    pub options: trireme_jobs::Options,
    /// Calls webhooks, if this gateway does.
    pub webhooks: Option<Webhooks>,
}

/// The access log, if these flags want one, and the thread that writes it.
pub fn open_access_log(args: &HttpArgs) -> (Option<AccessLog>, Option<LogThread>) {
    let Some(format) = args.access_log else { return (None, None) };
    match LogWriter::to(std::io::stdout()) {
        Ok((writer, thread)) => (Some(AccessLog { format, writer }), Some(thread)),
        Err(error) => {
            tracing::error!(%error, "there is no access log: its thread cannot start");
            (None, None)
        }
    }
}

/// A bound HTTP listener, not yet serving.
pub struct HttpListener {
    listener: TcpListener,
    options: HttpOptions,
    /// The listener's address.
    pub address: SocketAddr,
}

// === impl HttpListener ===

impl HttpListener {
    /// Takes the port; an error if it is taken. `None` when HTTP is not wanted.
    pub async fn bind(args: &HttpArgs) -> anyhow::Result<Option<HttpListener>> {
        if !args.allow_http {
            return Ok(None);
        }
        let options = args.options()?;
        let taken = || format!("cannot listen on {} for HTTP; choose another with --http-port", options.address);
        let listener = TcpListener::bind(options.address).await.with_context(taken)?;
        let address = listener.local_addr()?;
        Ok(Some(HttpListener { listener, options, address }))
    }

    /// Speaks TLS, if the port does.
    pub fn tls(&self) -> Option<&Tls> {
        self.options.tls.as_ref()
    }

    /// Serves as many connections as `limits` allow until `stop` is raised, then finishes the requests in flight, for
    /// `exit_timeout` at most.
    pub async fn serve(
        self,
        handlers: SharedHandlers,
        jobs_setup: Option<JobsSetup>,
        log: Option<AccessLog>,
        limits: Limits,
        stop: CancellationToken,
        exit_timeout: Duration,
    ) {
        let (idle_timeout, tls) = (self.options.idle_timeout, self.options.tls.clone());
        let (origins, root) = (self.options.cors_origins.clone(), self.options.root_path.clone());
        let (budget, access) = (handlers.budget.clone(), Arc::new(handlers.access.clone()));
        let counting = handlers.clone();
        let count = Box::new(move |route: &str, method: &str, status| counting.counts.answered(route, method, status));
        let observer = Observer { log, access: access.clone(), port: Port::Http, count };
        let (limiter, tasks) = (ConnectionLimiter::new(limits), TaskSet::new());
        let names_of = handlers.registry.clone();
        let mut state = HttpState {
            handlers,
            table: Arc::new(routes::table(&self.options)),
            options: Arc::new(self.options),
            document: Arc::default(),
            jobs: None,
            webhooks: None,
        };
        if let Some(setup) = jobs_setup {
            state.webhooks = setup.webhooks;
            let runner = Runner { http: state.clone(), batches: budget.permit_in(Lane::Bulk) };
            let (jobs, run) = Jobs::open(setup.bus, &setup.own, Arc::new(runner), setup.options);
            let stopped = stop.clone();
            // Another gateway goes on with the jobs of this one.
            tasks.spawn("jobs", async move {
                tokio::select! {
                    () = run => {}
                    () = stopped.cancelled() => {}
                }
            });
            let _ = state.handlers.jobs.set(jobs.clone());
            state.jobs = Some(jobs);
        }
        let transport = HttpTransport { idle_timeout, is_tls: tls.is_some(), tasks: tasks.clone() };
        let intake = Arc::new(Intake { budget, access, transport });
        let known =
            move |path: &str| routing::known_path(path, |name| names_of.catalog().own_name(name).map(str::to_owned));
        let layers = HttpLayers { origins, paths: Paths { root, known: Arc::new(known) } };
        let router = Stack { observer, http: Some(layers) }.before(routes::router(state, &intake));
        let connections =
            Connections { router, protocol: Protocol::Either(Http2::default()), idle_timeout, tls, limiter, tasks };
        connections.serve(self.listener, stop, exit_timeout).await;
    }
}
