//! The stack: the layers that every request of a port passes before its route, over HTTP and gRPC alike.
//!
//! Behind them the router finds the route, and the layers that depend on it follow: the `Intake` with the budget of bytes, the pauses of a body
//! and a handler that panics; keys, categories and what changes the server.

use std::sync::Arc;

use axum::Router;
use axum::http::HeaderValue;
use axum::middleware::{from_fn, from_fn_with_state};

use crate::http::access_log::{self, Observer};
use crate::http::paths::{self, Paths};
use crate::http::{cors, host};

/// The layers of a port.
pub struct Stack {
    /// Gives requests their ids, and logs and counts their answers.
    pub observer: Observer,
    /// The layers that only HTTP has.
    pub http: Option<HttpLayers>,
}

/// The layers that only HTTP has.
pub struct HttpLayers {
    /// The origins whose pages may ask.
    pub origins: Vec<HeaderValue>,
    /// How paths become those of routes.
    pub paths: Paths,
}

// === impl Stack ===

impl Stack {
    /// The routes behind the layers, which stand here in the order in which a request passes them.
    pub fn before(self, routes: Router) -> Router {
        let Stack { observer, http } = self;
        // A layer of the router itself would come after it has chosen the route.
        let port = Router::new().fallback_service(routes);
        // The request's context with its id, and its line in the access log, whatever becomes of it behind this.
        let observe = from_fn_with_state(Arc::new(observer), access_log::observe);
        let Some(HttpLayers { origins, paths }) = http else { return port.layer(observe) };
        // Rules of HTTP: `Host` in a request, `X-Content-Type-Options` in an answer.
        let require = from_fn(host::require);
        // Pages of other origins: their preflight requests are answered here (`--cors-origin`).
        let cors = cors::layer(&origins);
        // The path: without that of a proxy (`--root-path`), and with the names that routes know.
        let lead = from_fn_with_state(paths, paths::lead);
        match cors {
            Some(cors) => port.layer((observe, require, cors, lead)),
            None => port.layer((observe, require, lead)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use axum::body::Body;
    use axum::extract::{Request, State};
    use axum::http::HeaderMap;
    use axum::middleware::Next;
    use axum::response::Response;
    use http_body::Frame;
    use http_body_util::{BodyExt, StreamBody};
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;
    use parking_lot::Mutex;

    use trireme_tasks::TaskSet;

    use super::*;
    use crate::budget::Budget;
    use crate::http::access_log::{AccessLog, LineFormat};
    use crate::http::{HttpTransport, LogWriter};
    use crate::{Intake, Port, RequestContext, Traffic};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// A call that reads its messages and is answered with one, and this status behind it.
    async fn call(request: Request) -> Response {
        let context = RequestContext::of(request.extensions()).clone();
        context.is_for("/service/Call".into(), None);
        context.asks("m".to_owned());
        request.into_body().collect().await.expect("it is whole");
        let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("14"))]);
        let frames: [Result<_, std::convert::Infallible>; 2] =
            [Ok(Frame::data(bytes::Bytes::from_static(b"answer"))), Ok(Frame::trailers(trailers))];
        Response::new(Body::new(StreamBody::new(futures_util::stream::iter(frames))))
    }

    #[tokio::test]
    async fn a_call_has_an_id_and_a_line_with_its_status_and_bytes() {
        let written = Written::default();
        let (writer, thread) = LogWriter::to(written.clone()).unwrap();
        let log = Some(AccessLog { format: LineFormat::Json, writer });
        let observer = Observer { log, access: Arc::default(), port: Port::Grpc, count: Box::new(|_, _, _| ()) };
        let transport = HttpTransport { idle_timeout: Duration::from_secs(9), is_tls: false, tasks: TaskSet::new() };
        let intake = Arc::new(Intake { budget: Budget::new(100), access: Arc::default(), transport });
        let take_in = async |State(intake): State<Arc<Intake<HttpTransport>>>, request: Request, next: Next| {
            intake.take_in(Traffic::Work, |_| Response::default(), request, next).await
        };
        let routes = Router::new().fallback(call).layer(from_fn_with_state(intake, take_in));
        let port = TowerToHyperService::new(Stack { observer, http: None }.before(routes));
        let pieces = futures_util::stream::iter(["one", "three"].map(Ok::<_, std::convert::Infallible>));
        let request = Request::post("/service/Call").header("x-request-id", "id-1").body(Body::from_stream(pieces));
        let answer = port.call(request.unwrap()).await.unwrap();
        assert_eq!(answer.headers()["x-request-id"], "id-1");
        assert!(!answer.headers().contains_key("x-content-type-options"), "that is a rule of HTTP");
        drop((answer.into_body().collect().await.unwrap(), port));
        tokio::task::spawn_blocking(|| thread.join()).await.unwrap();
        let line: serde_json::Value = serde_json::from_slice(&written.0.lock()).unwrap();
        let names = ["request_id", "route", "model"].map(|name| line[name].as_str().unwrap_or_default());
        assert_eq!(names, ["id-1", "/service/Call", "m"]);
        let numbers = ["status", "grpc_status", "bytes_in", "bytes_out"].map(|name| line[name].as_u64().unwrap_or(999));
        assert_eq!(numbers, [200, 14, 8, 6]);
    }
}
