//! Access rules: API keys for the whole server, headers that categories of requests have to carry, and the clients that may
//! change the server.

mod args;
mod given;
mod key_file;
mod keys;
mod restriction;
mod sender;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use axum::http::HeaderValue;
use parking_lot::RwLock;
use trireme_inference::Lane;

pub use crate::owners::is_owner_name;
use crate::owners::{ADMINISTRATOR, Account, OwnerLimits, OwnerRule, Owners};
pub use args::{AccessArgs, ControlAccess};
pub use given::{Given, files, read_all};
pub use key_file::{KeyEntry, KeyFile, LONGEST_OWNER, Role};
pub use keys::{KeyDigest, OwnedKey, Secret};
pub use restriction::{Category, Restriction};
pub use sender::{Foreign, Sender};

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
    /// Whether there is a file of keys: then clients need a key, also when the file has none.
    has_file: bool,
    restrictions: Vec<Restriction>,
    limits: Limits,
}

/// The limits of owners.
#[derive(Debug, Default)]
struct Limits {
    own: HashMap<Arc<str>, OwnerLimits>,
    /// The limits of owners without limits of their own.
    every: OwnerLimits,
}

/// Why a request is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It carries no valid key.
    Key,
    /// It does not carry this header with its value.
    Restricted(String),
    /// No key is asked for, and a page of another site may have sent it.
    Foreign(Foreign),
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

    /// Whether an admitted request of this category carried an administrator's key or a required header.
    pub fn proves<'a>(&self, category: Category, header: impl Fn(&str) -> Option<&'a [u8]>) -> bool {
        self.is_administrator(header) || self.restricts(category)
    }

    /// Whether these headers hold an administrator's key.
    pub fn is_administrator<'a>(&self, header: impl Fn(&str) -> Option<&'a [u8]>) -> bool {
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
        let lane = lane(known, header);
        match known {
            Some(Known { owner: None, .. }) => self.account_of(&ADMINISTRATOR.into(), lane),
            known => {
                let name = known.and_then(|known| known.owner.clone()).unwrap_or_default();
                Account { limits: secrets.limits.of(&name), owner: self.owners.named(&name), lane }
            }
        }
    }

    /// The account of an owner whose requests have no limits here, but their share: they are durable work, which has limits of its own.
    pub fn account_of(&self, owner: &Arc<str>, lane: Lane) -> Account {
        let limits = OwnerLimits { weight: self.secrets().limits.of(owner).weight, ..OwnerLimits::default() };
        Account { owner: self.owners.named(owner), limits, lane }
    }

    /// Whether a header of this name holds the secret of a restricted category.
    pub fn is_secret(&self, header: &str) -> bool {
        self.secrets().restrictions.iter().any(|restriction| restriction.header == header)
    }

    /// Whether requests of this category need a header.
    pub fn restricts(&self, category: Category) -> bool {
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
    /// it; and by the header of its category.
    pub fn check(&self, category: Category, sender: &Sender<'_>) -> Result<(), Denied> {
        let header = |name: &str| sender.header(name);
        match category {
            Category::Health => {}
            _ if self.secrets().asks_for_key() => self.check_key(header)?,
            _ => self.names.check(sender).map_err(Denied::Foreign)?,
        }
        self.check_restriction(category, header)
    }

    /// Whether these headers hold the one that requests of this category have to carry.
    pub fn check_restriction<'a>(
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
    pub fn check_key<'a>(&self, header: impl Fn(&str) -> Option<&'a [u8]>) -> Result<(), Denied> {
        let secrets = self.secrets();
        match secrets.asks_for_key() && secrets.known(&header).is_none() {
            true => Err(Denied::Key),
            false => Ok(()),
        }
    }

    /// The lane of an admitted request with these headers: bulk if its key or its header `Priority` says so.
    pub fn lane<'a>(&self, header: impl Fn(&str) -> Option<&'a [u8]>) -> Lane {
        lane(self.secrets().known(&header), header)
    }
}

// === impl Limits ===

