//! Calls webhooks as Standard Webhooks (<https://www.standardwebhooks.com>) says: which URLs may be called, the signature, one
//! call.
//!
//! A client names the URL, and the gateway sends a request to it from inside the operator's network. So without a secret no
//! webhook is taken, redirects are not followed, and addresses that are not public are refused unless the operator allows them:
//! addresses in URLs when the job is accepted, those that names lead to at each call. Nothing of an answer is shown but its
//! status.
//!
//! Not here: when and how often a webhook is called (`trireme-jobs`).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use parking_lot::RwLock;
use reqwest::dns::{Name, Resolve, Resolving};
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};
use ring::hmac;
use trireme_jobs::{WebhookAnswer, WebhookCall, now};
use url::{Host, Url};

/// How long a call may take, with its answer.
const CALL_TIME: Duration = Duration::from_secs(15);

/// Longest URL, in bytes.
const LONGEST_URL: usize = 2048;

/// The beginning of a secret, and how many bytes follow in base64: the rules of Standard Webhooks.
const PREFIX: &str = "whsec_";
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Networks whose addresses are not those of one host in the Internet, by IANA's registries of special addresses.
const NOT_PUBLIC: [&str; 21] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "192.175.48.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/3",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
];

/// The one network of public IPv6 addresses, but for parts that [`NOT_PUBLIC`] names.
const PUBLIC_V6: &str = "2000::/3";

/// A key that signs webhooks.
#[derive(Clone)]
pub struct WebhookSecret(hmac::Key);

/// A host or network that webhooks may call although it is not public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// By its addresses.
    Net(IpNet),
    /// By its name, in lower case, wherever that leads.
    Host(String),
}

/// Calls webhooks. Clones are the same.
#[derive(Clone)]
pub struct Webhooks {
    client: Client,
    keys: Arc<RwLock<Arc<[WebhookSecret]>>>,
    rules: Arc<Rules>,
}

/// Which addresses may be called.
#[derive(Debug)]
struct Rules {
    allowed: Vec<Target>,
    refused: Vec<IpNet>,
    public_v6: IpNet,
}

/// Why a host is not called. A name of the operator's network and one that nobody has are the same, so that nobody can look for names there.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is no public address and leads to none; the operator may allow it with --jobs-webhook-allow")]
struct NotPublic(String);

/// Looks up names, and leaves out addresses that may not be called.
struct Resolver(Arc<Rules>);

/// Checks the URL of a webhook that a client has named in `field`. Returns the URL; the client gets the error.
pub fn check(webhooks: Option<&Webhooks>, field: &str, url: &str) -> Result<String, String> {
    match webhooks {
        Some(webhooks) => webhooks.rules.check(url).map(|url| url.to_string()).map_err(|why| format!("{field}: {why}")),
        None => Err(format!("{field}: this server calls no webhooks: start it with --jobs-webhook-secret")),
    }
}

// === impl Webhooks ===

impl Webhooks {
    /// Signs with all of `secrets`; may call public addresses and `allowed`.
    pub fn new(secrets: &[WebhookSecret], allowed: &[Target]) -> anyhow::Result<Webhooks> {
        // A provider that was installed before stays.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let rules = Arc::new(Rules::new(allowed)?);
        let client = Client::builder()
            .user_agent(concat!("trireme/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            // A proxy would look up names by itself.
            .no_proxy()
            .dns_resolver(Arc::new(Resolver(rules.clone())))
            .timeout(CALL_TIME)
            .build()
            .context("cannot make the HTTP client that calls webhooks")?;
        Ok(Webhooks { client, keys: Arc::new(RwLock::new(secrets.into())), rules })
    }

    /// Signs with these from now on, in all clones.
    pub fn sign_with(&self, secrets: &[WebhookSecret]) {
        *self.keys.write() = secrets.into();
    }

    /// Calls a webhook once.
    pub async fn call(&self, call: WebhookCall) -> WebhookAnswer {
        // The operator may have changed the rules since the job was accepted.
        let url = match self.rules.check(&call.url) {
            Ok(url) => url,
            Err(why) => return WebhookAnswer::failed(why),
        };
        let (time, keys) = (now(), self.keys.read().clone());
        let request = self
            .client
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", &call.id)
            .header("webhook-timestamp", time)
            .header("webhook-signature", signatures(&keys, &call.id, time, &call.body))
            .body(call.body);
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::info!(webhook = call.id, error = cause(&error), "a webhook could not be called");
                return WebhookAnswer::failed(shown(&error));
            }
        };
        let status = answer.status();
        if status.is_success() {
            return WebhookAnswer::Delivered;
        }
        let after = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        WebhookAnswer::Failed {
            why: format!("the receiver answered {}", status.as_u16()),
            // The receiver wants no more events.
            is_final: status == StatusCode::GONE,
            after: after.map(Duration::from_secs),
        }
    }
}

