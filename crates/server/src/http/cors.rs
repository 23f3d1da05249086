//! Cross-origin requests of pages in browsers: `--cors-origin`.

use std::time::Duration;

use axum::http::HeaderValue;
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, Any, CorsLayer};

/// How long a browser remembers what a page may ask.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The layer by which pages of these origins may ask; `*` stands for all of them, and without an origin there is none. Preflight requests are
/// answered without a key, because browsers send none with them.
pub fn layer(origins: &[HeaderValue]) -> Option<CorsLayer> {
    let origin = match origins.iter().any(|origin| origin == "*") {
        _ if origins.is_empty() => return None,
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().cloned()),
    };
    let cors = CorsLayer::new()
        .allow_origin(origin)
        .allow_methods(AllowMethods::mirror_request())
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(Any)
        .max_age(REMEMBERED);
    Some(cors)
}
