//! Headers and call metadata that models get as parameters: those whose names match `--http-header-forward-pattern` or
//! `--grpc-header-forward-pattern`.

use anyhow::Context;
use axum::http::{HeaderMap, HeaderName};
use regex::{Regex, RegexBuilder};
use trireme_inference::{IF_SPACE, IF_SPACE_HEADER, InferError, ParameterValue, Parameters, REQUEST_TIMEOUT};

/// Headers about a request itself, which the server may have set and which differ from request to request: a model that got them would
/// have no answer in the response cache.
const OF_THE_REQUEST: &[&str] = &["x-request-id", "traceparent", "tracestate", IF_SPACE_HEADER];

/// Parameters with a meaning of their own, which no header sets, and the prefix of further ones; Triton's list. Their
/// names are those of headers, too: `priority` is one of HTTP, which chooses the lane.
const RESERVED: &[&str] = &[
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "headers",
    "binary_data_output",
    REQUEST_TIMEOUT,
    IF_SPACE,
];
const RESERVED_PREFIX: &str = "triton_";

/// Headers with credentials. Parameters travel on the bus, are kept in dead letters and are shown by taps, so these headers are
/// never forwarded, whatever the pattern.
const SECRET: &[&str] = &["api-key", "authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key"];

/// Compiles the value of `flag`. Without a value, or with an empty one, no header is forwarded.
pub fn pattern(flag: &str, value: Option<&str>) -> anyhow::Result<Option<Regex>> {
    let Some(pattern) = value.filter(|pattern| !pattern.is_empty()) else { return Ok(None) };
    let compiled = RegexBuilder::new(pattern).case_insensitive(true).build();
    compiled.map(Some).with_context(|| format!("{flag} '{pattern}' is not understood"))
}

/// Prefix of the headers that calls of restricted categories carry.
const RESTRICTED: &str = "triton-grpc-protocol-";

/// The header that is the parameter [`REQUEST_TIMEOUT`] of a request whose body has no parameters, or none.
const TIMEOUT: HeaderName = HeaderName::from_static("trireme-timeout-ms");

/// Adds the headers about the request itself: the client's limit, and the spaces of which the answer has to have one.
///
/// # Errors
/// The errors of [`timeout`].
pub fn own(headers: &HeaderMap, parameters: &mut Parameters) -> Result<(), InferError> {
    if_space(headers, parameters);
    timeout(headers, parameters)
}

/// Adds the spaces in the header `If-Space`, unless the request has some. They are read where the request is admitted.
pub fn if_space(headers: &HeaderMap, parameters: &mut Parameters) {
    if let Some(spaces) = asked_spaces(headers) {
        parameters.entry(IF_SPACE.to_owned()).or_insert(ParameterValue::String(spaces));
    }
}

/// The value of the header `If-Space`, all of its lines as one.
pub fn asked_spaces(headers: &HeaderMap) -> Option<String> {
    let values = headers.get_all(IF_SPACE_HEADER).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    headers.contains_key(IF_SPACE_HEADER).then(|| values.collect::<Vec<_>>().join(","))
}

/// Adds the client's limit in the header `Trireme-Timeout-Ms`, unless the request has one.
///
/// # Errors
/// It is no whole number above 0.
fn timeout(headers: &HeaderMap, parameters: &mut Parameters) -> Result<(), InferError> {
    let Some(value) = headers.get(TIMEOUT) else { return Ok(()) };
    let limit = value.to_str().ok().and_then(|value| value.trim().parse().ok()).filter(|&limit: &i64| limit > 0);
    let limit = limit.ok_or_else(|| {
        let found = value.as_bytes().escape_ascii();
        InferError::invalid_arg(format!(
            "header Trireme-Timeout-Ms is '{found}', expected milliseconds: a whole number above 0"
        ))
    })?;
    parameters.entry(REQUEST_TIMEOUT.to_owned()).or_insert(ParameterValue::Int64(limit));
    Ok(())
}

