//! Which inputs of graphs are made here: those of a tokenizer, and those of an empty cache.

use trireme_inference::DataType;
use trireme_model_files::onnx::GraphTensor;

use super::files::Reader;
use super::graphs::GraphFile;

/// The inputs of a graph that a tokenizer makes.
const TOKENIZED: [&str; 4] = ["input_ids", "attention_mask", "token_type_ids", "position_ids"];

/// The inputs that give a decoder its earlier results, and say how many of its positions are wanted. The backend makes them: a text
/// comes whole, so nothing was computed before it.
const CACHES: [&str; 4] = ["past_key_values.", "use_cache_branch", "num_logits_to_keep", TASK_INPUT];

/// The input that chooses one of several adapters for a whole run; requests name it.
pub(super) const TASK_INPUT: &str = "task_id";

/// The remedy for an input that is not made here; no export mends these.
const OTHERS: [(&str, &str); 9] = [
    (TASK_INPUT, TASK),
    ("adapter_mask", TASK),
    (
        "pixel_values",
        "which is an image's: export the text tower alone, as CLIPTextModelWithProjection, with --task feature-extraction",
    ),
    ("decoder_input_ids", DECODER),
    ("encoder_hidden_states", DECODER),
    ("words_mask", GLINER),
    ("text_lengths", GLINER),
    ("span_idx", GLINER),
    (
        "bbox",
        "which says where words are on a page: serve the ONNX file in a model repository of your own (docs/model-repository.md)",
    ),
];

const TASK: &str = "which chooses one of several adapters for each row; those that requests choose among are numbers for a whole run. Write the number of the task that you \
                    serve into the graph, one folder for each: python -c \"import onnx; m = onnx.load('GRAPH'); \
                    i = next(i for i in m.graph.input if i.name == 'INPUT'); d = [1 for _ in i.type.tensor_type.shape.dim]; \
                    m.graph.input.remove(i); m.graph.initializer.append(onnx.helper.make_tensor('INPUT', \
                    i.type.tensor_type.elem_type, d, [0])); onnx.save(m, 'GRAPH')\" makes it 0";

const DECODER: &str = "which only the decoder of an encoder-decoder model has: export the model again with --task \
                       text2text-generation-with-past, which makes encoder_model.onnx and decoder_model_merged.onnx";

const GLINER: &str = "which GLiNER makes of a text and the labels of a request: put its gliner_config.json and tokenizer.json into the folder, which tell how, \
                      or serve it with a model.py that uses the library gliner (docs/python.md)";

const CAST: &str = "python -c \"import onnx; m = onnx.load('GRAPH'); g = m.graph; i = next(i for i in g.input if i.name == 'INPUT'); \
                    [n.input.__setitem__(k, 'INPUT_cast') for n in g.node for k, x in enumerate(n.input) if x == 'INPUT']; \
                    g.node.insert(0, onnx.helper.make_node('Cast', ['INPUT'], ['INPUT_cast'], to=i.type.tensor_type.elem_type)); \
                    i.type.tensor_type.elem_type = 7; onnx.save(m, 'GRAPH')\"";

const RENAME: &str = "python -c \"import onnx; m = onnx.load('GRAPH'); g = m.graph; a = [i.name for i in g.input]; \
                      [n.input.__setitem__(k, x.split(':')[0]) for n in g.node for k, x in enumerate(n.input) if x in a]; \
                      [setattr(i, 'name', i.name.split(':')[0]) for i in g.input]; onnx.save(m, 'GRAPH')\"";

/// Whether the backend makes an input by itself.
pub(super) fn is_cache(input: &GraphTensor) -> bool {
    let is_one = input.name != TASK_INPUT || input.dims.as_ref().is_none_or(|dims| matches!(dims[..], [] | [1]));
    CACHES.iter().any(|name| input.name.starts_with(name)) && is_one
}

/// Whether inputs have the names of TensorFlow's tensors, `input_ids:0`, which is a fault.
fn has_ports(reader: &Reader<'_>, file: &GraphFile) -> bool {
    let base = |name: &str| name.rsplit_once(':').is_some_and(|(base, _)| TOKENIZED.contains(&base));
    let ported: Vec<_> = file.graph.inputs.iter().map(|input| input.name.as_str()).filter(|&name| base(name)).collect();
    if !ported.is_empty() {
        let graph = reader.path(&file.file.value).display().to_string();
        reader.fault(format_args!(
            "{} has inputs {}, whose names end as those of TensorFlow's tensors: name them {} and the like: {}",
            file.file.value,
            ported.join(", "),
            ported[0].split(':').next().unwrap_or_default(),
            RENAME.replace("GRAPH", &graph)
        ));
    }
    !ported.is_empty()
}

/// The inputs have to be those that are made here, with any number of rows.
pub(super) fn check(reader: &Reader<'_>, file: &GraphFile) {
    let path = &file.file.value;
    if has_ports(reader, file) {
        return;
    }
    let inputs = file.graph.inputs.iter().filter(|input| !is_cache(input));
    if file.graph.input("input_ids").is_none() {
        let found = file.graph.inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>().join(", ");
        reader.fault(format_args!("{path} has no input input_ids; its inputs are: {found}"));
    }
    let mut fixed = Vec::new();
    for input in inputs {
        let name = &input.name;
        match OTHERS.iter().find(|(known, _)| known == name) {
            Some((_, what)) => {
                let graph = reader.path(path).display().to_string();
                let what = what.replace("INPUT", name).replace("GRAPH", &graph);
                reader.fault(format_args!("{path} has an input {name}, {what}"));
                continue;
            }
            None if !TOKENIZED.contains(&name.as_str()) => reader.fault(format_args!(
                "{path} has an input {name}, which no tokenizer makes; known inputs are: {}. Serve the ONNX file in a model repository of \
                 your own, with a model.py that makes this input (docs/python.md)",
                TOKENIZED.join(", ")
            )),
            None => {}
        }
        if !matches!(input.datatype, Some(DataType::Int64 | DataType::Int32)) {
            let graph = reader.path(path).display().to_string();
            reader.fault(format_args!(
                "{path}: input {name} has another datatype than INT64 and INT32, which tokenizers make. Let the graph convert it: {}",
                CAST.replace("INPUT", name).replace("GRAPH", &graph)
            ));
        }
        if let Some(dims) = &input.dims
            && (dims.len() != 2 || dims[0] != -1)
        {
            fixed.push(format!("input {name} has dims {dims:?}"));
        }
    }
    if !fixed.is_empty() {
        let graph = reader.path(path).display().to_string();
        reader.fault(format_args!(
            "{path}: {}, expected [-1, -1], any number of rows: make it again: mv {graph} {graph}.fixed && trireme export {}",
            fixed.join(", "),
            reader.root().display()
        ));
    }
}
