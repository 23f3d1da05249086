//! Advice in errors, warnings and answers: each flag and each command that a text of the sources names exists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::Cli;

/// Flags in texts that belong to other programs, with the program.
const OF_OTHERS: [(&str, &str); 13] = [
    ("--addr", "nats-server"),
    ("--config", "nats-server"),
    ("--gpus", "docker"),
    ("--graphdef", "tf2onnx"),
    ("--library-name", "optimum-cli"),
    ("--local-dir", "hf"),
    ("--log", "nats-server"),
    ("--log_format", "a text of Triton"),
    ("--pids-limit", "docker"),
    ("--port", "nats-server"),
    ("--revision", "hf"),
    ("--saved-model", "tf2onnx"),
    ("--store_dir", "nats-server"),
];

/// A text in a source.
struct Text {
    file: PathBuf,
    text: String,
}

/// The texts of all crates' sources, without tests and comments.
fn texts() -> Vec<Text> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for folder in ["crates", "services", "cli"] {
        walk(&root.join(folder), &mut files);
    }
    let mut texts = Vec::new();
    for file in files {
        let source = std::fs::read_to_string(&file).expect("a source can be read");
        let tokens: TokenStream = source.parse().expect("a source is Rust");
        let mut found = Vec::new();
        literals(tokens, &mut found);
        texts.extend(found.into_iter().map(|text| Text { file: file.clone(), text }));
    }
    texts
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let is_for_tests =
            ["tests", "tests.rs", "advice.rs", "testkit", "target", "examples", "benches", "conformance"];
        if is_for_tests.iter().any(|other| name == *other) {
            continue;
        }
        match path.is_dir() {
            true => walk(&path, files),
            false if path.extension().is_some_and(|kind| kind == "rs") => files.push(path),
            false => {}
        }
    }
}

/// Adds the string literals, but neither those of doc comments, which are attributes here, nor those of code for tests only.
fn literals(tokens: TokenStream, found: &mut Vec<String>) {
    let (mut tokens, mut is_for_tests) = (tokens.into_iter().peekable(), false);
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                // An attribute of a whole file is `#![…]`.
                let _ = tokens.next_if(|next| matches!(next, TokenTree::Punct(mark) if mark.as_char() == '!'));
                let Some(TokenTree::Group(attribute)) = tokens.next_if(|next| matches!(next, TokenTree::Group(_)))
                else {
                    continue;
                };
                is_for_tests |= attribute.stream().to_string().replace(' ', "") == "cfg(test)";
                if !attribute.stream().to_string().starts_with("doc") {
                    literals(attribute.stream(), found);
                }
            }
            TokenTree::Group(group) => {
                let is_left_out = is_for_tests && group.delimiter() == Delimiter::Brace;
                match is_left_out {
                    true => is_for_tests = false,
                    false => literals(group.stream(), found),
                }
            }
            TokenTree::Punct(mark) if mark.as_char() == ';' => is_for_tests = false,
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.contains('"') {
                    // A line that goes on in the next one.
                    found.push(text.split("\\\n").map(str::trim_start).collect());
                }
            }
            _ => {}
        }
    }
}

/// The flags in a text, such as `--model-repository`.
fn flags(text: &str) -> Vec<&str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    let starts = text.match_indices("--").map(|(at, _)| at).filter(|&at| !text[..at].ends_with(is_part));
    starts
        .map(|at| text[at..].split(|letter| !is_part(letter)).next().unwrap_or_default().trim_end_matches('-'))
        .filter(|flag| flag.len() > 3 && flag[2..].starts_with(|letter: char| letter.is_ascii_lowercase()))
        .collect()
}

/// The flags of a command and of those below it.
fn flags_of(command: &Command) -> BTreeSet<String> {
    let own = command.get_arguments().flat_map(|argument| argument.get_long_and_visible_aliases().unwrap_or_default());
    let own = own.chain(["help", "version"]).map(|flag| format!("--{flag}"));
    own.chain(command.get_subcommands().flat_map(flags_of)).collect()
}

/// The commands of this program.
fn tree() -> Command {
    let mut tree = Cli::command();
    tree.build();
    tree
}

#[test]
fn each_flag_in_a_text_is_one_that_there_is() {
    let tree = tree();
    let known = flags_of(&tree);
    let others: BTreeMap<_, _> = OF_OTHERS.into();
    let (mut checked, mut unknown) = (BTreeSet::new(), Vec::new());
    for Text { file, text } in texts() {
        for flag in flags(&text) {
            if !known.contains(flag) && !others.contains_key(flag) {
                unknown.push(format!("{} names {flag}: {text}", file.display()));
            }
            checked.insert(flag.to_owned());
        }
    }
    assert!(unknown.is_empty(), "no command has these flags: {unknown:#?}");
    assert!(checked.len() > 80, "only {} flags are in texts: are they still found?", checked.len());
    let unused: Vec<_> = others.keys().filter(|flag| !checked.contains(**flag)).collect();
    assert!(unused.is_empty(), "no text names these flags of other programs: {unused:?}");
}

#[test]
fn each_command_in_a_text_is_one_that_there_is() {
    let tree = tree();
    let mut checked = 0;
    for Text { file, text } in texts() {
        let quoted = text.split('`').skip(1).step_by(2).filter(|quoted| quoted.starts_with("trireme "));
        for quoted in quoted {
            let place = format!("{}: `{quoted}`", file.display());
            let name = quoted.split_whitespace().nth(1).unwrap_or_default();
            let Some(command) = tree.find_subcommand(name) else { panic!("{place}: there is no such command") };
            let known = flags_of(command);
            for flag in flags(quoted) {
                assert!(known.contains(flag), "{place}: {name} has no {flag}");
            }
            checked += 1;
        }
    }
    assert!(checked > 5, "only {checked} commands are in texts: are they still found?");
}

#[test]
fn variables_in_texts_are_those_of_flags() {
    let tree = tree();
    fn variables(command: &Command, found: &mut BTreeSet<String>) {
        let own = command.get_arguments().filter_map(|argument| argument.get_env()?.to_str().map(str::to_owned));
        found.extend(own);
        command.get_subcommands().for_each(|command| variables(command, found));
    }
    let mut known = BTreeSet::new();
    variables(&tree, &mut known);
    let texts = texts();
    // A literal that is nothing but a name is a variable that the program reads without a flag.
    known.extend(texts.iter().map(|text| text.text.trim_matches('"').to_owned()));
    for Text { file, text } in texts {
        for word in text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_') {
            let is_variable = word.starts_with("TRIREME_") && word.len() > "TRIREME_".len();
            assert!(!is_variable || known.contains(word), "{} names {word}, which no flag has: {text}", file.display());
        }
    }
}

#[test]
fn flags_are_told_from_other_text() {
    assert_eq!(flags("give --a-b, or --cc=1 (--no)"), ["--a-b", "--cc", "--no"]);
    assert_eq!(flags("a--b ------ -- --B <!-- x --> `--json`"), ["--json"]);
    let mut found = Vec::new();
    let source = "//! --of-a-file\n/// --of-a-comment\nfn f() { g(\"--of-code\", r#\"a \\\" raw one\"#); }\n#[cfg(test)]\nmod tests { const T: &str = \"--of-a-test\"; }\nconst C: &str = \"--behind\";";
    literals(source.parse().expect("Rust"), &mut found);
    assert!(found.iter().any(|text| text.contains("--of-code")) && found.iter().any(|text| text.contains("--behind")));
    assert!(!found.iter().any(|text| text.contains("--of-a-")), "{found:?}");
}
