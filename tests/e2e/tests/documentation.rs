//! Checks the documentation: the flag tables of docs/configuration.md are those of the binaries' help, links have
//! targets, and the paths and functions that pages name exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Component, Path, PathBuf};

use trireme_e2e::{product, workspace};

/// The groups in the help of `trireme serve`.
const GROUPS: [&str; 16] = [
    "Models",
    "Worker",
    "HTTP",
    "gRPC",
    "Metrics",
    "Access and connections",
    "Logs and traces",
    "Durable work",
    "Server",
    "Requests",
    "Response cache",
    "Queues",
    "ONNX Runtime",
    "Models in Python",
    "Administration",
    "Options",
];

/// Every process whose flags are in the reference: its binary, and the subcommand if there is one.
const PROCESSES: [(&str, Option<&str>); 7] = [
    ("trireme", Some("serve")),
    ("trireme", Some("worker")),
    ("trireme-gateway", None),
    ("trireme-tokenizer", None),
    ("trireme-model", None),
    ("trireme-postprocess", None),
    ("trireme-python", None),
];

const PAGE: &str = "docs/configuration.md";
const TABLES_BEGIN: &str = "<!-- flags: begin -->";
const TABLES_END: &str = "<!-- flags: end -->";
const HOW_TO_RENEW: &str = "renew it with `UPDATE_DOCS=1 cargo test -p trireme-e2e --test suite documentation::`";

/// In `--help`, the text about a flag is indented at least this far; flags are not.
const HELP_INDENT: usize = 10;

/// Folders of the workspace in which pages name files.
const SOURCES: [&str; 10] =
    ["crates", "services", "cli", "tests", "scripts", "examples", "proto", "docs", "deploy", "bench"];

/// A flag as in `--help`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Flag {
    /// `--http-port`
    name: String,
    /// `PORT`; `None` for a switch.
    value: Option<String>,
    help: String,
    /// The possible values, each with its explanation.
    choices: Vec<String>,
    variable: Option<String>,
    default: Option<String>,
    required: bool,
    /// Whether the value, which may be left out, follows a `=`.
    follows_equals: bool,
}

#[test]
fn flag_tables_are_what_the_binaries_say() {
    let path = workspace().join(PAGE);
    let page = fs::read_to_string(&path).expect("the page is there");
    let (before, rest) = page.split_once(TABLES_BEGIN).expect("the page has the mark of the tables' beginning");
    let (_, after) = rest.split_once(TABLES_END).expect("the page has the mark of the tables' end");
    let renewed = format!("{before}{TABLES_BEGIN}\n\n{}{TABLES_END}{after}", tables(&flags_by_process()));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return fs::write(&path, renewed).expect("the page can be written");
    }
    let differs = renewed.lines().zip(page.lines()).find(|(renewed, page)| renewed != page);
    assert!(renewed == page, "{PAGE} is out of date, {HOW_TO_RENEW}; it first differs here: {differs:#?}");
}

/// The deployed broker has the version with which all tests run.
#[test]
fn the_shipped_broker_is_the_tested_one() {
    let read = |path: &str| fs::read_to_string(workspace().join(path)).expect("the file is there");
    let script = read("scripts/fetch-nats-server.sh");
    let version = script.lines().find_map(|line| line.strip_prefix("VERSION=")).expect("the script names a version");
    for (path, form) in [
        ("docker-compose.yml", format!("nats:{version}-alpine")),
        ("docker-compose.cluster.yml", format!("nats:{version}-alpine")),
        ("deploy/kubernetes/base/kustomization.yaml", format!("{{name: nats, newTag: {version}-alpine}}")),
        ("docs/proof.md", format!("| {version} | all suites;")),
    ] {
        assert!(read(path).contains(&form), "{path} has no {form}");
    }
}

#[test]
fn every_flag_has_a_variable_and_a_help_text() {
    for (process, flags) in flags_by_process() {
        assert!(flags.len() > 5, "{process} shows only {} flags: is its --help still understood?", flags.len());
        for Flag { name, help, variable, .. } in flags {
            assert!(!help.is_empty(), "{process} {name} has no help text");
            if name == "--healthcheck" {
                // The flag makes the binary do something else than serve: as a variable it would keep a container from
                // serving.
                assert_eq!(variable, None);
                continue;
            }
            let expected = format!("TRIREME_{}", name.trim_start_matches('-').replace('-', "_").to_uppercase());
            assert_eq!(variable, Some(expected), "the environment variable of {process} {name}");
        }
    }
}

