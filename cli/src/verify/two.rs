//! `trireme verify A B`: whether the vectors of two models may be compared. Both are asked the same texts, each text alone.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value, json};
use trireme_inference::Equivalence;
use trireme_model_repository::{EquivalentSpaces, Measured, Task, folder_name, hub_name, is_model_folder, snapshot};
use trireme_runtime::{local_folder, name_and_model};

use super::answers::{measure, task_of, tasks_of};
use super::likeness::{Answer, Likeness, rank, sentence};
use super::one::VerifyArgs;
use super::probes::{Kind, built_in};
use super::reference::Case;
use super::served::Model;
use crate::serve::{self, Server};
use crate::style::harmless;

/// Where a model is.
#[derive(Clone, Debug, PartialEq)]
enum Place {
    /// A model of a server: its URL, and the name there.
    Server { url: String, name: String },
    /// A model folder, or the URL of one, and the name to serve it under.
    Folder { word: String, name: Option<String> },
}

/// Two models, and how they are compared.
struct Two {
    /// As the command line has them.
    names: [String; 2],
    places: [Place; 2],
    /// The folder of the second one, where the result is written beside it.
    record: Option<PathBuf>,
    tasks: Vec<Task>,
    texts: Vec<String>,
    prompt_name: Option<String>,
    headers: Vec<String>,
    timeout_secs: u64,
    bar: f64,
}

/// The answers of a model for all texts, task by task.
struct Answered {
    tasks: Vec<Task>,
    answers: Vec<Vec<Answer>>,
    /// Task by task, where the server tells it.
    spaces: Vec<Option<String>>,
}

/// The outcome for people or programs, and whether the models are alike.
pub struct Compared {
    pub text: String,
    pub passed: bool,
}

// === impl Place ===

impl Place {
    /// A word of the command line. With `--server` a name is that of a model there.
    fn of(word: &str, server: Option<&str>) -> anyhow::Result<Place> {
        let (name, target) = name_and_model(word);
        if word.starts_with("http://") || (word.starts_with("https://") && !is_of_folder(word)) {
            let (url, name) = word.trim_end_matches('/').rsplit_once('/').unwrap_or_default();
            let is_whole = url.matches('/').count() == 2;
            ensure!(
                is_whole && !name.is_empty(),
                "expected URL/NAME, such as http://127.0.0.1:8000/my-model, found {word}"
            );
            return Ok(Place::Server { url: url.to_owned(), name: name.to_owned() });
        }
        match server {
            Some(url) if !target.contains("://") && !is_model_folder(Path::new(target)) => {
                Ok(Place::Server { url: url.to_owned(), name: word.to_owned() })
            }
            _ => Ok(Place::Folder { word: target.to_owned(), name: name.map(str::to_owned) }),
        }
    }

    /// The folder on this machine beside which a record can be written.
    fn folder_to_record(&self, word: &str) -> anyhow::Result<PathBuf> {
        match self {
            Place::Server { .. } => {
                bail!(
                    "{word} is a model of a server, expected for --record the folder on this machine which that server loads"
                )
            }
            Place::Folder { word, .. } if word.contains("://") => {
                bail!("{word} lies elsewhere, expected for --record a folder on this machine")
            }
            Place::Folder { word, .. } => {
                let path = Path::new(word);
                let cached = snapshot(path).unwrap_or_else(|| path.to_owned());
                ensure!(
                    hub_name(&cached).is_none(),
                    "{word} is of the hub's cache, expected for --record a folder of your own, such as a copy of it"
                );
                Ok(path.to_owned())
            }
        }
    }

    /// Whether the second word of the command line is another model, and not the name of the first one.
    pub fn is_one(word: &str) -> bool {
        word.contains("://") || is_model_folder(Path::new(name_and_model(word).1))
    }
}

/// Whether an https:// URL has a path of several parts or a file's name, as that of a model folder: a server's has the name of a model.
fn is_of_folder(word: &str) -> bool {
    let path = word.trim_end_matches('/').splitn(4, '/').nth(3).unwrap_or_default();
    path.contains('/') || path.contains(".tar") || path.ends_with(".zip")
}

