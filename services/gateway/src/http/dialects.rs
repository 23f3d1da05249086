//! The routes of other servers' clients, in the router: key, body and headers of a request before its dialect reads it.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{delete as on_delete, get as on_get, post as on_post};
use bytes::Bytes;
use trireme_dialects::{DialectCall, DialectPath, Kind, Refusal};
use trireme_inference::Parameters;
use trireme_operations::Operations;
use trireme_server::access::{Category, Sender};
use trireme_server::budget::BytesPermit;
use trireme_server::http::access_log::REQUEST_ID;
use trireme_server::http::body::{self, text, traceparent};
use trireme_server::http::coding::Coding;
use trireme_server::http::json;
use trireme_server::http::openapi::Verb;

use super::state::HttpState;
use super::{jobs, routing};
use crate::forward;

/// The routes of all dialects, of which `first` answers where several could.
pub fn routes(first: &str) -> Router<HttpState> {
    trireme_dialects::paths(first).into_iter().fold(Router::new(), add)
}

fn add(router: Router<HttpState>, path: DialectPath) -> Router<HttpState> {
    let (name, verb) = (path.path.clone(), path.verb);
    let handler = async move |State(http): State<HttpState>,
                              Path(parts): Path<BTreeMap<String, String>>,
                              request: Request| { answer(&http, &path, parts, request).await };
    let method = match verb {
        Verb::Get => on_get(handler),
        // Only GET and POST have something at the root.
        Verb::Post if name == "/" => on_post(handler).fallback(routing::not_found),
        Verb::Post => on_post(handler),
        Verb::Delete => on_delete(handler),
    };
    router.route(&name, method)
}

async fn answer(
    http: &HttpState,
    path: &DialectPath,
    mut named: BTreeMap<String, String>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let sender = Sender::of(&parts.uri, &parts.headers, &parts.extensions);
    if !jobs::is_admitted(&parts.extensions)
        && let Err(denied) = http.handlers.access.check(path.category(), &sender)
    {
        return path.refused(&denied.into());
    }
    let permit = http.permit(&parts.extensions);
    let body = match path.category() {
        // Health checks need no key.
        Category::Health => Bytes::new(),
        _ => match read(http, &parts.headers, body, &permit).await {
            Ok(body) => body,
            Err(refusal) => return path.refused(&refusal),
        },
    };
    let call = |route, body| {
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
            permit: permit.clone(),
            parameters,
            traceparent: traceparent(&parts.headers),
            waits: http.waits(&parts.headers),
            request_id: text(&parts.headers, REQUEST_ID.as_str()).unwrap_or_default().to_owned(),
            route,
            token_input: http.options.token_input,
            empty_text: http.options.empty_text,
        })
    };
    path.answer(body, &permit, call).await
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_router_takes_every_path_whichever_dialect_is_first() {
        for first in trireme_dialects::names() {
            assert!(routes(first).has_routes(), "{first}");
        }
    }
}
