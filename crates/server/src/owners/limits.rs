//! How much an owner may ask for, as flags and the file of keys say it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::name::is_owner_name;

/// Stands for every owner that has no limits of its own.
const EVERY: &str = "*";

/// The form of limits, for errors.
const LIMITS: &str = "rpm=NUMBER, tpm=NUMBER, in-flight=NUMBER or weight=NUMBER, separated by commas, each at least 1, a weight at most 1000";

/// The greatest weight of an owner.
const HEAVIEST: u64 = 1000;

/// Most of each that an owner may ask for; `None` is no limit. Its text is `rpm=60,tpm=100000,in-flight=8,weight=4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OwnerLimits {
    /// Requests that begin within a minute, at all gateways.
    pub requests_per_minute: Option<u64>,
    /// Tokens of requests that begin within a minute, at all gateways.
    pub tokens_per_minute: Option<u64>,
    /// Requests that have begun and not ended, at each gateway.
    pub in_flight: Option<u64>,
    /// Its part beside other owners whose requests wait in the same lane; 1 without it. It refuses nothing.
    pub weight: Option<u64>,
}

/// The limits of one owner, or of every owner without limits of its own, as `--owner` has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRule {
    pub(crate) owner: Arc<str>,
    pub(crate) limits: OwnerLimits,
}

/// The limits of all owners.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    own: HashMap<Arc<str>, OwnerLimits>,
    /// The limits of owners without limits of their own.
    every: OwnerLimits,
}

// === impl Limits ===

impl Limits {
    /// The limits of the flags; those of the file have the last word about its owners.
    pub(crate) fn new(rules: &[OwnerRule], file: BTreeMap<String, OwnerLimits>) -> anyhow::Result<Limits> {
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

    pub(crate) fn of(&self, owner: &str) -> OwnerLimits {
        self.own.get(owner).copied().unwrap_or(self.every)
    }
}

// === impl OwnerLimits ===

impl OwnerLimits {
    /// The owner's part beside others whose requests wait.
    pub fn share(&self) -> u32 {
        u32::try_from(self.weight.unwrap_or(1)).unwrap_or(u32::MAX)
    }

    /// Whether anything has a limit.
    pub fn are_some(&self) -> bool {
        *self != OwnerLimits::default()
    }
}

impl FromStr for OwnerLimits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut limits = OwnerLimits::default();
        for part in text.split(',') {
            let read = part.trim().split_once('=').and_then(|(name, number)| {
                let number = number.trim().parse().ok().filter(|&number: &u64| number > 0)?;
                Some((name.trim(), number))
            });
            let (name, number) = read.ok_or_else(|| format!("'{}' is no limit, expected {LIMITS}", part.trim()))?;
            let limit = match name {
                "rpm" => &mut limits.requests_per_minute,
                "tpm" => &mut limits.tokens_per_minute,
                "in-flight" => &mut limits.in_flight,
                "weight" if number <= HEAVIEST => &mut limits.weight,
                "weight" => return Err(format!("'weight={number}' is no limit, expected {LIMITS}")),
                other => return Err(format!("'{other}' is no limit, expected {LIMITS}")),
            };
            if limit.replace(number).is_some() {
                return Err(format!("'{name}' is there twice, expected it once"));
            }
        }
        Ok(limits)
    }
}

impl fmt::Display for OwnerLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            ("rpm", self.requests_per_minute),
            ("tpm", self.tokens_per_minute),
            ("in-flight", self.in_flight),
            ("weight", self.weight),
        ];
        let given = all.into_iter().filter_map(|(name, limit)| Some(format!("{name}={}", limit?)));
        f.write_str(&given.collect::<Vec<_>>().join(","))
    }
}

impl TryFrom<String> for OwnerLimits {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<OwnerLimits> for String {
    fn from(limits: OwnerLimits) -> String {
        limits.to_string()
    }
}

// === impl OwnerRule ===

impl OwnerRule {
    /// Whether it is about every owner without limits of its own.
    pub(crate) fn is_for_every(&self) -> bool {
        &*self.owner == EVERY
    }
}

impl FromStr for OwnerRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (owner, limits) = text
            .split_once(':')
            .ok_or("expected NAME:rpm=NUMBER,tpm=NUMBER,in-flight=NUMBER,weight=NUMBER, one of them or more")?;
        if owner != EVERY && !is_owner_name(owner) {
            return Err(format!("'{owner}' is no owner, expected the NAME of a key, or {EVERY} for every other owner"));
        }
        Ok(OwnerRule { owner: owner.into(), limits: limits.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_they_are_read() {
        for text in ["rpm=60", "tpm=100000", "rpm=1,tpm=2,in-flight=3", "in-flight=8", "rpm=1,weight=4", "weight=1000"]
        {
            assert_eq!(text.parse::<OwnerLimits>().unwrap().to_string(), text);
            let json = serde_json::to_string(&text.parse::<OwnerLimits>().unwrap()).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<OwnerLimits>(&json).unwrap().to_string(), text);
        }
        for (text, found) in [
            ("", "'' is no limit"),
            ("rpm", "'rpm' is no limit"),
            ("rpm=0", "'rpm=0' is no limit"),
            ("rpm=-1", "'rpm=-1' is no limit"),
            ("share=4", "'share' is no limit"),
            ("weight=0", "'weight=0' is no limit"),
            ("weight=1001", "'weight=1001' is no limit"),
            ("rpm=1,rpm=2", "'rpm' is there twice"),
        ] {
            assert!(text.parse::<OwnerLimits>().unwrap_err().starts_with(found), "{text}");
        }
    }

    #[test]
    fn a_rule_names_an_owner_or_every_other() {
        let rule: OwnerRule = "alice:rpm=60,in-flight=2".parse().unwrap();
        assert_eq!((&*rule.owner, rule.limits.to_string()), ("alice", "rpm=60,in-flight=2".to_owned()));
        assert!("*:tpm=5".parse::<OwnerRule>().unwrap().is_for_every());
        for text in ["alice", "a b:rpm=1", ":rpm=1", "alice:"] {
            assert!(text.parse::<OwnerRule>().is_err(), "{text}");
        }
    }
}
