//! A description as the models of a repository, which `serve` runs and `init` writes.
//!
//! `NAME` links `NAME_tokenizer`, `NAME_model` and `NAME_postprocess`. The settings are those that serve texts fast: texts of
//! different length share runs, rows of a request run beside one another, layouts go by load (docs/batching.md).

use std::collections::BTreeMap;

use serde_json::json;

use super::choices::{Accelerator, PaddingSide};
use super::description::{Executor, FolderDescription};
use super::graphs;
use super::heads::{self, Head, Source};
use super::modules::TORCH_WEIGHTS;
use super::task::Task;
use super::tensors::{LABEL_FILE, STRING};
use super::text::{Tensor, Text};
use super::wiring::{Branch, Wiring};

/// Rows of a part of a request: a run should take about one of the longest texts (docs/model-repository.md).
const ROWS_PER_MESSAGE: &str = "2";

/// The longest row that a load tries. A longer one takes seconds, and finds no more graphs that were traced for short rows.
const LONGEST_TRIED: u64 = 512;

/// The most tokens of a run of a model of spans: more at a time are no faster on CPUs, and take more memory (docs/adr/0040-windows-are-rows.md).
const TOKENS_OF_SPANS: &str = "1024";

/// A graph of this many bytes is in memory once (docs/batching.md).
const LARGE_GRAPH: u64 = 512 << 20;

/// A model of a derived repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedModel {
    /// The model's name, which is its folder's.
    pub name: String,
    /// Its config.pbtxt.
    pub config: String,
    /// The files of its version folder: path there to path within the model folder.
    pub files: BTreeMap<String, String>,
    /// Further texts beside config.pbtxt, by their paths from there.
    pub texts: BTreeMap<String, String>,
    /// Files of the version folder that are made of files that torch has saved: path there to path within the model folder.
    pub converted: BTreeMap<String, String>,
}

/// The steps that an ensemble links.
struct Steps<'a> {
    /// The name that those of the steps begin with.
    of: &'a str,
    /// The same for the step that runs the model.
    model_of: &'a str,
    version: i64,
    /// The model that the ensemble is a route of.
    route_of: Option<&'a str>,
}

// === impl FolderDescription ===

impl FolderDescription {
    /// The models that serve the folder as version `version` of `name`: the ensemble first, then its steps, which it takes in the
    /// same version.
    pub fn models(&self, name: &str, version: i64) -> Vec<DerivedModel> {
        let Some(routed) = &self.routed else { return self.chain(name, name, version, None) };
        let usual = routed.routes.first().unwrap_or_default();
        let runs = |description: &FolderDescription| description.model("", &Wiring::of(description));
        // Routes whose models are alike run one: that of the first of them.
        let model_of = |route: &str| {
            let own = routed.each.get(route).map(runs);
            let first = routed.each.iter().find(|(_, other)| Some(runs(other)) == own);
            route_model(name, first.map_or(route, |(first, _)| first))
        };
        let steps = Steps { of: &route_model(name, &usual), model_of: &model_of(&usual), version, route_of: None };
        let mut models = vec![self.ensemble(name, steps, &Wiring::of(self))];
        for (route, description) in &routed.each {
            models.extend(description.chain(&route_model(name, route), &model_of(route), version, Some(name)));
        }
        models
    }

    /// The ensemble `name` and its steps, without the one that runs the model where another ensemble has it: `model_of`. Where it is a
    /// route of another model, that is `route_of`.
    fn chain(&self, name: &str, model_of: &str, version: i64, route_of: Option<&str>) -> Vec<DerivedModel> {
        let wiring = Wiring::of(self);
        let mut steps = vec![
            self.ensemble(name, Steps { of: name, model_of, version, route_of }, &wiring),
            self.tokenizer(name, &wiring),
        ];
        steps.extend((model_of == name).then(|| self.model(name, &wiring)));
        steps.push(self.postprocess(name, &wiring));
        steps.extend(
            self.heads.iter().zip(&wiring.branches).map(|(head, branch)| head_model(name, &wiring, head, branch)),
        );
        steps
    }

