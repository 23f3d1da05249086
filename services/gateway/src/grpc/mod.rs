//! The v2 protocol over gRPC. The calls are in [`service`] and [`stream`]; the listener is here.
//!
//! Invariants:
//! - A call's deadline bounds its requests in every stage, and a call that is cancelled cancels them.
//! - Where the server has API keys a call needs one too, except health checks; calls of restricted categories need their
//!   header.
//! - Messages are those of `protocol::grpc`; nothing behind the listener sees them.
//!
//! Not here: Triton's limits on how often clients may ping: the HTTP/2 library has none to set.

mod access;
mod args;
mod body;
mod call;
mod deadline;
mod health;
mod incoming;
mod service;
mod settings;
mod stream;
mod unread;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use regex::Regex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::codec::CompressionEncoding::{Deflate, Gzip};
use tonic::service::Routes;
use tonic::transport::{Server, ServerTlsConfig};
use trireme_protocol::grpc::health::health_server::HealthServer;
use trireme_protocol::grpc::wire::grpc_inference_service_server::GrpcInferenceServiceServer;

use crate::backlog;
use crate::handlers::{Access, SharedHandlers};
use crate::pace::Pace;
use health::HealthService;
use incoming::Counting;
use service::InferenceService;
use unread::Unread;

pub use args::{CompressionLevel, GrpcArgs};

/// Most calls in flight on one connection; the client holds back one more.
const MAX_CALLS: u32 = 1024;

/// A bound gRPC listener, not yet serving.
pub struct GrpcListener {
    listener: TcpListener,
    args: GrpcArgs,
    restricted: Access,
    tls: Option<ServerTlsConfig>,
    forward: Option<Regex>,
    /// Longest silence of a client that has a call to send.
    pause: Duration,
    /// Where it listens.
    pub address: SocketAddr,
}

// === impl GrpcListener ===

impl GrpcListener {
    /// Takes the port, or says that it is taken. `None` when gRPC is switched off. Errors when restrictions contradict. Clients
    /// may `pause` for so long within a message.
    pub async fn bind(args: &GrpcArgs, pause: Duration) -> anyhow::Result<Option<GrpcListener>> {
        if !args.allow_grpc {
            return Ok(None);
        }
        let restricted = access::restrict(&args.grpc_restricted_protocols)?;
        let (tls, forward) = (args.tls()?, args.header_forward()?);
        if let Some(tls) = &tls {
            // What does not fit together is said now, not when the first client comes.
            let checked = Server::builder().tls_config(tls.clone());
            checked.context("--grpc-server-cert, --grpc-server-key and --grpc-root-cert make no TLS server")?;
        }
        let taken = || format!("cannot listen on {} for gRPC; choose another with --grpc-port", args.address());
        let listener = TcpListener::bind(args.address()).await.with_context(taken)?;
        let address = listener.local_addr()?;
        Ok(Some(GrpcListener { listener, args: args.clone(), restricted, tls, forward, pause, address }))
    }

    /// Serves until `stop` is raised, then finishes the calls in flight, for `exit_timeout` at most.
    pub async fn serve(self, handlers: SharedHandlers, stop: CancellationToken, exit_timeout: Duration) {
        let incoming = incoming::until(self.listener, stop.clone());
        let mut server = Server::builder()
            .max_concurrent_streams(MAX_CALLS)
            .http2_keepalive_interval(Some(self.args.keepalive_time()))
            .http2_keepalive_timeout(Some(self.args.keepalive_timeout()));
        if let Some(age) = self.args.max_connection_age() {
            server = server.max_connection_age(age);
        }
        if let Some(tls) = self.tls {
            server = match server.tls_config(tls) {
                Ok(server) => server,
                Err(error) => return tracing::error!(%error, "TLS for gRPC could not be set up"),
            };
        }
        let unread = Unread::default();
        let counting = Counting {
            budget: handlers.budget.clone(),
            unread: unread.clone(),
            largest: self.args.max_message_size().min(usize::try_from(handlers.budget.limit()).unwrap_or(usize::MAX)),
            pause: self.pause,
        };
        let routes = routes(&self.args, self.restricted, self.forward, handlers, stop.clone(), counting);
        let serving = server.add_routes(routes).serve_with_incoming_shutdown(incoming, async {
            // Before its first call a connection is closed by a shutdown, even when that call is on its way.
            stop.cancelled().await;
            tokio::time::sleep(backlog::FIRST_REQUEST).await;
        });
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(exit_timeout).await;
        };
        tokio::select! {
            served = serving => {
                if let Err(error) = served {
                    tracing::error!(%error, "gRPC listener ended");
                }
            }
            () = unread.give_up(Pace::whole(self.pause)) => {}
            () = overdue => tracing::warn!("gRPC calls were still in flight at the end of the exit timeout"),
        }
    }
}

fn routes(
    args: &GrpcArgs,
    restricted: Access,
    forward: Option<Regex>,
    handlers: SharedHandlers,
    stop: CancellationToken,
    counting: Counting,
) -> Routes {
    let admit = axum::middleware::from_fn_with_state((handlers.clone(), Arc::new(restricted)), access::admit);
    let health = HealthServer::new(HealthService { handlers: handlers.clone() });
    let mut inference = GrpcInferenceServiceServer::new(InferenceService { handlers, forward, stop })
        .max_decoding_message_size(counting.largest)
        .max_encoding_message_size(args.max_message_size())
        .accept_compressed(Gzip)
        .accept_compressed(Deflate);
    if args.compresses() {
        inference = inference.send_compressed(Gzip).send_compressed(Deflate);
    }
    let router = Routes::new(inference).add_service(health).into_axum_router();
    let count = axum::middleware::from_fn_with_state(counting, incoming::count);
    Routes::from(router.layer(count).layer(admit).layer(axum::middleware::from_fn(deadline::enforce)))
}
