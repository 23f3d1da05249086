//! Access rules that are checked before a call runs: API keys, and headers that categories of calls have to carry.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tonic::Status;
use trireme_inference::InferError;
use trireme_protocol::grpc::status;
use trireme_server::access::{Access, Category, Credentials, Denied, Given, Restriction, Sender, read_all};

use super::methods::Method;
use crate::handlers::{Handlers, SharedHandlers};

/// The prefix of a restricted call's header.
const HEADER_PREFIX: &str = "triton-grpc-protocol-";

/// Categories whose calls have to carry a header.
#[derive(Clone, Debug)]
pub struct ProtocolRestriction {
    protocols: BTreeSet<String>,
    rule: Restriction,
}

// === impl ProtocolRestriction ===

impl FromStr for ProtocolRestriction {
    type Err = String;

    /// Reads `protocol,...:key=value`.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(names, rest)| Some((names, rest.split_once('=')?)));
        let Some((names, (key, value))) = parts.filter(|(_, (key, _))| !key.trim().is_empty()) else {
            return Err("expected PROTOCOL,...:KEY=VALUE".to_owned());
        };
        let rule = format!("{names}:{HEADER_PREFIX}{}={value}", key.trim()).parse()?;
        Ok(ProtocolRestriction { protocols: names.split(',').map(|name| name.trim().to_owned()).collect(), rule })
    }
}

/// The restrictions on calls as rules, files read now. Two restrictions of one category are an error.
pub fn restrict(restrictions: &[Given<ProtocolRestriction>]) -> anyhow::Result<Access> {
    let restrictions = read_all("--grpc-restricted-protocol", restrictions)?;
    let mut seen = BTreeSet::new();
    for protocol in restrictions.iter().flat_map(|restriction| &restriction.protocols) {
        anyhow::ensure!(seen.insert(protocol), "--grpc-restricted-protocol names '{protocol}' more than once");
    }
    Ok(Access::restricting(restrictions.into_iter().map(|restriction| restriction.rule).collect()))
}

/// Whether a call of this category carries the key and the header that it needs. Health checks need no key, because orchestrators send
/// none.
fn check(
    handlers: &Handlers,
    restricted: &Access,
    category: Option<Category>,
    headers: &HeaderMap,
) -> Result<(), Denied> {
    let header = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    if category != Some(Category::Health) {
        handlers.access.check_key(header)?;
    }
    category.map_or(Ok(()), |category| restricted.check_restriction(category, header))
}

/// Whether the sender of an admitted call may change the server. A call that did not pass [`admit`] has proven nothing.
pub(super) fn credentials<T>(call: &tonic::Request<T>) -> Credentials {
    call.extensions().get().copied().unwrap_or(Credentials { is_local: false, is_proven: false })
}

/// Runs the call, unless its metadata lacks the key or a required header.
pub async fn admit(
    State((handlers, restricted)): State<(SharedHandlers, Arc<Access>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let category = request.extensions().get::<&Method>().and_then(|method| method.category);
    if let Some(category) = category {
        let sender = Sender::of(request.uri(), request.headers(), request.extensions());
        let is_administrator = handlers.access.is_administrator(|name| sender.header(name));
        let is_proven = is_administrator || restricted.restricts(category);
        let is_local = sender.is_local();
        request.extensions_mut().insert(Credentials { is_local, is_proven });
    }
    match check(&handlers, &restricted, category, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(Denied::Key) => {
            let text = "a valid API key is required, as 'authorization: Bearer <key>' or 'x-api-key: <key>'";
            Status::unauthenticated(text).into_http()
        }
        Err(Denied::Restricted(header)) => {
            let text = format!("This protocol is restricted, expecting header '{header}'");
            status(&InferError::unavailable(text)).into_http()
        }
        // Pages in browsers do not speak gRPC.
        Err(Denied::Foreign(foreign)) => Status::permission_denied(foreign.to_string()).into_http(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faulty_restrictions_are_refused() {
        for text in ["health", "health:key", "nothing:key=value", "health: =value", "health:a b=value", "health:key="] {
            assert!(text.parse::<ProtocolRestriction>().is_err(), "{text}");
        }
        let twice = ["health:a=b", "metadata, health:c=d"].map(|text| text.parse().unwrap());
        let error = restrict(&twice).unwrap_err().to_string();
        assert_eq!(error, "--grpc-restricted-protocol names 'health' more than once");
    }
}
