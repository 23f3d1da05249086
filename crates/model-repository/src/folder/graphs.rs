//! Chooses the ONNX file of a folder that is served, or names the command that makes a missing one.

use std::fs;
use std::path::Path;

use trireme_model_files::onnx::{EndOp, Graph, GraphTensor};

use super::choices::Choices;
use super::files::Reader;
use super::origin::Derived;
use super::precision::Precision;
use super::routes;

/// Weights in other formats, from which an ONNX file can be exported.
const WEIGHTS: [&str; 3] = ["model.safetensors", "pytorch_model.bin", "model.pt"];

/// Ends of the names of weights that no exporter reads, each with the reason.
const UNREAD: [(&str, &str); 7] = [
    (".gguf", "of which none is made"),
    (".ort", "ONNX Runtime's own form of an ONNX file, which shows neither inputs nor outputs to other programs"),
    (".h5", "weights of TensorFlow, which transformers 5 does not read"),
    ("saved_model.pb", "weights of TensorFlow, which transformers 5 does not read"),
    (".tflite", "weights of TensorFlow, which transformers 5 does not read"),
    (".msgpack", "weights of Flax, which transformers 5 does not read"),
    ("openvino_model.xml", "the form of OpenVINO, of which none is made"),
];

/// Outputs of one vector for each token, by the names that exporters give them.
const TOKENS: [&str; 2] = ["last_hidden_state", "token_embeddings"];

/// The outputs of graphs that pool themselves, by the names that exporters give them: those of sentence-transformers, of the towers of
/// CLIP with their projection, of FlagEmbedding, and of others.
const POOLED: [&str; 7] = [
    "sentence_embedding",
    "text_embeds",
    "dense_vecs",
    "sentence_embeddings",
    "dense_embeddings",
    "embeddings",
    "embedding",
];

/// The output of BERT's pooler: a layer on the first token that was trained to tell following sentences.
const POOLER: &str = "pooler_output";

/// ONNX files are looked for in folders that lie no deeper than this.
const MAX_DEPTH: usize = 3;

/// The files that an encoder-decoder model needs.
pub(crate) const ENCODER: &str = "encoder_model";

/// Whether a file, at the top or in `onnx/`, is a part of an encoder-decoder model, or holds weights of one.
pub(crate) fn is_generation_part(file: &str) -> bool {
    let name = file.strip_prefix("onnx/").unwrap_or(file);
    let parts = [ENCODER, "decoder_model", "decoder_with_past_model"];
    !name.contains('/') && name.contains(".onnx") && parts.iter().any(|part| name.starts_with(part))
}

/// A graph and the file that it is in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GraphFile {
    /// The path within the folder.
    pub(crate) file: Derived<String>,
    pub(crate) graph: Graph,
    /// The output that a flag names.
    pub(crate) chosen: Option<String>,
}

/// Reads the graph of the model in `folder`.
pub(crate) fn find(reader: &Reader<'_>, folder: &str, export: &str) -> Option<GraphFile> {
    let file = choose(reader, folder, export)?;
    match Graph::read(&reader.path(&file.value)) {
        Ok(graph) => {
            let chosen = reader.choices().output.clone();
            let mut found = GraphFile { file, graph, chosen };
            if let Some(name) = found.chosen.as_deref().filter(|name| found.graph.output(name).is_none()) {
                reader.fault(format_args!("--output {name}: {} gives {}", found.file.value, found.outputs()));
            }
            external_files(&found.graph, reader, &found.file.value);
            found.check_variant(reader);
            Some(found)
        }
        Err(error) => {
            reader.unreadable(&file.value, format_args!("cannot be read: {error}"));
            None
        }
    }
}

/// The ONNX files of the model in `folder`, by their paths. Those at the top, or else in any other folder, belong to the only transformer
/// of the folder, wherever its other files are.
pub(crate) fn listed(reader: &Reader<'_>, folder: &str) -> Vec<String> {
    let found = listed_in(reader, folder);
    if !found.is_empty() || routes::transformers(reader).len() > 1 {
        return found;
    }
    match listed_in(reader, "") {
        found if !found.is_empty() => found,
        _ => elsewhere(reader, "", MAX_DEPTH),
    }
}

/// The ONNX files in all folders beneath `folder`.
fn elsewhere(reader: &Reader<'_>, folder: &str, depth: usize) -> Vec<String> {
    let mut found = Vec::new();
    for name in reader.names(folder).iter().filter(|name| !name.starts_with('.')) {
        let path = format!("{folder}{name}");
        match reader.path(&path).is_dir() {
            true if depth > 0 => found.extend(elsewhere(reader, &format!("{path}/"), depth - 1)),
            false if name.ends_with(".onnx") => found.push(path),
            _ => {}
        }
    }
    found
}

