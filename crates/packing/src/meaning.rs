//! What a graph computes, as a digest: equal for two files of the same operations and weights, whatever the names of their nodes and tensors,
//! the order of independent nodes, and the place of the weights.
//!
//! The digest of a value is one of the operation that makes it and of the digests of what goes in; so nodes that no output needs do not count. A
//! graph's inputs count by their names, because callers feed them by these.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use memmap2::Mmap;
use prost::Message;
use ring::digest::{Context, SHA256};

use crate::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};

/// Graphs lie within nodes of graphs no deeper than this.
const MAX_DEPTH: usize = 16;

/// SHA-256.
type Digest = [u8; 32];

/// The digests of values by their names, those of the graphs around included.
type Values = HashMap<String, Digest>;

/// The files of weights beside a model.
struct Beside<'a> {
    folder: &'a Path,
    files: HashMap<PathBuf, Bytes>,
}

/// The digest of the ONNX model at `path`, of those of its `outputs` that are used, in this order; of all where none are named. Errors when a file cannot be read, is no ONNX
/// model, or has no such output.
pub fn meaning(path: &Path, outputs: &[&str]) -> io::Result<[u8; 32]> {
    let model = ModelProto::decode(map(path)?).map_err(|error| invalid(path, &format!("is no ONNX model: {error}")))?;
    let graph = model.graph.as_ref().ok_or_else(|| invalid(path, "holds no graph"))?;
    let mut beside = Beside { folder: path.parent().unwrap_or(Path::new(".")), files: HashMap::new() };
    let mut whole = Part::new("model");
    let mut opsets: Vec<&Bytes> = model.opset_import.iter().collect();
    opsets.sort();
    opsets.into_iter().chain(&model.functions).for_each(|bytes| whole.bytes(bytes));
    let values = beside.values(graph, &Values::new(), 0)?;
    let all: Vec<&str> = graph.output.iter().map(|output| output.name.as_str()).collect();
    for output in if outputs.is_empty() { &all[..] } else { outputs } {
        let value = values.get(*output).ok_or_else(|| invalid(path, &format!("has no output '{output}'")))?;
        whole.bytes(value);
    }
    Ok(whole.finish())
}

fn map(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path)?;
    // SAFETY: as for a session, which maps the same files: nobody cuts off a model that is served.
    #[allow(unsafe_code, reason = "weights of gigabytes are read where they are")]
    let map = unsafe { Mmap::map(&file) }?;
    Ok(Bytes::from_owner(map))
}

fn invalid(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{} {what}", path.display()))
}

// === impl Beside ===

