//! Access rules: API keys for the whole server, headers that categories of requests have to carry, and the clients that may
//! change the server.

mod args;
mod given;
mod key_file;
mod keys;
mod restriction;
mod sender;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use axum::http::HeaderValue;
use parking_lot::RwLock;
use trireme_inference::Lane;

pub use crate::owners::is_owner_name;
use crate::owners::{Account, Limits, Owners};
pub use args::{AccessArgs, ControlAccess};
pub use given::{Given, files, read_all};
pub use key_file::{KeyEntry, KeyFile, LONGEST_OWNER, Role};
pub use keys::{KeyDigest, OwnedKey, Secret};
pub use restriction::{Category, Restriction};
pub use sender::{Foreign, Sender};

/// The properties of a route of HTTP or a method of gRPC that decide which requests are admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The category; `None`: only the key counts.
    pub category: Option<Category>,
    /// Whether its requests change the server.
    pub changes: Changes,
}

/// Whether requests change the server; the others of a category only show something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// None does.
    Never,
    /// Each does.
    Always,
    /// Some do, as their messages say. The code that reads the message asks [`Access::check_control`].
    ByMessage,
}

/// The rules that a port adds to the server's.
#[derive(Clone, Copy, Debug)]
pub struct PortRules<'a> {
    /// Knows the headers that requests of a category have to carry.
    pub restrictions: &'a Access,
    /// Whether pages in browsers can ask the port.
    pub has_pages: bool,
}

/// The listeners' knowledge of a request's sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Whether it comes from a program of this host.
    pub is_local: bool,
    /// Whether it carried an administrator's key, or the header of its restricted category.
    pub is_proven: bool,
}

/// A key, its lane and its owner.
#[derive(Clone, Debug)]
struct Known {
    key: KeyDigest,
    lane: Lane,
    /// `None`: an administrator's.
    owner: Option<Arc<str>>,
    /// From when on it admits nobody.
    expires: Option<SystemTime>,
}

/// The rules of a server. Clones share them, and [`Access::take_over`] replaces their secrets while the server runs.
#[derive(Clone, Debug, Default)]
pub struct Access {
    secrets: Arc<RwLock<Arc<Secrets>>>,
    control: ControlAccess,
    names: sender::Names,
    /// Counts of owners, which stay when secrets are replaced.
    owners: Owners,
}

/// The secrets of the rules.
#[derive(Debug, Default)]
struct Secrets {
    keys: Vec<Known>,
    /// Whether there is a file of keys: then clients need a key, even if the file has no keys.
    has_file: bool,
    restrictions: Vec<Restriction>,
    limits: Limits,
}

/// Why a request is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// It carries no valid key.
    #[error("a valid API key is required, as 'Authorization: Bearer <key>' or 'X-API-Key: <key>'")]
    Key,
    /// It does not carry this header with its value.
    #[error("this API is restricted, expected header '{0}'")]
    Restricted(String),
    /// No key is asked for, and a page of another site may have sent it.
    #[error(transparent)]
    Foreign(Foreign),
    /// It may not change the server.
    #[error(transparent)]
    Control(#[from] ControlRefused),
}

/// Why a request may not change the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlRefused {
    /// It comes from another host, through a proxy, or from a browser's page of another site, and proves nothing.
    #[error(
        "models, log and trace settings and shared memory are changed from the server's own host only, as localhost or by a loopback \
         address, and through no proxy; start the server with --admin-api-key and send that key, or with --control-access=any"
    )]
    Remote,
    /// There is an administrator, who did not send it.
    #[error(
        "models, log and trace settings and shared memory are changed with a key of --admin-api-key, as 'Authorization: Bearer <key>' or \
         'X-API-Key: <key>'"
    )]
    NoAdministrator,
    /// The server is not to be changed.
    #[error(
        "models, log and trace settings and shared memory cannot be changed: the server runs with --control-access=none"
    )]
    Everybody,
}

// === impl Access ===

