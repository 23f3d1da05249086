//! `trireme verify`: compares a model's answers with those of its own library for the same texts, each text alone and all texts
//! batched; and the answers of the batch with those of each text alone. Exit code 0: all answers are alike; 1: some differ; 2: they could not be compared.

pub mod answers;
pub mod reference;
pub mod served;
pub mod texts;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::{Map, Value, json};
use trireme_model::{OnnxRuntimeArgs, TRACED};
use trireme_model_repository::{FolderChoices, ModelFolder, Task, folder_name, is_model_folder};
use trireme_runtime::{FolderArgs, local_folder, name_and_model, service};
use trireme_telemetry::TelemetryArgs;

use self::answers::{TextResult, expected, lower, measure, task_of, tasks_of};
use self::reference::{Case, Library};
use self::served::Model;
pub use self::served::NoAnswer;
use crate::serve::{self, ServeArgs, Server};
use crate::style::{Style, cell, colours, harmless, paint, table};

/// Characters of a text that are shown.
const SHOWN: usize = 60;

/// The exit code where nothing could be compared.
const NOT_COMPARED: u8 = 2;

/// Flags of `trireme verify`.
#[derive(Args, Clone)]
pub struct VerifyArgs {
    /// The model, which the command serves for the comparison: a model folder, a model repository, or an hf://, s3://, gs://, az:// or
    /// https:// URL of one; with --server the name of the model there. With NAME= in front a folder is served under that name
    #[arg(value_name = "[NAME=]MODEL")]
    target: String,

    /// The model of the repository to verify: an ensemble that takes texts
    #[arg(value_name = "NAME", conflicts_with = "server")]
    model: Option<String>,

    /// A server that runs, to ask instead of one that is started for this; https:// in front for TLS
    #[arg(long, value_name = "URL")]
    server: Option<String>,

    /// The model's folder, as sentence-transformers, transformers or model2vec load it; by default the model folder that is
    /// served
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,

    /// A Python that has these libraries
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,

    /// A file to compare with, instead of a folder: one JSON object a line with `text`, and `embedding`, `sparse`,
    /// `token_embeddings`, `scores` or `entities`; `text_pair` where the model takes pairs
    #[arg(long, value_name = "FILE", conflicts_with_all = ["folder", "texts"])]
    vectors: Option<PathBuf>,

    #[command(flatten)]
    choices: FolderArgs,

    /// Texts to compare, one a line; without it 24 of all lengths
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,

    /// The lowest likeness that is good enough: a cosine, or 1 less the difference of scores
    #[arg(long, value_name = "NUMBER", default_value_t = 0.9999)]
    min_cosine: f64,

    /// The prompt to put before each text, by its name
    #[arg(long, value_name = "NAME")]
    prompt_name: Option<String>,

    /// How tokens become entities
    #[arg(long, value_name = "STRATEGY", default_value = "simple", value_parser = ["none", "simple", "first", "average", "max"])]
    aggregation_strategy: String,

    /// A header of the requests to --server, such as an API key; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,

    /// Seconds to wait for an answer
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout_secs: u64,

