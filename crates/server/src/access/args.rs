//! Flags about access.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::given::{Given, GivenParser, files};
use super::keys::{OwnedKey, Secret};
use super::restriction::Restriction;
use super::sender;
use crate::owners::OwnerRule;

/// Flags about access.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Access and connections")]
pub struct AccessArgs {
    /// Key that requests other than health checks have to carry, as `Authorization: Bearer KEY` or `X-API-Key: KEY`; may
    /// be given several times, any of them admits; the variable has several separated by commas; `file:PATH` has one in each line. Durable work, files and batches belong to
    /// the owner NAME of the key that made them; without NAME to the key itself
    #[arg(long = "api-key", env = "TRIREME_API_KEY", value_name = "[NAME=]KEY")]
    #[arg(value_parser = GivenParser::<OwnedKey>::default(), hide_env_values = true)]
    pub api_keys: Vec<Given<OwnedKey>>,

    /// Key like --api-key whose requests wait in the bulk lane: they run when no live request wants a worker; may be given
    /// several times, also as `file:PATH`
    #[arg(long = "bulk-api-key", env = "TRIREME_BULK_API_KEY", value_name = "[NAME=]KEY")]
    #[arg(value_parser = GivenParser::<OwnedKey>::default(), hide_env_values = true)]
    pub bulk_api_keys: Vec<Given<OwnedKey>>,

    /// File of keys as digests, with owners, roles and times to live, which `trireme keys` writes; it is read again within seconds of a change.
    /// With such a file clients need a key, also while it has none
    #[arg(long, env = "TRIREME_API_KEY_FILE", value_name = "PATH")]
    pub api_key_file: Option<PathBuf>,

    /// Limits of the owner NAME of keys: rpm, requests that begin within a minute; tpm, their tokens; in-flight, requests that have
    /// not ended. And its weight: where requests of several owners wait, an owner with weight=4 is served four times as many tokens as one with 1,
    /// the default. May be given several times; the name * is every other owner. A request beyond them is answered 429. Limits per minute hold
    /// over all gateways: an owner exceeds them at most by what the others admit within 250 ms. Those in flight hold at each gateway. Durable
    /// work has limits of its own (--jobs-owner-requests)
    #[arg(long = "owner", env = "TRIREME_OWNER", value_name = "NAME:LIMIT=NUMBER,...", value_delimiter = ';')]
    pub owners: Vec<OwnerRule>,

    /// Key of an administrator, who may change the server from everywhere and sees everybody's durable work; may be given several times, also as
    /// `file:PATH`. With such a key nobody else changes the server, except with --control-access=any
    #[arg(long = "admin-api-key", env = "TRIREME_ADMIN_API_KEY", value_name = "KEY")]
    #[arg(value_parser = GivenParser::<Secret>::default(), hide_env_values = true)]
    pub admin_api_keys: Vec<Given<Secret>>,

    /// Further name by which clients ask this server, such as models.example.org; may be given several times, * is every name. Without a key
    /// (--api-key) a request is refused that a page of another site may have sent: one with an `Origin`, or one from this host. It is not
    /// refused where its `Host` is an address, localhost or a name that no site on the internet has
    #[arg(long = "allowed-host", env = "TRIREME_ALLOWED_HOST", value_name = "HOST", value_delimiter = ',')]
    #[arg(value_parser = sender::parse_host)]
    pub allowed_hosts: Vec<String>,

    /// Header that HTTP requests of some categories have to carry; may be given several times. Categories: health,
    /// metadata, inference, shared-memory, model-config, model-repository, statistics, trace, logging. `file:PATH` has one in each line
    #[arg(long = "http-restricted-api", env = "TRIREME_HTTP_RESTRICTED_API", value_name = "CATEGORY,...:HEADER=VALUE")]
    #[arg(value_delimiter = ';', hide_env_values = true)]
    pub http_restricted_apis: Vec<Given<Restriction>>,

    /// Clients that may change the server: load and unload models, change log and trace settings, register shared memory. A client on the
    /// same host names it as localhost or by a loopback address, and comes through no proxy. A request that carries an administrator's key
    /// (--admin-api-key), or the header of a restricted category, may do so from everywhere, except with `none`. Where there is such a key,
    /// being on the same host is not enough
    #[arg(long, env = "TRIREME_CONTROL_ACCESS", value_name = "WHO", default_value = "loopback")]
    pub control_access: ControlAccess,
}

// === impl AccessArgs ===

impl AccessArgs {
    /// The files with keys and restrictions.
    pub fn files(&self) -> Vec<PathBuf> {
        let owned = self.api_keys.iter().chain(&self.bulk_api_keys);
        let keys = files(owned).chain(files(&self.admin_api_keys));
        let given = keys.chain(files(&self.http_restricted_apis)).map(Path::to_owned);
        given.chain(self.api_key_file.clone()).collect()
    }
}

/// The clients that may change the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ControlAccess {
    /// Clients on the same host
    #[default]
    Loopback,
    /// Every client
    Any,
    /// No client
    None,
}
