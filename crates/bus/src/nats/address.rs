//! Addresses of NATS servers, and the credentials that a URL may carry.
//!
//! Not here: other ways to log in (`login`).

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use async_nats::ServerAddr;
use percent_encoding::percent_decode_str;
use url::Url;

/// The schemes of NATS.
const SCHEMES: &str = "nats, tls, ws, wss";

/// One or several server URLs, separated by commas: `nats://host:4222`, `tls://user:password@host`, `nats://token@host`.
/// No output of this type has the credentials.
///
/// ```
/// use trireme_bus::NatsUrl;
///
/// let url = NatsUrl::from("nats://user:secret@one:4222,two:4222");
/// assert_eq!(url.to_string(), "nats://one:4222,nats://two:4222");
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NatsUrl(String);

/// Credentials of a URL.
#[derive(Clone, PartialEq, Eq)]
pub enum InUrl {
    /// A user and its password.
    Password {
        /// The user's name.
        user: String,
        /// The password.
        password: String,
    },
    /// A token.
    Token(String),
}

// === impl NatsUrl ===

impl NatsUrl {
    /// The servers, without credentials, and the credentials that they share. The error has no part of a URL, because any
    /// part of a faulty one may be of a password.
    pub(super) fn parse(&self) -> Result<(Vec<ServerAddr>, Option<InUrl>), String> {
        let mut servers = Vec::new();
        let mut login = None;
        let parts = self.0.split(',').map(str::trim).filter(|part| !part.is_empty());
        for (number, part) in parts.enumerate() {
            let fault = |fault: &str| format!("URL {} of --nats-url {fault}", number + 1);
            let (server, found) = parse_one(part, number > 0).map_err(|reason| fault(&reason))?;
            servers.push(server);
            match (&login, found) {
                (Some(login), Some(found)) if *login != found => {
                    return Err(fault("has other credentials than one before it, expected the same in all"));
                }
                (None, Some(found)) => login = Some(found),
                _ => {}
            }
        }
        match servers.is_empty() {
            true => Err("--nats-url names no server".to_owned()),
            false => Ok((servers, login)),
        }
    }
}

/// The URLs of all servers, without credentials.
impl fmt::Display for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok((servers, _)) = self.parse() else { return f.write_str("a faulty --nats-url") };
        for (number, server) in servers.into_iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{}", server.into_inner())?;
        }
        Ok(())
    }
}

impl fmt::Debug for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for InUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InUrl::Password { .. } => "the user of --nats-url",
            InUrl::Token(_) => "the token of --nats-url",
        })
    }
}

/// Never fails, because the parser of flags prints the values that it refuses. [`Nats::connect`](super::Nats::connect)
/// refuses a text that is no URL.
impl FromStr for NatsUrl {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<NatsUrl, Infallible> {
        Ok(NatsUrl(text.to_owned()))
    }
}

impl From<&str> for NatsUrl {
    fn from(text: &str) -> NatsUrl {
        NatsUrl(text.to_owned())
    }
}

/// Parses the URL of one server. `follows` says whether another URL stands before it.
fn parse_one(part: &str, follows: bool) -> Result<(ServerAddr, Option<InUrl>), String> {
    let has_scheme = part.contains("://");
    if !has_scheme && follows && part.contains('@') {
        return Err(
            "has credentials, but no scheme: write nats:// in front, and '%2C' for ',' in a password".to_owned()
        );
    }
    let text = if has_scheme { part.to_owned() } else { format!("nats://{part}") };
    let mut url: Url = text.parse().map_err(|error| format!("is not understood: {error}; {ENCODED}"))?;
    if !SCHEMES.split(", ").any(|scheme| scheme == url.scheme()) {
        return Err(format!("has another scheme than {SCHEMES}: write nats://HOST"));
    }
    // A `/`, `?` or `#` in a password ends the host. A path is that of a proxy, for which WebSocket is.
    let has_path = !matches!(url.path(), "" | "/") && (!url.scheme().starts_with("ws") || url.path().contains('@'));
    if has_path || url.query().is_some() || url.fragment().is_some() {
        return Err(format!("goes on after the host and port; {ENCODED}"));
    }
    let login = credentials(&text, &url)?;
    let cleared = url.set_password(None).and_then(|()| url.set_username(""));
    cleared.map_err(|()| "has no host".to_owned())?;
    let server = ServerAddr::from_url(url).map_err(|error| error.to_string())?;
    Ok((server, login))
}

const ENCODED: &str = "characters of a user, password or token other than letters and digits have to be percent-encoded, such as '%40' for '@'";

