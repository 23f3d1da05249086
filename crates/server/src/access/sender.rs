//! Where a request comes from, as its connection and its head say: from a program of this host, through a proxy, or from a page in a
//! browser.
//!
//! A page may let the name of its own site lead to this host or to a host near it (DNS rebinding). Its requests are of the same origin for
//! the browser then, so only the name in `Host` shows them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::http::header::{FORWARDED, HOST, ORIGIN, VIA};
use axum::http::{Extensions, HeaderMap, HeaderValue, Uri};

use crate::connections::Peer;

/// Top-level names that nobody can register, by which hosts of one network call each other (RFC 6761, RFC 6762 appendix G), and that of
/// services in Kubernetes.
const PRIVATE: [&str; 10] =
    ["localhost", "local", "internal", "lan", "home", "corp", "intranet", "private", "test", "svc"];

/// The word of `--allowed-host` and `--cors-origin` for all of them.
const ALL: &str = "*";

/// The sender of a request.
#[derive(Clone, Copy)]
pub struct Sender<'r> {
    peer: Option<Peer>,
    headers: &'r HeaderMap,
    authority: Option<&'r [u8]>,
}

/// The hosts and origins by whose names clients may ask where no key is set.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    hosts: BTreeSet<String>,
    origins: Vec<HeaderValue>,
}

/// Why a request is not admitted where no key is set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// A page of another site sent it.
    #[error(
        "the page of origin '{0}' may not ask this server: start the server with --cors-origin={0} if it may, or with --api-key and send \
         the key"
    )]
    Origin(String),
    /// It names the server by a name that any site could have.
    #[error(
        "'{0}' is not known as a name of this server, and a page of that site may have sent the request: start the server with \
         --allowed-host={0} if it is one, or with --api-key and send the key"
    )]
    Host(String),
}

// === impl Sender ===

impl<'r> Sender<'r> {
    /// The sender of a request with this head.
    pub fn of(uri: &'r Uri, headers: &'r HeaderMap, extensions: &Extensions) -> Sender<'r> {
        let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
        let authority = authority.or_else(|| headers.get(HOST).map(HeaderValue::as_bytes));
        Sender { peer: extensions.get().copied(), headers, authority }
    }

    /// A header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&'r [u8]> {
        self.headers.get(name).map(HeaderValue::as_bytes)
    }

    /// Whether a program of this host sent it: neither a proxy, which would make all its clients local, nor a page in a browser, whose
    /// author is elsewhere.
    pub fn is_local(&self) -> bool {
        let is_of_site = self.site().is_none_or(is_own_site);
        let origin = self.header(ORIGIN.as_str()).map(after_scheme);
        self.comes_over_loopback()
            && !self.came_through_a_proxy()
            && self.authority.is_none_or(|authority| host(authority).is_some_and(|host| leads_to_this_host(&host)))
            && is_of_site
            && origin.is_none_or(|origin| Some(origin) == self.authority)
    }

    fn comes_over_loopback(&self) -> bool {
        self.peer.is_some_and(Peer::is_local)
    }

    fn came_through_a_proxy(&self) -> bool {
        let is_of_proxy = |name: &str| name.starts_with("x-forwarded-") || name == "x-real-ip";
        self.headers.keys().any(|name| [FORWARDED, VIA].contains(name) || is_of_proxy(name.as_str()))
    }

    /// The browser's word about the page. Browsers send it only to servers that they can identify: over TLS, and to localhost.
    fn site(&self) -> Option<&'r [u8]> {
        self.header("sec-fetch-site")
    }
}

/// Whether the user, or a page of this server, sent a request of this `Sec-Fetch-Site`.
fn is_own_site(site: &[u8]) -> bool {
    site == b"same-origin" || site == b"none"
}

fn after_scheme(origin: &[u8]) -> &[u8] {
    let scheme = origin.windows(3).position(|window| window == b"://");
    scheme.map_or(origin, |at| &origin[at + 3..])
}

/// The name or address in an authority, which may have a port, in lower case.
fn host(authority: &[u8]) -> Option<String> {
    let authority = std::str::from_utf8(authority).ok()?;
    let bracketed = authority.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let host = bracketed.map_or_else(|| authority.split(':').next().unwrap_or_default(), |(address, _)| address);
    Some(host.trim_end_matches('.').to_ascii_lowercase())
}