impl Access {
    /// The rules that these flags set, files read now; pages of these `origins` may ask. Errors when two restrictions are about one category,
    /// or a file cannot be used.
    pub fn new(args: &AccessArgs, origins: &[HeaderValue]) -> anyhow::Result<Access> {
        let restrictions = read_all("--http-restricted-api", &args.http_restricted_apis)?;
        let mut seen = BTreeSet::new();
        for category in restrictions.iter().flat_map(|restriction| &restriction.categories) {
            anyhow::ensure!(seen.insert(category), "--http-restricted-api names '{category}' more than once");
        }
        let owned = |lane| move |OwnedKey { owner, key }| Known::given(&key, lane, Some(owner));
        let live = read_all("--api-key", &args.api_keys)?.into_iter().map(owned(Lane::Live));
        let bulk = read_all("--bulk-api-key", &args.bulk_api_keys)?.into_iter().map(owned(Lane::Bulk));
        let admin = read_all("--admin-api-key", &args.admin_api_keys)?.into_iter();
        let admin = admin.map(|key| Known::given(&key, Lane::Live, None));
        let file = args.api_key_file.as_deref().map(KeyFile::read).transpose().context("--api-key-file")?;
        let has_file = file.is_some();
        let file = file.unwrap_or_default();
        let limits = Limits::new(&args.owners, file.owners)?;
        let keys = live.chain(bulk).chain(admin).chain(file.keys.into_iter().map(Known::from)).collect();
        let names = sender::Names::new(&args.allowed_hosts, origins);
        let secrets = Access::keep(Secrets { keys, has_file, restrictions, limits });
        Ok(Access { control: args.control_access, names, secrets, owners: Owners::default() })
    }

    /// Rules without keys.
    pub fn restricting(restrictions: Vec<Restriction>) -> Access {
        Access { secrets: Access::keep(Secrets { restrictions, ..Secrets::default() }), ..Access::default() }
    }

    fn keep(secrets: Secrets) -> Arc<RwLock<Arc<Secrets>>> {
        Arc::new(RwLock::new(Arc::new(secrets)))
    }

    /// Replaces keys and restrictions by those of `other`, for all clones.
    pub fn take_over(&self, other: &Access) {
        *self.secrets.write() = other.secrets();
    }

    fn secrets(&self) -> Arc<Secrets> {
        self.secrets.read().clone()
    }

