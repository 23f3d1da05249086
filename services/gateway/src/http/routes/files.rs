//! `/v1/files` and `/v1/uploads`, as OpenAI's clients send them: JSON lines for batches, and what batches have written.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete as on_delete, get as on_get, post as on_post};
use futures_util::{StreamExt, TryStreamExt};
use multer::Multipart;
use serde::Deserialize;
use serde_json::{Value, json};
use trireme_jobs::{File, JobError, Jobs};
use utoipa::openapi::schema::Schema;

use super::deferred;
use crate::access::Category;
use crate::budget::Hold;
use crate::http::openapi::schema::{self, integer, nullable, object_with, plain, text};
use crate::http::resource::{Endpoint, Resource};
use crate::http::response;
use crate::http::state::HttpState;
use crate::http::traffic::Traffic;

/// How long an upload may take, and how long its parts are kept until then.
const UPLOAD_TIME: Duration = Duration::from_secs(24 * 3600);

/// Longest field beside the file's bytes.
const LONGEST_FIELD: usize = 4096;

/// The purpose of a part of an upload, and of the upload itself.
const PART: &str = "upload_part";

/// A refusal in OpenAI's shape.
pub struct Refused(StatusCode, String);

/// The fields of a form with a file.
#[derive(Default)]
struct Form {
    purpose: Option<String>,
    lapse: Option<Duration>,
    file: Option<(String, File)>,
}

/// The body of `POST /v1/uploads`.
#[derive(Deserialize)]
struct NewUpload {
    filename: String,
    purpose: String,
    bytes: u64,
}

/// The body of `POST /v1/uploads/{id}/complete`.
#[derive(Deserialize)]
struct Complete {
    part_ids: Vec<String>,
}

/// The routes.
pub const RESOURCE: Resource = Resource {
    category: Some(Category::Inference),
    traffic: Traffic::Server,
    group: "jobs",
    endpoints: &[
        Endpoint::get("/v1/files", "All files", || on_get(list)).gives(page_schema),
        Endpoint::post("/v1/files", "Uploads a file, as multipart/form-data with purpose and file", || on_post(upload))
            .asks(Traffic::Upload),
        Endpoint::get("/v1/files/{id}", "A file's name and size", || on_get(show)).gives(file_schema),
        Endpoint::delete("/v1/files/{id}", "Deletes a file", || on_delete(delete)).gives(plain),
        Endpoint::get("/v1/files/{id}/content", "The bytes of a file", || on_get(content)),
        Endpoint::post("/v1/uploads", "Begins an upload in parts", || on_post(begin)).takes(upload_schema).gives(plain),
        Endpoint::post("/v1/uploads/{id}/parts", "Uploads a part, as multipart/form-data with data", || on_post(part))
            .asks(Traffic::Upload),
        Endpoint::post("/v1/uploads/{id}/complete", "Makes a file of parts", || on_post(complete))
            .takes(parts_schema)
            .gives(plain),
        Endpoint::post("/v1/uploads/{id}/cancel", "Gives an upload up", || on_post(cancel)).gives(plain),
    ],
};

async fn upload(State(http): State<HttpState>, request: Request) -> Result<Response, Refused> {
    let jobs = jobs(&http)?;
    let form = read_form(&http, jobs, request, "file", None).await?;
    let Some((id, file)) = form.file else { return Err(Refused::invalid("the form has no field 'file'")) };
    Ok(found(&as_file(&id, &file)))
}

