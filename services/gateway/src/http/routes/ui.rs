//! `/ui`: the console, a page for people, to which the root leads. It asks `/v2/trireme/status`, `/v1/batches` and the models like
//! any other client, with the key that its user types in.
//!
//! Everything it loads comes from here (`page`).

use axum::Router;
use axum::response::Redirect;

use super::get;
use super::page::file;
use crate::http::HttpState;

const PAGE: &str = include_str!("../../../console/index.html");
const STYLE: &str = include_str!("../../../console/console.css");
const SCRIPT: &str = include_str!("../../../console/console.js");
const CLIENT: &str = include_str!("../../../console/client.js");

pub fn routes() -> Router<HttpState> {
    Router::new()
        .route("/ui", get(async || file("text/html; charset=utf-8", PAGE)))
        .route("/", get(async || Redirect::temporary("/ui")))
        .route("/ui/", get(async || Redirect::permanent("/ui")))
        .route("/ui/console.css", get(async || file("text/css; charset=utf-8", STYLE)))
        .route("/ui/console.js", get(async || file("text/javascript; charset=utf-8", SCRIPT)))
        .route("/ui/client.js", get(async || file("text/javascript; charset=utf-8", CLIENT)))
}