fn listed_in(reader: &Reader<'_>, folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for place in [format!("{folder}onnx/"), folder.to_owned()] {
        let names = reader.names(&place).into_iter().filter(|name| name.ends_with(".onnx"));
        found.extend(names.map(|name| format!("{place}{name}")));
    }
    found
}

fn choose(reader: &Reader<'_>, folder: &str, export: &str) -> Option<Derived<String>> {
    let mut found = listed(reader, folder);
    if let Some(named) = reader.choices().graph.as_ref().filter(|named| reader.has(named) && !found.contains(named)) {
        found.push(named.clone());
    }
    match preferred(&found, reader.choices()) {
        Choice::None => {
            missing(reader, folder, export);
            None
        }
        Choice::Only(file) => Some(Derived::from(file.to_owned(), "the only ONNX file")),
        Choice::Best(file) => {
            let origin = match reader.precision() {
                _ if reader.choices().graph.is_some() => "--graph".to_owned(),
                Precision::Exact => format!("the most exact of {} ONNX files, by its name", found.len()),
                asked => format!("--precision {}", asked.name()),
            };
            Some(Derived::from(file.to_owned(), origin))
        }
        Choice::Unclear => {
            reader.fault(format_args!(
                "several ONNX files, none of which is called model.onnx: {}; name one of them, as in --graph {}",
                found.join(", "),
                found.first().map(String::as_str).unwrap_or_default()
            ));
            None
        }
        Choice::Lacking(lacking) => {
            match (&reader.choices().graph, reader.precision()) {
                (None, Precision::Int8) => {
                    reader.fault(format_args!("{lacking}; make one with: trireme optimize {}", reader.root().display()))
                }
                (None, _) => reader.fault(format_args!(
                    "{lacking}; leave --precision out to serve the most exact file, or take one with weights of 8 bits: trireme optimize {0} && \
                     trireme serve {0} --precision int8",
                    reader.root().display()
                )),
                (Some(_), _) => reader.fault(lacking),
            }
            None
        }
    }
}

/// Which of a folder's ONNX files is served.
pub(crate) enum Choice<'a> {
    None,
    Only(&'a str),
    /// The best one, by its name.
    Best(&'a str),
    Unclear,
    /// None of the precision that was asked for: what there is instead.
    Lacking(String),
}

/// Chooses among ONNX files by their names.
pub(crate) fn preferred<'a>(found: &'a [String], choices: &Choices) -> Choice<'a> {
    if let Some(graph) = &choices.graph {
        let is_named = |file: &&String| *file == graph || file.rsplit('/').next() == Some(graph);
        return match found.iter().find(is_named) {
            Some(file) => Choice::Best(file),
            None => Choice::Lacking(format!("--graph names {graph}, but the ONNX files are: {}", found.join(", "))),
        };
    }
    let precision = choices.precision;
    let named = |stem: &&str| {
        found.iter().find(|file| Path::new(file.as_str()).file_stem().is_some_and(|found| found == *stem))
    };
    let stems = precision.stems();
    match (found, stems.iter().find_map(named), precision) {
        ([], ..) => Choice::None,
        (_, Some(best), Precision::Fp16 | Precision::Int8) => Choice::Best(best),
        (_, None, Precision::Fp16 | Precision::Int8) => Choice::Lacking(format!(
            "--precision {} asks for an ONNX file of the name {}.onnx, found {}",
            precision.name(),
            stems.join(".onnx or "),
            found.join(", ")
        )),
        ([only], _, Precision::Exact) => Choice::Only(only),
        (_, Some(best), Precision::Exact) => Choice::Best(best),
        (_, None, Precision::Exact) => Choice::Unclear,
    }
}

/// Whether a file holds weights of another kind, which an ONNX file can be made of.
pub(crate) fn is_weights(name: &str) -> bool {
    WEIGHTS.contains(&name) || (name.ends_with(".safetensors") && name.starts_with("model-")) || name.ends_with(".pt")
}

