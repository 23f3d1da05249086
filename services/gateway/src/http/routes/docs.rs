//! `/openapi.json`: every HTTP route with its bodies and answers, and `/docs`, a page that shows it to people.
//!
//! Not here: keys, which each route asks for by its own category.

use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use trireme_server::Traffic;
use trireme_server::http::document;
use trireme_server::http::route::Resource;
use trireme_server::http::schema::plain;

use super::page::file;
use crate::http::state::{HttpState, Route};

const PAGE: &str = include_str!("../../../console/docs.html");
const STYLE: &str = include_str!("../../../console/docs.css");
const SCRIPT: &str = include_str!("../../../console/docs.js");

/// The defaults of the document's route.
const RESOURCE: Resource = Resource { group: "pages", category: None, traffic: Traffic::Server };

/// The route of the document.
pub fn routes() -> Vec<Route> {
    vec![RESOURCE.get("/openapi.json", "This document", openapi).gives(plain)]
}

/// The defaults of the page's routes.
const PAGES: Resource = Resource { group: "pages", category: None, traffic: Traffic::Server };

/// The routes of the page.
pub fn pages() -> Vec<Route> {
    vec![
        PAGES.get("/docs", "A page that shows this document", async || file("text/html; charset=utf-8", PAGE)),
        PAGES.get("/docs/docs.css", "The style of that page", async || file("text/css; charset=utf-8", STYLE)),
        PAGES.get("/docs/docs.js", "The script of that page", async || file("text/javascript; charset=utf-8", SCRIPT)),
    ]
}

async fn openapi(State(http): State<HttpState>) -> Response {
    let document = || document(&http.table, &http.options.root_path);
    let json = http.document.get_or_init(|| Bytes::from(serde_json::to_vec(&document()).unwrap_or_default()));
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        // A gateway of another version has other routes.
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, json.clone()).into_response()
}
