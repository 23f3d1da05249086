//! A server in this process on which the original and its variants stand side by side, as `trireme serve` would serve them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};
use trireme_model::OnnxRuntimeArgs;
use trireme_model_repository::{ModelFolder, Placement, Task, TemporaryFolder};

use crate::client::{Client, ServerArgs};
use crate::serve::{Server, own_server};
use crate::verify::answers::{TextResult, tasks_of};
use crate::verify::reference::Case;
use crate::verify::served::Model;

/// The original's name on the server.
pub const EXACT: &str = "exact";

/// Seconds for an answer; loading a large model and asking for many texts takes long.
const TIMEOUT_SECS: u64 = 600;

/// The most texts of one request.
const BATCH: usize = 32;

/// The folder and the variants, as models of one repository.
pub struct Stand {
    folder: ModelFolder,
    repository: TemporaryFolder,
    /// `127.0.0.1:PORT`
    address: String,
    client: Client,
}

// === impl Stand ===

impl Stand {
    /// Serves the folder as [`EXACT`]. The server has to be drained.
    pub async fn start(folder: ModelFolder, onnxruntime: &OnnxRuntimeArgs) -> anyhow::Result<(Stand, Server)> {
        let repository = TemporaryFolder::new("optimize")?;
        write(&folder, EXACT, repository.path())?;
        let path = repository.path().display().to_string();
        let load = format!("--load-model={EXACT}");
        let flags = ["--model-repository", &path, "--model-control-mode=explicit", &load];
        let server = Server::open(&own_server(&flags, onnxruntime)?).await?;
        server.load().await?;
        let address = server.http_address().context("the server does not listen for HTTP")?.to_string();
        let client = Client::new(&ServerArgs::at(format!("http://{address}"), Vec::new(), TIMEOUT_SECS))?;
        Ok((Stand { folder, repository, address, client }, server))
    }

    /// Serves the files of a variant, which lie in `variant`, as model `name`. The graph there is called `graph`.
    pub fn add(&self, name: &str, variant: &Path, graph: &str) -> anyhow::Result<()> {
        write(&self.folder, name, self.repository.path())?;
        let model = self.repository.path().join(format!("{name}_model"));
        let (version, config) = (model.join("1"), model.join("config.pbtxt"));
        for entry in fs::read_dir(variant)?.flatten() {
            let target = version.join(entry.file_name());
            // The name may be a link to a file of the folder, which is not to be written over.
            let _ = fs::remove_file(&target);
            fs::hard_link(entry.path(), &target).or_else(|_| fs::copy(entry.path(), &target).map(drop))?;
        }
        let own = self.folder.description.graph().context("the model has no graph")?;
        let own = own.rsplit('/').next().unwrap_or(own);
        let named = |graph: &str| format!("default_model_filename: \"{graph}\"");
        let text = fs::read_to_string(&config)?;
        ensure!(text.contains(&named(own)), "the configuration of {name}_model does not name its file {own}");
        fs::write(&config, text.replace(&named(own), &named(graph)))?;
        self.client.post(&format!("/v2/repository/models/{name}/load"), &json!({})).map(drop)
    }

    /// Takes a model and its parts off the server.
    pub fn remove(&self, name: &str) -> anyhow::Result<()> {
        let all = json!({ "parameters": { "unload_dependents": true } });
        self.client.post(&format!("/v2/repository/models/{name}/unload"), &all)?;
        Ok(())
    }

    fn model(&self, name: &str) -> anyhow::Result<Model> {
        Model::new(&format!("http://{}", self.address), name, Vec::new(), TIMEOUT_SECS)
    }

    /// The model's task, and whether it takes pairs.
    pub fn task(&self) -> anyhow::Result<(Task, bool)> {
        let model = self.model(EXACT)?;
        let task = *tasks_of(&model.config)?.first().context("the model has no task")?;
        Ok((task, model.takes_pairs(task == Task::Rerank)))
    }

    /// The answers of a model for each case alone, or with others in one request.
    pub fn answers(&self, name: &str, task: Task, cases: &[Case], alone: bool) -> anyhow::Result<Vec<TextResult>> {
        let rows = if alone { 1 } else { BATCH };
        let answers = self.model(name)?.ask(&[task], cases, rows, &Map::new())?;
        answers.into_iter().next().context("the model gave no answers")
    }

    /// The token ids of each case as the graph takes them: a JSON object of lists by input.
    pub fn token_rows(&self, cases: &[&Case]) -> anyhow::Result<Vec<Value>> {
        let inputs = self.client.get(&format!("/v2/models/{EXACT}_model"))?;
        let wanted: Vec<Value> =
            inputs["inputs"].as_array().into_iter().flatten().map(|input| json!({ "name": input["name"] })).collect();
        let row = |case: &&Case| {
            let text =
                |name: &str, text: &str| json!({ "name": name, "datatype": "BYTES", "shape": [1], "data": [text] });
            let mut inputs = vec![text("TEXT", &case.text)];
            inputs.extend(case.pair.as_ref().map(|pair| text("TEXT_PAIR", pair)));
            let request = json!({ "inputs": inputs, "outputs": wanted });
            let (answer, _) = self.client.post(&format!("/v2/models/{EXACT}_tokenizer/infer"), &request)?;
            let outputs = answer["outputs"].as_array().context("the tokenizer gave no outputs")?;
            let named = |output: &Value| Some((output["name"].as_str()?.to_owned(), output["data"].clone()));
            Ok(Value::Object(outputs.iter().filter_map(named).collect()))
        };
        cases.iter().map(row).collect()
    }

    /// Texts per second of each model, measured in turns: as many rounds for each.
    pub async fn rates(
        &self,
        models: &[String],
        texts: &[String],
        concurrency: usize,
        rounds: usize,
        each: Duration,
    ) -> anyhow::Result<Vec<Vec<f64>>> {
        let mut rates = vec![Vec::with_capacity(rounds); models.len()];
        for round in 0..rounds {
            for (model, rates) in models.iter().zip(&mut rates) {
                rates.push(crate::bench::rate(&self.address, model, texts, concurrency, each).await?);
            }
            tracing::info!("measured round {} of {rounds}", round + 1);
        }
        Ok(rates)
    }
}

fn write(folder: &ModelFolder, name: &str, repository: &Path) -> anyhow::Result<()> {
    let named = ModelFolder { name: name.to_owned(), ..folder.clone() };
    Ok(named.write(repository, Placement::Link)?)
}
