//! Pages for people. Everything that they load comes from here. The policy forbids the rest, scripts and styles within a page
//! included: a name that got into a page as markup could do nothing.

use axum::http::HeaderName;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY};
use axum::response::IntoResponse;

/// The policy of pages: everything else is forbidden to them.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// A file of a page.
pub fn file(content_type: &'static str, text: &'static str) -> impl IntoResponse {
    let headers: [(HeaderName, &'static str); 4] = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        // A gateway of another version has another page.
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, text)
}
