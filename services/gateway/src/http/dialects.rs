//! The routes of other servers' clients in the table: body and headers of a request before its dialect reads it.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use trireme_dialects::{DialectCall, DialectPath, Kind, Refusal};
use trireme_inference::Parameters;
use trireme_operations::Operations;
use trireme_server::access::Category;
use trireme_server::budget::BytesPermit;
use trireme_server::http::body;
use trireme_server::http::coding::Coding;
use trireme_server::http::endpoint::{Work, endpoint};
use trireme_server::http::json;

use super::state::{HttpState, Route};
use crate::forward;

/// The routes of all dialects, of which `first` answers where several could.
pub fn routes(first: &str) -> Vec<Route> {
    trireme_dialects::routes(first, |path| {
        let path = Arc::new(path);
        endpoint(move |http: HttpState, work| {
            let path = path.clone();
            async move { answer(&http, &path, work).await }
        })
    })
}

async fn answer(http: &HttpState, path: &DialectPath, work: Work) -> Response {
    let (model, rest) = (work.part("model"), work.part("rest").unwrap_or_default());
    let Work { context, query, headers, body, .. } = work;
    let body = match path.category() {
        // Health checks need no key.
        Category::Health => Bytes::new(),
        _ => match read(http, &headers, body, context.permit()).await {
            Ok(body) => body,
            Err(refusal) => return path.refused(&refusal),
        },
    };
    let call = |body| {
        let mut parameters = Parameters::new();
        let own = |name: &str| http.handlers.access.is_secret(name);
        forward::headers(&headers, http.options.header_forward.as_ref(), own, &mut parameters);
        forward::own(&headers, &mut parameters)?;
        Ok(DialectCall {
            operations: Operations::new(http.handlers.clone()),
            rest,
            model,
            query,
            body,
            context: context.clone(),
            parameters,
            token_input: http.options.token_input,
            empty_text: http.options.empty_text,
        })
    };
    path.answer(body, &context, call).await
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
