//! The operations of a model on texts: those that its configuration names, or that its inputs and outputs make plain.
//!
//! A configuration says it by `parameters`: `task` (operations, comma separated), `served_names`, `labels`,
//! `prompts`, `query_prompt` and `document_prompt`. Not here: carrying an operation out.

use std::collections::{BTreeMap, BTreeSet};

use trireme_inference::{DataType, TensorSpec};
use trireme_model_repository::ModelConfig;

pub use trireme_model_repository::Task;

/// The backend of tokenizers.
pub const TOKENIZER: &str = "tokenizer";

/// The offer of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Capabilities {
    /// The operations, each with the outputs that hold its result.
    pub tasks: BTreeMap<Task, Vec<String>>,
    /// Its inputs of texts: the texts, and where it has one the second texts of pairs.
    pub inputs: Vec<TensorSpec>,
    /// Names besides its own under which clients may name it.
    pub served_names: Vec<String>,
    /// Its classes in the order of the scores; empty where they have no names.
    pub labels: Vec<String>,
    /// Whether labels of requests stand in its rows, as those of GLiNER2 (`zero_shot`).
    pub takes_schema: bool,
    /// The names of its prompts.
    pub prompts: BTreeSet<String>,
    /// The prompt that queries take.
    pub query_prompt: Option<String>,
    /// The prompt that documents take.
    pub document_prompt: Option<String>,
    /// The ensembles that requests go through by their prompt, where queries and documents have steps of their own.
    pub routes: Option<Routes>,
}

/// The ensembles of a model whose requests go different ways (`routes`, `default_route`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes {
    /// The ensemble by the name of the request's prompt.
    pub by_prompt: BTreeMap<String, String>,
    /// Whether requests of other prompts, or of none, go through the model's own steps; else they are an error.
    pub has_usual: bool,
}

// === impl Capabilities ===

impl Capabilities {
    /// The prompt of queries.
    pub fn prompt_of_queries(&self) -> Option<&String> {
        self.query_prompt.as_ref().or_else(|| self.prompts.get("query"))
    }

    /// The prompt of documents.
    pub fn prompt_of_documents(&self) -> Option<&String> {
        self.document_prompt.as_ref().or_else(|| self.prompts.get("document"))
    }

    /// Whether queries or documents have a prompt of their own.
    pub fn tells_queries_apart(&self) -> bool {
        let named = |name: &str| self.prompts.contains(name);
        self.query_prompt.is_some() || self.document_prompt.is_some() || named("query") || named("document")
    }

