//! The model that is verified, over HTTP as any client asks it.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};
use trireme_inference::Name;
use trireme_model_repository::Task;

use super::answers::{Output, Outputs, TextResult, read};
use super::reference::Case;
use crate::client::{Client, ServerArgs, Told};

/// The context of an error: the model answers a text with an error, as a graph does that was traced for one length.
#[derive(Clone, Copy, Debug)]
pub struct NoAnswer;

/// A model of a server.
pub struct Model {
    client: Client,
    path: String,
    /// Its configuration.
    pub config: Value,
    /// The inputs of texts and of second texts: name, dimensions, whether requests may do without.
    texts: Vec<TextInput>,
}

struct TextInput {
    name: String,
    dimensions: usize,
    optional: bool,
}

// === impl NoAnswer ===

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the model does not answer its texts")
    }
}

// === impl Model ===

impl Model {
    /// Asks the server at `url` for the model.
    pub fn new(url: &str, model: &str, headers: Vec<String>, timeout_secs: u64) -> anyhow::Result<Model> {
        let client = Client::new(&ServerArgs::at(url, headers, timeout_secs))?;
        let path = format!("/v2/models/{model}");
        let config = client.get(&format!("{path}/config"))?;
        let metadata = client.get(&path)?;
        let inputs = metadata["inputs"].as_array().context("the model's metadata has no inputs")?;
        let texts: Vec<TextInput> = inputs
            .iter()
            .filter(|input| input["datatype"] == "BYTES")
            .map(|input| {
                let name = input["name"].as_str().unwrap_or_default().to_owned();
                let dimensions = input["shape"].as_array().map_or(1, Vec::len).max(1);
                let declared = config["input"].as_array().into_iter().flatten().find(|own| own["name"] == *name);
                let optional = declared.is_some_and(|own| own["optional"] == true);
                TextInput { name, dimensions, optional }
            })
            .collect();
        ensure!(!texts.is_empty(), "model '{model}' takes no texts: verify the ensemble, not one of its steps");
        Ok(Model { client, path, config, texts })
    }

    /// Whether to ask the model with pairs: it needs them, or its task does.
    pub fn takes_pairs(&self, needed: bool) -> bool {
        self.texts.get(1).is_some_and(|pair| needed || !pair.optional)
    }

    /// The most rows of one request, no more than there are.
    pub fn largest_batch(&self, rows: usize) -> usize {
        let largest = self.config["max_batch_size"].as_u64().unwrap_or(0) as usize;
        if largest == 0 { rows } else { largest.min(rows) }
    }

    /// The answers to all cases, task by task, asked in requests of `rows` rows.
    pub fn ask(
        &self,
        tasks: &[Task],
        cases: &[Case],
        rows: usize,
        parameters: &Map<String, Value>,
    ) -> anyhow::Result<Vec<Vec<TextResult>>> {
        let mut answers = vec![Vec::with_capacity(cases.len()); tasks.len()];
        for cases in cases.chunks(rows.max(1)) {
            let (outputs, _) = self.infer(cases, parameters, &[]).context(NoAnswer)?;
            for (task, answers) in tasks.iter().zip(&mut answers) {
                answers.extend(read(*task, &outputs, cases.len())?);
            }
        }
        Ok(answers)
    }

    /// The space of the model's answers of a task, as one for this case tells it; `None` where it tells none.
    pub fn space(&self, task: Task, case: &Case, parameters: &Map<String, Value>) -> anyhow::Result<Option<String>> {
        let own =
            |name: &&str| self.config["output"].as_array().into_iter().flatten().any(|output| output["name"] == *name);
        let outputs: Vec<&str> = task.outputs().iter().map(|(name, ..)| *name).filter(own).collect();
        let (_, told) = self.infer(std::slice::from_ref(case), parameters, &outputs)?;
        Ok(Some(told.space).filter(|space| !space.is_empty()))
    }

    /// The spaces of the model's steps, as the server's status tells them, each once.
    pub fn steps(&self, model: &str) -> anyhow::Result<Vec<Name>> {
        let status = self.client.get("/v2/trireme/status")?;
        let of_model = |entry: &&Value| {
            let rest = entry["name"].as_str().and_then(|name| name.strip_prefix(model));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        };
        let entries = status["models"].as_array().context("the server's status has no models")?.iter().filter(of_model);
        let steps: BTreeSet<Name> = entries
            .filter_map(|entry| entry["space"].as_str())
            .flat_map(|space| space.split('.'))
            .map(Name::from)
            .collect();
        Ok(steps.into_iter().collect())
    }

    /// The answer to some cases with these outputs, all where none is named.
    fn infer(
        &self,
        cases: &[Case],
        parameters: &Map<String, Value>,
        outputs: &[&str],
    ) -> anyhow::Result<(Outputs, Told)> {
        let tensor = |input: &TextInput, texts: Vec<&str>| {
            let shape: Vec<usize> = std::iter::once(texts.len()).chain(vec![1; input.dimensions - 1]).collect();
            json!({ "name": input.name, "datatype": "BYTES", "shape": shape, "data": texts })
        };
        let mut inputs = vec![tensor(&self.texts[0], cases.iter().map(|case| case.text.as_str()).collect())];
        let pairs: Option<Vec<&str>> = cases.iter().map(|case| case.pair.as_deref()).collect();
        if let (Some(input), Some(pairs)) = (self.texts.get(1), pairs) {
            inputs.push(tensor(input, pairs));
        }
        let mut request = json!({ "inputs": inputs });
        if !parameters.is_empty() {
            request["parameters"] = Value::Object(parameters.clone());
        }
        if !outputs.is_empty() {
            request["outputs"] = outputs.iter().map(|name| json!({ "name": name })).collect();
        }
        let (mut answer, told) = self.client.post(&format!("{}/infer", self.path), &request)?;
        let outputs = answer["outputs"].as_array_mut().context("the answer has no outputs")?;
        let output = |output: &mut Value| {
            let shape = output["shape"].as_array().into_iter().flatten().filter_map(Value::as_u64);
            let shape = shape.map(|dimension| dimension as usize).collect();
            let Value::Array(data) = output["data"].take() else { return None };
            Some((output["name"].as_str()?.to_owned(), Output { shape, data }))
        };
        Ok((outputs.iter_mut().filter_map(output).collect(), told))
    }
}
