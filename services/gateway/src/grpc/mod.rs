//! The v2 protocol over gRPC, and the services of Text Embeddings Inference. The calls are in [`service`] and [`stream`], and in [`tei`]; the
//! listener is here, with reflection, by which clients learn of services and messages.
//!
//! Invariants:
//! - A call's deadline bounds its requests in every stage, and a call that is cancelled cancels them.
//! - Where the server has API keys a call needs one too, except health checks; calls of restricted categories need their
//!   header.
//! - Messages are those of `protocol::grpc`; nothing behind the listener sees them.
//!
//! Not here: how connections come and go (the gateway's `connections`).

mod access;
mod args;
mod body;
mod call;
mod cost;
mod deadline;
mod health;
mod incoming;
mod methods;
mod service;
mod settings;
mod stream;
mod tei;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use regex::Regex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::codec::CompressionEncoding::{Deflate, Gzip};
use tonic::service::Routes;
use trireme_protocol::grpc::health::health_server::HealthServer;
use trireme_protocol::grpc::tei::embed_server::EmbedServer;
use trireme_protocol::grpc::tei::info_server::InfoServer;
use trireme_protocol::grpc::tei::predict_server::PredictServer;
use trireme_protocol::grpc::tei::rerank_server::RerankServer;
use trireme_protocol::grpc::tei::tokenize_server::TokenizeServer;
use trireme_protocol::grpc::wire::grpc_inference_service_server::GrpcInferenceServiceServer;
use trireme_protocol::grpc::{self, DESCRIPTORS};
use trireme_runtime::TaskSet;
use trireme_server::access::Access;
use trireme_server::connections::{ConnectionLimiter, Connections, Http2, Limits, Protocol, Tls};
use trireme_server::http::access_log::{AccessLog, Observer};
use trireme_server::{Intake, Port, RequestContext, Stack, Traffic};

use crate::handlers::SharedHandlers;
use health::HealthService;
use incoming::GrpcTransport;
use methods::{Method, SERVICES};
use service::InferenceService;
use tei::TeiService;

pub use access::restrict;
pub use args::{CompressionLevel, GrpcArgs};

/// A bound gRPC listener, not yet serving.
pub struct GrpcListener {
    listener: TcpListener,
    args: GrpcArgs,
    /// The headers that calls have to carry.
    pub restricted: Access,
    /// Speaks TLS, if the port does.
    pub tls: Option<Tls>,
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
        let taken = || format!("cannot listen on {} for gRPC; choose another with --grpc-port", args.address());
        let listener = TcpListener::bind(args.address()).await.with_context(taken)?;
        let address = listener.local_addr()?;
        Ok(Some(GrpcListener { listener, args: args.clone(), restricted, tls, forward, pause, address }))
    }

    /// Serves as many connections as `limits` allow until `stop` is raised, then finishes the calls in flight, for
    /// `exit_timeout` at most.
    pub async fn serve(
        self,
        handlers: SharedHandlers,
        log: Option<AccessLog>,
        limits: Limits,
        stop: CancellationToken,
        exit_timeout: Duration,
    ) {
        let access = Arc::new(handlers.access.clone());
        let observer = Observer { log, access: access.clone(), port: Port::Grpc, count: Box::new(|_, _, _| ()) };
        let largest = self.args.max_message_size().min(usize::try_from(handlers.budget.limit()).unwrap_or(usize::MAX));
        let transport = GrpcTransport { largest, pause: self.pause };
        let intake = Intake { budget: handlers.budget.clone(), access, transport };
        let routes = routes(&self.args, self.restricted, self.forward, handlers, stop.clone(), intake);
        let connections = Connections {
            router: Stack { observer, http: None }.before(routes),
            protocol: Protocol::Http2(Http2 {
                keepalive_time: self.args.keepalive_time(),
                keepalive_timeout: self.args.keepalive_timeout(),
                max_age: self.args.max_connection_age(),
            }),
            idle_timeout: self.pause,
            tls: self.tls,
            limiter: ConnectionLimiter::new(limits),
            tasks: TaskSet::new(),
        };
        connections.serve(self.listener, stop, exit_timeout).await;
    }
}

