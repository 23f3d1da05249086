//! The shapes of answers.

use trireme_inference::Ledger;
use trireme_protocol::json::Writer;
use trireme_server::http::schema::{any_of, integer, list, nullable, number, object, text};
use utoipa::openapi::schema::Schema;

use super::super::answer;

/// The members that most answers have, and their rows.
fn listed(row: Schema) -> Schema {
    object([
        ("id", text()),
        ("object", text()),
        ("created", integer()),
        ("model", text()),
        ("data", list(row)),
        ("usage", answer::usage_schema()),
    ])
}

pub(super) fn score() -> Schema {
    listed(object([("index", integer()), ("object", text()), ("score", number())]))
}

pub(super) fn embeddings() -> Schema {
    listed(object([("index", integer()), ("object", text()), ("embedding", answer::vector_schema())]))
}

pub(super) fn rerank() -> Schema {
    let document = object([("text", text())]);
    let result = object([("index", integer()), ("document", document), ("relevance_score", number())]);
    object([("id", text()), ("model", text()), ("usage", answer::usage_schema()), ("results", list(result))])
}

pub(super) fn classify() -> Schema {
    listed(object([("index", integer()), ("label", text()), ("probs", list(number())), ("num_classes", integer())]))
}

pub(super) fn pooling() -> Schema {
    let data = any_of([answer::vector_schema(), list(list(number()))]);
    listed(object([("index", integer()), ("object", text()), ("data", data)]))
}

pub(super) fn tokenize() -> Schema {
    object([
        ("count", integer()),
        ("max_model_len", nullable(integer())),
        ("tokens", list(integer())),
        ("token_strs", nullable(list(text()))),
    ])
}

pub(super) fn detokenize() -> Schema {
    object([("prompt", text())])
}

/// The members that most answers begin with.
pub fn head(out: &mut Writer, id: String, model: &str) {
    out.name("id").string(id);
    out.name("object").string("list");
    out.name("created").integer(answer::now());
    out.name("model").string(model);
}

/// The tokens of a request, as answers tell them.
pub fn usage(out: &mut Writer, ledger: &Ledger) {
    let tokens = answer::tokens(ledger);
    out.name("usage").object(|out| {
        out.name("prompt_tokens").integer(tokens);
        out.name("total_tokens").integer(tokens);
        out.name("completion_tokens").integer(0);
        answer::cached_tokens(out, ledger);
    });
}
