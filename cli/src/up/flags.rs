//! The flags of a command line for the processes that know them, and words for a shell.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Subcommand};

use crate::services::Service;

/// The arguments of this command line that `service` knows, but for those whose ids are in `without`.
pub fn stated(service: &str, matches: &ArgMatches, without: &[&str]) -> Vec<OsString> {
    let services = Service::augment_subcommands(Command::new("trireme"));
    let Some(known) = services.find_subcommand(service) else { return Vec::new() };
    let is_stated = |arg: &&Arg| {
        let id = arg.get_id().as_str();
        let has_it = matches!(matches.try_contains_id(id), Ok(true));
        has_it && !without.contains(&id) && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    let (words, flags): (Vec<&Arg>, Vec<&Arg>) =
        known.get_arguments().filter(is_stated).partition(|arg| arg.is_positional());
    flags.into_iter().chain(words).flat_map(|arg| written(arg, matches)).collect()
}

/// An argument with its values as words of a command line.
fn written(arg: &Arg, matches: &ArgMatches) -> Vec<OsString> {
    let name = arg.get_long().map(|name| format!("--{name}"));
    if !arg.get_action().takes_values() {
        return name.map(OsString::from).into_iter().collect();
    }
    let values = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
    let word = |value| match &name {
        Some(name) => {
            let mut word = OsString::from(format!("{name}="));
            word.push(value);
            word
        }
        None => OsString::from(value),
    };
    values.map(word).collect()
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::super::UpArgs;
    use super::*;

    fn given(service: &str, line: &[&str]) -> Vec<OsString> {
        let up = UpArgs::augment_args(Command::new("up"));
        let matches = up.try_get_matches_from(std::iter::once(&"up").chain(line)).unwrap();
        stated(service, &matches, &["http_port"])
    }

    #[test]
    fn a_flag_goes_to_the_processes_that_know_it() {
        let line =
            ["a b", "--http-port=1", "--api-key", "n=k,l", "--model", "x=y,z=w", "--keep-models", "--pooling=cls"];
        let line = [&line[..], &["--scale", "model=2", "--canary-secs=5", "--queue-max-messages=7"]].concat();
        assert_eq!(
            given("tokenizer", &line),
            ["--model=x=y", "--model=z=w", "--pooling=cls", "--canary-secs=5", "a b"]
        );
        let gateway = given("gateway", &line);
        for word in ["--api-key=n=k,l", "--model=x=y", "--keep-models", "--queue-max-messages=7", "a b"] {
            assert!(gateway.contains(&word.into()), "{word} in {gateway:?}");
        }
        assert_eq!(gateway.len(), 7, "{gateway:?}");
        assert_eq!(given("model", &["f"]), ["f"], "what is a default or a variable is not repeated");
    }

    #[test]
    fn words_for_a_shell_are_quoted_where_they_have_to_be() {
        assert_eq!(quoted("hf://a/b@c"), "hf://a/b@c");
        assert_eq!(quoted("a b's"), r"'a b'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
