//! `/v2/models/{model}[/versions/{version}]/generate` and `/generate_stream`.
//!
//! A stream has one event for each response with outputs. An error before the first one is the answer; later it is an event.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::{self, StreamExt};
use trireme_inference::{InferError, InferResponse};
use trireme_protocol::generate::{decode_generate_request, encode_generate_response};
use trireme_protocol::metadata;
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::body::work;
use trireme_server::http::coding::Coding;
use trireme_server::http::endpoint::Work;
use trireme_server::http::response::{self, HttpError};
use trireme_server::http::route::{Resource, Verb};
use trireme_server::http::schema::plain;
use trireme_server::http::{body, json};

use crate::forward;
use crate::handlers::{Responses, Traced};
use crate::http::routing::{ModelPath, of_model};
use crate::http::state::{HttpState, Route};

/// The defaults of these routes.
const RESOURCE: Resource = Resource { group: "v2", category: Some(Category::Inference), traffic: Traffic::Work };

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        RESOURCE
            .endpoint(Verb::Post, "/v2/models/{model}/generate", "Runs a model on plain JSON", of_model(generate))
            .of_versions()
            .takes(plain)
            .gives(plain),
        RESOURCE
            .endpoint(
                Verb::Post,
                "/v2/models/{model}/generate_stream",
                "Runs a model on plain JSON; its answers come as events",
                of_model(generate_stream),
            )
            .of_versions()
            .asks(Traffic::Stream)
            .takes(plain),
    ]
}

async fn generate(http: HttpState, path: ModelPath, work: Work) -> Result<Response, HttpError> {
    let response = http.handlers.infer(read(&http, path, work).await?).await?;
    Ok(response::json(encode(&response).await?))
}

async fn generate_stream(http: HttpState, path: ModelPath, work: Work) -> Result<Response, HttpError> {
    let request = read(&http, path, work).await?;
    let mut responses = http.handlers.infer_stream(request)?;
    // Its status is up to the first response.
    let first = next_event(&mut responses).await.transpose()?;
    let rest = stream::unfold((first, Some(responses)), |(first, responses)| async {
        if let Some(event) = first {
            return Some((event, (None, responses)));
        }
        let mut responses = responses?;
        match next_event(&mut responses).await? {
            Ok(event) => Some((event, (None, Some(responses)))),
            Err(error) => Some((event(&metadata::error_body(&error.message)), (None, None))),
        }
    });
    let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
    Ok(([(CONTENT_TYPE, content_type)], Body::from_stream(rest.map(Ok::<_, Infallible>))).into_response())
}

/// The next response as an event.
async fn next_event(responses: &mut Responses) -> Option<Result<Bytes, InferError>> {
    let next = match responses.next().await? {
        // An empty response ends the stream.
        Ok(next) if next.empty => return None,
        next => next,
    };
    Some(match next {
        Ok(next) => encode(&next.response).await.map(|json| event(&json)),
        Err(error) => Err(error),
    })
}

async fn encode(response: &InferResponse) -> Result<Bytes, InferError> {
    let size = response.outputs.iter().map(|output| output.data().len()).sum();
    work::convert(size, || encode_generate_response(response)).await
}

fn event(json: &[u8]) -> Bytes {
    let mut event = BytesMut::with_capacity(json.len() + 8);
    event.put_slice(b"data: ");
    // JSON has no line ends but escaped ones, so it is one line of the event.
    event.put_slice(json);
    event.put_slice(b"\n\n");
    event.freeze()
}

/// Reads a request.
async fn read(http: &HttpState, path: ModelPath, work: Work) -> Result<Traced, HttpError> {
    let Work { context, headers, body, .. } = work;
    let headers = &headers;
    let (_, served) = http.handlers.find_model(&path.model, path.version)?;
    if Coding::of_request(headers) != Some(Coding::Identity) {
        return Err(InferError::invalid_arg("Unsupported content-encoding, only 'identity' is supported.").into());
    }
    let body = body::read(headers, body, body::Limit::json(http.options.max_input_size)).await?;
    let body = json::without_mark(body);
    let mut room = |bytes| context.permit().take(bytes).map_err(InferError::from);
    let decode = || decode_generate_request(&path.model, &served.inputs, &body, &mut room);
    let mut request = work::convert(body.len(), decode).await?;
    request.version = path.version;
    let own = |name: &str| http.handlers.access.is_secret(name);
    forward::headers(headers, http.options.header_forward.as_ref(), own, &mut request.parameters);
    forward::own(headers, &mut request.parameters)?;
    Ok(Traced::new(request, context.clone()))
}