/// Says how to make an ONNX file from the folder's weights.
pub(crate) fn missing(reader: &Reader<'_>, folder: &str, export: &str) {
    let place = reader.root().join(folder);
    let place = place.display().to_string();
    let place = place.trim_end_matches('/');
    let names = reader.names(folder);
    let there: Vec<_> = names.iter().map(String::as_str).filter(|name| is_weights(name)).collect();
    if let Some(adapter) = reader.json(&format!("{folder}adapter_config.json")) {
        let base = adapter.get("base_model_name_or_path").and_then(|base| base.as_str()).unwrap_or("BASE").to_owned();
        reader.fault(format_args!(
            "{place} holds no ONNX file, and {} says that its weights are an adapter of {base}: merge them first, with pip install peft && \
             cp -r {place} {place}-merged && rm {place}-merged/adapter_* && python -c \"from transformers import AutoModel; from peft import \
             PeftModel; PeftModel.from_pretrained(AutoModel.from_pretrained('{base}'), '{place}').merge_and_unload()\
             .save_pretrained('{place}-merged')\" && trireme export {place}-merged",
            adapter.file
        ));
        return;
    }
    if there.is_empty() {
        let saved = reader.names(&format!("{folder}saved_model")).into_iter().map(|name| format!("saved_model/{name}"));
        let all: Vec<String> = names.iter().cloned().chain(saved).collect();
        let unread = |name: &String| {
            let (_, why) = UNREAD.iter().find(|(end, _)| name.ends_with(end))?;
            Some(format!("{name} ({why})"))
        };
        let other: Vec<_> = all.iter().filter_map(unread).collect();
        let other = if other.is_empty() { String::new() } else { format!(", only {}", other.join(", ")) };
        reader.lacks(format_args!(
            "{place} holds no ONNX file, and no weights that one is made of{other}: fetch the model's own folder with one of {} or an ONNX file, \
             as in trireme serve hf://ORG/NAME",
            WEIGHTS[..2].join(", ")
        ));
        return;
    }
    let there = format!("only {}", there.join(", "));
    let root = reader.root().display();
    let traced = match names.iter().any(|name| name.ends_with(".pt")) {
        true => " (a TorchScript file cannot be converted: the export starts from the model's own weights)",
        false => "",
    };
    reader.lacks(format_args!(
        "{place} holds no ONNX file, {there}; make one with: pip install optimum-onnx && optimum-cli export onnx --model {place} \
         --task {} {place}/onnx; or with: trireme export {root}, by a Python that has optimum-onnx or torch; or serve it \
         with one that is made once: trireme serve {root} --export{traced}",
        export,
    ));
}

// === impl GraphFile ===

impl GraphFile {
    /// The bytes of the graph and of its files of weights, in the folder at `root`.
    pub(crate) fn bytes(&self, root: &Path) -> u64 {
        let external = self.graph.external.iter().map(|name| beside(&self.file.value, name));
        let bytes = |file: String| fs::metadata(root.join(file)).map_or(0, |found| found.len());
        external.chain([self.file.value.clone()]).map(bytes).sum()
    }

    /// The place of a tensor, for origins.
    pub(crate) fn place(&self, tensor: &GraphTensor) -> String {
        format!("{}: {}", self.file.value, tensor.name)
    }

    /// The output that a flag names.
    fn chosen(&self) -> Option<&GraphTensor> {
        self.chosen.as_deref().and_then(|name| self.graph.output(name))
    }

    /// The output that holds one vector for each text.
    pub(crate) fn pooled(&self) -> Option<&GraphTensor> {
        if self.chosen.is_some() {
            return self.chosen().filter(|output| output.rank() != Some(3));
        }
        let only = match self.graph.outputs.as_slice() {
            [only] if only.rank() == Some(2) && only.is_float() => Some(only),
            _ => None,
        };
        let is_vector = |output: &&GraphTensor| output.rank() != Some(3);
        let beside = || self.of_rank(2, |output| !self.is_pooler(output)).filter(|_| self.tokens().is_none());
        POOLED.into_iter().find_map(|name| self.graph.output(name).filter(is_vector)).or(only).or_else(beside)
    }

    /// Whether an output is the graph's only one, or is known by its name, or named by a flag.
    pub(crate) fn is_told(&self, output: &GraphTensor) -> bool {
        let name = output.name.as_str();
        self.chosen.is_some() || self.graph.outputs.len() == 1 || POOLED.contains(&name) || name == POOLER
    }

    /// The output that holds one vector for each token, as the layers give it. Vectors for late interaction are none, where the graph
    /// has an output for texts, too.
    pub(crate) fn tokens(&self) -> Option<Derived<&GraphTensor>> {
        if self.chosen.is_some() {
            return self
                .chosen()
                .filter(|output| output.rank() == Some(3))
                .map(|output| Derived::from(output, "--output"));
        }
        if let Some(named) = TOKENS.iter().find_map(|name| self.graph.output(name)) {
            return Some(Derived::from(named, self.place(named)));
        }
        let has_vectors = self.of_rank(2, |output| !self.is_pooler(output)).is_some();
        let first = self.of_rank(3, |output| !(has_vectors && self.is_projected(output)))?;
        Some(match self.graph.outputs.len() {
            1 => Derived::from(first, format!("the only output of {}", self.file.value)),
            _ => Derived::guessed(
                first,
                &format!("the only output of {} that can be vectors of tokens", self.file.value),
            ),
        })
    }