    #[command(flatten)]
    onnxruntime: OnnxRuntimeArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

/// The arguments of this command, for commands that end with it.
#[derive(clap::Parser)]
struct Verify {
    #[command(flatten)]
    verify: VerifyArgs,
}

/// Each text asked alone.
const ALONE: &str = "alone";

/// All texts in requests of as many rows as the model takes.
const BATCHED: &str = "batched";

/// The answers of a batch beside those of the same server for each text alone: a row must not depend on the others of its request.
const BESIDE: &str = "batched, to alone";

/// The result of one comparison: each text alone or all batched with the library, or both with each other.
struct Comparison {
    task: Task,
    way: &'static str,
    /// The lowest likeness that is good enough.
    bar: f64,
    lowest: f64,
    mean: f64,
    worst: usize,
}

/// Compares and prints.
pub fn run(args: &VerifyArgs) -> ExitCode {
    let mut code = ExitCode::from(NOT_COMPARED);
    let ran = service::block_on("verify", &args.telemetry, async {
        let (text, passed) = verify(args).await?;
        let written = crate::output::write_out(text.as_bytes());
        code = if passed { written } else { ExitCode::FAILURE };
        Ok(())
    });
    if ran == ExitCode::SUCCESS { code } else { ExitCode::from(NOT_COMPARED) }
}

/// The report, and whether all answers are alike enough.
pub async fn verify(args: &VerifyArgs) -> anyhow::Result<(String, bool)> {
    if let Some(url) = &args.server {
        return compare(Comparing::of(args, None)?, args, url.clone()).await;
    }
    ensure!(!args.target.starts_with("http://"), "{0} is no model: trireme verify NAME --server {0}", args.target);
    let (name, target) = name_and_model(&args.target);
    let args = &VerifyArgs {
        target: target.to_owned(),
        model: name.map(str::to_owned).or_else(|| args.model.clone()),
        ..args.clone()
    };
    let served = local_folder(Path::new(target), name, &args.choices.choices()?).await?;
    let comparing = Comparing::of(args, Some(&served))?;
    let server = Server::open(&own_server(args, &served, &comparing.model)?).await?;
    let outcome = match server.load().await {
        Ok(()) => {
            let address = server.http_address().context("the server does not listen for HTTP")?;
            compare(comparing, args, format!("http://{address}")).await
        }
        // The load tried what the texts would have.
        Err(error) if format!("{error:#}").contains(TRACED) => Err(error.context(NoAnswer)),
        Err(error) => Err(error),
    };
    server.drain().await;
    outcome
}

/// The flags of a server that holds only this model, or the models of its ensemble, on free ports of this host.
fn own_server(args: &VerifyArgs, served: &Path, model: &str) -> anyhow::Result<ServeArgs> {
    let named = format!("{model}={}", served.display());
    let served = served.display().to_string();
    let words =
        if is_model_folder(Path::new(&served)) { folder_choices(args, Path::new(&served)).words() } else { Vec::new() };
    let models: &[&str] = match is_model_folder(Path::new(&served)) {
        true => &["--model", &named],
        false => &["--model-repository", &served, "--model-control-mode=explicit", "--load-model", model],
    };
    let flags: Vec<&str> = models.iter().copied().chain(words.iter().map(String::as_str)).collect();
    serve::own_server(&flags, &args.onnxruntime)
}

/// The choices for the server. They leave out the tasks if the folder has these tasks by its files.
fn folder_choices(args: &VerifyArgs, folder: &Path) -> FolderArgs {
    let mut choices = args.choices.clone();
    let asked = std::mem::take(&mut choices.task);
    let own = choices.choices().unwrap_or_else(|_| FolderChoices::default());
    let has_them = |folder: ModelFolder| {
        let own = folder.description.tasks();
        asked.iter().all(|asked| own.iter().any(|task| task.name() == asked))
    };
    if !ModelFolder::read(folder, None, &own).is_ok_and(has_them) {
        choices.task = asked;
    }
    choices
}

/// Compares on a thread of its own, because the HTTP client blocks and the server in this process has to go on.
async fn compare(comparing: Comparing, args: &VerifyArgs, url: String) -> anyhow::Result<(String, bool)> {
    let (headers, timeout_secs) = (args.headers.clone(), args.timeout_secs);
    let blocking = move || comparing.run(&Model::new(&url, &comparing.model, headers, timeout_secs)?);
    tokio::task::spawn_blocking(blocking).await.context("comparing ended early")?
}

/// The model, the reference, and the flags of the comparison.
struct Comparing {
    model: String,
    library: Library,
    tasks: Vec<Task>,
    texts: Option<PathBuf>,
    min_cosine: f64,
    prompt_name: Option<String>,
    aggregation: String,
}

// === impl VerifyArgs ===

impl VerifyArgs {
    /// Verifies the model folder `folder` with its library in `python`.
    pub fn of_folder(
        folder: &Path,
        python: &Path,
        min_cosine: f64,
        onnxruntime: &OnnxRuntimeArgs,
    ) -> anyhow::Result<VerifyArgs> {
        let (bar, python) = (min_cosine.to_string(), python.as_os_str());
        let flags =
            ["verify".as_ref(), folder.as_os_str(), "--min-cosine".as_ref(), bar.as_ref(), "--python".as_ref(), python];
        let Verify { verify } = clap::Parser::try_parse_from(flags)?;
        Ok(VerifyArgs { onnxruntime: onnxruntime.clone(), ..verify })
    }