#[test]
fn the_one_program_starts_each_service_with_the_service_s_flags() {
    for (program, _) in PROCESSES.into_iter().filter(|(_, subcommand)| subcommand.is_none()) {
        let service = program.trim_start_matches("trireme-");
        let (alone, inside) = (flags_of((program, None)).1, flags_of(("trireme", Some(service))).1);
        assert_eq!(alone, inside, "{program} and `trireme {service}`");
    }
}

#[test]
fn serve_has_its_flags_in_groups_and_none_about_a_broker() {
    let output = product("trireme").args(["serve", "--help"]).output().expect("the binary runs");
    let help = String::from_utf8_lossy(&output.stdout);
    let (_, options) = help.split_once("\nOptions:\n").expect("a group for the rest");
    let (rest, _) = options.split_once("\n\nModels:\n").expect("the first group");
    assert_eq!(rest.lines().filter(|line| line.trim_start().starts_with('-')).count(), 1, "help alone: {rest}");
    let heads = help.lines().filter(|line| !line.starts_with(' ')).filter_map(|line| line.strip_suffix(':'));
    let heads: BTreeSet<&str> = heads.collect();
    assert_eq!(heads, BTreeSet::from(GROUPS));
    for flag in ["--nats-url", "--queue-storage", "--queue-replicas", "--ack-wait-ms"] {
        assert!(!help.contains(flag), "{flag}");
    }
}

#[test]
fn every_link_leads_somewhere() {
    let mut links = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page can be read");
        for target in links_of(&text) {
            links += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let folder = page.parent().expect("a page lies in a folder");
            let file = if file.is_empty() { page.clone() } else { folder.join(file) };
            assert!(file.exists(), "{}: the link to '{target}' leads nowhere", page.display());
            if !anchor.is_empty() {
                let headings = anchors(&fs::read_to_string(&file).expect("a link with an anchor leads to a text"));
                assert!(headings.contains(anchor), "{}: '{target}' names none of {headings:?}", page.display());
            }
        }
    }
    assert!(links > 10, "found only {links} links");
}

#[test]
fn every_path_that_a_page_names_is_there() {
    let mut paths = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page can be read");
        for path in codes(&text).filter(|code| is_path(code)) {
            paths += 1;
            assert!(workspace().join(path).exists(), "{} names '{path}', which is not there", page.display());
        }
    }
    assert!(paths > 10, "found only {paths} paths");
}

/// The pages that say where functions are.
fn architecture() -> String {
    let page = |name: &str| fs::read_to_string(workspace().join(name)).expect("the page is there");
    page("ARCHITECTURE.md") + &page("docs/delivery.md")
}

#[test]
fn every_function_that_the_architecture_names_is_there() {
    let sources: Vec<String> = files("rs").iter().map(|path| fs::read_to_string(path).expect("it is text")).collect();
    let page = architecture();
    let mut functions = 0;
    for code in codes(&page) {
        let Some((owner, function)) = as_function(code) else { continue };
        functions += 1;
        let heads = [format!("fn {function}("), format!("fn {function}<")];
        let defined = |text: &String| text.contains(owner) && heads.iter().any(|head| text.contains(head));
        assert!(
            sources.iter().any(defined),
            "ARCHITECTURE.md or docs/delivery.md names '{code}', which no source file defines"
        );
    }
    assert!(functions > 10, "found only {functions} functions");
}

#[test]
fn what_the_architecture_says_is_in_a_file_is_defined_there() {
    let page = architecture();
    let (mut places, mut misplaced) = (0, Vec::new());
    for (code, path) in places_of(&page) {
        places += 1;
        let name = code.rsplit("::").next().unwrap_or(&code);
        let heads = ["fn", "struct", "enum", "trait", "const", "static"].map(|kind| format!("{kind} {name}"));
        let source = fs::read_to_string(workspace().join(&path)).expect("the file is there");
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        if !heads.iter().any(|head| source.split(head.as_str()).skip(1).any(ends)) {
            misplaced.push((code, path));
        }
    }
    assert!(
        misplaced.is_empty(),
        "ARCHITECTURE.md or docs/delivery.md places these where they are not: {misplaced:#?}"
    );
    assert!(places > 10, "found only {places} places");
}

