//! The pages that follow one task work as they are printed: their commands give the printed output, and the flags and metrics that
//! they name exist.
//!
//! A page is one session in an empty folder, where `examples`, `services` and `tests` are those of the workspace:
//! - A line that is only the path of a file and a colon, as in `` `model.py`: ``, makes the block below it that file.
//! - In a block of `console`, a line that begins with `$ ` is a command. The command goes on while a quote is open, or its line ends
//!   in `\`. The lines below it are its output: `…` stands for any text, and numbers in JSON may differ by a ten-thousandth. A
//!   command without output below it has to succeed.
//! - `$ trireme serve …` and `$ trireme up …` start a server and end the previous one. `localhost:8000` in later commands is this server,
//!   and in files that are above the command.
//! - `target/release/trireme` is the program as it was built, `.tools/nats-server/nats-server` the broker of the tests.
//!
//! Blocks of other kinds are not run, such as `sh` for commands that need Docker, Kubernetes, several machines or a download.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use trireme_e2e::{Process, Request, product, python, wait_until, workspace};

/// The pages whose commands run, each with the least number of its commands.
const PAGES: [(&str, usize); 11] = [
    ("docs/rerankers-classifiers-ner.md", 10),
    ("docs/slow-pipeline.md", 3),
    ("docs/operations.md", 1),
    ("docs/write-a-stage.md", 4),
    ("docs/quickstart.md", 6),
    ("docs/coming-from-tei.md", 4),
    ("docs/coming-from-infinity.md", 3),
    ("docs/coming-from-vllm.md", 4),
    ("docs/coming-from-torchserve.md", 2),
    ("docs/coming-from-openai.md", 2),
    ("README.md", 5),
];

/// The commands whose flags the pages may name. Each answers `--help`.
const COMMANDS: [&str; 19] = [
    "trireme serve",
    "trireme up",
    "trireme worker",
    "trireme bench",
    "trireme dead list",
    "trireme dead replay",
    "trireme export",
    "trireme infer",
    "trireme init",
    "trireme optimize",
    "trireme settings",
    "trireme status",
    "trireme tap",
    "trireme usage",
    "trireme validate",
    "trireme verify",
    "trireme-gateway",
    "trireme-model",
    "trireme-python",
];

/// Words that begin as metrics do: a package of Python, a parameter of requests.
const NAMES: [&str; 2] = ["trireme_python", "trireme_timeout_ms"];

/// Flags of other programs.
const FOREIGN: [&str; 14] = [
    "--all",
    "--datatype",
    "--namespace",
    "--no-deps",
    "--password",
    "--profile",
    "--quiet",
    "--repository",
    "--rm",
    "--scale",
    "--store_dir",
    "--user",
    "--volume",
    "--volumes-from",
];

/// The server as the pages call it.
const SERVER: &str = "localhost:8000";

/// How long a server may take until it is ready. It measures each model that it has never loaded before.
const READY: Duration = Duration::from_secs(60);

/// By how much a number may differ from the printed one.
const TOLERANCE: f64 = 1e-4;

#[test]
fn the_page_about_rerankers_classifiers_and_entities_works() {
    run(PAGES[0]);
}

#[test]
fn the_page_about_slow_pipelines_works() {
    run(PAGES[1]);
}

#[test]
fn the_page_about_operations_works() {
    run(PAGES[2]);
}

#[test]
fn the_page_about_stages_works() {
    run(PAGES[3]);
}

#[test]
fn the_quick_start_works() {
    run(PAGES[4]);
}

#[test]
fn the_readme_works() {
    run(PAGES[10]);
    assert!(read("README.md").lines().count() <= 150, "README.md has more than 150 lines");
}

#[test]
fn the_pages_about_other_servers_work() {
    PAGES[5..10].iter().for_each(|page| run(*page));
}