/// Adds the headers that match `pattern` to `parameters`, under their names in lower case; a parameter that the request has itself stays.
/// Leaves out reserved names, secret headers, and those about the request itself; `own` says whether a header is one of this server's
/// secrets.
pub fn headers(headers: &HeaderMap, pattern: Option<&Regex>, own: impl Fn(&str) -> bool, parameters: &mut Parameters) {
    let Some(pattern) = pattern else { return };
    let mut forwarded = Parameters::new();
    for (name, value) in headers {
        let name = name.as_str();
        let is_secret = SECRET.contains(&name) || name.starts_with(RESTRICTED) || own(name);
        let is_reserved = RESERVED.contains(&name) || name.starts_with(RESERVED_PREFIX);
        if !is_secret && !is_reserved && !OF_THE_REQUEST.contains(&name) && pattern.is_match(name) {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            forwarded.insert(name.to_owned(), ParameterValue::String(value));
        }
    }
    for (name, value) in forwarded {
        parameters.entry(name).or_insert(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarded(pattern: &str, names: &[&'static str]) -> Parameters {
        let given = names.iter().map(|&name| (name.parse().unwrap(), "v".parse().unwrap()));
        let given: HeaderMap = given.map(|(n, v): (axum::http::HeaderName, axum::http::HeaderValue)| (n, v)).collect();
        let mut parameters = Parameters::new();
        let own = |name: &str| name == "admin-key";
        headers(&given, Some(&Regex::new(pattern).unwrap()), own, &mut parameters);
        parameters
    }

    #[test]
    fn matching_headers_become_parameters() {
        let parameters = forwarded("^my", &["My-Header", "other-my", "my_2"]);
        assert_eq!(parameters.keys().collect::<Vec<_>>(), ["my-header", "my_2"]);
        assert_eq!(parameters["my_2"], ParameterValue::from("v"));
    }

    /// The server sets the id of a request itself, so each request would have another place in the response cache.
    #[test]
    fn headers_about_the_request_itself_are_no_parameters() {
        let names = ["X-Request-Id", "Traceparent", "tracestate", "X-Tenant"];
        for pattern in [".*", "x-|trace"] {
            assert_eq!(forwarded(pattern, &names).into_keys().collect::<Vec<_>>(), ["x-tenant"], "{pattern}");
        }
    }

    #[test]
    fn the_spaces_of_all_lines_of_the_header_are_one_list_and_the_request_s_own_stays() {
        let given = |values: &[&'static str], own: Option<&str>| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IF_SPACE_HEADER, value.parse().unwrap());
            }
            let own = own.map(|own| (IF_SPACE.to_owned(), ParameterValue::from(own)));
            let mut parameters = Parameters::from_iter(own);
            if_space(&headers, &mut parameters);
            parameters.get(IF_SPACE).and_then(ParameterValue::as_str).map(str::to_owned)
        };
        assert_eq!(given(&[], None), None);
        assert_eq!(given(&["a, b", "c"], None).as_deref(), Some("a, b,c"));
        assert_eq!(given(&[""], None).as_deref(), Some(""), "a header without a space is no missing one");
        assert_eq!(given(&["a"], Some("b")).as_deref(), Some("b"));
        // A pattern that matches it makes it no parameter of models.
        assert!(forwarded(".*", &["If-Space"]).is_empty());
    }

    #[test]
    fn a_parameter_of_the_request_stays() {
        let given = HeaderMap::from_iter([(HeaderName::from_static("truncate"), "v".parse().unwrap())]);
        let own = Parameters::from_iter([("truncate".to_owned(), ParameterValue::Bool(false))]);
        let mut parameters = own.clone();
        headers(&given, Some(&Regex::new(".*").unwrap()), |_| false, &mut parameters);
        assert_eq!(parameters, own);
    }

    #[test]
    fn secrets_stay_at_the_gateway() {
        let names = ["Authorization", "X-API-Key", "api-key", "Cookie", "Proxy-Authorization", "X-Tenant", "Admin-Key"];
        assert!(forwarded(".*", &["triton-grpc-protocol-key"]).is_empty());
        for pattern in [".*", "authorization|x-api-key|cookie|x-tenant", "(?i)^(Authorization|x-tenant)$"] {
            assert_eq!(forwarded(pattern, &names).into_keys().collect::<Vec<_>>(), ["x-tenant"], "{pattern}");
        }
    }

    #[test]
    fn reserved_names_are_left_out_and_nothing_else_with_them() {
        for name in RESERVED.iter().copied().chain(["triton_x"]) {
            for pattern in [".*", name] {
                let parameters = forwarded(pattern, &[name, "x-tenant"]);
                let others = parameters.into_keys().filter(|name| name != "x-tenant").collect::<Vec<_>>();
                assert_eq!(others, [""; 0], "{name} with {pattern}");
            }
        }
        assert_eq!(forwarded(".*", &["timeout", "x-tenant"]).into_keys().collect::<Vec<_>>(), ["x-tenant"]);
    }
}
