//! `/ui`: the console, a page for people, to which the root leads. It asks `/v2/trireme/status`, `/v1/batches` and the models like
//! any other client, with the key that its user types in.
//!
//! Everything it loads comes from here (`page`).

use axum::response::Redirect;
use trireme_server::Traffic;
use trireme_server::http::route::Resource;

use super::page::file;
use crate::http::state::Route;

const PAGE: &str = include_str!("../../../console/index.html");
const STYLE: &str = include_str!("../../../console/console.css");
const SCRIPT: &str = include_str!("../../../console/console.js");
const CLIENT: &str = include_str!("../../../console/client.js");

/// The defaults of these routes.
const RESOURCE: Resource = Resource { group: "pages", category: None, traffic: Traffic::Server };

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        RESOURCE
            .get("/ui", "The console: a page that shows what runs", async || file("text/html; charset=utf-8", PAGE)),
        RESOURCE.get("/", "Leads to the console", async || Redirect::temporary("/ui")),
        RESOURCE.get("/ui/", "Leads to the console", async || Redirect::permanent("/ui")),
        RESOURCE.get("/ui/console.css", "The style of the console", async || file("text/css; charset=utf-8", STYLE)),
        RESOURCE.get("/ui/console.js", "The script of the console", async || {
            file("text/javascript; charset=utf-8", SCRIPT)
        }),
        RESOURCE.get("/ui/client.js", "The script of the console that writes code for clients", async || {
            file("text/javascript; charset=utf-8", CLIENT)
        }),
    ]
}