impl Limits {
    /// The limits of the flags; those of the file have the last word about its owners.
    fn new(rules: &[OwnerRule], file: BTreeMap<String, OwnerLimits>) -> anyhow::Result<Limits> {
        let mut limits = Limits::default();
        let mut seen = BTreeSet::new();
        for rule in rules {
            anyhow::ensure!(seen.insert(&rule.owner), "--owner names '{}' more than once", rule.owner);
            match rule.is_for_every() {
                true => limits.every = rule.limits,
                false => drop(limits.own.insert(rule.owner.clone(), rule.limits)),
            }
        }
        limits.own.extend(file.into_iter().map(|(owner, limits)| (owner.into(), limits)));
        Ok(limits)
    }

    fn of(&self, owner: &str) -> OwnerLimits {
        self.own.get(owner).copied().unwrap_or(self.every)
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

/// The lane of a request with this key and these headers.
fn lane<'a>(known: Option<&Known>, header: impl Fn(&str) -> Option<&'a [u8]>) -> Lane {
    let asked = header("priority").and_then(|value| std::str::from_utf8(value).ok()).map(Lane::of_header);
    asked.unwrap_or_default().max(known.map(|known| known.lane).unwrap_or_default())
}

/// The token of `Bearer TOKEN`.
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use axum::http::{Extensions, HeaderName, Uri};

    use super::*;

    fn access(keys: &[&str], restrictions: &[&str]) -> Access {
        let api_keys = keys.iter().map(|key| key.parse().unwrap()).collect();
        let http_restricted_apis = restrictions.iter().map(|text| text.parse().unwrap()).collect();
        new(&AccessArgs { api_keys, http_restricted_apis, ..AccessArgs::default() })
    }

    fn new(args: &AccessArgs) -> Access {
        Access::new(args, &[]).unwrap()
    }

    fn check(access: &Access, category: Category, headers: &[(&'static str, &'static str)]) -> Result<(), Denied> {
        let parsed =
            headers.iter().map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        access.check(category, &Sender::of(&Uri::default(), &parsed.collect(), &Extensions::new()))
    }

    #[test]
    fn any_of_the_keys_admits_and_health_needs_none() {
        let access = access(&["one", "two"], &[]);
        for headers in [
            [("authorization", "Bearer two")],
            [("authorization", "bearer one")],
            [("x-api-key", "one")],
            // Azure's clients.
            [("api-key", "one")],
        ] {
            assert_eq!(check(&access, Category::Inference, &headers), Ok(()));
        }
        for headers in [[("authorization", "Bearer tw")], [("authorization", "Basic one")], [("x-api-key", "")]] {
            assert_eq!(check(&access, Category::Inference, &headers), Err(Denied::Key));
        }
        assert_eq!(check(&access, Category::Metadata, &[]), Err(Denied::Key));
        assert_eq!(check(&access, Category::Health, &[]), Ok(()));
        for authorization in ["Bearer of-a-proxy", "Basic dXNlcg==", "Bearer one"] {
            let both = [("authorization", authorization), ("x-api-key", "two")];
            assert_eq!(check(&access, Category::Inference, &both), Ok(()), "{authorization}");
        }
        assert!(!format!("{access:?}").contains("\"one\""));
    }

