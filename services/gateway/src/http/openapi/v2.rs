//! The routes of the v2 protocol, of control and of the pages.

use utoipa::openapi::schema::Schema;

use super::entry::{Entry, Line, get, plain, post};
use super::schema::{anything, flag, integer, list, nullable, number, object, object_with, text};

/// Routes of a model; each is there with `/versions/{version}`, too.
const OF_MODELS: &[Line] = &[
    get("", "A model's inputs and outputs").gives(model),
    get("/config", "A model's configuration").gives(anything),
    get("/ready", "Whether a model is ready"),
    get("/stats", "A model's statistics").gives(statistics),
    post("/infer", "Runs a model: tensors in JSON, or behind it in binary").takes(infer).gives(inferred),
    post("/generate", "Runs a model on plain JSON").takes(plain).gives(plain),
    post("/generate_stream", "Runs a model on plain JSON; its answers come as events").takes(plain),
];

const OTHERS: &[Line] = &[
    get("/v2", "The server's name, version and extensions").gives(server),
    get("/v2/health/live", "Whether the server lives"),
    get("/v2/health/ready", "Whether all models are ready"),
    get("/v2/models/stats", "The statistics of all models").gives(statistics),
    post("/v2/repository/index", "All models and versions").takes(index).gives(indexed),
    post("/v2/repository/models/{model}/load", "Loads a model").takes(load),
    post("/v2/repository/models/{model}/unload", "Unloads a model").takes(unload),
    post("/v2/repository/{repository}/index", "Always refused: repositories have no names").takes(index),
    post("/v2/repository/{repository}/models/{model}/load", "Always refused: repositories have no names").takes(load),
    post("/v2/repository/{repository}/models/{model}/unload", "Always refused: repositories have no names")
        .takes(unload),
    get("/v2/logging", "Log settings").gives(plain),
    post("/v2/logging", "Changes log settings").takes(plain).gives(plain),
    get("/v2/trace/setting", "Trace settings").gives(plain),
    post("/v2/trace/setting", "Changes trace settings").takes(plain).gives(plain),
    get("/v2/models/{model}/trace/setting", "Trace settings of a model").gives(plain),
    post("/v2/models/{model}/trace/setting", "Changes trace settings of a model").takes(plain).gives(plain),
    get("/v2/trireme/status", "The state of the whole system").gives(status),
];

/// Routes of shared memory; each is there with `/region/{region}` before its last word, too.
const OF_REGIONS: &[Line] = &[
    get("/v2/systemsharedmemory/status", "Regions of system memory that clients share").gives(regions),
    post("/v2/systemsharedmemory/register", "Shares a region of system memory").takes(region),
    post("/v2/systemsharedmemory/unregister", "Ends the sharing of system memory"),
    get("/v2/cudasharedmemory/status", "Regions of CUDA memory that clients share").gives(regions),
    post("/v2/cudasharedmemory/register", "Always refused: CUDA memory is not shared").takes(plain),
    post("/v2/cudasharedmemory/unregister", "Ends the sharing of CUDA memory"),
];

const PAGES: &[Line] = &[
    get("/openapi.json", "This document").gives(plain),
    get("/docs", "A page that shows this document"),
    get("/docs/docs.css", "The style of that page"),
    get("/docs/docs.js", "The script of that page"),
    get("/", "Leads to the console"),
    get("/ui", "The console: a page that shows what runs"),
    get("/ui/", "Leads to the console"),
    get("/ui/console.css", "The style of the console"),
    get("/ui/console.js", "The script of the console"),
    get("/ui/client.js", "The script of the console that writes code for clients"),
];

/// All of them.
pub fn entries() -> Vec<Entry> {
    let of_models = OF_MODELS.iter().flat_map(|line| {
        let path = |version: &str| format!("/v2/models/{{model}}{version}{}", line.path);
        [line.entry("v2", path("")), line.entry("v2", path("/versions/{version}"))]
    });
    let of_regions = OF_REGIONS.iter().flat_map(|line| {
        let (all, word) = line.path.rsplit_once('/').unwrap_or_default();
        [line.entry("control", line.path.to_owned()), line.entry("control", format!("{all}/region/{{region}}/{word}"))]
    });
    let others = OTHERS.iter().map(|line| {
        let is_control = ["repository", "logging", "trace", "trireme"].iter().any(|word| line.path.contains(word));
        line.entry(if is_control { "control" } else { "v2" }, line.path.to_owned())
    });
    let pages = PAGES.iter().map(|line| line.entry("pages", line.path.to_owned()));
    of_models.chain(others).chain(of_regions).chain(pages).collect()
}

fn tensor_spec() -> Schema {
    object([("name", text()), ("datatype", text()), ("shape", list(integer()))])
}

fn model() -> Schema {
    object([
        ("name", text()),
        ("versions", list(text())),
        ("platform", text()),
        ("inputs", list(tensor_spec())),
        ("outputs", list(tensor_spec())),
    ])
}

fn server() -> Schema {
    object([("name", text()), ("version", text()), ("extensions", list(text()))])
}

fn infer() -> Schema {
    let data = || ("data", list(anything()));
    let tensor = object_with(
        [("name", text()), ("datatype", text()), ("shape", list(integer()))],
        [data(), ("parameters", plain())],
    );
    let output = object_with([("name", text())], [("parameters", plain())]);
    object_with([("inputs", list(tensor))], [("id", text()), ("parameters", plain()), ("outputs", list(output))])
}

fn inferred() -> Schema {
    let tensor = object_with(
        [("name", text()), ("datatype", text()), ("shape", list(integer()))],
        [("data", list(anything())), ("parameters", plain())],
    );
    object_with(
        [("model_name", text()), ("model_version", text()), ("outputs", list(tensor))],
        [("id", text()), ("parameters", plain())],
    )
}

fn statistics() -> Schema {
    let counted = object([("name", text()), ("version", text()), ("inference_stats", plain())]);
    object([("model_stats", list(counted))])
}

fn index() -> Schema {
    object_with([], [("ready", flag())])
}

fn indexed() -> Schema {
    list(object_with([("name", text())], [("version", text()), ("state", text()), ("reason", text())]))
}

fn load() -> Schema {
    object_with([], [("parameters", plain())])
}

fn unload() -> Schema {
    object_with([], [("parameters", object_with([], [("unload_dependents", flag())]))])
}

fn region() -> Schema {
    object_with([("key", text()), ("byte_size", integer())], [("offset", integer())])
}

fn regions() -> Schema {
    list(object([("name", text()), ("key", text()), ("offset", integer()), ("byte_size", integer())]))
}

fn status() -> Schema {
    let model = object_with([("name", text()), ("version", nullable(integer())), ("ready", flag())], []);
    object([
        ("time", number()),
        ("ready", flag()),
        ("jobs", flag()),
        ("models", list(model)),
        ("gateways", list(plain())),
        ("workers", list(plain())),
    ])
}
