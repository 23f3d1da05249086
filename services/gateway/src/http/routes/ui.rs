//! `/ui`: the console, a page for people, to which the root leads. It asks `/v2/trireme/status`, `/v1/batches` and the models like
//! any other client, with the key that its user types in.
//!
//! Everything it loads comes from here (`page`).

use axum::response::Redirect;
use trireme_server::http::Traffic;

use super::page::file;
use crate::http::resource::{Endpoint, Resource};
use crate::http::routing::get;

const PAGE: &str = include_str!("../../../console/index.html");
const STYLE: &str = include_str!("../../../console/console.css");
const SCRIPT: &str = include_str!("../../../console/console.js");
const CLIENT: &str = include_str!("../../../console/client.js");

/// The routes.
pub const RESOURCE: Resource = Resource {
    category: None,
    traffic: Traffic::Server,
    group: "pages",
    endpoints: &[
        Endpoint::get("/ui", "The console: a page that shows what runs", || {
            get(async || file("text/html; charset=utf-8", PAGE))
        }),
        Endpoint::get("/", "Leads to the console", || get(async || Redirect::temporary("/ui"))),
        Endpoint::get("/ui/", "Leads to the console", || get(async || Redirect::permanent("/ui"))),
        Endpoint::get("/ui/console.css", "The style of the console", || {
            get(async || file("text/css; charset=utf-8", STYLE))
        }),
        Endpoint::get("/ui/console.js", "The script of the console", || {
            get(async || file("text/javascript; charset=utf-8", SCRIPT))
        }),
        Endpoint::get("/ui/client.js", "The script of the console that writes code for clients", || {
            get(async || file("text/javascript; charset=utf-8", CLIENT))
        }),
    ],
};
