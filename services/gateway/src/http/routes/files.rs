//! `/v1/files` and `/v1/uploads`, as OpenAI's clients send them: JSON lines for batches, and what batches have written.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use trireme_inference::shown;
use trireme_jobs::NewUpload;
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::http::coding::Coding;
use trireme_server::http::json;
use trireme_server::http::query::Query;
use trireme_server::http::response;
use trireme_server::http::route::Resource;
use trireme_server::http::schema;
use utoipa::{IntoParams, ToSchema};

use crate::http::jobs::form::{self, ExpiresAfter, FileFields, Form, NoFields, Purpose};
use crate::http::jobs::idempotency::IdempotencyKey;
use crate::http::jobs::lists::{Asked, Limit, ListPage, PageQuery};
use crate::http::jobs::ranges::{self, Range};
use crate::http::jobs::refused::Refused;
use crate::http::jobs::shown::{DeletedFile, ShownFile, ShownPart, ShownUpload};
use crate::http::state::{HttpState, Own, Route};

/// How long an upload may take, and how long its parts are kept until then.
const UPLOAD_TIME: Duration = Duration::from_secs(24 * 3600);

/// The page of files that a query asks for.
type FilesPage = PageQuery<Limit<10_000, 10_000>>;

/// The files that a query asks for.
#[derive(Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
struct FilesQuery {
    /// Only files with this purpose.
    purpose: Option<String>,
}

/// The body of `POST /v1/uploads`.
#[derive(Deserialize, ToSchema)]
#[schema(as = CreateUpload)]
struct Announced {
    filename: String,
    #[serde(rename = "purpose")]
    #[schema(inline)]
    _purpose: Purpose,
    bytes: u64,
    #[serde(default)]
    #[schema(inline)]
    expires_after: Option<ExpiresAfter>,
}

/// The body of `POST /v1/uploads/{id}/complete`.
#[derive(Deserialize, ToSchema)]
#[schema(as = CompleteUpload)]
struct Complete {
    part_ids: Vec<String>,
    #[serde(default)]
    md5: Option<String>,
}

/// The defaults of these routes.
const RESOURCE: Resource = Resource { group: "jobs", category: Some(Category::Inference), traffic: Traffic::Server };

