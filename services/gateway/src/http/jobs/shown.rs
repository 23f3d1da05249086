//! Durable work as clients see it: the answers of the routes of jobs, with their shapes in `/openapi.json`. Files, uploads and batches have the
//! members that OpenAI's have, and a few more. Times are seconds since 1970.

use std::collections::BTreeMap;

use serde::Serialize;
use trireme_jobs::{Batch, BatchState, File, Usage, Webhook, WebhookState, now};
use utoipa::ToSchema;

use super::MAX_ERROR_BYTES;

/// A batch.
#[derive(Serialize, ToSchema)]
pub struct ShownBatch<'a> {
    id: &'a str,
    object: &'static str,
    endpoint: &'a str,
    /// Why it failed.
    #[schema(inline)]
    errors: Option<BatchErrors<'a>>,
    input_file_id: &'a str,
    completion_window: String,
    status: &'static str,
    output_file_id: Option<&'a str>,
    error_file_id: Option<&'a str>,
    /// Bytes of the error file at which the batch ends.
    error_file_max_bytes: u64,
    created_at: u64,
    in_progress_at: Option<u64>,
    expires_at: u64,
    finalizing_at: Option<u64>,
    completed_at: Option<u64>,
    failed_at: Option<u64>,
    expired_at: Option<u64>,
    cancelling_at: Option<u64>,
    cancelled_at: Option<u64>,
    #[schema(inline)]
    request_counts: RequestCounts,
    /// Tokens of the lines in the output, where their answers count them.
    #[schema(inline)]
    usage: Option<Tokens>,
    metadata: &'a BTreeMap<String, String>,
    /// The time before which it does not begin.
    not_before: Option<u64>,
    /// The spaces of which each line's answer has to have one.
    if_space: Option<&'a str>,
    #[schema(inline)]
    webhook: Option<ShownWebhook<'a>>,
}

/// Why a batch failed.
#[derive(Serialize, ToSchema)]
struct BatchErrors<'a> {
    object: &'static str,
    #[schema(inline)]
    data: [BatchError<'a>; 1],
}

#[derive(Serialize, ToSchema)]
struct BatchError<'a> {
    code: &'static str,
    message: &'a str,
    param: Option<&'static str>,
    line: Option<u64>,
}

/// Lines of a batch.
#[derive(Serialize, ToSchema)]
struct RequestCounts {
    total: u64,
    completed: u64,
    failed: u64,
}

/// Tokens of a batch.
#[derive(Serialize, ToSchema)]
struct Tokens {
    input_tokens: u64,
    #[schema(inline)]
    input_tokens_details: InputTokens,
    output_tokens: u64,
    #[schema(inline)]
    output_tokens_details: OutputTokens,
    total_tokens: u64,
}

#[derive(Serialize, ToSchema)]
struct InputTokens {
    cached_tokens: u64,
}

#[derive(Serialize, ToSchema)]
struct OutputTokens {
    reasoning_tokens: u64,
}

/// The URL that is called when a job has ended.
#[derive(Serialize, ToSchema)]
pub struct ShownWebhook<'a> {
    url: &'a str,
    #[schema(value_type = String)]
    status: WebhookState,
    /// How many calls have ended.
    attempts: u32,
    last_error: Option<&'a str>,
}

/// A file.
#[derive(Serialize, ToSchema)]
pub struct ShownFile<'a> {
    id: &'a str,
    object: &'static str,
    #[serde(flatten)]
    #[schema(inline)]
    stored: Stored<'a>,
}

/// The members that a file and an upload share.
#[derive(Serialize, ToSchema)]
struct Stored<'a> {
    bytes: u64,
    created_at: u64,
    expires_at: Option<u64>,
    filename: &'a str,
    purpose: &'static str,
    status: &'static str,
}

/// A file that is deleted.
#[derive(Serialize, ToSchema)]
pub struct DeletedFile<'a> {
    id: &'a str,
    object: &'static str,
    deleted: bool,
}

/// An upload in parts.
#[derive(Serialize, ToSchema)]
pub struct ShownUpload<'a> {
    id: &'a str,
    object: &'static str,
    #[serde(flatten)]
    #[schema(inline)]
    stored: Stored<'a>,
    /// The file of an upload that is complete.
    #[schema(inline)]
    file: Option<ShownFile<'a>>,
}

/// A part of an upload.
#[derive(Serialize, ToSchema)]
pub struct ShownPart<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    upload_id: &'a str,
}

/// A durable request.
#[derive(Serialize, ToSchema)]
pub struct ShownRequest<'a> {
    id: &'a str,
    object: &'static str,
    status: &'static str,
    created_at: u64,
    expires_at: u64,
    ended_at: Option<u64>,
    not_before: Option<u64>,
    #[schema(inline)]
    webhook: Option<ShownWebhook<'a>>,
    /// The path of its answer.
    response: String,
}