    /// The offer of a model with these inputs and outputs. The error names the faulty parameter.
    pub fn of(config: &ModelConfig, inputs: &[TensorSpec], outputs: &[TensorSpec]) -> Result<Capabilities, String> {
        if config.parameters.contains_key("route_of") {
            // Requests name the model that it is a route of.
            return Ok(Capabilities::default());
        }
        let texts: Vec<_> = inputs.iter().filter(|input| is_texts(input)).cloned().collect();
        let others = inputs.iter().any(|input| !input.optional && !is_texts(input));
        let text = |name: &str| config.parameters.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
        let Some(tasks) = text("task") else {
            let mut tasks = if others { BTreeMap::new() } else { inferred(&texts, outputs) };
            tasks.retain(|task, _| !task.is_tokenizers() || config.backend == TOKENIZER);
            return Ok(Capabilities {
                tasks,
                inputs: texts,
                served_names: served_names(config),
                ..Capabilities::default()
            });
        };
        let fault = |what: String| format!("model '{}': parameter {what}", config.name);
        let takes_schema = match text("zero_shot") {
            None | Some("nli") => false,
            Some("schema") => true,
            Some(other) => return Err(fault(format!("'zero_shot' is '{other}', expected nli or schema"))),
        };
        let mut capabilities = Capabilities { inputs: texts, takes_schema, ..Capabilities::default() };
        for name in listed(Some(tasks)) {
            let task = Task::named(name).ok_or_else(|| {
                let known = Task::ALL.map(Task::name).join(", ");
                fault(format!("'task' names '{name}', expected some of {known}"))
            })?;
            let result = task.find(outputs).ok_or_else(|| {
                let expected: Vec<_> = task.outputs().iter().map(|(name, ..)| format!("'{name}'")).collect();
                fault(format!("'task' names '{task}', expected output {} for it", expected.join(" and ")))
            })?;
            let needed = match task {
                Task::Rerank => 2,
                Task::ZeroShot if !takes_schema => 2,
                _ => 1,
            };
            if task != Task::Generate && (others || capabilities.inputs.len() < needed) {
                return Err(fault(format!(
                    "'task' names '{task}', expected {needed} TYPE_STRING input(s) of one text a row and no other input \
                     that is required"
                )));
            }
            capabilities.tasks.insert(task, result);
        }
        capabilities.served_names = served_names(config);
        capabilities.query_prompt = text("query_prompt").map(str::to_owned);
        capabilities.document_prompt = text("document_prompt").map(str::to_owned);
        if let Some(labels) = text("labels") {
            let read = serde_json::from_str(labels);
            capabilities.labels =
                read.map_err(|error| fault(format!("'labels' is no JSON array of class names: {error}")))?;
        }
        if capabilities.tasks.contains_key(&Task::ZeroShot) && capabilities.zero_shot().is_none() {
            let found = capabilities.labels.join(", ");
            return Err(fault(format!(
                "'task' names 'zero_shot', expected a label that begins with 'entail', and another one, in parameter 'labels', found: {found}"
            )));
        }
        if let Some(routes) = text("routes") {
            let read = serde_json::from_str(routes);
            let by_prompt =
                read.map_err(|error| fault(format!("'routes' is no JSON object of model names: {error}")))?;
            capabilities.routes = Some(Routes { by_prompt, has_usual: text("default_route").is_some() });
        }
        if let Some(prompts) = text("prompts") {
            let read: Result<BTreeMap<String, String>, _> = serde_json::from_str(prompts);
            let read = read.map_err(|error| fault(format!("'prompts' is no JSON object of texts: {error}")))?;
            capabilities.prompts = read.into_keys().collect();
        }
        Ok(capabilities)
    }
}

/// The names besides its own that a model's configuration gives it.
pub fn served_names(config: &ModelConfig) -> Vec<String> {
    listed(config.parameters.get("served_names").map(|names| names.as_str())).map(str::to_owned).collect()
}

/// Whether an input holds one text a row.
fn is_texts(input: &TensorSpec) -> bool {
    input.datatype == DataType::Bytes && matches!(*input.shape, [-1] | [-1, 1] | [-1, -1])
}

