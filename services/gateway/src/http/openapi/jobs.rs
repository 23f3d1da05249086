//! The routes of durable work.

use utoipa::openapi::schema::Schema;

use super::entry::{Entry, Line, delete, get, plain, post};
use super::schema::{integer, list, nullable, object_with, text};

const JOBS: &[Line] = &[
    get("/v1/requests/{id}", "The state of a durable request").gives(request),
    delete("/v1/requests/{id}", "Cancels a durable request, or deletes one that has ended"),
    get("/v1/requests/{id}/response", "The answer to a durable request"),
    get("/v1/files", "All files").gives(page),
    post("/v1/files", "Uploads a file, as multipart/form-data with purpose and file"),
    get("/v1/files/{id}", "A file's name and size").gives(file),
    delete("/v1/files/{id}", "Deletes a file").gives(plain),
    get("/v1/files/{id}/content", "The bytes of a file"),
    post("/v1/uploads", "Begins an upload in parts").takes(new_upload).gives(plain),
    post("/v1/uploads/{id}/parts", "Uploads a part, as multipart/form-data with data"),
    post("/v1/uploads/{id}/complete", "Makes a file of parts").takes(parts).gives(plain),
    post("/v1/uploads/{id}/cancel", "Gives an upload up").gives(plain),
    get("/v1/batches", "All batches").gives(page),
    post("/v1/batches", "Begins a batch: every line of a file is a request").takes(new_batch).gives(batch),
    get("/v1/batches/{id}", "The state of a batch").gives(batch),
    post("/v1/batches/{id}/cancel", "Cancels a batch").gives(batch),
];

/// All of them.
pub fn entries() -> Vec<Entry> {
    JOBS.iter().map(|line| line.entry("jobs", line.path.to_owned())).collect()
}

fn request() -> Schema {
    object_with(
        [
            ("id", text()),
            ("status", text()),
            ("created_at", integer()),
            ("expires_at", integer()),
            ("response", text()),
        ],
        [("ended_at", nullable(integer()))],
    )
}

fn page() -> Schema {
    object_with([("object", text()), ("data", list(plain()))], [])
}

fn file() -> Schema {
    object_with(
        [("id", text()), ("bytes", integer()), ("created_at", integer()), ("filename", text()), ("purpose", text())],
        [("expires_at", nullable(integer()))],
    )
}

fn new_upload() -> Schema {
    object_with([("filename", text()), ("purpose", text()), ("bytes", integer())], [])
}

fn parts() -> Schema {
    object_with([("part_ids", list(text()))], [])
}

fn new_batch() -> Schema {
    object_with(
        [("input_file_id", text()), ("endpoint", text()), ("completion_window", text())],
        [("metadata", nullable(plain()))],
    )
}

fn batch() -> Schema {
    object_with(
        [
            ("id", text()),
            ("endpoint", text()),
            ("input_file_id", text()),
            ("status", text()),
            ("created_at", integer()),
            ("request_counts", plain()),
        ],
        [("output_file_id", nullable(text())), ("error_file_id", nullable(text()))],
    )
}