// === impl ShownBatch ===

impl<'a> ShownBatch<'a> {
    /// The batch with this id.
    pub fn of(id: &'a str, batch: &'a Batch) -> ShownBatch<'a> {
        let ended = |state| (batch.state == state).then_some(batch.ended).flatten();
        let counts = batch.progress();
        ShownBatch {
            id,
            object: "batch",
            endpoint: &batch.endpoint,
            errors: batch.failure.as_deref().map(BatchErrors::of),
            input_file_id: &batch.input,
            completion_window: format!("{}h", batch.expires.saturating_sub(batch.start()) / 3600),
            status: batch.state_name(now()),
            output_file_id: batch.output.as_deref(),
            error_file_id: batch.errors.as_deref(),
            error_file_max_bytes: MAX_ERROR_BYTES,
            created_at: batch.created,
            in_progress_at: batch.begun,
            expires_at: batch.expires,
            finalizing_at: batch.ended.filter(|_| batch.state == BatchState::Completed),
            completed_at: ended(BatchState::Completed),
            failed_at: ended(BatchState::Failed),
            expired_at: ended(BatchState::Expired),
            cancelling_at: batch.cancelling,
            cancelled_at: ended(BatchState::Cancelled),
            request_counts: RequestCounts { total: counts.total, completed: counts.completed, failed: counts.failed },
            usage: (batch.usage != Usage::default()).then(|| Tokens::of(batch.usage)),
            metadata: &batch.metadata,
            not_before: batch.not_before,
            if_space: batch.if_space.as_deref(),
            webhook: batch.webhook.as_ref().map(ShownWebhook::of),
        }
    }
}

// === impl BatchErrors ===

impl BatchErrors<'_> {
    fn of(message: &str) -> BatchErrors<'_> {
        BatchErrors { object: "list", data: [BatchError { code: "invalid_file", message, param: None, line: None }] }
    }
}

// === impl Tokens ===

impl Tokens {
    fn of(Usage { input, cached, output }: Usage) -> Tokens {
        Tokens {
            input_tokens: input,
            input_tokens_details: InputTokens { cached_tokens: cached },
            output_tokens: output,
            output_tokens_details: OutputTokens { reasoning_tokens: 0 },
            total_tokens: input + output,
        }
    }
}

// === impl ShownWebhook ===

impl ShownWebhook<'_> {
    fn of(webhook: &Webhook) -> ShownWebhook<'_> {
        ShownWebhook {
            url: &webhook.url,
            status: webhook.state,
            attempts: webhook.attempts,
            last_error: webhook.failure.as_deref(),
        }
    }
}

// === impl ShownFile ===

impl<'a> ShownFile<'a> {
    /// The file with this id.
    pub fn of(id: &'a str, file: &'a File) -> ShownFile<'a> {
        ShownFile { id, object: "file", stored: Stored::of(file, file.purpose_name(), "processed") }
    }
}

// === impl Stored ===

impl<'a> Stored<'a> {
    fn of(file: &'a File, purpose: &'static str, status: &'static str) -> Stored<'a> {
        let File { bytes, created, expires, ref name, .. } = *file;
        Stored { bytes, created_at: created, expires_at: expires, filename: name, purpose, status }
    }
}

// === impl DeletedFile ===

impl DeletedFile<'_> {
    /// The file with this id, which is deleted.
    pub fn of(id: &str) -> DeletedFile<'_> {
        DeletedFile { id, object: "file", deleted: true }
    }
}

// === impl ShownUpload ===

impl<'a> ShownUpload<'a> {
    /// The upload with this id, in this state; `file` is the file made from it.
    pub fn of(id: &'a str, upload: &'a File, status: &'static str, file: Option<ShownFile<'a>>) -> ShownUpload<'a> {
        ShownUpload { id, object: "upload", stored: Stored::of(upload, "batch", status), file }
    }
}

// === impl ShownPart ===

impl<'a> ShownPart<'a> {
    /// The part with this id of an upload.
    pub fn of(id: &'a str, part: &File, upload_id: &'a str) -> ShownPart<'a> {
        ShownPart { id, object: "upload.part", created_at: part.created, upload_id }
    }
}

// === impl ShownRequest ===

impl<'a> ShownRequest<'a> {
    /// The request with this id, on a server under the path `root`.
    pub fn of(id: &'a str, request: &'a trireme_jobs::Request, root: &str) -> ShownRequest<'a> {
        ShownRequest {
            id,
            object: "request",
            status: request.state_name(now()),
            created_at: request.created,
            expires_at: request.expires,
            ended_at: request.ended,
            not_before: request.not_before,
            webhook: request.webhook.as_ref().map(ShownWebhook::of),
            response: format!("{root}/v1/requests/{id}/response"),
        }
    }
}