    /// The only output of floating point numbers of this rank that `fits`.
    fn of_rank(&self, rank: usize, fits: impl Fn(&GraphTensor) -> bool) -> Option<&GraphTensor> {
        let fits = |output: &&GraphTensor| output.rank() == Some(rank) && output.is_float() && fits(output);
        let mut found = self.graph.outputs.iter().filter(fits);
        found.next().filter(|_| found.next().is_none())
    }

    /// Whether an output is what BERT's pooler makes of the first token, by its name or by the nodes at its end.
    pub(crate) fn is_pooler(&self, output: &GraphTensor) -> bool {
        match self.graph.ending(&output.name) {
            [EndOp::Tanh, EndOp::Projection, EndOp::Select, ..] => true,
            // The vector of the first token as it is, as DPR gives it under this name.
            [EndOp::Select, ..] => false,
            _ => output.name == POOLER,
        }
    }

    /// Whether the graph multiplies the vectors of an output by weights behind the last normalisation of its layers, which no encoder does
    /// by itself: a linear layer of a library is in the graph.
    pub(crate) fn is_projected(&self, output: &GraphTensor) -> bool {
        self.graph.ending(&output.name).contains(&EndOp::Projection)
    }

    /// Whether the graph gives logits, and no vectors of tokens or texts.
    pub(crate) fn gives_logits_alone(&self) -> bool {
        let gives = |name: &&str| self.graph.output(name).is_some();
        gives(&"logits") && !TOKENS.iter().chain(&POOLED).any(gives)
    }

    /// The output that holds scores: `logits`, or the only output, unless its name says that it holds vectors of tokens.
    pub(crate) fn logits(&self, rank: usize) -> Option<&GraphTensor> {
        if self.chosen.is_some() {
            return self.chosen().filter(|output| output.rank().is_none_or(|found| found == rank));
        }
        let only = match self.graph.outputs.as_slice() {
            [only] if !TOKENS.contains(&only.name.as_str()) => Some(only),
            _ => None,
        };
        self.graph.output("logits").or(only).filter(|output| output.rank().is_none_or(|found| found == rank))
    }

    /// The graph's outputs, for messages.
    pub(crate) fn outputs(&self) -> String {
        let output = |tensor: &GraphTensor| match &tensor.dims {
            Some(dims) => format!("{} {dims:?}", tensor.name),
            None => tensor.name.clone(),
        };
        self.graph.outputs.iter().map(output).collect::<Vec<_>>().join(", ")
    }

    /// A variant that `trireme optimize` made says of which file, and how good it is. Of an older state of that file it is another
    /// model.
    fn check_variant(&mut self, reader: &Reader<'_>) {
        let Some(variant) = &self.graph.variant else { return };
        let origin = beside(&self.file.value, &variant.origin);
        if let Ok(found) = std::fs::metadata(reader.path(&origin))
            && found.len() != variant.origin_bytes
        {
            reader.fault(format_args!(
                "{} was made of {origin} with {} bytes, but {origin} has {} bytes; run trireme optimize again",
                self.file.value,
                variant.origin_bytes,
                found.len()
            ));
        }
        self.file.origin = format!("{}; made of {}: {}", self.file.origin, variant.origin, variant.figures);
    }
}

/// The paths within the folder of the files that hold a graph's weights; the path of the graph is `file`. Files that are missing are
/// noted as faults.
pub(crate) fn external_files(graph: &Graph, reader: &Reader<'_>, file: &str) -> Vec<String> {
    let mut found = Vec::new();
    for name in &graph.external {
        let weights = beside(file, name);
        if name.split('/').any(|part| part == "..") || name.starts_with('/') {
            reader.fault(format_args!("{file}: its weights are in '{name}', outside of its folder"));
        } else if !reader.has(&weights) {
            reader.fault(format_args!("{file}: its weights are in {weights}, which is missing"));
        } else if reader.is_pointer(&weights) {
            reader.unreadable(&weights, "");
        } else {
            found.push(weights);
        }
    }
    found
}

/// The path of the file `name` that lies beside `file`.
pub(crate) fn beside(file: &str, name: &str) -> String {
    format!("{}{name}", file.rfind('/').map_or("", |slash| &file[..=slash]))
}