/// Adds server reflection, in the version that is current and the one that older clients ask for.
fn reflect(router: Routes) -> Routes {
    let described = || tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
    match (described().build_v1(), described().build_v1alpha()) {
        (Ok(current), Ok(alpha)) => router.add_service(current).add_service(alpha),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "there is no server reflection: the descriptors of the services cannot be read");
            router
        }
    }
}

/// The answer to a call of a service that does not exist.
async fn unknown_service(uri: Uri) -> Response {
    let asked = uri.path().trim_start_matches('/').split('/').next().unwrap_or_default();
    let asked = trireme_inference::shown(asked);
    let names: Vec<&str> = SERVICES.iter().map(|service| service.name).collect();
    Status::unimplemented(format!("there is no service '{asked}'; services here are {}", names.join(", "))).into_http()
}

/// Finds the method of a call in the table, for the layers behind this one and for the call's context.
async fn find_method(mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if let Some(method) = methods::find(path) {
        RequestContext::of(request.extensions()).is_for(path.into(), None);
        request.extensions_mut().insert(method);
    }
    next.run(request).await
}

/// Takes a call in. One of an unknown method is about the server.
async fn take_in(State(intake): State<Arc<Intake<GrpcTransport>>>, request: Request, next: Next) -> Response {
    let traffic = request.extensions().get::<&Method>().map_or(Traffic::Server, |method| method.traffic());
    intake.take_in(traffic, |error| grpc::status(error).into_http(), request, next).await
}

/// Answers calls of methods that their service does not have: tonic's answer has no words.
async fn unknown_method(request: Request, next: Next) -> Response {
    match methods::called(request.uri().path()) {
        Some((service, method)) if request.extensions().get::<&Method>().is_none() => {
            let names: Vec<&str> = service.methods.iter().map(|method| method.name).collect();
            let (service, method, names) = (service.name, trireme_inference::shown(method), names.join(", "));
            Status::unimplemented(format!("service '{service}' has no method '{method}'; its methods are {names}"))
                .into_http()
        }
        _ => next.run(request).await,
    }
}

fn routes(
    args: &GrpcArgs,
    restricted: Access,
    forward: Option<Regex>,
    handlers: SharedHandlers,
    stop: CancellationToken,
    intake: Intake<GrpcTransport>,
) -> Router {
    let largest = intake.transport.largest;
    let admit = from_fn_with_state((handlers.clone(), Arc::new(restricted)), access::admit);
    let health = HealthServer::new(HealthService { handlers: handlers.clone() });
    let tei = TeiService { handlers: handlers.clone(), forward: forward.clone(), stop: stop.clone() };
    let mut inference = GrpcInferenceServiceServer::new(InferenceService { handlers, forward, stop })
        .max_decoding_message_size(largest)
        .max_encoding_message_size(args.max_message_size())
        .accept_compressed(Gzip)
        .accept_compressed(Deflate);
    if args.compresses() {
        inference = inference.send_compressed(Gzip).send_compressed(Deflate);
    }
    let mut router = Routes::new(inference).add_service(health);
    macro_rules! serve {
        ($($server:ident),*) => { $(
            router = router.add_service(
                $server::new(tei.clone())
                    .max_decoding_message_size(largest)
                    .max_encoding_message_size(args.max_message_size())
                    .accept_compressed(Gzip)
                    .accept_compressed(Deflate),
            );
        )* };
    }
    serve!(InfoServer, EmbedServer, PredictServer, RerankServer, TokenizeServer);
    let router = reflect(router).into_axum_router().fallback(unknown_service);
    let take_in = from_fn_with_state(Arc::new(intake), take_in);
    // From the last one to the first.
    router
        .layer(from_fn(unknown_method))
        .layer(take_in)
        .layer(admit)
        .layer(from_fn(deadline::enforce))
        .layer(from_fn(find_method))
}
