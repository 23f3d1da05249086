//! The shapes of answers.

use utoipa::openapi::schema::Schema;

pub(super) use trireme_server::http::schema::anything;
use trireme_server::http::schema::{any_of, flag, integer, list, nullable, number, object, object_with, text};

pub(super) fn numbers() -> Schema {
    list(number())
}

pub(super) fn texts() -> Schema {
    list(text())
}

pub(super) fn vectors() -> Schema {
    list(numbers())
}

pub(super) fn token_vectors() -> Schema {
    list(vectors())
}

pub(super) fn sparse_vectors() -> Schema {
    list(list(object([("index", integer()), ("value", number())])))
}

pub(super) fn ranks() -> Schema {
    list(object_with([("index", integer()), ("score", number())], [("text", text())]))
}

pub(super) fn predictions() -> Schema {
    let row = || list(object([("score", number()), ("label", text())]));
    any_of([row(), list(row())])
}

pub(super) fn token_lists() -> Schema {
    let token = object([
        ("id", integer()),
        ("text", text()),
        ("special", flag()),
        ("start", nullable(integer())),
        ("stop", nullable(integer())),
    ]);
    list(list(token))
}

pub(super) fn info() -> Schema {
    object_with(
        [
            ("model_id", text()),
            ("model_dtype", text()),
            ("served_model_name", text()),
            ("model_type", object([])),
            ("max_concurrent_requests", integer()),
            ("max_input_length", integer()),
            ("max_batch_tokens", integer()),
            ("max_client_batch_size", integer()),
            ("auto_truncate", flag()),
            ("tokenization_workers", integer()),
            ("version", text()),
        ],
        [
            ("model_sha", nullable(text())),
            ("max_batch_requests", nullable(integer())),
            ("sha", nullable(text())),
            ("docker_label", nullable(text())),
        ],
    )
}
