//! The model that is verified, over HTTP as any client asks it.

use std::fmt;

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};
use trireme_model_repository::Task;

use super::answers::{Output, Outputs, TextResult, read};
use super::reference::Case;
use crate::client::{Client, ServerArgs};

/// The context of an error: the model answers a text with an error, as a graph does that was traced for one length.
#[derive(Clone, Copy, Debug)]
pub struct NoAnswer;

/// A model of a server.
pub struct Model {
    client: Client,
    path: String,
    /// Its configuration.
    pub config: Value,
    /// The space of its answers, where the server tells it.
    pub space: Option<String>,
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
        let space = metadata["properties"]["space"].as_str().map(str::to_owned);
        Ok(Model { client, path, config, space, texts })
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
            let outputs = self.infer(cases, parameters).context(NoAnswer)?;
            for (task, answers) in tasks.iter().zip(&mut answers) {
                answers.extend(read(*task, &outputs, cases.len())?);
            }
        }
        Ok(answers)
    }

    fn infer(&self, cases: &[Case], parameters: &Map<String, Value>) -> anyhow::Result<Outputs> {
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
        let (mut answer, _) = self.client.post(&format!("{}/infer", self.path), &request)?;
        let outputs = answer["outputs"].as_array_mut().context("the answer has no outputs")?;
        let output = |output: &mut Value| {
            let shape = output["shape"].as_array().into_iter().flatten().filter_map(Value::as_u64);
            let shape = shape.map(|dimension| dimension as usize).collect();
            let Value::Array(data) = output["data"].take() else { return None };
            Some((output["name"].as_str()?.to_owned(), Output { shape, data }))
        };
        Ok(outputs.iter_mut().filter_map(output).collect())
    }
}