    fn ensemble(&self, name: &str, steps: Steps<'_>, wiring: &Wiring) -> DerivedModel {
        let Steps { of, model_of, version, route_of } = steps;
        let mut text = Text::new(
            &format!("What clients ask for; made of {}.", self.root.display()),
            name,
            ("platform", "ensemble"),
        );
        text.blank();
        text.tensors("input", &wiring.texts);
        // The file of labels lies beside the step that reads it.
        let all = wiring.outputs.iter().chain(wiring.branches.iter().flat_map(|branch| &branch.outputs));
        let outputs: Vec<_> = all.map(|output| Tensor { label_file: None, ..output.clone() }).collect();
        text.tensors("output", &outputs);
        text.blank();
        let heads = self.heads.iter().map(|head| head.origin.as_str());
        let tasks: Vec<&str> = self.tasks().into_iter().map(Task::name).collect();
        let origin = std::iter::once(self.task.origin.as_str()).chain(heads).collect::<Vec<_>>().join("; ");
        text.parameter("task", &tasks.join(", "), &origin);
        if let Some(whole) = route_of {
            text.parameter("route_of", whole, "requests name that model, and their prompt the route");
        }
        if let Some(routed) = &self.routed {
            let of_tasks = routed.routes.of_tasks.iter().map(|(task, route)| (task, route_model(name, route)));
            let of_tasks = json!(of_tasks.collect::<BTreeMap<_, _>>()).to_string();
            text.parameter("routes", &of_tasks, "the ensemble of each task, by the name of a request's prompt");
            let usual = routed.routes.usual.clone().map(|usual| usual.map(|route| route_model(name, &route)));
            text.derived("default_route", usual.as_ref());
        }
        if !self.served_names.is_empty() {
            text.parameter("served_names", &self.served_names.join(", "), "the hub's name, or that of a flag");
        }
        if self.spans.is_some() && tasks.contains(&Task::ZeroShot.name()) {
            text.parameter("zero_shot", "schema", "rows hold the labels of requests, and the graph scores them");
        }
        if let Some(labels) = &self.labels {
            text.parameter("labels", &json!(labels.value).to_string(), &labels.origin);
        }
        text.derived("problem_type", self.problem.as_ref());
        self.prompt_parameters(&mut text);
        text.derived("query_prompt", self.prompts.first(&["query", "retrieval.query"]).as_ref());
        text.derived(
            "document_prompt",
            self.prompts.first(&["document", "passage", "corpus", "retrieval.passage"]).as_ref(),
        );
        // The labels of a request are those of all its texts.
        let is_even = |output: &Tensor| self.spans.is_some() || output.dims.iter().skip(1).all(|&dim| dim > 0);
        if outputs.iter().all(is_even) {
            text.blank();
            text.line("# A request of more texts is cut into parts of this many, of like length, which run on all workers there are.", "");
            match self.depends_on_company() {
                Some(why) => {
                    text.parameter("max_rows_per_message", "1", &format!("each text has a run of its own: {why}"))
                }
                None => text.parameter("max_rows_per_message", ROWS_PER_MESSAGE, ""),
            }
        }
        text.blank();
        text.line("# In each map: key is the step's own tensor, value the ensemble's tensor.", "");
        text.line("ensemble_scheduling {", "");
        text.line("  step [", "");
        let same = |tensors: &[Tensor]| tensors.iter().map(|t| (t.name.clone(), t.name.clone())).collect::<Vec<_>>();
        let result = vec![(wiring.result.name.clone(), wiring.carried())];
        let further = wiring.branches.iter().filter_map(|branch| branch.result.as_ref());
        let results = [result.clone(), same(&further.cloned().collect::<Vec<_>>())].concat();
        text.step((&format!("{of}_tokenizer"), version), &same(&wiring.texts), &same(&wiring.tokens), false);
        text.step((&format!("{model_of}_model"), version), &same(&wiring.inputs), &results, false);
        let taken = |side: &[Tensor]| [result.clone(), same(side)].concat();
        let last = wiring.branches.is_empty();
        text.step((&format!("{of}_postprocess"), version), &taken(&wiring.side), &same(&wiring.outputs), last);
        for (index, branch) in wiring.branches.iter().enumerate() {
            let last = index + 1 == wiring.branches.len();
            let of_branch = match &branch.result {
                Some(own) => same(&[std::slice::from_ref(own), &branch.side].concat()),
                None => taken(&branch.side),
            };
            text.step((&format!("{of}_{}", branch.suffix), version), &of_branch, &same(&branch.outputs), last);
        }
        text.line("  ]", "");
        text.line("}", "");
        DerivedModel::new(name.to_owned(), text)
    }

    fn prompt_parameters(&self, text: &mut Text) {
        if let Some(prompts) = &self.prompts.texts {
            text.parameter("prompts", &json!(prompts.value).to_string(), &prompts.origin);
        }
        text.derived("default_prompt", self.prompts.default.as_ref());
    }

