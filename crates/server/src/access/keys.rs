//! API keys and their owners.

use std::ffi::OsStr;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, Command};
use subtle::ConstantTimeEq;

/// Longest name of an owner.
const LONGEST_NAME: usize = 64;

/// Fewest characters of a key that takes long to guess.
const SHORTEST: usize = 16;

/// Text that must not be shown.
#[derive(Clone)]
pub struct Secret(String);

/// Keys as a flag gives one, or a variable several.
#[derive(Clone, Debug)]
pub struct Given<K>(pub(super) Vec<K>);

/// Reads [`Given`] keys. A flag gives one, which may hold commas; a variable gives several, separated by commas.
#[derive(Clone)]
pub(super) struct GivenParser<K>(PhantomData<fn() -> K>);

/// A key and its owner.
#[derive(Clone, Debug)]
pub struct OwnedKey {
    pub(super) owner: Arc<str>,
    pub(super) key: Secret,
}

// === impl OwnedKey ===

impl FromStr for OwnedKey {
    type Err = String;

    /// Reads `NAME=KEY`, or `KEY`, whose owner is then a digest of it. A key in base64 may end with `=`.
    fn from_str(text: &str) -> Result<Self, String> {
        let is_name = |name: &str| {
            (1..=LONGEST_NAME).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte))
        };
        let named =
            text.trim().split_once('=').filter(|(name, key)| is_name(name) && !key.trim_matches('=').is_empty());
        if let Some((name, key)) = named {
            return Ok(OwnedKey { owner: name.into(), key: key.parse()? });
        }
        let key: Secret = text.parse()?;
        let digest = ring::digest::digest(&ring::digest::SHA256, key.0.as_bytes());
        // No name begins like this.
        let owner: String = digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Ok(OwnedKey { owner: format!("key:{owner}").into(), key })
    }
}

// === impl Given ===

impl<K: FromStr> FromStr for Given<K> {
    type Err = K::Err;

    fn from_str(key: &str) -> Result<Self, K::Err> {
        Ok(Given(vec![key.parse()?]))
    }
}

// === impl GivenParser ===

impl<K> Default for GivenParser<K> {
    fn default() -> Self {
        GivenParser(PhantomData)
    }
}

impl<K> TypedValueParser for GivenParser<K>
where
    K: FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    type Value = Given<K>;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Given<K>, clap::Error> {
        self.parse_ref_(command, arg, value, ValueSource::CommandLine)
    }

    fn parse_ref_(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
        source: ValueSource,
    ) -> Result<Given<K>, clap::Error> {
        let keys = match (value.to_str(), source) {
            (None, _) => Err("it is no UTF-8".to_owned()),
            (Some(keys), ValueSource::EnvVariable) => keys.split(',').map(str::parse).collect(),
            (Some(key), _) => key.parse().map(|key| vec![key]),
        };
        keys.map(Given).map_err(|why| {
            // The key itself must not be shown.
            let flag = arg.map(|arg| format!("{arg}: ")).unwrap_or_default();
            clap::Error::raw(ErrorKind::ValueValidation, format!("{flag}{why}\n")).with_cmd(command)
        })
    }
}

// === impl Secret ===

impl Secret {
    /// Whether it has few characters.
    pub(super) fn is_short(&self) -> bool {
        self.0.chars().count() < SHORTEST
    }

    /// Whether `given` is this, in a time that depends on lengths alone.
    pub fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

impl FromStr for Secret {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "" => Err("it is empty".to_owned()),
            text => Ok(Secret(text.to_owned())),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_on_the_command_line_may_hold_commas() {
        let command = Command::new("test").arg(
            Arg::new("key").long("key").action(clap::ArgAction::Append).value_parser(GivenParser::<Secret>::default()),
        );
        let matches = command.clone().try_get_matches_from(["test", "--key=a,b", "--key", "c"]).unwrap();
        let given = matches.get_many::<Given<Secret>>("key").unwrap().flat_map(|given| &given.0);
        assert_eq!(given.map(|key| key.0.as_str()).collect::<Vec<_>>(), ["a,b", "c"]);
        let of_variable = |keys: &str| {
            GivenParser::<Secret>::default().parse_ref_(&command, None, OsStr::new(keys), ValueSource::EnvVariable)
        };
        let keys = of_variable("a, b").unwrap().0;
        assert_eq!(keys.iter().map(|key| key.0.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(of_variable("secret,").unwrap_err().to_string().ends_with("it is empty\n"));
        assert!(!of_variable("secret,").unwrap_err().to_string().contains("secret"));
    }

    #[test]
    fn keys_of_few_characters_are_short() {
        let is_short = |key: &str| key.parse::<Secret>().unwrap().is_short();
        assert!(is_short("fifteen letters") && !is_short("sixteen letters."));
    }

    #[test]
    fn keys_have_owners() {
        let owned = |text: &str| -> OwnedKey { text.parse().unwrap() };
        let named = owned("team-a=s3=cret");
        assert_eq!((named.owner.as_ref(), named.key.0.as_str()), ("team-a", "s3=cret"));
        for text in ["c2VjcmV0", "c2VjcmV0cw==", "=x", "a b=c"] {
            let (one, other) = (owned(text), owned(&format!("{text}x")));
            assert!(one.owner.starts_with("key:") && one.owner != other.owner && one.key.0 == text, "{text}");
        }
    }
}