/// Reads a form; the bytes of its field `field` become a file.
async fn read_form(
    http: &HttpState,
    jobs: &Jobs,
    request: Request,
    field: &str,
    lapse: Option<Duration>,
) -> Result<Form, Refused> {
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let boundary = multer::parse_boundary(content_type).map_err(|_| {
        Refused::invalid(&format!("Content-Type is '{content_type}', expected multipart/form-data with a boundary"))
    })?;
    let hold = request.extensions().get::<Hold>().cloned().unwrap_or_else(|| http.handlers.budget.hold());
    let mut multipart = Multipart::new(request.into_body().into_data_stream(), boundary);
    let mut form = Form { lapse, ..Form::default() };
    while let Some(mut part) = multipart.next_field().await.map_err(|error| broken(&error))? {
        let name = part.name().unwrap_or_default().to_owned();
        if name == field {
            let file_name = part.file_name().unwrap_or("file").to_owned();
            let mut upload = jobs.upload(form.lapse);
            let written = async {
                while let Some(chunk) = part.chunk().await.map_err(|error| broken(&error))? {
                    upload.write(&chunk).await?;
                    hold.give_back(chunk.len() as u64);
                }
                Ok::<_, Refused>(())
            };
            if let Err(refusal) = written.await {
                // The client's error is the one that counts.
                let _ = upload.abandon().await;
                return Err(refusal);
            }
            form.file = Some(upload.finish(&file_name, form.purpose.as_deref().unwrap_or("batch")).await?);
            continue;
        }
        let mut value = Vec::new();
        while let Some(chunk) = part.chunk().await.map_err(|error| broken(&error))? {
            value.extend_from_slice(&chunk);
            if value.len() > LONGEST_FIELD {
                return Err(Refused::invalid(&format!("field '{name}' has more than {LONGEST_FIELD} bytes")));
            }
        }
        let value = String::from_utf8_lossy(&value).into_owned();
        match name.as_str() {
            "purpose" if value == "batch" => form.purpose = Some(value),
            "purpose" => {
                return Err(Refused::invalid(&format!("'purpose' is '{value}', but files here are for 'batch'")));
            }
            "expires_after[seconds]" => {
                let seconds = value.parse().map_err(|_| {
                    Refused::invalid(&format!("'expires_after[seconds]' is '{value}', expected a number"))
                })?;
                form.lapse = Some(Duration::from_secs(seconds));
            }
            // `expires_after[anchor]` is always created_at.
            _ => {}
        }
    }
    Ok(form)
}

async fn list(State(http): State<HttpState>) -> Result<Response, Refused> {
    let files = jobs(&http)?.files().await?;
    let data: Vec<Value> =
        files.iter().filter(|(_, file)| file.purpose != PART).map(|(id, file)| as_file(id, file)).collect();
    Ok(found(&json!({"object": "list", "data": data, "has_more": false})))
}

async fn show(State(http): State<HttpState>, Path(id): Path<String>) -> Result<Response, Refused> {
    let file = jobs(&http)?.file(&id).await?;
    Ok(found(&as_file(&id, &file)))
}

async fn content(State(http): State<HttpState>, Path(id): Path<String>) -> Result<Response, Refused> {
    let jobs = jobs(&http)?;
    let file = jobs.file(&id).await?;
    let mut content = jobs.content(&file);
    // The first part shows whether the store has the file.
    let first = content.next().await.transpose().map_err(JobError::from)?;
    let all = futures_util::stream::iter(first.map(Ok)).chain(content).inspect_err(move |error| {
        tracing::error!(file = id, %error, "a file broke off on its way to a client");
    });
    let headers = [(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))];
    Ok((headers, Body::from_stream(all)).into_response())
}

async fn delete(State(http): State<HttpState>, Path(id): Path<String>) -> Result<Response, Refused> {
    jobs(&http)?.delete_file(&id).await?;
    Ok(found(&json!({"id": id, "object": "file", "deleted": true})))
}

/// An upload in parts: the parts are files of their own until it is complete.
async fn begin(State(http): State<HttpState>, request: Request) -> Result<Response, Refused> {
    let jobs = jobs(&http)?;
    let new: NewUpload = read_json(&http, request).await?;
    if new.purpose != "batch" {
        return Err(Refused::invalid(&format!("'purpose' is '{}', but files here are for 'batch'", new.purpose)));
    }
    let file = jobs.begin_upload(&new.filename, new.bytes, UPLOAD_TIME).await?;
    Ok(found(&as_upload(&file.0, &file.1, "pending", None)))
}