    fn tokenizer(&self, name: &str, wiring: &Wiring) -> DerivedModel {
        let name = format!("{name}_tokenizer");
        let mut text = Text::new("Texts to token ids.", &name, ("backend", "tokenizer"));
        text.blank();
        let lone = |(at, input): (usize, &Tensor)| if at == 0 { input.clone() } else { input.clone().optional() };
        text.tensors("input", &wiring.texts.iter().enumerate().map(lone).collect::<Vec<_>>());
        // Made only for requests to tokenize and to decode.
        let texts = ["tokens", "decoded_text"].map(|name| Tensor::new(name, STRING, &[-1]));
        text.tensors("output", &[wiring.tokens.as_slice(), texts.as_slice()].concat());
        text.blank();
        let longest = self.row_length();
        text.derived("max_length", longest.as_ref());
        match (self.fixed_length(), &self.tokenizer.pads_to_longest) {
            (Some(length), _) => text.parameter("padding", &length.value.to_string(), &length.origin),
            (None, Some(flag)) => text.parameter("padding", "max_length", &flag.origin),
            (None, None) => text.parameter("padding", "longest", "to the longest text of the request"),
        }
        text.parameter("truncation", "true", "longer texts are cut, not refused");
        if let Some(why) = self.reads_windows() {
            text.parameter("long_texts", "windows", why);
        }
        if self.task.value == Task::Classify && self.fold().is_ok() {
            text.parameter("windows_of", "longer", "of a pair the longer text has windows");
        }
        if let Some(spans) = &self.spans {
            let what = "labels before each text, and the longest rows and spans, in words";
            text.parameter("spans", &spans.value.parameter(), &format!("{what}; {}", spans.origin));
        }
        if self.task.value != Task::Generate {
            let side = self.padding_side();
            text.parameter("padding_side", side.value.name(), &side.origin);
        }
        text.derived("pad_token", self.tokenizer.pad_token.as_ref());
        text.derived("max_characters", self.tokenizer.max_characters.as_ref());
        text.derived("add_special_tokens", self.special_tokens.as_ref());
        if let Executor::Onnx { file, .. } = &self.executor {
            let takes = |name: &str| file.graph.input(name).is_some();
            text.derived("first_position", self.tokenizer.first_position.as_ref().filter(|_| takes("position_ids")));
            let types = self.tokenizer.no_types.clone().filter(|_| takes("token_type_ids"));
            text.derived("token_types", types.map(|types| types.map(|_| false)).as_ref());
        }
        if let Some(messages) = &self.tokenizer.messages {
            text.line("# A text becomes a message of the role user, a pair messages of query and document, a prompt one of system before them.", "");
            text.derived("message_format", Some(&messages.format));
            let variables = messages.variables.clone();
            text.derived("chat_template_kwargs", variables.map(|given| given.map(|given| json!(given))).as_ref());
        }
        self.prompt_parameters(&mut text);
        text.derived("prompts_as_tokens", self.late.prompts_as_tokens.as_ref());
        text.derived("query_length", self.late.query_length.as_ref());
        text.derived("document_length", self.late.document_length.as_ref());
        text.derived("query_expansion", self.late.query_expansion.as_ref());
        text.derived("skiplist_words", self.late.skiplist_words.as_ref());
        text.derived("skiplist_tasks", self.late.skiplist_tasks.as_ref());
        text.blank();
        text.line("instance_group [ { count: 1 kind: KIND_CPU } ]", "");
        DerivedModel { files: self.tokenizer_files(), ..DerivedModel::new(name, text) }
    }

    fn tokenizer_files(&self) -> BTreeMap<String, String> {
        let name = |file: &String| file.rsplit('/').next().unwrap_or(file).to_owned();
        self.tokenizer.files.iter().map(|file| (name(file), file.clone())).collect()
    }