    #[test]
    fn keys_of_a_file_have_owners_roles_and_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        let entry = |owner: &str, role, expires: Option<&str>| KeyEntry {
            owner: owner.to_owned(),
            role,
            sha256: KeyDigest::of(format!("the key of {owner}")),
            created: None,
            expires: expires.map(|time| time.parse().unwrap()),
        };
        let keys = vec![
            entry("alice", Role::Live, Some("2999-01-01T00:00:00Z")),
            entry("nightly", Role::Bulk, None),
            entry("root", Role::Admin, None),
            entry("past", Role::Live, Some("2020-01-01T00:00:00Z")),
        ];
        KeyFile::change(&path, |file| {
            file.keys = keys;
            Ok(())
        })
        .unwrap();
        let args = AccessArgs { api_key_file: Some(path.clone()), ..AccessArgs::default() };
        let access = new(&args);
        let of = |owner: &str| {
            let key = format!("the key of {owner}");
            let header = |name: &str| (name == "x-api-key").then_some(key.as_bytes());
            access
                .check_key(header)
                .map(|()| (access.owner(header).map(|owner| owner.to_string()), access.lane(header)))
        };
        assert_eq!(of("alice"), Ok((Some("alice".to_owned()), Lane::Live)));
        assert_eq!(of("nightly"), Ok((Some("nightly".to_owned()), Lane::Bulk)));
        assert_eq!(of("root"), Ok((None, Lane::Live)));
        assert_eq!(of("past"), Err(Denied::Key), "it has expired");
        KeyFile::change(&path, |file| {
            file.keys.clear();
            Ok(())
        })
        .unwrap();
        access.take_over(&new(&args));
        assert_eq!(of("alice"), Err(Denied::Key), "a file without keys admits nobody");
        std::fs::remove_file(&path).unwrap();
        assert!(format!("{:#}", Access::new(&args, &[]).unwrap_err()).starts_with("--api-key-file: the file of keys"));
    }

    #[test]
    fn an_owner_has_limits_of_the_file_or_the_flag_and_counts_stay_when_they_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        let of_file = |limits: &str| {
            let owners = [("bob".to_owned(), limits.parse().unwrap())].into();
            KeyFile::change(&path, |file| {
                *file = KeyFile { owners, ..KeyFile::default() };
                Ok(())
            })
            .unwrap();
        };
        of_file("rpm=7");
        let owned = |text: &str| text.parse().unwrap();
        let args = AccessArgs {
            api_keys: vec![owned("alice=a"), owned("bob=b"), owned("carol=c")],
            admin_api_keys: vec!["admin".parse().unwrap()],
            owners: ["alice:rpm=2", "bob:rpm=1", "*:in-flight=3"].map(|rule| rule.parse().unwrap()).to_vec(),
            api_key_file: Some(path.clone()),
            ..AccessArgs::default()
        };
        let access = new(&args);
        let of = |key: &'static str| access.account(|name| (name == "x-api-key").then_some(key.as_bytes()));
        let limits = |key| of(key).limits.to_string();
        assert_eq!(["a", "b", "c", "admin"].map(limits), ["rpm=2", "rpm=7", "in-flight=3", ""]);
        assert_eq!(&**of("admin").owner.name(), ADMINISTRATOR);
        of("a").begin(true, 0).unwrap().end(0);
        of_file("tpm=5");
        access.take_over(&new(&args));
        assert_eq!(limits("b"), "tpm=5");
        assert_eq!(of("a").requests().unwrap().remaining, 1, "the request before counts");
        let twice = AccessArgs { owners: [args.owners[0].clone(), args.owners[0].clone()].to_vec(), ..args };
        assert!(Access::new(&twice, &[]).unwrap_err().to_string().contains("--owner names 'alice' more than once"));
    }

    #[test]
    fn all_clones_have_the_keys_that_replace_others() {
        let first = access(&["one"], &["statistics:x-a=b"]);
        let clone = first.clone();
        first.take_over(&access(&["two"], &[]));
        for access in [&first, &clone] {
            assert_eq!(check(access, Category::Statistics, &[("x-api-key", "one")]), Err(Denied::Key));
            assert_eq!(check(access, Category::Statistics, &[("x-api-key", "two")]), Ok(()));
        }
    }

    #[test]
    fn a_key_or_a_header_chooses_the_bulk_lane() {
        let [api_keys, bulk_api_keys] = ["live", "bulk"].map(|key| vec![key.parse().unwrap()]);
        let access = new(&AccessArgs { api_keys, bulk_api_keys, ..AccessArgs::default() });
        let of = |headers: &[(&str, &'static str)]| {
            let header = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_bytes());
            (access.check_key(header), access.lane(header))
        };
        assert_eq!(of(&[("x-api-key", "live")]), (Ok(()), Lane::Live));
        assert_eq!(of(&[("authorization", "Bearer bulk")]), (Ok(()), Lane::Bulk));
        assert_eq!(of(&[("x-api-key", "live"), ("priority", "u=7, i")]), (Ok(()), Lane::Bulk));
        assert_eq!(of(&[("x-api-key", "bulk"), ("priority", "u=0")]), (Ok(()), Lane::Bulk), "a key has the last word");
        assert_eq!(of(&[("x-api-key", "other")]).0, Err(Denied::Key));
    }

    #[test]
    fn restricted_categories_want_their_header() {
        let access = access(&[], &["health,inference:X-Admin=s3=cret"]);
        assert_eq!(check(&access, Category::Health, &[]), Err(Denied::Restricted("x-admin".to_owned())));
        assert_eq!(check(&access, Category::Inference, &[("x-admin", "s3=cret")]), Ok(()));
        assert!(check(&access, Category::Inference, &[("x-admin", "s3=cret2")]).is_err());
        assert_eq!(check(&access, Category::Metadata, &[]), Ok(()));
    }

    /// Whether a request with this key may change a server with these flags.
    fn may(args: &AccessArgs, is_local: bool, category: Category, key: &'static str) -> Result<(), ControlRefused> {
        let access = new(args);
        let header = |name: &str| (name == "x-api-key").then_some(key.as_bytes());
        access.check_control(Credentials { is_local, is_proven: access.proves(category, header) })
    }

    #[test]
    fn the_server_is_changed_from_its_own_host_or_with_an_administrators_key() {
        let open = AccessArgs {
            http_restricted_apis: vec!["logging:x-admin=secret".parse().unwrap()],
            ..AccessArgs::default()
        };
        assert_eq!(may(&open, true, Category::ModelRepository, ""), Ok(()));
        assert_eq!(may(&open, false, Category::ModelRepository, ""), Err(ControlRefused::Remote));
        assert_eq!(may(&open, false, Category::Logging, ""), Ok(()), "it carried the header");
        let keys = AccessArgs {
            api_keys: vec!["alice=a".parse().unwrap()],
            bulk_api_keys: vec!["bulk".parse().unwrap()],
            ..AccessArgs::default()
        };
        for key in ["a", "bulk"] {
            let found = may(&keys, false, Category::ModelRepository, key);
            assert_eq!(found, Err(ControlRefused::Remote), "a client's key proves nothing");
        }
        let kept = AccessArgs { admin_api_keys: vec!["admin".parse().unwrap()], ..keys };
        for is_local in [false, true] {
            for key in ["a", "bulk", ""] {
                let found = may(&kept, is_local, Category::Logging, key);
                assert_eq!(found, Err(ControlRefused::NoAdministrator), "{key}");
            }
            assert_eq!(may(&kept, is_local, Category::Logging, "admin"), Ok(()));
        }
        let any = AccessArgs { control_access: ControlAccess::Any, ..kept.clone() };
        assert_eq!(may(&any, false, Category::ModelRepository, "a"), Ok(()));
        let none = AccessArgs { control_access: ControlAccess::None, ..kept };
        assert_eq!(may(&none, true, Category::ModelRepository, "admin"), Err(ControlRefused::Everybody));
        assert!(ControlRefused::Remote.to_string().contains("--control-access=any"), "the refusal names the flag");
    }

    #[test]
    fn faulty_restrictions_are_refused() {
        for text in ["health", "health:key", "nothing:key=value", "health:=value", "health:a b=value", "health:key="] {
            assert!(text.parse::<Restriction>().is_err(), "{text}");
        }
        let twice = ["health:a=b", "metadata,health:c=d"].map(|text| text.parse().unwrap());
        let args = AccessArgs { http_restricted_apis: twice.to_vec(), ..AccessArgs::default() };
        assert!(Access::new(&args, &[]).unwrap_err().to_string().contains("'health' more than once"));
    }

    #[test]
    fn a_key_says_whose_request_it_is() {
        let owned = |text: &str| -> Given<OwnedKey> { text.parse().unwrap() };
        let args = AccessArgs {
            api_keys: vec![owned("alice=a"), owned("alice=b"), owned("bob=c")],
            admin_api_keys: vec!["admin".parse().unwrap()],
            ..AccessArgs::default()
        };
        let access = new(&args);
        let owner = |key: &'static str| access.owner(|name| (name == "x-api-key").then_some(key.as_bytes()));
        for (key, expected) in [("a", Some("alice")), ("b", Some("alice")), ("c", Some("bob")), ("admin", None)] {
            assert_eq!(owner(key).as_deref(), expected, "{key}");
        }
        assert_eq!(Access::default().owner(|_| None).as_deref(), Some(""));
    }
}