// === impl VerifyArgs ===

impl VerifyArgs {
    /// Whether the flags name two models to compare with each other.
    pub fn names_two(&self) -> bool {
        self.model.as_deref().is_some_and(|second| self.server.is_some() || Place::is_one(second))
    }
}

/// Compares two models.
pub async fn verify_two(args: &VerifyArgs) -> anyhow::Result<Compared> {
    ensure!(
        args.folder.is_none() && args.vectors.is_none(),
        "two models are compared with each other: leave out --folder and --vectors"
    );
    let server = args.server.as_deref();
    let second = args.model.as_deref().unwrap_or_default();
    let mut places = [Place::of(&args.target, server)?, Place::of(second, server)?];
    let record = args.record.then(|| places[1].folder_to_record(second)).transpose()?;
    let own = Own::open(args, &mut places).await?;
    let two = Two {
        names: [args.target.clone(), second.to_owned()],
        places,
        record,
        tasks: args.choices.task.iter().map(|name| task_of(name)).collect::<anyhow::Result<_>>()?,
        texts: texts(args.texts.as_deref())?,
        prompt_name: args.prompt_name.clone(),
        headers: args.headers.clone(),
        timeout_secs: args.timeout_secs,
        bar: args.min_cosine,
    };
    let json = args.json;
    // The HTTP client blocks, and the server in this process has to go on.
    let compared = tokio::task::spawn_blocking(move || two.compare(json)).await;
    if let Some(own) = own {
        own.drain().await;
    }
    compared.context("comparing ended early")?
}

