//! Secrets as flags and variables give them: as they are, or as `file:PATH`, one in each line of the file. A file is read at the start, and again
//! when it changes and on SIGHUP.

use std::ffi::OsStr;
use std::fs;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, Command};

/// Begins a value that names a file.
const FILE: &str = "file:";

/// The keys of one value of a flag or a variable.
#[derive(Clone, Debug)]
pub enum Given<K> {
    /// Themselves.
    Values(Vec<K>),
    /// The file with one in each line.
    File(PathBuf),
}

/// Reads [`Given`] keys. A flag gives one, which may hold commas; a variable gives several, separated by commas.
#[derive(Clone)]
pub(super) struct GivenParser<K>(PhantomData<fn() -> K>);

/// All values of `given`; files are read now. Errors name `flag`, the file and the line, and never the line's text.
pub fn read_all<K: FromStr<Err = String> + Clone>(flag: &str, given: &[Given<K>]) -> anyhow::Result<Vec<K>> {
    let mut all = Vec::new();
    for given in given {
        match given {
            Given::Values(values) => all.extend_from_slice(values),
            Given::File(path) => all.extend(read(flag, path)?),
        }
    }
    Ok(all)
}

/// The files that are among `given`.
pub fn files<'a, K: 'a>(given: impl IntoIterator<Item = &'a Given<K>>) -> impl Iterator<Item = &'a Path> {
    given.into_iter().filter_map(|given| match given {
        Given::Values(_) => None,
        Given::File(path) => Some(path.as_path()),
    })
}

fn read<K: FromStr<Err = String>>(flag: &str, path: &Path) -> anyhow::Result<Vec<K>> {
    let named = || format!("{flag} {FILE}{}", path.display());
    let text = fs::read_to_string(path).with_context(|| format!("{} cannot be read", named()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parsed = lines.map(|(number, line)| {
        line.parse().map_err(|why| anyhow::anyhow!("line {} of {} is not understood: {why}", number + 1, named()))
    });
    let found = parsed.collect::<anyhow::Result<Vec<K>>>()?;
    anyhow::ensure!(!found.is_empty(), "{} is empty, expected one value in each line", named());
    Ok(found)
}

fn as_file<K>(text: &str) -> Option<Given<K>> {
    text.trim().strip_prefix(FILE).map(|path| Given::File(path.into()))
}

// === impl Given ===

impl<K: FromStr> FromStr for Given<K> {
    type Err = K::Err;

    fn from_str(text: &str) -> Result<Self, K::Err> {
        as_file(text).map_or_else(|| Ok(Given::Values(vec![text.parse()?])), Ok)
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
        let text = value.to_str().ok_or_else(|| "it is no UTF-8".to_owned());
        let given = text.and_then(|text| match (as_file(text), source) {
            (Some(file), _) => Ok(file),
            (None, ValueSource::EnvVariable) => {
                text.split(',').map(str::parse).collect::<Result<_, _>>().map(Given::Values)
            }
            (None, _) => text.parse(),
        });
        given.map_err(|why| {
            // The key itself must not be shown.
            let flag = arg.map(|arg| format!("{arg}: ")).unwrap_or_default();
            clap::Error::raw(ErrorKind::ValueValidation, format!("{flag}{why}\n")).with_cmd(command)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::Secret;
    use super::*;

    fn texts(given: &[Given<Secret>]) -> Vec<String> {
        read_all("--key", given).unwrap().iter().map(|key| key.text().to_owned()).collect()
    }

    #[test]
    fn a_key_on_the_command_line_may_hold_commas() {
        let command = Command::new("test").arg(
            Arg::new("key").long("key").action(clap::ArgAction::Append).value_parser(GivenParser::<Secret>::default()),
        );
        let matches = command.clone().try_get_matches_from(["test", "--key=a,b", "--key", "c"]).unwrap();
        let given: Vec<_> = matches.get_many::<Given<Secret>>("key").unwrap().cloned().collect();
        assert_eq!(texts(&given), ["a,b", "c"]);
        let of_variable = |keys: &str| {
            GivenParser::<Secret>::default().parse_ref_(&command, None, OsStr::new(keys), ValueSource::EnvVariable)
        };
        assert_eq!(texts(&[of_variable("a, b").unwrap()]), ["a", "b"]);
        assert!(of_variable("secret,").unwrap_err().to_string().ends_with("it is empty\n"));
        assert!(!of_variable("secret,").unwrap_err().to_string().contains("secret"));
    }

    #[test]
    fn a_file_has_one_in_each_line_and_errors_name_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let given = [format!("file:{}", path.display()).parse().unwrap(), "more".parse().unwrap()];
        assert_eq!(files(&given).collect::<Vec<_>>(), [path.as_path()]);
        let error = read_all("--key", &given).unwrap_err().to_string();
        assert_eq!(error, format!("--key file:{} cannot be read", path.display()));
        fs::write(&path, "one\n\n two,three \r\n").unwrap();
        assert_eq!(texts(&given), ["one", "two,three", "more"]);
        fs::write(&path, "\n").unwrap();
        assert!(read_all("--key", &given).unwrap_err().to_string().contains("is empty, expected one value"));
        let restrictions = [format!("file:{}", path.display()).parse::<Given<super::super::Restriction>>().unwrap()];
        fs::write(&path, "health:a=b\nhealth:s3cret\n").unwrap();
        let error = read_all("--http-restricted-api", &restrictions).unwrap_err().to_string();
        assert!(error.starts_with("line 2 of --http-restricted-api file:/") && !error.contains("s3cret"), "{error}");
    }
}