/// The routes.
pub fn routes() -> Vec<Route> {
    let routes = [
        RESOURCE.get("/v1/files", "All files", list).gives(schema::answer::<ListPage<'_, ShownFile<'_>>>),
        RESOURCE
            .post("/v1/files", "Uploads a file", upload)
            .asks(Traffic::Upload)
            .reads_form::<FileFields>("file")
            .gives(schema::answer::<ShownFile<'_>>),
        RESOURCE.get("/v1/files/{id}", "A file's name and size", show).gives(schema::answer::<ShownFile<'_>>),
        RESOURCE.delete("/v1/files/{id}", "Deletes a file", delete).gives(schema::answer::<DeletedFile<'_>>),
        RESOURCE.get("/v1/files/{id}/content", "The bytes of a file", content).gives_bytes().or_gives(
            StatusCode::PARTIAL_CONTENT,
            "the bytes that the header Range asks for",
            None,
        ),
        RESOURCE
            .post("/v1/uploads", "Begins an upload in parts", begin)
            .reads::<Announced>()
            .gives(schema::answer::<ShownUpload<'_>>),
        RESOURCE
            .post("/v1/uploads/{id}/parts", "Uploads a part", part)
            .asks(Traffic::Upload)
            .reads_form::<NoFields>("data")
            .gives(schema::answer::<ShownPart<'_>>),
        RESOURCE
            .post("/v1/uploads/{id}/complete", "Makes a file of parts", complete)
            .reads::<Complete>()
            .gives(schema::answer::<ShownUpload<'_>>),
        RESOURCE.post("/v1/uploads/{id}/cancel", "Gives an upload up", cancel).gives(schema::answer::<ShownUpload<'_>>),
    ];
    routes.into_iter().map(|route| route.refuses(Refused::unanswered, Refused::schema)).collect()
}

async fn upload(Own(jobs): Own, IdempotencyKey(key): IdempotencyKey, request: Request) -> Result<Response, Refused> {
    let form: Form<'_, FileFields> = form::read(jobs.arrival(), request, "file").await?;
    let Some((arrival, name)) = form.file else { return Err(Refused::invalid("the form has no field 'file'")) };
    let (id, file) = arrival.finish_once(&name, form.fields.lapse(), key.as_deref()).await?;
    Ok(response::written(&ShownFile::of(&id, &file)))
}

async fn list(Own(jobs): Own, page: Asked<FilesPage>, files: Asked<FilesQuery>) -> Result<Response, Refused> {
    let (Query(page), Query(FilesQuery { purpose })) = (page?, files?);
    let files = jobs.files(&page.page(purpose)).await?;
    Ok(response::written(&ListPage::of(&files, ShownFile::of)))
}

async fn show(Own(jobs): Own, Path(id): Path<String>) -> Result<Response, Refused> {
    let file = jobs.file(&id).await?;
    Ok(response::written(&ShownFile::of(&id, &file)))
}

async fn content(
    Own(jobs): Own,
    Path(id): Path<String>,
    method: Method,
    asked: HeaderMap,
) -> Result<Response, Refused> {
    let file = jobs.file(&id).await?;
    let etag =
        HeaderValue::try_from(format!("\"{}\"", file.version())).expect("digits and hyphens are visible characters");
    let range = ranges::asked(&method, &asked, file.bytes, &etag);
    let (from, end) = match range {
        Range::All => (0, file.bytes),
        Range::Part(from, end) => (from, end),
        Range::None => {
            let refusal =
                Refused::out_of_range(&format!("'Range' asks for nothing of the {} bytes of the file", file.bytes));
            return Ok(([(CONTENT_RANGE, format!("bytes */{}", file.bytes))], refusal).into_response());
        }
    };
    let mut content = jobs.content_from(&file, from);
    // The first part shows whether the store has the file.
    let first = content.next().await.transpose()?;
    let all = futures_util::stream::iter(first.map(Ok)).chain(content).inspect_err(move |error| {
        tracing::error!(file = id, %error, "a file broke off on its way to a client");
    });
    let length = end - from;
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        (CONTENT_LENGTH, length.into()),
        (ETAG, etag),
    ];
    let mut response = (headers, Body::from_stream(ranges::first(Box::pin(all), length))).into_response();
    if range != Range::All
        && let Ok(value) = HeaderValue::from_str(&format!("bytes {from}-{}/{}", end - 1, file.bytes))
    {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        response.headers_mut().insert(CONTENT_RANGE, value);
    }
    Ok(response)
}

async fn delete(Own(jobs): Own, Path(id): Path<String>) -> Result<Response, Refused> {
    jobs.delete_file(&id).await?;
    Ok(response::written(&DeletedFile::of(&id)))
}

/// An upload in parts. Neither it nor a part is a file until it is complete.
async fn begin(State(http): State<HttpState>, Own(jobs): Own, request: Request) -> Result<Response, Refused> {
    let asked: Announced = read_json(&http, request).await?;
    let lapse = asked.expires_after.map(|after| after.lapse());
    let new = NewUpload { name: asked.filename, bytes: asked.bytes, time: UPLOAD_TIME, lapse };
    let (id, upload) = jobs.begin_upload(new).await?;
    Ok(response::written(&ShownUpload::of(&id, &upload, "pending", None)))
}

async fn part(Own(jobs): Own, Path(id): Path<String>, request: Request) -> Result<Response, Refused> {
    let (arrival, upload) = jobs.begin_part(&id).await?;
    let form: Form<'_, NoFields> = form::read(arrival, request, "data").await?;
    let Some((arrival, _)) = form.file else { return Err(Refused::invalid("the form has no field 'data'")) };
    let (part, file) = jobs.finish_part(arrival, &id, &upload).await?;
    Ok(response::written(&ShownPart::of(&part, &file, &id)))
}

async fn complete(
    State(http): State<HttpState>,
    Own(jobs): Own,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Refused> {
    let asked: Complete = read_json(&http, request).await?;
    let (upload, (file, record)) = jobs.complete_upload(&id, &asked.part_ids, asked.md5.as_deref()).await?;
    Ok(response::written(&ShownUpload::of(&id, &upload, "completed", Some(ShownFile::of(&file, &record)))))
}

async fn cancel(Own(jobs): Own, Path(id): Path<String>) -> Result<Response, Refused> {
    let upload = jobs.cancel_upload(&id).await?;
    Ok(response::written(&ShownUpload::of(&id, &upload, "cancelled", None)))
}

/// Reads a small JSON body.
pub async fn read_json<T: DeserializeOwned>(http: &HttpState, request: Request) -> Result<T, Refused> {
    parse(&read_body(http, request).await?)
}

/// Reads a small body, in a coding that is supported.
pub async fn read_body(http: &HttpState, request: Request) -> Result<Bytes, Refused> {
    if Coding::of_request(request.headers()).is_none() {
        let found = request.headers().get(CONTENT_ENCODING).map_or(&b""[..], HeaderValue::as_bytes);
        let (found, known) = (String::from_utf8_lossy(found), Coding::SUPPORTED);
        return Err(Refused::encoded(&format!("Content-Encoding is '{}', expected one of {known}", shown(&found))));
    }
    http.read(request).await.map_err(|error| Refused::invalid(&error.message))
}

/// The fields of a JSON body.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refused> {
    json::read(body).map_err(|fault| Refused::invalid(&fault.message))
}