/// Each row of the tables in SECURITY.md names its proof: tests that exist in the files that it names, and commands of make.
#[test]
fn every_claim_about_security_has_its_test() {
    let text = fs::read_to_string(workspace().join("SECURITY.md")).expect("it is there");
    let makefile = fs::read_to_string(workspace().join("Makefile")).expect("it is there");
    let rows: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.rsplit_once(" | "))
        .filter(|(claim, _)| *claim != "claim" && !claim.starts_with("---"))
        .collect();
    assert!(rows.len() > 20, "{} claims", rows.len());
    let mut missing = Vec::new();
    for (claim, proof) in rows {
        let proofs: Vec<&str> = codes(proof).collect();
        let mut wrong = |what: String| missing.push(format!("{claim}: {what}"));
        if proofs.is_empty() {
            wrong("it names no test".to_owned());
        }
        let (paths, names): (Vec<_>, Vec<_>) = proofs.into_iter().partition(|code| code.contains('/'));
        let sources: Vec<String> =
            paths.iter().map(|path| fs::read_to_string(workspace().join(path)).unwrap_or_default()).collect();
        paths
            .iter()
            .zip(&sources)
            .filter(|(_, source)| source.is_empty())
            .for_each(|(path, _)| wrong(format!("no file {path}")));
        for name in names {
            let found = match name.strip_prefix("make ") {
                Some(target) => makefile.contains(&format!("\n{target}:")),
                None => sources.iter().any(|source| source.contains(&format!("fn {name}("))),
            };
            if !found {
                wrong(format!("no test {name} in {paths:?}"));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn help_is_understood() {
    let help = "\
Does it

Usage: it serve [OPTIONS] --dir <DIR>

Options:
      --dir <DIR>
          A folder; may be given
          several times
          
          [env: IT_DIR=]

      --storage <STORAGE>
          Where

          Possible values:
          - memory: In memory: fast, and
            forgetful
          - file:   On disk
          
          [env: IT_STORAGE=]
          [default: memory]

      --maybe[=<BOOL>]
          Whether

          [possible values: true, false]

      --plain
          Nothing else

  -h, --help
          Print help

Group:
  [WORD]...
          A word

      --grouped
          In a group
";
    let flag = |name: &str| Flag { name: name.to_owned(), ..Flag::default() };
    let dir = Flag {
        value: Some("DIR".to_owned()),
        help: "A folder; may be given several times".to_owned(),
        variable: Some("IT_DIR".to_owned()),
        required: true,
        ..flag("--dir")
    };
    let storage = Flag {
        value: Some("STORAGE".to_owned()),
        help: "Where".to_owned(),
        choices: vec!["memory: In memory: fast, and forgetful".to_owned(), "file: On disk".to_owned()],
        variable: Some("IT_STORAGE".to_owned()),
        default: Some("memory".to_owned()),
        ..flag("--storage")
    };
    let maybe = Flag {
        value: Some("BOOL".to_owned()),
        help: "Whether".to_owned(),
        choices: vec!["true".to_owned(), "false".to_owned()],
        follows_equals: true,
        ..flag("--maybe")
    };
    let plain = Flag { help: "Nothing else".to_owned(), ..flag("--plain") };
    let grouped = Flag { help: "In a group".to_owned(), ..flag("--grouped") };
    assert_eq!(parse_help(help), [dir, storage, maybe, plain, grouped]);
}

#[test]
fn links_and_paths_are_told_from_other_text() {
    let text = "# A b: `c`, d\n[one](x.md#y) and [two](https://z.org)\n```\n[three](no.md)\n```\n[four](#a)";
    assert_eq!(links_of(text), ["x.md#y", "#a"]);
    assert_eq!(anchors(text), BTreeSet::from(["a-b-c-d".to_owned()]));
    assert!(is_path("crates/bus/src/lib.rs") && is_path("docs/adr/"));
    assert_eq!(as_function("Bus::reply"), Some(("Bus", "reply")));
    assert!(as_function("a::b::c").or(as_function("Kind::Name")).is_none());
    let text = "`A::b` in\n  `cli/src/x.rs`, `c` and `cli/src/y.rs`; `D` in `docs/z.md`";
    assert_eq!(places_of(text), [("A::b".to_owned(), "cli/src/x.rs".to_owned())]);
    assert!(!is_path("services/*/src") && !is_path("tests/<name>.rs") && !is_path("and/or") && !is_path("cli serve"));
}

// === Flags ===

/// Each process with its flags in the order of its help.
fn flags_by_process() -> Vec<(String, Vec<Flag>)> {
    PROCESSES.into_iter().map(flags_of).collect()
}

/// The name of a process and its flags.
fn flags_of((binary, subcommand): (&str, Option<&str>)) -> (String, Vec<Flag>) {
    let output = product(binary).args(subcommand).arg("--help").output().expect("the binary runs");
    assert!(output.status.success(), "{binary} --help ends with {}", output.status);
    let name = [Some(binary), subcommand].into_iter().flatten().collect::<Vec<_>>().join(" ");
    (name, parse_help(&String::from_utf8_lossy(&output.stdout)))
}

/// The flags in the output of `--help`, without `--help` and `--version`.
fn parse_help(help: &str) -> Vec<Flag> {
    let usage = help.lines().find(|line| line.starts_with("Usage:")).unwrap_or_default();
    let required: BTreeSet<&str> = usage.split_whitespace().filter(|word| word.starts_with("--")).collect();
    let mut flags: Vec<Flag> = Vec::new();
    // Below the heading of a group there may be words without a flag, with a text of their own.
    let mut is_of_flag = false;
    // A long list of values goes over several lines.
    let mut list = String::new();
    for line in help.lines().skip_while(|line| *line != "Options:").skip(1) {
        let text = line.trim();
        if !list.is_empty() || text.starts_with("[possible values: ") {
            list = format!("{list} {text}").trim().to_owned();
            if let (true, Some(flag)) = (list.ends_with(']'), flags.last_mut()) {
                flag.read(&std::mem::take(&mut list));
            }
            continue;
        }
        let is_head = !text.is_empty() && line.len() - line.trim_start().len() < HELP_INDENT;
        if is_head {
            is_of_flag = text.starts_with('-');
        }
        if is_head && is_of_flag {
            let text = &text[text.find("--").unwrap_or(0)..];
            // `--flag <VALUE>`, or `--flag[=<VALUE>]` if the value is optional.
            let name = text.split([' ', '[']).next().unwrap_or(text);
            let value = text.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map(|(value, _)| value);
            let required = required.contains(name);
            let follows_equals = text.contains("[=<");
            let (name, value) = (name.to_owned(), value.map(str::to_owned));
            flags.push(Flag { name, value, required, follows_equals, ..Flag::default() });
        } else if is_of_flag && let Some(flag) = flags.last_mut() {
            flag.read(text);
        }
    }
    flags.retain(|flag| flag.name != "--help" && flag.name != "--version");
    flags
}

// === impl Flag ===

impl Flag {
    /// Takes in a line of the text below the flag.
    fn read(&mut self, line: &str) {
        let bracketed = |start: &str| line.strip_prefix(start)?.strip_suffix(']');
        if line.is_empty() || line == "Possible values:" {
        } else if let Some(variable) = bracketed("[env: ") {
            self.variable = variable.split('=').next().map(str::to_owned);
        } else if let Some(default) = bracketed("[default: ") {
            self.default = Some(default.to_owned());
        } else if let Some(values) = bracketed("[possible values: ") {
            self.choices.extend(values.split(", ").map(str::to_owned));
        } else if let Some(choice) = line.strip_prefix("- ") {
            self.choices.push(choice.split_whitespace().collect::<Vec<_>>().join(" "));
        } else {
            let text = self.choices.last_mut().unwrap_or(&mut self.help);
            let gap = if text.is_empty() { "" } else { " " };
            let _ = write!(text, "{gap}{line}");
        }
    }

    /// The flag's row in a table.
    fn row(&self) -> String {
        let Flag { name, value, help, variable, default, .. } = self;
        let flag = match value {
            Some(value) if self.follows_equals => format!("{name}[={value}]"),
            Some(value) => format!("{name} {value}"),
            None => name.clone(),
        };
        let choice = |choice: &String| match choice.split_once(": ") {
            Some((value, meaning)) => format!("`{value}`: {meaning}"),
            None => format!("`{choice}`"),
        };
        let meaning = [help.clone()].into_iter().chain(self.choices.iter().map(choice));
        let meaning = meaning.collect::<Vec<_>>().join(". ").replace('|', "\\|");
        let default = match (default, self.required, value) {
            (Some(default), ..) => format!("`{default}`"),
            (None, true, _) => "required".to_owned(),
            (None, false, None) => "`false`".to_owned(),
            (None, false, Some(_)) => "none".to_owned(),
        };
        let variable = variable.as_ref().map_or("none".to_owned(), |variable| format!("`{variable}`"));
        format!("| `{flag}` | {variable} | {default} | {meaning} |")
    }
}

/// One table for each group of processes that share flags, the largest group first.
fn tables(processes: &[(String, Vec<Flag>)]) -> String {
    let mut groups: BTreeMap<Vec<usize>, Vec<&Flag>> = BTreeMap::new();
    for (index, (_, flags)) in processes.iter().enumerate() {
        for flag in flags {
            let takers: Vec<usize> = (0..processes.len()).filter(|&other| processes[other].1.contains(flag)).collect();
            if takers.first() == Some(&index) {
                groups.entry(takers).or_default().push(flag);
            }
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(takers, _)| (std::cmp::Reverse(takers.len()), takers.clone()));
    let mut text = String::new();
    for (takers, flags) in groups {
        let names: Vec<_> = takers.iter().map(|&index| format!("`{}`", processes[index].0)).collect();
        let rows: String = flags.iter().map(|flag| flag.row() + "\n").collect();
        let _ =
            write!(text, "### {}\n\n| flag | variable | default | meaning |\n|---|---|---|---|\n", names.join(", "));
        let _ = writeln!(text, "{rows}");
    }
    text
}

// === Pages ===

/// Every page of the repository.
fn pages() -> Vec<PathBuf> {
    files("md")
}

/// Every file of the repository with this extension.
fn files(extension: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder can be read") {
            let entry = entry.expect("a folder can be read");
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                walk(&path, extension, found);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&workspace(), extension, &mut found);
    found
}

/// The lines of a page outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The quoted code in a page's text.
fn codes(text: &str) -> impl Iterator<Item = &str> {
    prose(text).flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The pairs of item and source file that a page names: `this` in `that.rs`.
fn places_of(text: &str) -> Vec<(String, String)> {
    let text = prose(text).collect::<Vec<_>>().join(" ");
    let parts: Vec<&str> = text.split('`').skip(1).collect();
    let triples = parts.windows(3).step_by(2).filter(|triple| triple[1].trim() == "in");
    let places = triples.filter(|triple| is_path(triple[2]) && triple[2].ends_with(".rs"));
    places.map(|triple| (triple[0].to_owned(), triple[2].to_owned())).collect()
}

/// The targets of a page's links, without those to other sites.
fn links_of(text: &str) -> Vec<String> {
    let targets = prose(text).flat_map(|line| line.split("](").skip(1));
    let targets = targets.filter_map(|rest| rest.split_once(')').map(|(target, _)| target.to_owned()));
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// The anchors of a page: its headings in lower case, with `-` for blanks and without other signs.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let signs = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    };
    headings.map(|heading| heading.to_lowercase().chars().filter_map(signs).collect()).collect()
}

/// Whether quoted code is a path in the workspace.
fn is_path(code: &str) -> bool {
    let first = Path::new(code).components().next();
    let known = matches!(first, Some(Component::Normal(name)) if SOURCES.iter().any(|source| name == *source));
    known && code.contains('/') && !code.contains(['*', '<', '{', ' ', '…'])
}

/// `Owner::function` in its two parts.
fn as_function(code: &str) -> Option<(&str, &str)> {
    let (owner, function) = code.split_once("::")?;
    let snake = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    (snake(function) && owner.chars().all(char::is_alphanumeric)).then_some((owner, function))
}