fn listed(text: Option<&str>) -> impl Iterator<Item = &str> {
    text.unwrap_or_default().split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// The operations that need not be declared, because inputs and outputs leave no other reading.
fn inferred(texts: &[TensorSpec], outputs: &[TensorSpec]) -> BTreeMap<Task, Vec<String>> {
    let required = texts.iter().filter(|input| !input.optional).count();
    let by_name = |task: Task| {
        let fits = |&(name, datatype, rank): &(&str, DataType, usize)| {
            outputs.iter().any(|o| o.name == name && o.datatype == datatype && (rank == 0 || o.shape.len() == rank))
        };
        !task.outputs().is_empty() && task.outputs().iter().all(fits)
    };
    let plain = |task: &Task| match task {
        Task::Rerank => {
            required == 2 && outputs.len() == 1 && matches!(*outputs[0].shape, [_, 1]) && task.find(outputs).is_some()
        }
        Task::Embed => {
            let named = |output: &TensorSpec| output.name.to_ascii_lowercase().contains("embed");
            required == 1 && (by_name(Task::Embed) || (outputs.len() == 1 && named(&outputs[0])))
        }
        Task::Classify => required == 1 && by_name(Task::Classify),
        Task::Sparse | Task::MultiVector | Task::TokenClassify | Task::Tokenize | Task::Decode => {
            required == 1 && by_name(*task)
        }
        Task::ZeroShot | Task::Extract | Task::Generate => false,
    };
    Task::ALL.into_iter().filter(plain).filter_map(|task| Some((task, task.find(outputs)?))).collect()
}

#[cfg(test)]
mod tests {
    use trireme_model_repository::Nli;

    use crate::ZeroShot;

    use super::*;

    const TEXT: &str = "input { name: 'TEXT' data_type: TYPE_STRING dims: [ -1 ] }";
    const PAIR: &str = "input { name: 'TEXT_PAIR' data_type: TYPE_STRING dims: [ -1 ] }";

    fn output(name: &str, datatype: &str, dims: &str) -> String {
        format!("output {{ name: '{name}' data_type: {datatype} dims: [ {dims} ] }}")
    }

    fn capabilities(parts: &[&str]) -> Result<Capabilities, String> {
        let config = ModelConfig::parse(&format!("backend: 'x' {}", parts.join(" ")), "m").expect("a configuration");
        Capabilities::of(&config, &config.input_specs(), &config.output_specs())
    }

    fn tasks(parts: &[&str]) -> Vec<Task> {
        capabilities(parts).expect("an offer").tasks.into_keys().collect()
    }

    fn parameter(name: &str, value: &str) -> String {
        format!("parameters {{ key: '{name}' value {{ string_value: '{value}' }} }}")
    }

    #[test]
    fn what_inputs_and_outputs_make_plain_need_not_be_declared() {
        assert_eq!(tasks(&[TEXT, &output("embedding", "TYPE_FP32", "-1, 8")]), [Task::Embed]);
        assert_eq!(tasks(&[TEXT, PAIR, &output("logits", "TYPE_FP32", "-1, 1")]), [Task::Rerank]);
        assert_eq!(tasks(&[TEXT, &output("scores", "TYPE_FP32", "-1, 3")]), [Task::Classify]);
        assert_eq!(tasks(&[TEXT, &output("entities", "TYPE_STRING", "-1")]), [Task::TokenClassify]);
        let [indices, values] = [("sparse_indices", "TYPE_INT64"), ("sparse_values", "TYPE_FP32")]
            .map(|(name, datatype)| output(name, datatype, "-1, -1"));
        let dense = output("sentence_embedding", "TYPE_FP32", "-1, 8");
        assert_eq!(tasks(&[TEXT, &dense, &indices, &values]), [Task::Embed, Task::Sparse]);
        // Any of these could be several things, or nothing of ours.
        assert!(tasks(&[TEXT, &output("OUTPUT__0", "TYPE_FP32", "-1, 8")]).is_empty());
        assert!(tasks(&[TEXT, &output("echo", "TYPE_STRING", "-1")]).is_empty());
        let ids = "input { name: 'ids' data_type: TYPE_INT64 dims: [ -1, -1 ] }";
        assert!(tasks(&[ids, &output("embedding", "TYPE_FP32", "-1, 8")]).is_empty());
    }

    #[test]
    fn declared_tasks_say_where_their_results_are() {
        let found = capabilities(&[
            TEXT,
            &output("pooled", "TYPE_FP32", "-1, 8"),
            &parameter("task", "embed"),
            &parameter("served_names", "org/name, other"),
            &parameter("query_prompt", "query"),
        ])
        .unwrap();
        assert_eq!(found.tasks[&Task::Embed], ["pooled"]);
        assert_eq!(found.served_names, ["org/name", "other"]);
        assert_eq!(found.query_prompt.as_deref(), Some("query"));
        let labels = parameter("labels", r#"["no", "yes"]"#);
        let found =
            capabilities(&[TEXT, &output("scores", "TYPE_FP32", "-1, 2"), &parameter("task", "classify"), &labels]);
        assert_eq!(found.unwrap().labels, ["no", "yes"]);
        let schema = [parameter("task", "zero_shot"), parameter("zero_shot", "schema")];
        let found = capabilities(&[TEXT, &output("scores", "TYPE_FP32", "-1, -1"), &schema[0], &schema[1]]).unwrap();
        assert_eq!(found.zero_shot(), Some(ZeroShot::Schema));
        let other = [schema[0].clone(), parameter("zero_shot", "rows")];
        let fault = capabilities(&[TEXT, &output("scores", "TYPE_FP32", "-1, -1"), &other[0], &other[1]]).unwrap_err();
        assert!(fault.contains("'zero_shot' is 'rows', expected nli or schema"), "{fault}");
        let labels = parameter("labels", r#"["contradiction", "entailment"]"#);
        let scores = output("scores", "TYPE_FP32", "-1, 2");
        let found = capabilities(&[TEXT, PAIR, &scores, &parameter("task", "classify, zero_shot"), &labels]).unwrap();
        assert_eq!(found.zero_shot(), Some(ZeroShot::Nli(Nli { entailment: 1, contradiction: 0 })));
        let found = capabilities(&[TEXT, PAIR, &scores, &parameter("task", "classify"), &labels]).unwrap();
        assert_eq!(found.zero_shot(), None);
    }

    #[test]
    fn routes_are_ensembles_that_offer_nothing_themselves() {
        let result = [output("sparse_indices", "TYPE_INT64", "-1, -1"), output("sparse_values", "TYPE_FP32", "-1, -1")];
        let of = |own: &[String]| {
            capabilities(
                &[
                    &[TEXT],
                    &result.each_ref().map(String::as_str)[..],
                    &own.iter().map(String::as_str).collect::<Vec<_>>(),
                ]
                .concat(),
            )
        };
        assert!(of(&[parameter("route_of", "m")]).unwrap().tasks.is_empty());
        let routes = parameter("routes", r#"{"query": "m_query"}"#);
        let found = of(&[parameter("task", "sparse"), routes.clone()]).unwrap().routes.unwrap();
        assert_eq!((found.by_prompt["query"].as_str(), found.has_usual), ("m_query", false));
        let found = of(&[parameter("task", "sparse"), routes, parameter("default_route", "m_document")]).unwrap();
        assert!(found.routes.unwrap().has_usual);
        let broken = of(&[parameter("task", "sparse"), parameter("routes", "query")]).unwrap_err();
        assert!(broken.contains("'routes' is no JSON object of model names"), "{broken}");
    }

    #[test]
    fn what_is_declared_wrongly_is_named() {
        let dense = output("sentence_embedding", "TYPE_FP32", "-1, 8");
        let fault = |parts: &[&str]| capabilities(&[&[TEXT, &dense], parts].concat()).unwrap_err();
        assert!(
            fault(&[&parameter("task", "embedd")]).contains("'task' names 'embedd', expected some of embed, sparse")
        );
        assert!(fault(&[&parameter("task", "sparse")]).contains("output 'sparse_indices' and 'sparse_values'"));
        assert!(fault(&[&parameter("task", "rerank")]).contains("expected 2 TYPE_STRING input(s)"));
        let scores = output("scores", "TYPE_FP32", "-1, 2");
        let zero_shot = parameter("task", "zero_shot");
        assert!(fault(&[&zero_shot, &scores]).contains("expected 2 TYPE_STRING input(s)"));
        let labels = parameter("labels", r#"["no", "yes"]"#);
        let no_nli = fault(&[&zero_shot, &scores, PAIR, &labels]);
        assert!(
            no_nli.contains("expected a label that begins with 'entail'") && no_nli.ends_with("no, yes"),
            "{no_nli}"
        );
        let task = parameter("task", "embed");
        assert!(fault(&[&task, &parameter("labels", "no")]).contains("'labels' is no JSON array"));
        assert!(fault(&[&task, &parameter("prompts", "[1]")]).contains("'prompts' is no JSON object"));
    }
}