/// The value of `webhook-signature`: `v1,` and the HMAC-SHA256 over id, time and body, for each key.
fn signatures(keys: &[WebhookSecret], id: &str, time: u64, body: &[u8]) -> String {
    let one = |WebhookSecret(key): &WebhookSecret| {
        let mut context = hmac::Context::with_key(key);
        context.update(format!("{id}.{time}.").as_bytes());
        context.update(body);
        format!("v1,{}", STANDARD.encode(context.sign()))
    };
    keys.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// The fault as the client sees it: without names and addresses, which may be of the operator's network.
fn shown(error: &reqwest::Error) -> String {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if let Some(refused) = error.downcast_ref::<NotPublic>() {
            return refused.to_string();
        }
        cause = error.source();
    }
    match error {
        error if error.is_timeout() => format!("no answer within {} s", CALL_TIME.as_secs()),
        error if error.is_connect() => "no connection to the receiver, or none that its certificate proves".to_owned(),
        _ => "the connection to the receiver broke off".to_owned(),
    }
}

/// The cause at the bottom, for the operator; those above it repeat the URL, which may hold a secret.
fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

// === impl Rules ===

impl Rules {
    fn new(allowed: &[Target]) -> anyhow::Result<Rules> {
        let refused = NOT_PUBLIC.iter().map(|net| net.parse().with_context(|| format!("network {net}")));
        let refused = refused.collect::<anyhow::Result<_>>()?;
        Ok(Rules { allowed: allowed.to_vec(), refused, public_v6: PUBLIC_V6.parse().context(PUBLIC_V6)? })
    }