/// The user's texts, one a line, or those of this command.
fn texts(file: Option<&Path>) -> anyhow::Result<Vec<String>> {
    let Some(path) = file else { return Ok(built_in()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let texts: Vec<String> = text.lines().map(str::to_owned).collect();
    ensure!(!texts.is_empty(), "{} is empty: expected a text on each line", path.display());
    Ok(texts)
}

/// The server of this process, for the folders among two models.
struct Own;

impl Own {
    /// Serves the folders, and makes them models of that server. `None` where there are none.
    async fn open(args: &VerifyArgs, places: &mut [Place; 2]) -> anyhow::Result<Option<Server>> {
        let choices = args.choices.choices()?;
        let mut folders: Vec<(usize, String, PathBuf)> = Vec::new();
        for (number, place) in places.iter().enumerate() {
            let Place::Folder { word, name } = place else { continue };
            let folder = local_folder(Path::new(word), name.as_deref(), &choices).await?;
            ensure!(
                is_model_folder(&folder),
                "{word} is no model folder: two models are compared by their folders, or by names of a server (--server URL, or URL/NAME)"
            );
            let mut name = name.clone().unwrap_or_else(|| folder_name(&folder));
            if folders.iter().any(|(_, other, _)| *other == name) {
                name.push_str("-2");
            }
            folders.push((number, name, folder));
        }
        if folders.is_empty() {
            return Ok(None);
        }
        let models = folders.iter().map(|(_, name, folder)| format!("--model={name}={}", folder.display()));
        let flags: Vec<String> = models.chain(args.choices.words()).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::open(&serve::own_server(&flags, &args.onnxruntime)?).await?;
        if let Err(error) = server.load().await {
            server.drain().await;
            return Err(error);
        }
        let address = server.http_address().context("the server does not listen for HTTP")?;
        for (number, name, _) in folders {
            places[number] = Place::Server { url: format!("http://{address}"), name };
        }
        Ok(Some(server))
    }
}

// === impl Two ===

impl Two {
    fn compare(&self, as_json: bool) -> anyhow::Result<Compared> {
        let first = self.answers(&self.places[0], None)?;
        let second = self.answers(&self.places[1], Some(&first.tasks))?;
        let tasks = first.tasks.iter().zip(first.answers.iter().zip(&second.answers));
        let found: Vec<(Task, Likeness)> =
            tasks.map(|(task, (one, other))| (*task, Likeness::of(&self.texts, one, other))).collect();
        let passed = found.iter().all(|(_, likeness)| likeness.passes(self.bar));
        let is_one_space = first.spaces == second.spaces && first.spaces.iter().all(Option::is_some);
        let recorded = match &self.record {
            Some(folder) if passed && !is_one_space => Some(self.record(folder, &first, &second, &found)?),
            _ => None,
        };
        let spaces = [&first, &second].map(|model| model.spaces.first().cloned().flatten());
        if as_json {
            let tasks: Map<String, Value> =
                found.iter().map(|(task, likeness)| (task.name().to_owned(), likeness.to_json())).collect();
            let printed = json!({
                "models": self.names, "spaces": spaces, "one_space": is_one_space, "alike": passed, "min_cosine": self.bar, "tasks": tasks,
                "record": recorded,
            });
            return Ok(Compared { text: format!("{printed}\n"), passed });
        }
        let mut text = String::new();
        for (task, likeness) in &found {
            text.push_str(&likeness.table(measure(*task), self.bar));
        }
        text.push_str(&self.sentence(&spaces, &found, passed));
        if self.record.is_some() {
            let said = match &recorded {
                Some(path) => format!(
                    "{}: a server that loads the folder now counts its answers as of both spaces",
                    path.display()
                ),
                None if passed => "nothing is recorded: their space is one".to_owned(),
                None => "nothing is recorded".to_owned(),
            };
            text.push_str(&sentence(&harmless(&said), passed));
        }
        Ok(Compared { text, passed })
    }

    /// Writes the figures into the folder of the second model. Returns the file.
    fn record(
        &self,
        folder: &Path,
        first: &Answered,
        second: &Answered,
        found: &[(Task, Likeness)],
    ) -> anyhow::Result<PathBuf> {
        let mut record = EquivalentSpaces::read(folder)?.unwrap_or_default();
        let (model, name) = self.model(&self.places[1])?;
        let steps = model.steps(name)?;
        for ((task, likeness), (to, space)) in found.iter().zip(first.spaces.iter().zip(&second.spaces)) {
            let (Some(to), Some(space)) = (to, space) else {
                bail!(
                    "the space of one of the models is not known, and no record is written: check the logs of their servers"
                );
            };
            if to == space {
                continue;
            }
            let measured = Measured {
                equivalence: Equivalence { space: space.as_str().into(), to: to.as_str().into() },
                task: task.name().to_owned(),
                model: self.names[0].clone(),
                min_cosine: self.bar,
                figures: likeness.to_json(),
            };
            record.add(&steps, measured);
        }
        record.write(folder).with_context(|| format!("cannot write the record into {}", folder.display()))
    }

    fn sentence(&self, spaces: &[Option<String>; 2], found: &[(Task, Likeness)], passed: bool) -> String {
        let [one, other] = [&self.names[0], &self.names[1]].map(|name| harmless(name));
        let worst = found.iter().min_by(|a, b| rank(a.1.all.lowest).total_cmp(&rank(b.1.all.lowest)));
        let figures = worst.map(|(task, likeness)| {
            let text = self.texts.get(likeness.all.worst).map_or("", String::as_str);
            let lowest = likeness.all.lowest;
            format!(
                "lowest {} {lowest:.7} over {} texts, of a text that is {}",
                measure(*task),
                self.texts.len(),
                Kind::of(text).name()
            )
        });
        let figures = format!("{}, expected at least {}", figures.unwrap_or_default(), self.bar);
        let spaces = match spaces {
            [Some(one), Some(other)] if one == other => format!("both have space {}", harmless(one)),
            [Some(one), Some(other)] if passed => {
                format!(
                    "their spaces are two: clients that take both send 'If-Space: {}, {}'",
                    harmless(one),
                    harmless(other)
                )
            }
            [Some(one), Some(other)] => format!("their spaces are {} and {}", harmless(one), harmless(other)),
            _ => "the space of one of them is not known".to_owned(),
        };
        let whether = if passed { "may be compared with" } else { "may not be compared with" };
        sentence(&format!("answers of '{one}' {whether} those of '{other}': {figures}; {spaces}"), passed)
    }

    /// A model as its server has it, and its name there.
    fn model<'a>(&self, place: &'a Place) -> anyhow::Result<(Model, &'a str)> {
        let Place::Server { url, name } = place else { bail!("expected a model of a server, found a folder") };
        Ok((Model::new(url, name, self.headers.clone(), self.timeout_secs)?, name))
    }

    /// The answers of a model, for these tasks or its own.
    fn answers(&self, place: &Place, tasks: Option<&[Task]>) -> anyhow::Result<Answered> {
        let (model, name) = self.model(place)?;
        let own = tasks_of(&model.config)?;
        let tasks = match tasks {
            None if self.tasks.is_empty() => own,
            None => self.tasks.clone(),
            Some(tasks) => {
                let missing = tasks.iter().find(|task| !own.contains(task) && self.tasks.is_empty());
                if let Some(task) = missing {
                    bail!(
                        "model '{name}' does not do '{task}', which the other one does: name a task of both by --task"
                    );
                }
                tasks.to_vec()
            }
        };
        let pairs = model.takes_pairs(tasks.contains(&Task::Rerank)).then(|| super::texts::pairs(&self.texts));
        let case = |(number, text): (usize, &String)| Case {
            text: text.clone(),
            pair: pairs.as_ref().map(|pairs| pairs[number].clone()),
            line: Value::Null,
        };
        let cases: Vec<Case> = self.texts.iter().enumerate().map(case).collect();
        let mut parameters = Map::new();
        parameters.extend(self.prompt_name.iter().map(|prompt| ("prompt_name".to_owned(), json!(prompt))));
        let mut answers: Vec<Vec<Answer>> = vec![Vec::new(); tasks.len()];
        let mut refusal = None;
        for case in &cases {
            match model.ask(&tasks, std::slice::from_ref(case), 1, &parameters) {
                Ok(found) => {
                    let rows = found.into_iter().map(|rows| rows.into_iter().next());
                    answers.iter_mut().zip(rows).for_each(|(all, row)| all.push(row));
                }
                Err(error) => {
                    answers.iter_mut().for_each(|all| all.push(None));
                    refusal = Some(error);
                }
            }
        }
        let refused = answers.iter().any(|all| all.iter().all(Option::is_none));
        if let Some(error) = refusal.filter(|_| refused) {
            return Err(error.context(format!("model '{name}' answers none of the texts: check its log")));
        }
        let case = |all: &[Answer]| all.iter().position(Option::is_some).map_or(&cases[0], |place| &cases[place]);
        let spaces = tasks.iter().zip(&answers).map(|(task, all)| model.space(*task, case(all), &parameters));
        let spaces = spaces.collect::<anyhow::Result<_>>()?;
        Ok(Answered { tasks, answers, spaces })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_model_of_a_server_or_a_folder() {
        let server = |url: &str, name: &str| Place::Server { url: url.to_owned(), name: name.to_owned() };
        let folder = |word: &str| Place::Folder { word: word.to_owned(), name: None };
        assert_eq!(Place::of("http://h:8000/m", None).unwrap(), server("http://h:8000", "m"));
        assert_eq!(Place::of("https://h/m/", None).unwrap(), server("https://h", "m"));
        assert_eq!(Place::of("m", Some("http://h")).unwrap(), server("http://h", "m"));
        for word in ["hf://org/model", "https://h/models/m.tar.gz", "./m"] {
            assert_eq!(Place::of(word, None).unwrap(), folder(word), "{word}");
        }
        assert_eq!(Place::of("hf://org/model", Some("http://h")).unwrap(), folder("hf://org/model"));
        let error = Place::of("http://h:8000", None).unwrap_err().to_string();
        assert!(error.contains("expected URL/NAME"), "{error}");
        assert!(Place::is_one("http://h/m") && !Place::is_one("tiny_embedding"));
    }
}