    fn model(&self, name: &str, wiring: &Wiring) -> DerivedModel {
        let name = format!("{name}_model");
        let backend = match &self.executor {
            Executor::Onnx { .. } => "onnxruntime",
            Executor::Static { .. } => "static",
            Executor::Generation { .. } => "generation",
        };
        let mut text = Text::new("Token ids to what the model makes of them.", &name, ("backend", backend));
        let mut files = BTreeMap::new();
        text.blank();
        match &self.executor {
            Executor::Onnx { file, .. } => {
                let model = file.file.value.rsplit('/').next().unwrap_or_default();
                text.line(
                    &format!("default_model_filename: \"{model}\""),
                    &format!("{}: {}", file.file.value, file.file.origin),
                );
                files.insert(model.to_owned(), file.file.value.clone());
                let external = file.graph.external.iter();
                files.extend(external.map(|name| (name.clone(), graphs::beside(&file.file.value, name))));
            }
            Executor::Static { file, config, .. } => {
                files.insert("model.safetensors".to_owned(), file.value.clone());
                files.extend(config.iter().map(|config| ("config.json".to_owned(), config.clone())));
            }
            Executor::Generation { files: all, .. } => {
                files.extend(all.iter().map(|file| (file.clone(), file.clone())))
            }
        }
        text.tensors("input", &wiring.inputs);
        text.tensors("output", &wiring.results());
        if let Executor::Onnx { file, .. } = &self.executor {
            self.batching(&mut text, wiring);
            text.blank();
            let (layouts, says) = match file.bytes(&self.root) >= LARGE_GRAPH {
                true => ("wide", "Each run takes all CPUs, so that a graph as large as this one is in memory once."),
                false => (
                    "by_load",
                    "A lone request runs on all CPUs; when more are waiting, each CPU runs a batch of its own. The weights are shared.",
                ),
            };
            text.line(&format!("# {says}"), "");
            text.parameter("layouts", layouts, "");
            text.blank();
            match self.accelerator {
                Accelerator::Auto => {
                    text.line("# The fastest of the installed providers serves it. That is measured when it is first loaded; none: the plain one.", "");
                    text.parameter("accelerator", self.accelerator.name(), "");
                }
                Accelerator::None => text.parameter("accelerator", self.accelerator.name(), "--accelerator"),
                Accelerator::OpenVino => text.line(
                    "optimization { execution_accelerators { cpu_execution_accelerator: [ { name: \"openvino\" } ] } }",
                    "--accelerator",
                ),
            }
            text.blank();
            text.line("instance_group [ { kind: KIND_CPU } ]", "");
        }
        if let Some(adapters) = &self.adapters {
            text.blank();
            text.line("# A request says by parameter task_id, or by the name of its prompt, which of the graph's adapters it is for.", "");
            text.parameter("task_ids", &json!(adapters.value).to_string(), &adapters.origin);
            let usual = self.prompts.default.as_ref().filter(|usual| adapters.value.contains(&usual.value));
            text.derived("default_task_id", usual);
        }
        if let Executor::Static { unknown, .. } = &self.executor {
            text.blank();
            text.derived("unknown_token_id", unknown.as_ref());
        }
        DerivedModel { files, ..DerivedModel::new(name, text) }
    }

    /// Texts of different lengths may share a run where a mask marks the padding for the model, and the graph keeps rows apart.
    fn batching(&self, text: &mut Text, wiring: &Wiring) {
        text.blank();
        if self.spans.is_some() {
            text.line(
                "# No pad_inputs: requests have labels of their own, so that none shares a run with another.",
                "",
            );
            match self.depends_on_company() {
                Some(why) => text.parameter("token_budget", "1", &format!("each row has a run of its own: {why}")),
                None => text.parameter("token_budget", TOKENS_OF_SPANS, "the rows of a long text have several runs"),
            }
            return;
        }
        let has_mask = wiring.inputs.iter().any(|input| input.name == "attention_mask");
        let is_fixed = self.fixed_length().is_some() || self.tokenizer.pads_to_longest.is_some();
        if is_fixed || !has_mask {
            let why = if is_fixed { "all rows have one length" } else { "the graph has no input attention_mask" };
            text.line(&format!("# No pad_inputs: {why}; texts of different length do not share a run."), "");
            self.tried_rows(text);
            return;
        }
        match self.depends_on_company() {
            Some(why) => {
                text.line("# Each text has a run of its own, without the padding of its request.", "");
                text.parameter("padding_check", "alone", why);
            }
            None => text.line(
                "# Texts of different lengths share a run: shorter ones are padded, and cut back afterwards.",
                "",
            ),
        }
        let pad = &self.tokenizer.pad;
        let first = self.tokenizer.first_position.as_ref().map_or(0, |first| first.value.saturating_sub(1));
        let padded = wiring.inputs.iter().map(|input| match input.name.as_str() {
            "input_ids" => format!("input_ids:{}", pad.value),
            "token_type_ids" => format!("token_type_ids:{}", self.tokenizer.pad_type),
            "position_ids" => format!("position_ids:{first}"),
            name => format!("{name}:0"),
        });
        text.parameter("pad_inputs", &padded.collect::<Vec<_>>().join(", "), &format!("input_ids by {}", pad.origin));
        let side = self.padding_side();
        if side.value == PaddingSide::Left {
            text.parameter("padding_side", side.value.name(), &side.origin);
        }
        self.tried_rows(text);
        let open = |result: &Tensor| result.dims.get(1) == Some(&-1) && result.dims.len() > 2;
        let open: Vec<_> = wiring.results().into_iter().filter(open).map(|result| result.name).collect();
        text.parameter("unpad_outputs", &open.join(", "), "outputs as long as the texts");
    }

