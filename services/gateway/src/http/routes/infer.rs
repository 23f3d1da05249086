//! `/v2/models/{model}[/versions/{version}]/infer`.

use axum::http::HeaderValue;
use axum::http::header::ACCEPT_ENCODING;
use axum::response::{IntoResponse, Response};
use trireme_inference::InferError;
use trireme_protocol::infer::{self, HEADER_LENGTH, InferTarget};
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::body::work;
use trireme_server::http::coding::Coding;
use trireme_server::http::endpoint::Work;
use trireme_server::http::response::{self, HttpError};
use trireme_server::http::route::{Resource, Verb};
use trireme_server::http::schema::{anything, integer, list, object_with, plain, text};
use trireme_server::http::{body, json};
use utoipa::openapi::schema::Schema;

use crate::forward;
use crate::handlers::Traced;
use crate::http::routing::{ModelPath, of_model};
use crate::http::state::{HttpState, Route};

/// Largest body with tensors behind its JSON, where there is room for it.
const MAX_BINARY_BODY: usize = i32::MAX as usize;

/// The defaults of these routes.
const RESOURCE: Resource = Resource { group: "v2", category: Some(Category::Inference), traffic: Traffic::Work };

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        RESOURCE
            .endpoint(
                Verb::Post,
                "/v2/models/{model}/infer",
                "Runs a model: tensors in JSON, or behind it in binary",
                of_model(run),
            )
            .of_versions()
            .takes(request_schema)
            .gives(response_schema),
    ]
}

async fn run(http: HttpState, path: ModelPath, work: Work) -> Result<Response, HttpError> {
    let Work { context, headers, body, .. } = work;
    let headers = &headers;
    let permit = context.permit();
    let (_, served) = http.handlers.find_model(&path.model, path.version).map_err(HttpError::plain)?;
    if served.config.decoupled {
        return Err(HttpError::plain(InferError::unsupported(
            "HTTP end point doesn't support models with decoupled transaction policy",
        )));
    }
    let Some(coding) = Coding::of_request(headers) else { return Ok(unsupported_coding()) };
    let limit = http.options.max_input_size;
    // Tensors behind the JSON are not held against the limit, as with Triton; the largest message of gRPC is theirs.
    let most = match headers.get(HEADER_LENGTH).map(HeaderValue::as_bytes) {
        None => body::Limit::json(limit),
        Some(length) if length == b"0" || coding != Coding::Identity => body::Limit::binary(limit),
        Some(_) => body::Limit::binary(limit.max(MAX_BINARY_BODY)),
    };
    let body = body::read(headers, body, most.within(http.handlers.budget.limit())).await?;
    let body = coding.decode(body, limit, permit).await.map_err(HttpError::plain)?;
    // The header counts the bytes of the JSON, so nothing is before them.
    let body = if headers.contains_key(HEADER_LENGTH) { body } else { json::without_mark(body) };

    let target = InferTarget {
        model: &path.model,
        inputs: &served.inputs,
        max_batch_size: served.config.max_batch_size,
        max_json_size: limit,
    };
    let header_length = match headers.get(HEADER_LENGTH) {
        Some(value) => Some(value.to_str().map_err(|_| {
            InferError::invalid_arg(format!(
                "Unable to parse {HEADER_LENGTH}, got: {}",
                value.as_bytes().escape_ascii()
            ))
        })?),
        None => None,
    };
    let mut room = |bytes| permit.take(bytes).map_err(InferError::from);
    let decode = || infer::decode_infer_request(&target, &body, header_length, &mut room);
    let mut decoded = work::convert(body.len(), decode).await?;
    drop(body);
    // Tensors behind the JSON share the memory of the body. Of other bodies only the tensors are left.
    if header_length.is_none() {
        permit.shrink(decoded.request.inputs.iter().map(|input| input.data.len() as u64).sum());
    }
    decoded.request.version = path.version;
    let own = |name: &str| http.handlers.access.is_secret(name);
    forward::headers(headers, http.options.header_forward.as_ref(), own, &mut decoded.request.parameters);
    forward::own(headers, &mut decoded.request.parameters)?;
    let response = http.handlers.infer(Traced::new(decoded.request, context.clone())).await?;
    let size = response.outputs.iter().map(|output| output.data().len()).sum();
    // Until they are JSON, which counts when it is sent.
    permit.add(size as u64);
    let encoded = work::convert(size, || infer::encode_infer_response(&response, &decoded.output_format)).await?;
    permit.give_back(size as u64);
    Ok(response::infer(encoded, &response.ledger, Coding::of_response(headers)).await?)
}

/// Refuses a coding, and says which would do.
fn unsupported_coding() -> Response {
    let error = HttpError::plain(InferError::unsupported("Unsupported compression type"));
    let mut response = error.into_response();
    response.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static(Coding::SUPPORTED));
    response
}

fn request_schema() -> Schema {
    let data = || ("data", list(anything()));
    let tensor = object_with(
        [("name", text()), ("datatype", text()), ("shape", list(integer()))],
        [data(), ("parameters", plain())],
    );
    let output = object_with([("name", text())], [("parameters", plain())]);
    object_with([("inputs", list(tensor))], [("id", text()), ("parameters", plain()), ("outputs", list(output))])
}

fn response_schema() -> Schema {
    let tensor = object_with(
        [("name", text()), ("datatype", text()), ("shape", list(integer()))],
        [("data", list(anything())), ("parameters", plain())],
    );
    object_with(
        [("model_name", text()), ("model_version", text()), ("outputs", list(tensor))],
        [("id", text()), ("parameters", plain())],
    )
}
