//! `/ui`: the console, a page for people. It asks `/v2/trireme/status` and the models like any other client, with the key
//! that its user types in.
//!
//! Everything it loads comes from here. The policy forbids the rest, scripts and styles within the page included: a name
//! that got into the page as markup could do nothing.

use axum::Router;
use axum::http::HeaderName;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Redirect};

use super::get;
use crate::http::HttpState;

/// What the page may load and do.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

const PAGE: &str = include_str!("../../../console/index.html");
const STYLE: &str = include_str!("../../../console/console.css");
const SCRIPT: &str = include_str!("../../../console/console.js");

pub fn routes() -> Router<HttpState> {
    Router::new()
        .route("/ui", get(async || file("text/html; charset=utf-8", PAGE)))
        .route("/ui/", get(async || Redirect::permanent("/ui")))
        .route("/ui/console.css", get(async || file("text/css; charset=utf-8", STYLE)))
        .route("/ui/console.js", get(async || file("text/javascript; charset=utf-8", SCRIPT)))
}

fn file(content_type: &'static str, text: &'static str) -> impl IntoResponse {
    let headers: [(HeaderName, &'static str); 5] = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // A gateway of another version has another page.
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, text)
}