    /// The same for a folder whose task a flag says.
    pub fn for_task(mut self, task: Option<String>) -> VerifyArgs {
        self.choices.task.extend(task);
        self
    }
}

// === impl Comparing ===

impl Comparing {
    /// `served` is what this command serves, where no server runs already.
    fn of(args: &VerifyArgs, served: Option<&Path>) -> anyhow::Result<Comparing> {
        let served = served.filter(|folder| is_model_folder(folder));
        // Of a model that was downloaded the weights that the library reads are not here.
        let own = served.filter(|_| !args.target.contains("://")).map(Path::to_owned);
        let library = match (&args.vectors, args.folder.clone().or(own)) {
            (Some(file), _) => Library::File(file.clone()),
            (None, Some(folder)) => Library::Python { python: args.python.clone(), folder },
            (None, None) => {
                anyhow::bail!("there is nothing to compare with: give the model's folder by --folder, or --vectors")
            }
        };
        Ok(Comparing {
            model: match (&args.server, &args.model, served) {
                (Some(_), _, _) => args.target.clone(),
                (None, Some(model), _) => model.clone(),
                (None, None, Some(folder)) => folder_name(folder),
                (None, None, None) => anyhow::bail!("name the model of {} to verify", args.target),
            },
            library,
            tasks: args.choices.task.iter().map(|name| task_of(name)).collect::<anyhow::Result<_>>()?,
            texts: args.texts.clone(),
            min_cosine: args.min_cosine,
            prompt_name: args.prompt_name.clone(),
            aggregation: args.aggregation_strategy.clone(),
        })
    }

    fn run(&self, model: &Model) -> anyhow::Result<(String, bool)> {
        let tasks = if self.tasks.is_empty() { tasks_of(&model.config)? } else { self.tasks.clone() };
        let texts = match &self.texts {
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                text.lines().map(str::to_owned).collect()
            }
            None => texts::built_in(),
        };
        let pairs = model.takes_pairs(tasks.contains(&Task::Rerank)).then(|| texts::pairs(&texts));
        let cases = self.library.cases(&tasks, texts, pairs, self.prompt_name.as_deref(), &self.aggregation)?;
        ensure!(!cases.is_empty(), "there are no texts to compare");
        let parameters = self.parameters(&tasks);
        let alone = model.ask(&tasks, &cases, 1, &parameters)?;
        let batched = model.ask(&tasks, &cases, model.largest_batch(cases.len()), &parameters)?;
        let mut comparisons = Vec::new();
        for ((&task, alone), batched) in tasks.iter().zip(&alone).zip(&batched) {
            comparisons.push(Comparison::of(task, ALONE, self.min_cosine, &cases, alone)?);
            comparisons.push(Comparison::of(task, BATCHED, self.min_cosine, &cases, batched)?);
            comparisons.push(Comparison::beside(task, self.min_cosine, alone, batched));
        }
        Ok(self.report(&cases, &comparisons))
    }

    fn parameters(&self, tasks: &[Task]) -> Map<String, Value> {
        let mut parameters = Map::new();
        if let Some(name) = &self.prompt_name {
            parameters.insert("prompt_name".to_owned(), json!(name));
        }
        if tasks.contains(&Task::TokenClassify) {
            parameters.insert("aggregation_strategy".to_owned(), json!(self.aggregation));
        }
        parameters
    }

    fn report(&self, cases: &[Case], comparisons: &[Comparison]) -> (String, bool) {
        let lines: Vec<_> = comparisons
            .iter()
            .map(|c| {
                let style = if c.passes() { Style::Plain } else { Style::Bad };
                vec![
                    cell(c.task.name()),
                    cell(c.way),
                    (format!("{:.7}", c.lowest), style),
                    cell(format!("{:.7}", c.mean)),
                    cell(shown(&cases[c.worst].text)),
                ]
            })
            .collect();
        let mut out = String::new();
        table(&mut out, &["task", "asked", ">lowest", ">mean", "worst text"], &lines, colours());
        let with_library = || comparisons.iter().filter(|c| c.way != BESIDE);
        let lowest = with_library().map(|c| c.lowest).fold(1.0, lower);
        let passed = comparisons.iter().all(Comparison::passes);
        let worst = with_library().find(|c| c.lowest.total_cmp(&lowest).is_eq() || c.lowest.is_nan());
        let measure = worst.map_or("cosine", |c| measure(c.task));
        let what = if with_library().all(Comparison::passes) { "serves what" } else { "does not serve what" };
        let (library, bar) = (self.library.name(), self.min_cosine);
        let mut sentence = format!(
            "model '{}' {what} {library} computes: lowest {measure} {lowest:.7} over {} texts, expected at least {bar}",
            self.model,
            cases.len()
        );
        if let Some(beside) = comparisons.iter().find(|c| c.way == BESIDE && !c.passes()) {
            sentence += &format!(
                "; but the answer for a text depends on the others of its request: {:.7} for '{}', expected at least {:.7}",
                beside.lowest,
                shown(&cases[beside.worst].text),
                beside.bar
            );
        }
        out.push_str(&format!("{}\n", paint(&sentence, if passed { Style::Good } else { Style::Bad }, colours())));
        (out, passed)
    }
}

// === impl Comparison ===