/// Whether a host is this one for everybody who names it so.
fn leads_to_this_host(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        // Clients that connect to 0.0.0.0 reach their own host.
        Ok(address) => address.to_canonical().is_loopback() || address.is_unspecified(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// Whether no site can have this name: it is an address, a name without a dot, or one that is not in the public DNS.
fn is_nobodys_site(host: &str) -> bool {
    let is_private = |(_, top): (&str, &str)| PRIVATE.contains(&top);
    host.parse::<IpAddr>().is_ok() || host.rsplit_once('.').is_none_or(is_private)
}

/// A host as `--allowed-host` names it: without a scheme, a port or a path.
pub(super) fn parse_host(text: &str) -> Result<String, String> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte);
    match host(text.trim().as_bytes()) {
        Some(host) if host == ALL || (!host.is_empty() && host.bytes().all(is_fit)) && !text.contains("://") => {
            Ok(host)
        }
        _ => Err("expected the name of a host, such as models.example.org, or *".to_owned()),
    }
}

// === impl Names ===

impl Names {
    pub(super) fn new(hosts: &[String], origins: &[HeaderValue]) -> Names {
        // A host may ask itself by its full name.
        let own = std::fs::read("/proc/sys/kernel/hostname").ok();
        let own = own.as_deref().and_then(|name| host(name.trim_ascii()));
        Names { hosts: hosts.iter().cloned().chain(own).collect(), origins: origins.to_vec() }
    }

    /// Refuses requests of pages of other sites, as far as they can be told from those of programs: by `Origin`, which browsers send with
    /// all requests that change something, and by `Host`. Programs send no origin, so their `Host` is looked at only where they are on this
    /// host, as browsers may be.
    pub(super) fn check(&self, sender: &Sender<'_>) -> Result<(), Foreign> {
        let origin = sender.headers.get(ORIGIN);
        let is_allowed = origin.is_some_and(|origin| self.origins.contains(origin));
        if is_allowed || self.origins.iter().any(|origin| origin == ALL) || sender.site().is_some_and(is_own_site) {
            return Ok(());
        }
        if let Some(origin) = origin.filter(|origin| Some(after_scheme(origin.as_bytes())) != sender.authority) {
            return Err(Foreign::Origin(shown(origin.as_bytes())));
        }
        let Some(authority) = sender.authority.filter(|_| origin.is_some() || sender.comes_over_loopback()) else {
            return Ok(());
        };
        match host(authority) {
            Some(host) if is_nobodys_site(&host) || self.has(&host) => Ok(()),
            Some(host) => Err(Foreign::Host(shown(host.as_bytes()))),
            None => Err(Foreign::Host(shown(authority))),
        }
    }

    fn has(&self, host: &str) -> bool {
        self.hosts.contains(host) || self.hosts.contains(ALL)
    }
}