/// The first tables of the page have the text of an error in a cell, in parts where names stand between.
#[test]
fn errors_that_the_page_about_troubles_lists_are_those_of_the_sources() {
    let mut sources = String::new();
    for folder in ["crates", "services", "cli"] {
        read_sources(&workspace().join(folder), &mut sources);
    }
    let (mut found, mut missing) = (0, Vec::new());
    let page = read("docs/troubleshooting.md");
    for line in page.split("\n## ").skip(1).take(2).flat_map(str::lines).filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let cell = if line.starts_with("| `") { cells[0] } else { cells[1] };
        for text in cell.split('`').skip(1).step_by(2) {
            found += 1;
            if !sources.contains(text) {
                missing.push(text);
            }
        }
    }
    assert!(missing.is_empty(), "no source has {missing:?}");
    assert!(found > 25, "{found} texts");
}

/// Adds the Rust sources below a folder, with texts that go over several lines in one.
fn read_sources(folder: &Path, sources: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder can be read") {
        let path = entry.expect("a folder can be read").path();
        if path.is_dir() {
            read_sources(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source can be read");
            let joined = text.split("\\\n").map(str::trim_start).collect::<String>();
            sources.push_str(&joined);
        }
    }
}

#[test]
fn flags_and_metrics_that_pages_name_exist() {
    let flags: BTreeSet<String> = COMMANDS.iter().flat_map(|command| flags_of(command)).collect();
    let metrics = read("docs/metrics.md");
    let streams = read("docs/message-contract.md");
    let mut found = 0;
    for (page, _) in PAGES {
        let mut wrong = Vec::new();
        for word in words(&ours(page, &read(page))) {
            let exists = if word.starts_with("--") {
                flags.contains(&word) || FOREIGN.contains(&word.as_str())
            } else if word.starts_with("nv_") || word.starts_with("trireme_") {
                let series = ["_sum", "_count", "_bucket"].iter().find_map(|end| word.strip_suffix(end));
                let is_metric = |name: &str| metrics.contains(&format!("| `{name}` |"));
                is_metric(&word)
                    || series.is_some_and(is_metric)
                    || streams.contains(&word)
                    || NAMES.contains(&word.as_str())
            } else {
                continue;
            };
            found += 1;
            if !exists {
                wrong.push(word);
            }
        }
        assert!(wrong.is_empty(), "{page} names {wrong:?}, which no program has");
    }
    assert!(found > 50, "the pages name {found} flags and metrics");
}