impl Beside<'_> {
    /// The digests of all values of a graph that lies within `outer`.
    fn values(&mut self, graph: &GraphProto, outer: &Values, depth: usize) -> io::Result<Values> {
        if depth > MAX_DEPTH {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "graphs lie too deep within one another"));
        }
        let mut values = outer.clone();
        for (index, input) in graph.input.iter().enumerate() {
            let mut part = Part::new("input");
            match depth {
                0 => part.text(&input.name),
                _ => part.number((depth as u64) << 32 | index as u64),
            }
            values.insert(input.name.clone(), part.finish());
        }
        for tensor in &graph.initializer {
            let digest = self.tensor(tensor)?;
            values.insert(tensor.name.clone().unwrap_or_default(), digest);
        }
        for node in &graph.node {
            self.node(node, &mut values, depth)?;
        }
        Ok(values)
    }

    /// Adds the digests of a node's outputs.
    fn node(&mut self, node: &NodeProto, values: &mut Values, depth: usize) -> io::Result<()> {
        let is_plain = matches!(node.domain.as_deref(), None | Some("" | "ai.onnx"));
        // A constant is the same as a node and as an initializer, and what only has another name is the same.
        let known = match (node.op_type.as_str(), node.attribute("value").and_then(|value| value.t.as_ref())) {
            ("Constant", Some(tensor)) if is_plain => Some(self.tensor(tensor)?),
            ("Identity", _) if is_plain => node.input.first().and_then(|name| values.get(name)).copied(),
            _ => None,
        };
        if let (Some(digest), [output]) = (known, &node.output[..]) {
            values.insert(output.clone(), digest);
            return Ok(());
        }
        let mut part = Part::new("node");
        part.text(if is_plain { "" } else { node.domain.as_deref().unwrap_or_default() });
        part.text(&node.op_type);
        part.text(node.overload.as_deref().unwrap_or_default());
        let mut attributes: Vec<_> = node.attribute.iter().collect();
        attributes.sort_by(|one, other| one.name.cmp(&other.name));
        part.number(attributes.len() as u64);
        for attribute in attributes {
            self.attribute(attribute, &mut part, values, depth)?;
        }
        for name in &node.input {
            match values.get(name) {
                Some(digest) => part.bytes(digest),
                None => part.bytes(b""),
            }
        }
        let digest = part.finish();
        for (index, output) in node.output.iter().enumerate().filter(|(_, output)| !output.is_empty()) {
            let mut part = Part::new("output");
            part.bytes(&digest);
            part.number(index as u64);
            values.insert(output.clone(), part.finish());
        }
        Ok(())
    }

    fn attribute(
        &mut self,
        attribute: &AttributeProto,
        part: &mut Part,
        values: &Values,
        depth: usize,
    ) -> io::Result<()> {
        part.text(&attribute.name);
        for tensor in attribute.t.iter().chain(&attribute.tensors) {
            part.bytes(&self.tensor(tensor)?);
        }
        for graph in attribute.g.iter().chain(&attribute.graphs) {
            let graph = GraphProto::decode(graph.clone()).map_err(io::Error::other)?;
            let inner = self.values(&graph, values, depth + 1)?;
            let outputs = graph.output.iter().filter_map(|output| inner.get(&output.name));
            outputs.for_each(|digest| part.bytes(digest));
        }
        // The rest has no names in it and is written in one way only.
        let rest = AttributeProto {
            name: String::new(),
            t: None,
            tensors: Vec::new(),
            g: None,
            graphs: Vec::new(),
            doc_string: None,
            ..attribute.clone()
        };
        part.bytes(&rest.encode_to_vec());
        Ok(())
    }

    /// The digest of a tensor's type, shape and elements, wherever these are.
    fn tensor(&mut self, tensor: &TensorProto) -> io::Result<Digest> {
        let mut part = Part::new("tensor");
        part.number(tensor.data_type as u64);
        part.number(tensor.dims.len() as u64);
        tensor.dims.iter().for_each(|&dim| part.number(dim as u64));
        match (&tensor.raw_data, tensor.external_data.is_empty()) {
            (_, false) => part.bytes(&self.external(tensor)?),
            (Some(raw), true) => part.bytes(raw),
            (None, true) => part.bytes(&tensor.elements()),
        }
        Ok(part.finish())
    }

    /// The bytes of a tensor in a file beside the model.
    fn external(&mut self, tensor: &TensorProto) -> io::Result<Bytes> {
        let entry = |key: &str| {
            let found = tensor.external_data.iter().find(|entry| entry.key.as_deref() == Some(key));
            found.and_then(|entry| entry.value.as_deref())
        };
        let path = self.folder.join(entry("location").unwrap_or_default());
        let bytes = match self.files.get(&path) {
            Some(bytes) => bytes.clone(),
            None => self.files.entry(path.clone()).insert_entry(map(&path)?).get().clone(),
        };
        let number =
            |key| entry(key).map(str::parse::<usize>).transpose().map_err(|_| invalid(&path, "has a faulty place"));
        let begin = number("offset")?.unwrap_or(0);
        let end = number("length")?.map_or(Some(bytes.len()), |length| begin.checked_add(length));
        let range = end.filter(|&end| begin <= end && end <= bytes.len()).map(|end| begin..end);
        range.map(|range| bytes.slice(range)).ok_or_else(|| invalid(&path, "is too short for its weights"))
    }
}

/// A digest that is being made; the length of each part counts.
struct Part(Context);

// === impl Part ===