impl Comparison {
    /// Answers beside the library's.
    fn of(
        task: Task,
        way: &'static str,
        bar: f64,
        cases: &[Case],
        answers: &[TextResult],
    ) -> anyhow::Result<Comparison> {
        let mut alike = Vec::with_capacity(cases.len());
        for (case, answer) in cases.iter().zip(answers) {
            let expected = expected(task, &case.line).with_context(|| format!("for text '{}'", shown(&case.text)))?;
            alike.push(answer.likeness(&expected));
        }
        Ok(Comparison::summary(task, way, bar, &alike))
    }

    /// The answers of a batch beside those for each text alone. They come from one graph, so that the bar is ten times as close to 1 as that
    /// for the library, which computes by other means.
    fn beside(task: Task, bar: f64, alone: &[TextResult], batched: &[TextResult]) -> Comparison {
        let alike: Vec<f64> = alone.iter().zip(batched).map(|(alone, batched)| batched.likeness(alone)).collect();
        Comparison::summary(task, BESIDE, 1.0 - (1.0 - bar) / 10.0, &alike)
    }

    fn summary(task: Task, way: &'static str, bar: f64, alike: &[f64]) -> Comparison {
        let worst = (0..alike.len()).min_by(|&a, &b| {
            let rank = |value: f64| if value.is_nan() { f64::NEG_INFINITY } else { value };
            rank(alike[a]).total_cmp(&rank(alike[b]))
        });
        let worst = worst.unwrap_or(0);
        let mean = alike.iter().sum::<f64>() / alike.len() as f64;
        Comparison { task, way, bar, lowest: alike[worst], mean, worst }
    }

    /// Whether all answers are alike enough. What is no number is not.
    fn passes(&self) -> bool {
        self.lowest >= self.bar
    }
}

/// A text as it is shown: its beginning, on one line.
fn shown(text: &str) -> String {
    let line = harmless(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}… ({} characters)", &line[..end], text.chars().count()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(text: &str, embedding: &[f64]) -> Case {
        Case { text: text.to_owned(), pair: None, line: json!({ "embedding": embedding }) }
    }

    fn comparing(min_cosine: f64) -> Comparing {
        Comparing {
            model: "m".to_owned(),
            library: Library::File("f".into()),
            tasks: vec![],
            texts: None,
            min_cosine,
            prompt_name: None,
            aggregation: "simple".to_owned(),
        }
    }

    #[test]
    fn the_worst_text_is_named_and_decides() {
        let cases = [case("good", &[1.0, 0.0]), case("bad one", &[0.0, 1.0])];
        let answers = [TextResult::Vector(vec![1.0, 0.0]), TextResult::Vector(vec![0.6, 0.8])];
        let comparison = Comparison::of(Task::Embed, ALONE, 0.9, &cases, &answers).unwrap();
        assert_eq!((comparison.worst, comparison.lowest, comparison.mean), (1, 0.8, 0.9));
        let (text, passed) = comparing(0.9).report(&cases, &[comparison]);
        assert!(!passed && text.contains("bad one") && text.contains("lowest cosine 0.8000000 over 2 texts"), "{text}");
    }

    #[test]
    fn what_is_no_number_fails_whatever_the_bar() {
        let cases = [case("t", &[1.0]), case("u", &[1.0])];
        let answers = [TextResult::Vector(vec![f64::NAN]), TextResult::Vector(vec![1.0])];
        let comparison = Comparison::of(Task::Embed, BATCHED, 0.0, &cases, &answers).unwrap();
        assert_eq!(comparison.worst, 0);
        assert!(!comparing(0.0).report(&cases, &[comparison]).1);
    }

    #[test]
    fn a_row_that_sees_its_neighbours_fails_although_the_library_is_as_far_away() {
        let cases = [case("t", &[1.0, 0.0]), case("u", &[1.0, 0.0])];
        let right = TextResult::Vector(vec![1.0, 0.0]);
        let batched = [right.clone(), TextResult::Vector(vec![0.99995, 0.01])];
        let with_library = Comparison::of(Task::Embed, BATCHED, 0.9999, &cases, &batched).unwrap();
        assert!(with_library.passes());
        let beside = Comparison::beside(Task::Embed, 0.9999, &[right.clone(), right], &batched);
        let (text, passed) = comparing(0.9999).report(&cases, &[with_library, beside]);
        assert!(!passed && text.contains("depends on the others of its request"), "{text}");
    }

    #[test]
    fn long_texts_are_shown_by_their_beginning() {
        assert_eq!(shown("a\n b"), "a b");
        assert!(shown(&"é".repeat(99)).ends_with("… (99 characters)"));
    }
}
