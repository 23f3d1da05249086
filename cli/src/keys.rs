//! `trireme keys`: makes, lists and revokes clients' keys in the file of `--api-key-file`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use clap::{Args, Subcommand, ValueEnum};
use data_encoding::BASE64URL_NOPAD;
use ring::rand::{SecureRandom, SystemRandom};
use trireme_runtime::service;
use trireme_server::access::{KeyDigest, KeyEntry, KeyFile, LONGEST_OWNER, Role, is_owner_name};
use trireme_server::owners::OwnerLimits;

use crate::output::write_out;
use crate::style::{Cell, cell, colours, table};

/// Digits of a key's digest by which `list` and `revoke` name the key.
const ID_DIGITS: usize = 12;

/// The beginning of each key, so that scanners for secrets know it.
const KEY_PREFIX: &str = "trireme_";

/// Random bytes of a key.
const KEY_BYTES: usize = 32;

/// Flags of `trireme keys`.
#[derive(Args)]
pub struct KeysArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a key, print it once, and add its digest to the file
    Add(AddArgs),
    /// List the keys of the file: identifier, owner, role, when they were made and when they expire, limits of the owner
    List(FileArgs),
    /// Remove keys from the file; gateways refuse them within seconds
    Revoke(RevokeArgs),
    /// Set how much an owner may ask for; gateways hold it to that within seconds
    Limit(LimitArgs),
}

/// The file that a command is about.
#[derive(Args)]
struct FileArgs {
    /// The file of keys, as gateways have it
    #[arg(long = "api-key-file", env = "TRIREME_API_KEY_FILE", value_name = "PATH")]
    path: PathBuf,
}

/// Flags of `trireme keys add`.
#[derive(Args)]
struct AddArgs {
    /// Owner of durable work, files and batches that are made with the key; of an administrator's key a name to know it by
    #[arg(value_parser = owner)]
    owner: String,

    /// Rights of requests with the key
    #[arg(long, value_name = "ROLE", default_value = "live")]
    role: Role,

    /// Time after which the key admits nobody, such as 90days or 12h; without it the key stays until it is revoked
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    expires_in: Option<Duration>,

    #[command(flatten)]
    file: FileArgs,
}

/// Flags of `trireme keys revoke`.
#[derive(Args)]
struct RevokeArgs {
    /// Identifier of a key, from `trireme keys list`
    #[arg(value_name = "IDENTIFIER", required_unless_present = "owner")]
    id: Option<String>,

    /// Remove all keys of this owner
    #[arg(long, value_name = "OWNER", conflicts_with = "id")]
    owner: Option<String>,

    #[command(flatten)]
    file: FileArgs,
}

/// Flags of `trireme keys limit`.
#[derive(Args)]
struct LimitArgs {
    /// Owner of keys
    #[arg(value_parser = owner)]
    owner: String,

    /// Requests and tokens per minute over all gateways, and requests in flight at each, such as rpm=60,tpm=100000,in-flight=8; `none` removes the
    /// owner's limits from the file, and those of --owner hold
    #[arg(value_name = "LIMITS", value_parser = limits)]
    limits: Limits,

    #[command(flatten)]
    file: FileArgs,
}

/// The limits of an owner, or none.
#[derive(Clone, Copy)]
struct Limits(Option<OwnerLimits>);

/// Runs `trireme keys`.
pub fn run(args: &KeysArgs) -> ExitCode {
    let outcome = match &args.action {
        Action::Add(args) => add(args),
        Action::List(args) => list(args),
        Action::Revoke(args) => revoke(args),
        Action::Limit(args) => limit(args),
    };
    match outcome {
        Ok(text) => write_out(text.as_bytes()),
        Err(error) => service::fail(&error),
    }
}

fn owner(text: &str) -> Result<String, String> {
    match is_owner_name(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("expected 1 to {LONGEST_OWNER} letters, digits and '-', '_', '.', '@'")),
    }
}

fn limits(text: &str) -> Result<Limits, String> {
    Ok(Limits(if text == "none" { None } else { Some(text.parse()?) }))
}