impl Part {
    fn new(kind: &str) -> Part {
        let mut part = Part(Context::new(&SHA256));
        part.text(kind);
        part
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn finish(self) -> Digest {
        let mut digest = Digest::default();
        digest.copy_from_slice(self.0.finish().as_ref());
        digest
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::proto::{Entry, ValueInfoProto};

    fn value(name: &str) -> ValueInfoProto {
        ValueInfoProto { name: name.to_owned(), ..ValueInfoProto::default() }
    }

    fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
        let input = inputs.iter().map(|&name| name.to_owned()).collect();
        NodeProto { input, output: vec![output.to_owned()], op_type: op.to_owned(), ..NodeProto::default() }
    }

    fn weights(name: &str, values: &[f32]) -> TensorProto {
        let (dims, name) = (vec![values.len() as i64], Some(name.to_owned()));
        TensorProto { dims, data_type: 1, float_data: values.to_vec(), name, ..TensorProto::default() }
    }

    /// `y = relu(x + w)`, and a sum that no output needs.
    fn model(names: [&str; 3], weights: TensorProto) -> ModelProto {
        let [own, sum, output] = names;
        let weights = TensorProto { name: Some(own.to_owned()), ..weights };
        let graph = GraphProto {
            node: vec![node("Add", &["x", own], sum), node("Relu", &[sum], output), node("Add", &["x", "x"], "unused")],
            initializer: vec![weights],
            input: vec![value("x")],
            output: vec![value(output)],
            ..GraphProto::default()
        };
        ModelProto { graph: Some(graph), ..ModelProto::default() }
    }

    fn digest(model: &ModelProto, output: &str) -> Digest {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        fs::write(folder.path().join("weights"), [[0; 4], 1f32.to_le_bytes(), 2f32.to_le_bytes()].concat()).unwrap();
        fs::write(&path, model.encode_to_vec()).unwrap();
        meaning(&path, &[output]).unwrap()
    }

    #[test]
    fn names_and_places_do_not_count_and_operations_and_weights_do() {
        let first = digest(&model(["w", "s", "y"], weights("", &[1.0, 2.0])), "y");
        assert_eq!(digest(&model(["onnx::12", "/Add_output", "out"], weights("", &[1.0, 2.0])), "out"), first);

        let raw = [1f32.to_le_bytes(), 2f32.to_le_bytes()].concat();
        let raw = TensorProto { float_data: Vec::new(), raw_data: Some(raw.into()), ..weights("", &[1.0, 2.0]) };
        assert_eq!(digest(&model(["w", "s", "y"], raw.clone()), "y"), first, "elements as bytes");
        let entry = |key: &str, value: &str| Entry { key: Some(key.to_owned()), value: Some(value.to_owned()) };
        let external_data = vec![entry("location", "weights"), entry("offset", "4"), entry("length", "8")];
        let external = TensorProto { raw_data: None, external_data, data_location: Some(1), ..raw };
        assert_eq!(digest(&model(["w", "s", "y"], external), "y"), first, "elements in a file beside it");

        let mut constant = model(["w", "s", "y"], weights("", &[1.0, 2.0]));
        let graph = constant.graph.as_mut().unwrap();
        let tensor = graph.initializer.pop().unwrap();
        let value =
            AttributeProto { name: "value".to_owned(), t: Some(tensor), kind: Some(4), ..AttributeProto::default() };
        graph.node.insert(0, NodeProto { attribute: vec![value], ..node("Constant", &[], "w") });
        graph.node.truncate(3);
        assert_eq!(digest(&constant, "y"), first, "a constant's node, and without what nothing needs");

        assert_ne!(digest(&model(["w", "s", "y"], weights("", &[1.0, 2.5])), "y"), first, "other weights");
        assert_ne!(digest(&model(["w", "s", "y"], weights("", &[1.0, 2.0])), "s"), first, "another output");
        let mut other = model(["w", "s", "y"], weights("", &[1.0, 2.0]));
        other.graph.as_mut().unwrap().node[1].op_type = "Tanh".to_owned();
        assert_ne!(digest(&other, "y"), first, "another operation");
    }

    #[test]
    fn what_is_no_model_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        fs::write(&path, b"nothing").unwrap();
        assert!(meaning(&path, &["y"]).unwrap_err().to_string().contains("is no ONNX model"));
        fs::write(&path, model(["w", "s", "y"], weights("", &[1.0])).encode_to_vec()).unwrap();
        assert!(meaning(&path, &["z"]).unwrap_err().to_string().ends_with("has no output 'z'"));
    }
}
