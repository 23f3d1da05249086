//! The intake of the port for gRPC.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http_body_util::Limited;
use trireme_server::budget::BytesPermit;
use trireme_server::{Port, RequestContext, Traffic, Transport};

use super::body::{self, Rules};
use super::methods::Method;

/// Most bytes of a health check's body: a client needs no key for it.
const HEALTH: usize = 16 << 10;

/// The header that names the coding of a call's messages.
const ENCODING: &str = "grpc-encoding";

/// The transport of gRPC calls, with the limits of their messages.
pub struct GrpcTransport {
    /// Most bytes of a message.
    pub largest: usize,
    /// Longest silence of a client within a message.
    pub pause: Duration,
}

// === impl GrpcTransport ===

impl Transport for GrpcTransport {
    const PORT: Port = Port::Grpc;

    fn guard(&self, request: Request, traffic: Traffic, permit: &BytesPermit) -> Request {
        let (mut parts, body) = request.into_parts();
        let streams = parts.extensions.get::<&Method>().is_some_and(|method| method.streams);
        // The body is decompressed here, so the gRPC library has to find no coding. It refuses the codings that are not handled here.
        let coded = parts.headers.get(ENCODING).is_some_and(|coding| coding == "gzip" || coding == "deflate");
        if coded {
            parts.headers.remove(ENCODING);
        }
        let body = if traffic == Traffic::Watch { Body::new(Limited::new(body, HEALTH)) } else { body };
        let rules = Rules { streams, coded, largest: self.largest, pause: self.pause };
        Request::from_parts(parts, body::guard(body, rules, permit))
    }

    fn tell(&self, _: &RequestContext, _: &mut Response) {}

    fn describe(&self, span: &tracing::Span, _: &str, answer: &Response) {
        // A call that fails has its status in the headers; others have it behind the answer.
        let code = answer.headers().get("grpc-status").and_then(|code| code.to_str().ok()?.parse().ok()).unwrap_or(0);
        trireme_telemetry::set_count(span, "rpc.grpc.status_code", code);
    }
}