async fn part(State(http): State<HttpState>, Path(id): Path<String>, request: Request) -> Result<Response, Refused> {
    let jobs = jobs(&http)?;
    jobs.file(&id).await?;
    let form = read_form(&http, jobs, request, "data", Some(UPLOAD_TIME)).await?;
    let Some((part, file)) = form.file else { return Err(Refused::invalid("the form has no field 'data'")) };
    Ok(found(&json!({"id": part, "object": "upload.part", "created_at": file.created, "upload_id": id})))
}

async fn complete(
    State(http): State<HttpState>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Refused> {
    let jobs = jobs(&http)?;
    let parts: Complete = read_json(&http, request).await?;
    let upload = jobs.file(&id).await?;
    let file = jobs.complete_upload(&id, &parts.part_ids).await?;
    Ok(found(&as_upload(&id, &upload, "completed", Some(as_file(&file.0, &file.1)))))
}

async fn cancel(State(http): State<HttpState>, Path(id): Path<String>) -> Result<Response, Refused> {
    let jobs = jobs(&http)?;
    let upload = jobs.file(&id).await?;
    jobs.delete_file(&id).await?;
    Ok(found(&as_upload(&id, &upload, "cancelled", None)))
}

fn as_file(id: &str, file: &File) -> Value {
    json!({
        "id": id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created,
        "expires_at": file.expires,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    })
}

fn as_upload(id: &str, upload: &File, status: &str, file: Option<Value>) -> Value {
    json!({
        "id": id,
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": upload.created,
        "expires_at": upload.expires,
        "filename": upload.name,
        "purpose": "batch",
        "status": status,
        "file": file,
    })
}

/// A JSON answer.
pub fn found(value: &Value) -> Response {
    response::json(value.to_string().into())
}

/// Reads a small JSON body.
pub async fn read_json<T: serde::de::DeserializeOwned>(http: &HttpState, request: Request) -> Result<T, Refused> {
    let body = http.read(request).await.map_err(|error| Refused::invalid(&error.message))?;
    serde_json::from_slice(&body).map_err(|error| Refused::invalid(&format!("the body cannot be read: {error}")))
}

/// The jobs of this gateway. The refusal names the flags, if the gateway keeps no jobs.
pub fn jobs(http: &HttpState) -> Result<&Jobs, Refused> {
    Ok(deferred::jobs(http)?)
}

fn broken(error: &multer::Error) -> Refused {
    Refused::invalid(&format!("the form cannot be read: {error}"))
}

// === impl Refused ===

impl Refused {
    /// A request that cannot be done as it is.
    pub fn invalid(message: &str) -> Refused {
        Refused(StatusCode::BAD_REQUEST, message.to_owned())
    }
}

impl From<deferred::NoJobs> for Refused {
    fn from(_: deferred::NoJobs) -> Refused {
        Refused(StatusCode::NOT_IMPLEMENTED, deferred::NO_JOBS.to_owned())
    }
}

impl From<JobError> for Refused {
    fn from(error: JobError) -> Refused {
        Refused(deferred::status(&error), error.to_string())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let kind = if self.0.is_server_error() { "server_error" } else { "invalid_request_error" };
        let error = json!({"message": self.1, "type": kind, "param": null, "code": null});
        (self.0, response::json(json!({"error": error}).to_string().into())).into_response()
    }
}

/// The shape of a page of a list.
pub fn page_schema() -> Schema {
    object_with([("object", text()), ("data", schema::list(plain()))], [])
}

fn file_schema() -> Schema {
    object_with(
        [("id", text()), ("bytes", integer()), ("created_at", integer()), ("filename", text()), ("purpose", text())],
        [("expires_at", nullable(integer()))],
    )
}

fn upload_schema() -> Schema {
    object_with([("filename", text()), ("purpose", text()), ("bytes", integer())], [])
}

fn parts_schema() -> Schema {
    object_with([("part_ids", schema::list(text()))], [])
}
