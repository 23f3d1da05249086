//! The routes of other servers' clients in the table: body and headers of a request before its dialect reads it.

use std::collections::BTreeMap;

use axum::extract::{Path, Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use trireme_dialects::{DialectCall, DialectPath, Kind, Refusal};
use trireme_inference::Parameters;
use trireme_operations::Operations;
use trireme_server::RequestContext;
use trireme_server::access::Category;
use trireme_server::budget::BytesPermit;
use trireme_server::http::body;
use trireme_server::http::coding::Coding;
use trireme_server::http::json;

use super::routing;
use super::state::{HttpState, Route};
use crate::forward;

/// The routes of all dialects, of which `first` answers where several could.
pub fn routes(first: &str) -> Vec<Route> {
    let answer = |path: DialectPath| {
        async move |State(http): State<HttpState>, Path(parts): Path<BTreeMap<String, String>>, request: Request| {
            answer(&http, &path, parts, request).await
        }
    };
    let mut routes = trireme_dialects::routes(first, answer);
    for route in routes.iter_mut().filter(|route| &*route.path == "/") {
        // Only GET and POST have something at the root.
        route.handler = std::mem::take(&mut route.handler).fallback(routing::not_found);
    }
    routes
}

async fn answer(
    http: &HttpState,
    path: &DialectPath,
    mut named: BTreeMap<String, String>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let context = RequestContext::of(&parts.extensions);
    let body = match path.category() {
        // Health checks need no key.
        Category::Health => Bytes::new(),
        _ => match read(http, &parts.headers, body, context.permit()).await {
            Ok(body) => body,
            Err(refusal) => return path.refused(&refusal),
        },
    };
    let call = |body| {
        let mut parameters = Parameters::new();
        let own = |name: &str| http.handlers.access.is_secret(name);
        forward::headers(&parts.headers, http.options.header_forward.as_ref(), own, &mut parameters);
        forward::own(&parts.headers, &mut parameters)?;
        Ok(DialectCall {
            operations: Operations::new(http.handlers.clone()),
            rest: named.remove("rest").unwrap_or_default(),
            model: named.remove("model"),
            query: parts.uri.query().map(str::to_owned),
            body,
            context: context.clone(),
            parameters,
            token_input: http.options.token_input,
            empty_text: http.options.empty_text,
        })
    };
    path.answer(body, context, call).await
}

async fn read(
    http: &HttpState,
    headers: &HeaderMap,
    body: axum::body::Body,
    permit: &BytesPermit,
) -> Result<Bytes, Refusal> {
    let limit = http.options.max_input_size;
    let Some(coding) = Coding::of_request(headers) else {
        let message = format!("Content-Encoding is not supported, expected one of {}", Coding::SUPPORTED);
        return Err(Refusal::new(Kind::Unsupported, message));
    };
    let limited = body::Limit::json(limit).within(http.handlers.budget.limit());
    let body = body::read(headers, body, limited).await?;
    Ok(json::without_mark(coding.decode(body, limit, permit).await?))
}
