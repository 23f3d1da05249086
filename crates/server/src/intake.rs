//! The intake: what every request of a port passes behind the router, over HTTP and gRPC alike. A connection above the limit is refused, the
//! body is guarded and counted in the budget, a handler that panics answers all the same, and the bytes are held until the answer is sent.
//!
//! Not here: what differs from port to port, which each says by its [`Transport`].

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use trireme_inference::InferError;

use crate::access::Access;
use crate::budget::{self, Budget, BytesPermit};
use crate::connections::Spare;
use crate::traffic::Traffic;
use crate::{Port, RequestContext};

/// The intake of a port.
pub struct Intake<T> {
    /// The budget for the bytes of requests and answers.
    pub budget: Budget,
    /// Knows the lane and the owner of a request.
    pub access: Arc<Access>,
    /// The steps that are the protocol's own.
    pub transport: T,
}

/// The steps of the intake in which HTTP and gRPC differ.
pub trait Transport: Send + Sync + 'static {
    /// The kind of port.
    const PORT: Port;

    /// The request with a body that its handler may read: the body's pauses and its size are limited, and its bytes are counted in `permit`.
    fn guard(&self, request: Request, traffic: Traffic, permit: &BytesPermit) -> Request;

    /// Adds the facts of the context to the head of an answer.
    fn tell(&self, context: &RequestContext, answer: &mut Response);

    /// Notes the answer to a request of this path in a span of the request's work.
    fn describe(&self, span: &tracing::Span, path: &str, answer: &Response);
}

// === impl Intake ===

impl<T: Transport> Intake<T> {
    /// Takes a request of this traffic in, and lets `next` answer it. `refuse` makes the answer to a request that fails with an error.
    pub async fn take_in(
        &self,
        traffic: Traffic,
        refuse: impl Fn(&InferError) -> Response + Send,
        mut request: Request,
        next: Next,
    ) -> Response {
        if traffic != Traffic::Watch && request.extensions().get::<Spare>().is_some() {
            let error = InferError::unavailable("there are too many connections (--max-connections)");
            return refuse(&error);
        }
        // A port without a stack, such as that of metrics, has contexts from here on.
        let begin = || RequestContext::begin(T::PORT, request.headers());
        let context = request.extensions().get().cloned().unwrap_or_else(begin);
        request.extensions_mut().insert(context.clone());
        let (account, permit) = if traffic.executes() {
            let account = self.access.account(|name| request.headers().get(name).map(HeaderValue::as_bytes));
            let permit = self.budget.permit_in(account.lane);
            (Some(account), permit)
        } else {
            (None, self.budget.permit_about_server())
        };
        context.take_in(account, permit);
        let path = request.uri().path().to_owned();
        let request = request.map(|body| received(body, context.clone()));
        let request = self.transport.guard(request, traffic, context.permit());
        let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
        let mut answer = answer.unwrap_or_else(|_| {
            tracing::error!("the handler of a request panicked");
            refuse(&InferError::internal("internal error"))
        });
        self.transport.tell(&context, &mut answer);
        for span in context.followed() {
            self.transport.describe(&span, &path, &answer);
        }
        context.times().send();
        budget::until_sent(answer, &context.permit().clone(), context)
    }
}

/// The body; the context counts the bytes that have come.
fn received(body: Body, context: Arc<RequestContext>) -> Body {
    if body.is_end_stream() {
        return body;
    }
    Body::new(body.map_frame(move |frame| {
        context.receive(frame.data_ref().map_or(0, |data| data.len() as u64));
        frame
    }))
}
