//! Access rules that are checked before a call runs: API keys, and headers that categories of calls have to carry.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tonic::Status;
use trireme_inference::InferError;
use trireme_protocol::grpc::status;
use trireme_server::access::{
    Access, Changes, Credentials, Denied, Given, PortRules, Restriction, Rule, Sender, read_all,
};

use super::methods::Method;
use crate::handlers::SharedHandlers;

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

/// The rule for a call of a method that does not exist.
const UNKNOWN: Rule = Rule { category: None, changes: Changes::Never };

/// The credentials of an admitted call whose message says whether it changes the server. A call that did not pass [`admit`] has proven nothing.
pub(super) fn credentials<T>(call: &tonic::Request<T>) -> Credentials {
    call.extensions().get().copied().unwrap_or(Credentials { is_local: false, is_proven: false })
}

/// Runs the call, unless its metadata lacks the key or a required header.
pub async fn admit(
    State((handlers, restricted)): State<(SharedHandlers, Arc<Access>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let rule = request.extensions().get::<&Method>().map_or(UNKNOWN, |method| method.rule());
    let sender = Sender::of(request.uri(), request.headers(), request.extensions());
    // Pages in browsers do not speak gRPC.
    let admitted = handlers.access.admit(rule, &sender, PortRules { restrictions: &restricted, has_pages: false });
    match admitted {
        Ok(credentials) => {
            if let Some(credentials) = credentials {
                request.extensions_mut().insert(credentials);
            }
            next.run(request).await
        }
        Err(Denied::Key) => {
            let text = "a valid API key is required, as 'authorization: Bearer <key>' or 'x-api-key: <key>'";
            Status::unauthenticated(text).into_http()
        }
        Err(Denied::Restricted(header)) => {
            let text = format!("This protocol is restricted, expecting header '{header}'");
            status(&InferError::unavailable(text)).into_http()
        }
        Err(denied @ (Denied::Foreign(_) | Denied::Control(_))) => {
            Status::permission_denied(denied.to_string()).into_http()
        }
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