    /// Whether these headers hold an administrator's key.
    fn is_administrator<'a>(&self, header: impl Fn(&str) -> Option<&'a [u8]>) -> bool {
        self.secrets().known(header).is_some_and(|known| known.owner.is_none())
    }

    /// The owner of the key in these headers; `None` is an administrator. Without keys all requests are of one owner without a name.
    pub fn owner<'a>(&self, header: impl Fn(&str) -> Option<&'a [u8]>) -> Option<Arc<str>> {
        match self.secrets().known(header) {
            Some(known) => known.owner.clone(),
            None => Some("".into()),
        }
    }

    /// The account of a request with these headers: its owner and the owner's limits. An administrator has no limits.
    pub fn account<'a>(&self, header: impl Fn(&str) -> Option<&'a [u8]>) -> Account {
        let secrets = self.secrets();
        let known = secrets.known(&header);
        let (lane, nobody) = (lane(known, header), "".into());
        self.owners.account(known.map_or(Some(&nobody), |known| known.owner.as_ref()), &secrets.limits, lane)
    }

    /// The account of an owner whose requests have no limits here, but their share: they are durable work, which has limits of its own.
    pub fn account_of(&self, owner: &Arc<str>, lane: Lane) -> Account {
        self.owners.unlimited(owner, self.secrets().limits.of(owner).weight, lane)
    }

    /// The owners of keys, as far as their requests have come.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Whether a header of this name holds the secret of a restricted category.
    pub fn is_secret(&self, header: &str) -> bool {
        self.secrets().restrictions.iter().any(|restriction| restriction.header == header)
    }

    /// Whether requests of this category need a header.
    fn restricts(&self, category: Category) -> bool {
        self.secrets().restrictions.iter().any(|restriction| restriction.categories.contains(&category))
    }

    /// Whether a request that was admitted may change the server.
    pub fn check_control(&self, Credentials { is_local, is_proven }: Credentials) -> Result<(), ControlRefused> {
        let has_administrator = self.secrets().keys.iter().any(|known| known.owner.is_none());
        match self.control {
            ControlAccess::Any => Ok(()),
            ControlAccess::Loopback if is_proven => Ok(()),
            ControlAccess::Loopback if has_administrator => Err(ControlRefused::NoAdministrator),
            ControlAccess::Loopback if is_local => Ok(()),
            ControlAccess::Loopback => Err(ControlRefused::Remote),
            ControlAccess::None => Err(ControlRefused::Everybody),
        }
    }

    /// Whether a request of this sender is admitted: by its key, or, where no key is asked for, unless a page of another site may have sent
    /// it; by the header of its category; and, if it changes the server, by its credentials. Health checks need no key, because
    /// orchestrators send none. Returns the credentials of a request that may change the server.
    pub fn admit(&self, rule: Rule, sender: &Sender<'_>, port: PortRules<'_>) -> Result<Option<Credentials>, Denied> {
        let header = |name: &str| sender.header(name);
        match rule.category {
            Some(Category::Health) => {}
            _ if port.has_pages && !self.secrets().asks_for_key() => {
                self.names.check(sender).map_err(Denied::Foreign)?;
            }
            _ => self.check_key(header)?,
        }
        let Some(category) = rule.category else { return Ok(None) };
        port.restrictions.check_restriction(category, header)?;
        if rule.changes == Changes::Never {
            return Ok(None);
        }
        let is_proven = self.is_administrator(header) || port.restrictions.restricts(category);
        let credentials = Credentials { is_local: sender.is_local(), is_proven };
        if rule.changes == Changes::Always {
            self.check_control(credentials)?;
        }
        Ok(Some(credentials))
    }

    /// Whether these headers hold the one that requests of this category have to carry.
    fn check_restriction<'a>(
        &self,
        category: Category,
        header: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Result<(), Denied> {
        match self.secrets().restrictions.iter().find(|restriction| restriction.categories.contains(&category)) {
            Some(rule) if !header(rule.header.as_str()).is_some_and(|value| rule.value.is(value)) => {
                Err(Denied::Restricted(rule.header.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Whether these headers hold a valid key, where one is needed.
    fn check_key<'a>(&self, header: impl Fn(&str) -> Option<&'a [u8]>) -> Result<(), Denied> {
        let secrets = self.secrets();
        match secrets.asks_for_key() && secrets.known(&header).is_none() {
            true => Err(Denied::Key),
            false => Ok(()),
        }
    }
}

// === impl Known ===

impl Known {
    /// A key of a flag or a variable. Logs a warning when it can be guessed.
    fn given(key: &Secret, lane: Lane, owner: Option<Arc<str>>) -> Known {
        if key.is_short() {
            tracing::warn!(
                owner = owner.as_deref().unwrap_or("administrator"),
                "an API key has fewer than 16 characters and can be guessed: make one with openssl rand -hex 32"
            );
        }
        Known { key: key.digest(), lane, owner, expires: None }
    }
}

impl From<KeyEntry> for Known {
    fn from(entry: KeyEntry) -> Known {
        let (lane, is_client) = match entry.role {
            Role::Live => (Lane::Live, true),
            Role::Bulk => (Lane::Bulk, true),
            Role::Admin => (Lane::Live, false),
        };
        Known { key: entry.sha256, lane, expires: entry.expiry(), owner: is_client.then(|| entry.owner.into()) }
    }
}

// === impl Secrets ===

impl Secrets {
    /// Whether clients need a key. An administrator's key alone keeps nobody else out.
    fn asks_for_key(&self) -> bool {
        self.has_file || self.keys.iter().any(|known| known.owner.is_some())
    }

    /// The valid key in these headers. `Authorization` may be for a proxy, so each of the three headers is enough.
    fn known<'a>(&self, header: impl Fn(&str) -> Option<&'a [u8]>) -> Option<&Known> {
        let given = [header("authorization").and_then(bearer_token), header("x-api-key"), header("api-key")];
        // Every key is compared: how long it takes tells nothing about which. Of two with one text the last has the last word.
        let find = |given: &[u8]| {
            let given = KeyDigest::of(given);
            let known =
                self.keys.iter().fold(None, |found, known| if known.key.is(&given) { Some(known) } else { found });
            known.filter(|known| known.expires.is_none_or(|expires| SystemTime::now() < expires))
        };
        given.into_iter().flatten().find_map(find)
    }
}

/// The lane of a request with this key and these headers: bulk if the key or the header `Priority` says so.
fn lane<'a>(known: Option<&Known>, header: impl Fn(&str) -> Option<&'a [u8]>) -> Lane {
    let asked = header("priority").and_then(|value| std::str::from_utf8(value).ok()).map(Lane::of_header);
    asked.unwrap_or_default().max(known.map(|known| known.lane).unwrap_or_default())
}

/// The token of `Bearer TOKEN`.
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}