fn limit(args: &LimitArgs) -> anyhow::Result<String> {
    KeyFile::change(&args.file.path, |file| {
        let owner = &args.owner;
        let is_known = file.keys.iter().any(|entry| entry.owner == *owner);
        match args.limits.0 {
            Some(limits) => drop(file.owners.insert(owner.clone(), limits)),
            None => drop(file.owners.remove(owner)),
        }
        let note = if is_known { "" } else { "; the file has no key of this owner" };
        let limits = args.limits.0.map_or("no limits in this file".to_owned(), |limits| limits.to_string());
        Ok(format!("{owner}: {limits}{note}\n"))
    })
}

fn add(args: &AddArgs) -> anyhow::Result<String> {
    let mut bytes = [0; KEY_BYTES];
    SystemRandom::new().fill(&mut bytes).ok().context("the system gives no random bytes")?;
    let key = format!("{KEY_PREFIX}{}", BASE64URL_NOPAD.encode(&bytes));
    let created = Utc::now();
    let entry = KeyEntry {
        owner: args.owner.clone(),
        role: args.role,
        sha256: KeyDigest::of(&key),
        created: Some(created),
        expires: args.expires_in.map(|time| after(created, time)).transpose()?,
    };
    KeyFile::change(&args.file.path, |file| {
        file.keys.push(entry);
        Ok(format!("{key}\n"))
    })
}

fn after(created: DateTime<Utc>, time: Duration) -> anyhow::Result<DateTime<Utc>> {
    let ends = TimeDelta::from_std(time).ok().and_then(|time| created.checked_add_signed(time));
    ends.with_context(|| format!("--expires-in {} is too long", humantime::format_duration(time)))
}

fn list(args: &FileArgs) -> anyhow::Result<String> {
    let file = KeyFile::read(&args.path)?;
    let now = Utc::now();
    let lines: Vec<_> = file.keys.iter().map(|entry| line(entry, &file, now)).collect();
    let mut text = String::new();
    table(&mut text, &["identifier", "owner", "role", "created", "expires", "limits"], &lines, colours());
    Ok(text)
}

fn line(entry: &KeyEntry, file: &KeyFile, now: DateTime<Utc>) -> Vec<Cell> {
    let role = entry.role.to_possible_value().map(|value| value.get_name().to_owned());
    let expires = match entry.expires {
        None => "never".to_owned(),
        Some(time) if time <= now => format!("{} (expired)", shown(time)),
        Some(time) => shown(time),
    };
    let created = entry.created.map_or_else(|| "-".to_owned(), shown);
    let limits = file.owners.get(&entry.owner).filter(|_| entry.role != Role::Admin);
    let limits = limits.map_or_else(|| "-".to_owned(), ToString::to_string);
    [&id(entry), &entry.owner, &role.unwrap_or_default(), &created, &expires, &limits].map(cell).to_vec()
}

fn revoke(args: &RevokeArgs) -> anyhow::Result<String> {
    let path = &args.file.path;
    anyhow::ensure!(
        path.try_exists()?,
        "there is no file of keys '{}': use --api-key-file as `trireme keys add` had it",
        path.display()
    );
    KeyFile::change(path, |file| {
        let is_meant = |entry: &KeyEntry| match &args.owner {
            Some(owner) => *owner == entry.owner,
            None => args.id.as_ref().is_some_and(|given| *given == id(entry)),
        };
        let (revoked, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut file.keys).into_iter().partition(is_meant);
        let given = args.owner.as_ref().or(args.id.as_ref()).map_or("", String::as_str);
        anyhow::ensure!(
            !revoked.is_empty(),
            "'{given}' is no key in '{}', expected an identifier or an owner that `trireme keys list` shows",
            path.display()
        );
        file.keys = kept;
        Ok(revoked.iter().map(|entry| format!("revoked {} of {}\n", id(entry), entry.owner)).collect())
    })
}

fn shown(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// The first digits of the key's digest.
fn id(entry: &KeyEntry) -> String {
    let mut digits = String::from(entry.sha256);
    digits.truncate(ID_DIGITS);
    digits
}