    /// Rows on which the load tries the graph.
    fn tried_rows(&self, text: &mut Text) {
        let Some(rows) = &self.tokenizer.sample_rows else { return };
        text.parameter(
            "sample_rows",
            rows,
            "rows of tokens that show at the load whether the graph takes them, and whether they may share a run",
        );
        if let Some(longest) = self.row_length() {
            let tried = longest.map(|longest| longest.min(LONGEST_TRIED).to_string());
            text.parameter(
                "longest_row",
                &tried.value,
                &format!("a row of this many tokens is tried as well; {}", tried.origin),
            );
        }
    }

    fn postprocess(&self, name: &str, wiring: &Wiring) -> DerivedModel {
        let name = format!("{name}_postprocess");
        let mut text =
            Text::new("What the model makes of a text, to what clients get.", &name, ("backend", "postprocess"));
        text.blank();
        text.tensors("input", &[std::slice::from_ref(&wiring.result), &wiring.side].concat());
        text.tensors("output", &wiring.outputs);
        text.blank();
        let all = self.folding_ops();
        for (op, origin) in &all {
            text.line(&format!("# {op}: {origin}"), "");
        }
        let ops = match all.as_slice() {
            [] => format!("slice:{}", self.width.value),
            ops => ops.iter().map(|(op, _)| op.as_str()).collect::<Vec<_>>().join(", "),
        };
        text.parameter("ops", &ops, if all.is_empty() { "as the model gives it" } else { "" });
        text.derived("graph_ends_with", self.graph_end.as_ref());
        text.blank();
        text.line("instance_group [ { count: 1 kind: KIND_CPU } ]", "");
        let mut model = DerivedModel::new(name, text);
        for op in &self.ops {
            if let Some((_, folder)) = op.value.split_once(':').filter(|(op, _)| ["dense", "layer_norm"].contains(op)) {
                let [config, weights] = ["config.json", "model.safetensors"].map(|file| format!("{folder}/{file}"));
                model.files.insert(config.clone(), config);
                if self.root.join(&weights).is_file() {
                    model.files.insert(weights.clone(), weights);
                } else {
                    model.converted.insert(weights, format!("{folder}/{TORCH_WEIGHTS}"));
                }
            }
        }
        if matches!(self.task.value, Task::Generate | Task::TokenClassify) && self.spans.is_none() {
            model.files.extend(self.tokenizer_files());
        }
        if let Some(labels) =
            self.labels.as_ref().filter(|_| wiring.outputs.iter().any(|output| output.label_file.is_some()))
        {
            let lines: String =
                labels.value.iter().map(|label| format!("{}\n", label.replace(['\n', '\r'], " "))).collect();
            model.texts.insert(LABEL_FILE.to_owned(), lines);
        }
        model
    }
}

/// The name of a route's ensemble.
fn route_model(name: &str, route: &str) -> String {
    format!("{name}_{route}")
}

/// The model that makes a head's result.
fn head_model(name: &str, wiring: &Wiring, head: &Head, branch: &Branch) -> DerivedModel {
    let name = format!("{name}_{}", branch.suffix);
    let what = format!("What the model makes of a text, to what {} makes of it.", head.origin);
    let mut text = Text::new(&what, &name, ("backend", "postprocess"));
    text.blank();
    let result = branch.result.as_ref().unwrap_or(&wiring.result);
    text.tensors("input", &[std::slice::from_ref(result), &branch.side].concat());
    text.tensors("output", &branch.outputs);
    text.blank();
    for op in &head.ops {
        text.line(&format!("# {}: {}", op.value, op.origin), "");
    }
    let ops = head.ops.iter().map(|op| op.value.as_str()).collect::<Vec<_>>().join(", ");
    text.parameter("ops", &ops, "");
    text.blank();
    text.line("instance_group [ { count: 1 kind: KIND_CPU } ]", "");
    let mut model = DerivedModel::new(name, text);
    if let Source::Layer { file, config } = &head.source {
        let folder = heads::folder(file);
        model.texts.insert(format!("1/{folder}/config.json"), config.clone());
        model.converted.insert(format!("{folder}/model.safetensors"), (*file).to_owned());
    }
    model
}

// === impl DerivedModel ===

impl DerivedModel {
    fn new(name: String, text: Text) -> DerivedModel {
        DerivedModel {
            name,
            config: text.finish(),
            files: BTreeMap::new(),
            texts: BTreeMap::new(),
            converted: BTreeMap::new(),
        }
    }
}