/// A client's text in an error.
fn shown(text: &[u8]) -> String {
    trireme_inference::shown(&String::from_utf8_lossy(text)).into_owned()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3));

    fn head(given: &[(&str, &str)]) -> HeaderMap {
        let parsed = given.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        parsed.collect::<Vec<(axum::http::HeaderName, HeaderValue)>>().into_iter().collect()
    }

    fn sent_by(peer: IpAddr, headers: &HeaderMap) -> Sender<'_> {
        Sender { peer: Some(Peer(peer)), headers, authority: headers.get(HOST).map(HeaderValue::as_bytes) }
    }

    fn is_local(given: &[(&str, &str)]) -> bool {
        sent_by(HERE, &head(given)).is_local()
    }

    #[test]
    fn pages_of_other_sites_are_told_from_programs_of_this_host() {
        for host in ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "ui.localhost:80", "0.0.0.0:8000"] {
            assert!(is_local(&[("host", host)]), "{host}");
            assert!(is_local(&[("host", host), ("origin", &format!("http://{host}"))]), "the console at {host}");
            assert!(!is_local(&[("host", host), ("origin", "https://evil.example")]), "{host}");
            assert!(!is_local(&[("host", host), ("origin", "null")]), "{host}");
            assert!(!is_local(&[("host", host), ("sec-fetch-site", "cross-site")]), "{host}");
            assert!(!sent_by(ELSEWHERE, &head(&[("host", host)])).is_local(), "{host} of another host");
        }
        assert!(is_local(&[]), "HTTP/1.0 has no Host");
        // Its name leads to this host now.
        for host in ["evil.example:8000", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", ""] {
            let of_page = [("host", host), ("origin", &format!("http://{host}")), ("sec-fetch-site", "same-origin")];
            assert!(!is_local(&of_page) && !is_local(&[("host", host)]), "{host}");
        }
    }

    #[test]
    fn clients_of_a_proxy_are_not_on_this_host() {
        for name in ["forwarded", "via", "x-forwarded-for", "x-forwarded-proto", "X-Forwarded-Host", "x-real-ip"] {
            assert!(!is_local(&[("host", "localhost:8000"), (name, "127.0.0.1")]), "{name}");
        }
        // A proxy without such headers may send the name by which it was asked.
        for host in ["10.1.2.3:8000", "gateway:8000", "trireme.default.svc", "models.example.org", "[2001:db8::1]:80"] {
            assert!(!is_local(&[("host", host)]), "{host}");
        }
    }

    fn check(known: &Names, peer: IpAddr, given: &[(&str, &str)]) -> Result<(), Foreign> {
        known.check(&sent_by(peer, &head(given)))
    }

    #[test]
    fn programs_ask_by_the_names_that_services_have() {
        let known = Names::default();
        for host in [
            "gateway:8000",
            "trireme.default.svc",
            "trireme.default.svc.cluster.local:8000",
            "10.1.2.3",
            "[::1]:8000",
            "localhost:8000",
            "host.docker.internal:8000",
            "nas.local",
            "0.0.0.0:8000",
            "",
        ] {
            assert_eq!(check(&known, HERE, &[("host", host)]), Ok(()), "{host}");
            let console = [("host", host), ("origin", &*format!("http://{host}"))];
            assert_eq!(check(&known, ELSEWHERE, &console), Ok(()), "the console at {host}");
        }
        // A program of another host is no page, whatever name it asks by.
        assert_eq!(check(&known, ELSEWHERE, &[("host", "models.example.org")]), Ok(()));
        assert_eq!(check(&known, HERE, &[]), Ok(()), "HTTP/1.0 has no Host");
        // Over TLS the browser knows whose page it is, also behind a proxy that asks by another name.
        let proxied =
            [("host", "gateway:8000"), ("origin", "https://models.example.org"), ("sec-fetch-site", "same-origin")];
        assert_eq!(check(&known, HERE, &proxied), Ok(()));
    }

    #[test]
    fn pages_of_other_sites_do_not_ask_where_there_is_no_key() {
        let known = Names::default();
        let of_page = |origin: &str| Err(Foreign::Origin(origin.to_owned()));
        let origin = "https://evil.example";
        for peer in [HERE, ELSEWHERE] {
            let posted = [("host", "localhost:8000"), ("origin", origin), ("sec-fetch-site", "cross-site")];
            assert_eq!(check(&known, peer, &posted), of_page(origin));
            assert_eq!(check(&known, peer, &[("host", "localhost:8000"), ("origin", "null")]), of_page("null"));
            // Its name leads to this host now.
            let rebound = [("host", "evil.example:8000"), ("origin", "http://evil.example:8000")];
            assert_eq!(check(&known, peer, &rebound), Err(Foreign::Host("evil.example".to_owned())));
        }
        let read = [("host", "Evil.example.:8000")];
        assert_eq!(check(&known, HERE, &read), Err(Foreign::Host("evil.example".to_owned())), "a GET has no origin");
        let text = Foreign::Host("evil.example".to_owned()).to_string();
        assert!(text.contains("--allowed-host=evil.example") && text.contains("--api-key"), "{text}");
        assert!(Foreign::Origin(origin.to_owned()).to_string().contains("--cors-origin=https://evil.example"));
    }

    #[test]
    fn flags_name_further_hosts_and_origins() {
        let asked = [("host", "models.example.org:8000"), ("origin", "http://models.example.org:8000")];
        let hosts = |names: &[&str]| Names::new(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(), &[]);
        for known in [hosts(&["models.example.org"]), hosts(&["*"])] {
            assert_eq!(check(&known, HERE, &asked), Ok(()));
            assert_eq!(check(&known, HERE, &asked[..1]), Ok(()));
            let of_page = [("host", "models.example.org"), ("origin", "https://evil.example")];
            assert!(check(&known, HERE, &of_page).is_err(), "a name says nothing about other origins");
        }
        assert!(check(&hosts(&["example.org"]), HERE, &asked).is_err());
        assert_eq!(parse_host(" Models.example.org:8000").unwrap(), "models.example.org");
        for text in ["", "https://models.example.org", "a b", "*.example.org", "models.example.org/path"] {
            assert!(parse_host(text).unwrap_err().contains("such as models.example.org"), "{text}");
        }
        let origins = |origin: &'static str| Names::new(&[], &[HeaderValue::from_static(origin)]);
        let page = [("host", "localhost:8000"), ("origin", "https://app.example.org")];
        for known in [origins("https://app.example.org"), origins("*")] {
            assert_eq!(check(&known, HERE, &page), Ok(()));
        }
        assert!(check(&origins("https://else.example.org"), HERE, &page).is_err());
    }
}
