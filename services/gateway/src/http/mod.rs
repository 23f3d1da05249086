//! The v2 protocol over HTTP/1.1. Routes are in [`routes`], one file per resource; what they share is here: bodies in,
//! bodies and errors out.

mod response;
mod routes;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use crate::handlers::SharedHandlers;

/// How the HTTP listener is set up.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Where it listens; port 0 takes a free one.
    pub address: SocketAddr,
    /// Largest request body, in bytes.
    pub max_input_size: usize,
}

/// What routes work with.
#[derive(Clone)]
struct HttpState {
    handlers: SharedHandlers,
    max_input_size: usize,
}

/// A bound HTTP listener, not yet serving.
pub struct HttpListener {
    listener: tokio::net::TcpListener,
    /// Where it listens.
    pub address: SocketAddr,
}

// === impl HttpListener ===

impl HttpListener {
    /// Takes the port, or says that it is taken.
    pub async fn bind(options: &HttpOptions) -> anyhow::Result<HttpListener> {
        let taken = || format!("cannot listen on {} for HTTP; choose another with --http-port", options.address);
        let listener = tokio::net::TcpListener::bind(options.address).await.with_context(taken)?;
        let address = listener.local_addr()?;
        Ok(HttpListener { listener, address })
    }

    /// Serves until `stop` is raised, then finishes the requests in flight, for `exit_timeout` at most.
    pub async fn serve(
        self,
        handlers: SharedHandlers,
        options: &HttpOptions,
        stop: CancellationToken,
        exit_timeout: Duration,
    ) {
        let state = HttpState { handlers, max_input_size: options.max_input_size };
        let listener = axum::serve::ListenerExt::tap_io(self.listener, |stream| {
            // Answers are small and awaited: they must not sit in a buffer.
            let _ = stream.set_nodelay(true);
        });
        let graceful = stop.clone();
        let serving = axum::serve(listener, routes::router(state))
            .with_graceful_shutdown(async move { graceful.cancelled().await })
            .into_future();
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(exit_timeout).await;
        };
        tokio::select! {
            served = serving => {
                if let Err(error) = served {
                    tracing::error!(%error, "HTTP listener ended");
                }
            }
            () = overdue => tracing::warn!("HTTP connections were still open at the end of the exit timeout"),
        }
    }
}