#[test]
fn a_page_is_read_as_it_says() {
    let page = "\
text `not/this`: text\n\n`a/b.py`:\n\n```python\nx = 1\n\n```\n```sh\n$ not this\n```\n
```console\n$ one 'a\nb' # c\nout\n  more\n$ two \\\n  three\n```\n";
    let command = |text: &str, output: &str| Part::Command { text: text.to_owned(), output: output.to_owned() };
    let file = Part::File { path: "a/b.py".to_owned(), content: "x = 1\n\n".to_owned() };
    assert_eq!(parts(page), [file, command("one 'a\nb' # c", "out\n  more"), command("two \\\n  three", "")]);

    assert!(agrees(r#"{"a": [0.5, "…"]}"#, r#"{"a":[0.50001,"id-17"]}"#));
    assert!(!agrees(r#"{"a": [0.5]}"#, r#"{"a":[0.51]}"#) && !agrees(r#"{"a": 1}"#, r#"{"a":1,"b":2}"#));
    assert!(agrees("took … ms\nend", "took 17 ms\nend") && !agrees("took … ms", "took 17 s"));
    assert_eq!(words("a `--one=2` trireme_x\n```\n$ b --two\n```"), ["--one", "--two"]);
}

// === Pages ===

/// A part of a page that a reader carries out.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    File { path: String, content: String },
    Command { text: String, output: String },
}

/// The broker: from the environment, or the one that the set-up fetched.
fn nats_server() -> PathBuf {
    let fetched = || workspace().join(".tools/nats-server/nats-server");
    std::env::var_os("TRIREME_NATS_SERVER").map_or_else(fetched, PathBuf::from)
}

fn read(page: &str) -> String {
    fs::read_to_string(workspace().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// The files and commands of a page, in their order.
fn parts(page: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut file = None;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else {
            let named =
                line.strip_prefix('`').and_then(|rest| rest.strip_suffix("`:")).filter(|path| !path.contains('`'));
            // A blank line may stand between the path and its block.
            file = if line.is_empty() { file } else { named };
            continue;
        };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        match (file.take(), kind) {
            (Some(path), _) => {
                let content = block.iter().map(|line| format!("{line}\n")).collect();
                parts.push(Part::File { path: path.to_owned(), content });
            }
            (None, "console") => parts.extend(commands(&block)),
            (None, _) => {}
        }
    }
    parts
}

/// The commands of a block, each with its output.
fn commands(block: &[&str]) -> Vec<Part> {
    let mut commands: Vec<(String, Vec<&str>)> = Vec::new();
    for line in block {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(text), _) => commands.push((text.to_owned(), Vec::new())),
            (None, Some((text, _))) if text.ends_with('\\') || text.matches('\'').count() % 2 == 1 => {
                text.push('\n');
                text.push_str(line);
            }
            (None, Some((_, output))) => output.push(line),
            (None, None) => panic!("'{line}' belongs to no command"),
        }
    }
    commands.into_iter().map(|(text, output)| Part::Command { text, output: output.join("\n") }).collect()
}

/// A page without what belongs to another server: the first cells of the tables on the pages about these.
fn ours(page: &str, text: &str) -> String {
    let is_about_others = page.starts_with("docs/coming-from-");
    let cells = |line: &str| line.strip_prefix("| ")?.split_once(" | ").map(|(_, rest)| rest.to_owned());
    text.lines().map(|line| cells(line).filter(|_| is_about_others).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

/// The words in a page's code that are flags or names: in spans, and in whole blocks.
fn words(page: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut in_block = false;
    for line in page.lines() {
        if line.starts_with("```") {
            in_block = !in_block;
            continue;
        }
        let code: Vec<&str> = if in_block { vec![line] } else { line.split('`').skip(1).step_by(2).collect() };
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let found = code.iter().flat_map(|code| code.split(|c| !is_part(c)));
        words.extend(found.filter(|word| word.len() > 2 && !word.ends_with('_')).map(str::to_owned));
    }
    words.retain(|word| word.starts_with("--") || word.contains('_'));
    words
}

/// The flags in the help of a command.
fn flags_of(command: &str) -> BTreeSet<String> {
    let mut words = command.split(' ');
    let help = product(words.next().expect("a command has a name")).args(words).arg("--help").output();
    let help = String::from_utf8(help.expect("the binary runs").stdout).expect("help is text");
    let named = help.split(|c: char| c.is_whitespace() || "<[,;=".contains(c));
    let flags: BTreeSet<String> = named.filter(|word| word.starts_with("--")).map(str::to_owned).collect();
    assert!(flags.len() > 1, "{command} --help names {flags:?}");
    flags
}

// === Sessions ===

/// A reader with an empty folder.
struct Session {
    folder: TempDir,
    logs: TempDir,
    server: Option<(Process, SocketAddr)>,
    servers: usize,
    /// The files that name the server, as the page has them.
    askers: Vec<(String, String)>,
}

#[track_caller]
fn run((page, least): (&str, usize)) {
    let mut session = Session::begin();
    let mut commands = 0;
    for part in parts(&read(page)) {
        match part {
            Part::File { path, content } => {
                session.write(&path, &content);
                if content.contains(SERVER) {
                    session.askers.push((path, content));
                }
            }
            Part::Command { text, output } => {
                commands += 1;
                let text = text.strip_prefix("target/release/").unwrap_or(&text);
                match (text.strip_prefix("trireme serve "), text.strip_prefix("trireme up ")) {
                    (Some(arguments), _) => session.serve("serve", arguments),
                    (None, Some(arguments)) => session.serve("up", arguments),
                    (None, None) => session.ask(page, text, &output),
                }
            }
        }
    }
    assert!(commands >= least, "{page} has {commands} commands");
}

impl Session {
    fn begin() -> Session {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["examples", "services", "tests"] {
            symlink(workspace().join(name), folder.path().join(name)).expect("a link can be made");
        }
        Session {
            folder,
            logs: tempfile::tempdir().expect("a temporary folder"),
            server: None,
            servers: 0,
            askers: Vec::new(),
        }
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("a folder can be made");
        fs::write(path, content).expect("a file can be written");
    }

    /// Gives a command the reader's folder and programs: the product's, and a Python that has numpy.
    fn prepare(&self, command: &mut Command) {
        let binary = PathBuf::from(product("trireme").get_program());
        let folders =
            [binary.parent(), python().parent()].map(|folder| folder.expect("a program lies in a folder").to_owned());
        let others = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&others)));
        command.env("PATH", path.expect("no folder has a colon in its name")).current_dir(self.folder.path());
    }

    /// Starts a server in place of the one that runs, by `trireme serve` or `trireme up`.
    #[track_caller]
    fn serve(&mut self, subcommand: &str, arguments: &str) {
        self.server = None;
        self.servers += 1;
        let words = arguments.split_once(" #").map_or(arguments, |(words, _)| words).split_whitespace();
        let broker = nats_server();
        let mut command = product("trireme");
        command.arg(subcommand).env("TRIREME_NATS_PORT", "0");
        for word in words {
            command.arg(if word == ".tools/nats-server/nats-server" { broker.as_os_str() } else { OsStr::new(word) });
        }
        self.prepare(&mut command);
        let mut process = Process::start(&format!("serve-{}", self.servers), &mut command, self.logs.path());
        let address = wait_until("the server is ready", READY, || {
            assert!(process.exited().is_none(), "trireme {subcommand} {arguments} ends: {:?}", process.last_words());
            let events = process.events();
            let event = |message: &str| events.iter().find(|event| event["message"] == message);
            let listening = event("HTTP listener").and_then(|event| event["address"].as_str());
            // The gateway of `trireme up` is a process of its own.
            let listening = listening.or_else(|| event("ready")?["http"].as_str()?.strip_prefix("http://"))?;
            let address: SocketAddr = listening.parse().ok()?;
            let ready = Request::get("/v2/health/ready").send(address).ok()?;
            (ready.status == 200).then_some(address)
        });
        for (path, content) in &self.askers {
            self.write(path, &content.replace(SERVER, &address.to_string()));
        }
        self.server = Some((process, address));
    }

    /// Runs a command and compares its output with the printed one.
    #[track_caller]
    fn ask(&self, page: &str, text: &str, printed: &str) {
        let mut here = text.to_owned();
        if let Some((_, address)) = &self.server {
            here = here.replace(SERVER, &address.to_string());
            if here.starts_with("trireme infer ") || here.starts_with("trireme status") {
                here = format!("{here} --server http://{address}");
            }
        }
        let mut command = Command::new("bash");
        command.args(["-c", &here]);
        self.prepare(&mut command);
        let output = command.output().expect("bash runs");
        let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{page}: '{text}' ends with {}: {said}{errors}", output.status);
        assert!(
            printed.is_empty() || agrees(printed, &said),
            "{page}: '{text}' gives\n{said}{errors}\nand not\n{printed}"
        );
    }
}

/// Whether an output is the printed one.
fn agrees(printed: &str, output: &str) -> bool {
    match (serde_json::from_str(printed), serde_json::from_str(output)) {
        (Ok(printed), Ok(output)) => alike(&printed, &output),
        _ => {
            let lines = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n");
            fits(&lines(printed), lines(output).trim_end())
        }
    }
}

fn alike(printed: &Value, output: &Value) -> bool {
    match (printed, output) {
        (Value::Number(one), Value::Number(other)) => {
            one.as_f64().zip(other.as_f64()).is_some_and(|(one, other)| (one - other).abs() <= TOLERANCE)
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| alike(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, value)| other.get(name).is_some_and(|other| alike(value, other)))
        }
        (Value::String(one), Value::String(other)) => fits(one, other),
        (Value::String(one), _) if one == "…" => true,
        (one, other) => one == other,
    }
}

/// Whether a text is this one, in which `…` stands for any text.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('…') {
        None => pattern == text,
        Some((before, after)) => text.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| fits(after, &rest[at..]))
        }),
    }
}