    /// Checks a URL, but not where a name leads.
    fn check(&self, text: &str) -> Result<Url, String> {
        if text.len() > LONGEST_URL {
            return Err(format!("the URL has {} bytes, expected {LONGEST_URL} at most", text.len()));
        }
        let url = Url::parse(text).map_err(|error| format!("'{text}' is no URL: {error}"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the URL names a user, expected none: calls are signed".to_owned());
        }
        let names_none = || format!("'{text}' names no host, expected https://HOST/PATH");
        let host = url.host().ok_or_else(names_none)?;
        let is_allowed = match &host {
            Host::Domain(name) => self.allows_host(name),
            Host::Ipv4(address) => self.allows(IpAddr::V4(*address)),
            Host::Ipv6(address) => self.allows(IpAddr::V6(*address)),
        };
        let is_public = match &host {
            Host::Domain(name) => {
                let name = name.trim_end_matches('.');
                name != "localhost" && !name.ends_with(".localhost")
            }
            Host::Ipv4(address) => self.is_public(IpAddr::V4(*address)),
            Host::Ipv6(address) => self.is_public(IpAddr::V6(*address)),
        };
        match url.scheme() {
            "https" if is_public || is_allowed => Ok(url),
            "http" if is_allowed => Ok(url),
            "http" | "https" if !is_public => Err(NotPublic(host.to_string()).to_string()),
            scheme => Err(format!(
                "the URL begins with '{scheme}:', expected https: (http: only for what --jobs-webhook-allow names)"
            )),
        }
    }

    fn allows_host(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        self.allowed.iter().any(|target| matches!(target, Target::Host(host) if *host == name))
    }

    fn allows(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.allowed.iter().any(|target| matches!(target, Target::Net(net) if net.contains(&address)))
    }

    fn is_public(&self, address: IpAddr) -> bool {
        // ::ffff:10.0.0.1 is 10.0.0.1.
        let address = address.to_canonical();
        let is_of_a_host = address.is_ipv4() || self.public_v6.contains(&address);
        is_of_a_host && !self.refused.iter().any(|net| net.contains(&address))
    }
}

// === impl Resolver ===

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let rules = self.0.clone();
        Box::pin(async move {
            let found = match tokio::net::lookup_host((name.as_str(), 0)).await {
                Ok(found) => found.collect::<Vec<SocketAddr>>(),
                Err(error) => {
                    tracing::debug!(host = name.as_str(), %error, "the receiver of a webhook cannot be found");
                    Vec::new()
                }
            };
            let is_named = rules.allows_host(name.as_str());
            let may_call =
                |address: &&SocketAddr| is_named || rules.is_public(address.ip()) || rules.allows(address.ip());
            let kept: Vec<SocketAddr> = found.iter().filter(may_call).copied().collect();
            if kept.is_empty() {
                return Err(NotPublic(name.as_str().to_owned()).into());
            }
            Ok(Box::new(kept.into_iter()) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}

// === impl WebhookSecret ===

impl FromStr for WebhookSecret {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            "expected whsec_ and 24 to 64 bytes in base64, as `echo whsec_$(openssl rand -base64 32)` makes them";
        let encoded =
            text.trim().strip_prefix(PREFIX).ok_or_else(|| format!("it does not begin with {PREFIX}, {expected}"))?;
        let bytes = STANDARD.decode(encoded).map_err(|error| format!("{error}, {expected}"))?;
        if !BYTES.contains(&bytes.len()) {
            return Err(format!("it holds {} bytes, {expected}", bytes.len()));
        }
        Ok(WebhookSecret(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

// === impl Target ===

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Ok(net) = text.parse() {
            return Ok(Target::Net(net));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Target::Net(address.into()));
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if text.is_empty() || !text.bytes().all(is_name) {
            return Err("expected a host (hooks.internal), an address (10.1.2.3) or a network (10.1.0.0/16)".to_owned());
        }
        Ok(Target::Host(text.trim_end_matches('.').to_ascii_lowercase()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allowed: &[&str]) -> Rules {
        let allowed: Vec<Target> = allowed.iter().map(|text| text.parse().unwrap()).collect();
        Rules::new(&allowed).unwrap()
    }

    #[test]
    fn a_call_is_signed_as_standard_webhooks_says() {
        // The example of the specification's libraries.
        let secret: WebhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap();
        let body = br#"{"test": 2432232314}"#;
        let one = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        let signed = |keys: &[WebhookSecret]| signatures(keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signed(std::slice::from_ref(&secret)), one);
        assert_eq!(signed(&[secret.clone(), secret.clone()]), format!("{one} {one}"));
        assert_eq!(format!("{secret:?}"), "***");
        for wrong in ["", "whsec_", "whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_?"] {
            let refusal = wrong.parse::<WebhookSecret>().unwrap_err();
            assert!(refusal.contains("expected whsec_ and 24 to 64 bytes"), "{refusal}");
        }
    }

    #[test]
    fn only_public_addresses_are_called() {
        let rules = rules(&[]);
        for url in
            ["https://example.com/a?b=c", "https://8.8.8.8/", "https://[2606:4700::1111]:8443/x", "https://1.1.1.1"]
        {
            assert!(rules.check(url).is_ok(), "{url}");
        }
        for url in [
            "https://localhost/",
            "https://a.localhost",
            "https://LOCALHOST.",
            "https://127.0.0.1",
            "https://127.1",
            "https://2130706433",
            "https://0x7f.1",
            "https://0.0.0.0",
            "https://10.1.2.3",
            "https://172.31.0.1",
            "https://192.168.1.1",
            "https://169.254.169.254/latest/meta-data",
            "https://100.64.0.1",
            "https://224.0.0.1",
            "https://255.255.255.255",
            "https://[::1]",
            "https://[::]",
            "https://[fe80::1]",
            "https://[fd00::1]",
            "https://[::ffff:10.0.0.1]",
            "https://[64:ff9b::a00:1]",
            "https://[2002:a00:1::]",
            "http://10.0.0.1",
        ] {
            let refusal = rules.check(url).unwrap_err();
            assert!(refusal.contains("no public address"), "{url}: {refusal}");
        }
        for (url, why) in [
            ("http://example.com", "expected https:"),
            ("ftp://example.com", "expected https:"),
            ("file:///etc/passwd", "no host"),
            ("https://u:p@example.com", "a user"),
            ("hook", "is no URL"),
            ("https://", "is no URL"),
            ("data:text/plain,a", "no host"),
        ] {
            let refusal = rules.check(url).unwrap_err();
            assert!(refusal.contains(why), "{url}: {refusal}");
        }
        assert!(
            rules.check(&format!("https://example.com/{}", "a".repeat(LONGEST_URL))).unwrap_err().contains("bytes")
        );
    }

    #[test]
    fn an_operator_may_allow_others() {
        let rules = rules(&["10.1.0.0/16", "192.168.7.7", "Hooks.internal", "::1"]);
        for url in [
            "http://10.1.255.1:8080/x",
            "https://10.1.0.0",
            "http://192.168.7.7",
            "http://hooks.internal./",
            "http://[::1]",
        ] {
            assert!(rules.check(url).is_ok(), "{url}");
        }
        for url in ["http://10.2.0.1", "https://192.168.7.8", "https://[::ffff:10.2.0.1]"] {
            assert!(rules.check(url).is_err(), "{url}");
        }
        assert!(rules.check("http://other.internal").is_err());
        for wrong in ["", "http://hooks.internal", "10.1.0.0/40", "a b"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn names_that_lead_elsewhere_are_not_called() {
        let resolver = |allowed: &[&str]| Resolver(Arc::new(rules(allowed)));
        let look = async |resolver: Resolver| resolver.resolve("localhost".parse().unwrap()).await;
        let refusal = look(resolver(&[])).await.err().unwrap().to_string();
        assert!(refusal.starts_with("'localhost' is no public address and leads to none"), "{refusal}");
        let nobody = resolver(&[]).resolve("nobody.invalid".parse().unwrap()).await.err().unwrap().to_string();
        assert_eq!(nobody, refusal.replace("localhost", "nobody.invalid"));
        for allowed in [&["localhost"][..], &["127.0.0.0/8", "::1"]] {
            assert!(look(resolver(allowed)).await.unwrap().all(|address| address.ip().is_loopback()));
        }
    }
}