/// The credentials in a URL: a user and a password, separated by a colon, or a token.
fn credentials(text: &str, url: &Url) -> Result<Option<InUrl>, String> {
    let decode = |coded: &str| {
        let text = percent_decode_str(coded).decode_utf8();
        text.map(String::from).map_err(|_| "has credentials that are no UTF-8 once decoded".to_owned())
    };
    // An empty password is left out by the parser.
    let has_password = text.rsplit_once('@').is_some_and(|(before, _)| before.matches(':').count() > 1);
    let user = decode(url.username())?;
    Ok(match has_password {
        true => Some(InUrl::Password { user, password: decode(url.password().unwrap_or_default())? }),
        false if user.is_empty() => None,
        false => Some(InUrl::Token(user)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<(Vec<String>, Option<InUrl>), String> {
        let (servers, login) = NatsUrl::from(text).parse()?;
        Ok((servers.into_iter().map(|server| server.into_inner().to_string()).collect(), login))
    }

    fn user(user: &str, password: &str) -> Option<InUrl> {
        Some(InUrl::Password { user: user.to_owned(), password: password.to_owned() })
    }

    fn token(token: &str) -> Option<InUrl> {
        Some(InUrl::Token(token.to_owned()))
    }

    #[test]
    fn urls_are_read_as_other_clients_of_nats_read_them() {
        for (text, servers, login) in [
            ("nats://host:4222", &["nats://host:4222"][..], None),
            ("host", &["nats://host"], None),
            ("tls://[::1]:4222/", &["tls://[::1]:4222/"], None),
            ("nats://a:b@host", &["nats://host"], user("a", "b")),
            ("a:b@host:1", &["nats://host:1"], user("a", "b")),
            ("wss://a:b@host/nats", &["wss://host/nats"], user("a", "b")),
            ("nats://a:@host", &["nats://host"], user("a", "")),
            ("nats://:b@host", &["nats://host"], user("", "b")),
            ("nats://a%3A:p%40s%2Fs%20%C3%A9@host", &["nats://host"], user("a:", "p@s/s é")),
            ("nats://a:b:c@host", &["nats://host"], user("a", "b:c")),
            ("nats://s3cr%2Ct@host", &["nats://host"], token("s3cr,t")),
            ("nats://a:b@one, nats://two:1,three", &["nats://one", "nats://two:1", "nats://three"], user("a", "b")),
            ("nats://one,nats://t@two,nats://t@three", &["nats://one", "nats://two", "nats://three"], token("t")),
        ] {
            let servers = servers.iter().map(|server| server.to_string()).collect();
            assert!(parsed(text) == Ok((servers, login)), "{text}: {}", NatsUrl::from(text));
        }
    }

    #[test]
    fn nothing_printed_has_a_secret() {
        for text in [
            "nats://user:s3cret@host:1",
            "user:s3cret@host",
            "nats://s3cret@host",
            "nats://one,nats://user:s3cret@two",
            "nats://user:4222,s3cret@host",
            "nats://user:42/s3cret@host",
            "nats://user:42?s3cret@host",
            "nats://user:42#s3cret@host",
            "nats://user:s3cret",
            "nats://user:s3cret@ho st",
            "nats://user:s3cret@host:port",
            "nats://user:s3cret%FF@host",
            "s3cret://host",
            "nats://a:b@one,nats://user:s3cret@two",
            "nats:///s3cret@host",
            "ws://user:42/s3cret@host",
            "nats://user:s3cret@",
        ] {
            let url = NatsUrl::from(text);
            let refused = url.parse().err().unwrap_or_default();
            for printed in [url.to_string(), format!("{url:?}"), format!("{url:#?}"), refused] {
                assert!(!["s3cret", "42", "user:"].iter().any(|secret| printed.contains(secret)), "{text}: {printed}");
            }
        }
    }

    #[test]
    fn faults_are_named_without_the_url() {
        for (text, said) in [
            (" , ", "names no server"),
            ("nats://a:b@one,nats://a:c@two", "URL 2 of --nats-url has other credentials than one before it"),
            ("nats://a:1,b@two", "URL 2 of --nats-url has credentials, but no scheme"),
            ("nats://a:1/b@two", "URL 1 of --nats-url goes on after the host and port"),
            ("nats://a:b/c@two", "URL 1 of --nats-url is not understood: invalid port number; characters"),
            ("http://host", "URL 1 of --nats-url has another scheme than nats, tls, ws, wss"),
        ] {
            let refused = parsed(text).err().unwrap_or_default();
            assert!(refused.contains(said), "{text}: {refused:?}");
        }
    }
}
