//! A digest of the computation of an ONNX file, whatever its exporter called the parts.
//!
//! The digest of a value is made of the node that makes it: its op, the version of the op's set, its attributes, and the digests of its
//! inputs. A weight's digest is of its datatype, shape and elements. So the digest of an output depends on all that the output is
//! computed from, and on nothing else: names of nodes, values and weights, their order, nodes without use, documentation, and
//! where weights lie have no part in it. A node `Constant` counts as the weight that it holds, a node `Identity` as its input.
//!
//! Names of the graph's inputs count, since callers feed it by them. Two graphs that compute the same by other nodes have different digests.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};

use crate::onnx::{Field, MAX_DEPTH, Wire, damaged};
use crate::regular;

mod tensor;

/// The SHA-256 of a part.
pub type Hash = [u8; SHA256_OUTPUT_LEN];

/// Bytes that are read at a time.
const CHUNK: u64 = 1 << 20;

/// Reads the graphs of a file into forms, and the weights beside it.
struct Reader<'a> {
    directory: &'a Path,
    /// The files of weights that were opened, by their paths.
    beside: HashMap<PathBuf, File>,
}

/// A graph, its weights as digests.
#[derive(Default)]
struct Form {
    nodes: Vec<Node>,
    weights: HashMap<String, Hash>,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

#[derive(Default)]
struct Node {
    domain: String,
    op: String,
    overload: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    attributes: BTreeMap<String, Attribute>,
}

/// An attribute: its values by the number of their field, and its graphs.
#[derive(Default)]
struct Attribute {
    values: BTreeMap<u64, Vec<u8>>,
    graphs: Vec<Form>,
}

/// The SHA-256 of the computation of these outputs of the file at `path`, in this order; of all where none is named. It is made of the file
/// and the files of weights beside it. The error says what cannot be read: a weight without its elements, a value that no node makes before it is
/// used, or a path of weights outside the file's directory.
pub fn digest(path: &Path, outputs: &[&str]) -> io::Result<Hash> {
    let file = regular::open(path)?;
    let length = file.metadata()?.len();
    parse(file, length, path.parent().unwrap_or(Path::new("")), outputs)
}

fn parse(file: impl Read + Seek, length: u64, directory: &Path, outputs: &[&str]) -> io::Result<Hash> {
    let mut reader = Reader { directory, beside: HashMap::new() };
    let (mut form, mut versions, mut functions) = (None, BTreeMap::new(), Vec::new());
    Wire::new(file).fields(length, |wire, field, value| {
        match (field, value) {
            (7, Field::Bytes(end)) => form = Some(reader.graph(wire, end, 0)?),
            (8, Field::Bytes(end)) => versions.extend([op_set(wire, end)?]),
            // Functions of the file's own: their parts count with all names.
            (25, Field::Bytes(end)) => functions.push(hash_up_to(wire, end)?),
            _ => {}
        }
        Ok(())
    })?;
    let mut form = form.ok_or_else(|| damaged("it holds no graph"))?;
    if !outputs.is_empty() {
        form.outputs = outputs.iter().map(|&name| name.to_owned()).collect();
    }
    functions.sort_unstable();
    let mut whole = Parts::new("graph");
    for part in functions.into_iter().chain(form.outputs(&versions, &mut Vec::new())?) {
        whole.add(&part);
    }
    Ok(whole.finish())
}

/// OperatorSetIdProto: the name of a set of ops, and its version.
fn op_set<R: Read + Seek>(wire: &mut Wire<R>, end: u64) -> io::Result<(String, u64)> {
    let mut set = (String::new(), 0);
    wire.fields(end, |wire, field, value| {
        match (field, value) {
            (1, Field::Bytes(end)) => set.0 = domain(wire.text(end)?),
            (2, Field::Number(version)) => set.1 = version,
            _ => {}
        }
        Ok(())
    })?;
    Ok(set)
}

/// A domain by its shorter name: that of ONNX's own ops has two.
fn domain(name: String) -> String {
    if name == "ai.onnx" { String::new() } else { name }
}

// === impl Form ===

impl Form {
    /// The digests of its outputs. `scopes` has the values of the graphs around it.
    fn outputs(
        &self,
        versions: &BTreeMap<String, u64>,
        scopes: &mut Vec<HashMap<String, Hash>>,
    ) -> io::Result<Vec<Hash>> {
        let depth = scopes.len();
        let mut values = HashMap::new();
        for (place, name) in self.inputs.iter().enumerate() {
            let mut input = Parts::new("input");
            // The inputs of an inner graph are known by their places.
            if depth == 0 {
                input.add(name.as_bytes());
            } else {
                input.add(&(depth as u64).to_le_bytes());
                input.add(&(place as u64).to_le_bytes());
            }
            values.insert(name.clone(), input.finish());
        }
        // Old files list weights among the inputs.
        values.extend(self.weights.iter().map(|(name, hash)| (name.clone(), *hash)));
        scopes.push(values);
        let made = self.nodes.iter().try_for_each(|node| {
            for (name, hash) in node.make(versions, scopes)? {
                scopes[depth].insert(name, hash);
            }
            Ok(())
        });
        let outputs = made.and_then(|()| self.outputs.iter().map(|name| find(scopes, name)).collect());
        scopes.pop();
        outputs
    }
}

/// The digest of the value `name`, of the innermost graph that has it.
fn find(scopes: &[HashMap<String, Hash>], name: &str) -> io::Result<Hash> {
    let found = scopes.iter().rev().find_map(|values| values.get(name));
    found.copied().ok_or_else(|| damaged(&format!("nothing makes the value '{name}' before it is used")))
}

// === impl Node ===

impl Node {
    /// Its outputs, each with its digest.
    fn make(
        &self,
        versions: &BTreeMap<String, u64>,
        scopes: &mut Vec<HashMap<String, Hash>>,
    ) -> io::Result<Vec<(String, Hash)>> {
        if let (true, [output]) = (self.domain.is_empty(), self.outputs.as_slice()) {
            let value = self.attributes.get("value").and_then(|value| value.values.get(&5));
            match (self.op.as_str(), value.and_then(|value| value.as_slice().try_into().ok()), self.inputs.as_slice()) {
                ("Constant", Some(weight), []) => return Ok(vec![(output.clone(), weight)]),
                ("Identity", None, [input]) => return Ok(vec![(output.clone(), find(scopes, input)?)]),
                _ => {}
            }
        }
        let mut node = Parts::new("node");
        for text in [&self.domain, &self.op, &self.overload] {
            node.add(text.as_bytes());
        }
        node.add(&versions.get(&self.domain).copied().unwrap_or_default().to_le_bytes());
        let given = |names: &[String]| names.iter().rposition(|name| !name.is_empty()).map_or(0, |last| last + 1);
        let (inputs, outputs) = (given(&self.inputs), given(&self.outputs));
        for count in [inputs, outputs, self.attributes.len()] {
            node.add(&(count as u64).to_le_bytes());
        }
        for input in &self.inputs[..inputs] {
            match input.as_str() {
                "" => node.add(b""),
                name => node.add(&find(scopes, name)?),
            }
        }
        for (name, attribute) in &self.attributes {
            node.add(name.as_bytes());
            node.add(
                &[attribute.values.len(), attribute.graphs.len()].map(|count| (count as u64).to_le_bytes()).concat(),
            );
            for (field, bytes) in &attribute.values {
                node.add(&field.to_le_bytes());
                node.add(bytes);
            }
            for graph in &attribute.graphs {
                node.add(b"graph");
                for output in graph.outputs(versions, scopes)? {
                    node.add(&output);
                }
            }
        }
        let node = node.finish();
        let output = |(place, name): (usize, &String)| {
            let mut output = Parts::new("output");
            output.add(&node);
            output.add(&(place as u64).to_le_bytes());
            (name.clone(), output.finish())
        };
        Ok(self.outputs.iter().enumerate().filter(|(_, name)| !name.is_empty()).map(output).collect())
    }
}

// === impl Reader ===

impl Reader<'_> {
    /// GraphProto.
    fn graph<R: Read + Seek>(&mut self, wire: &mut Wire<R>, end: u64, depth: usize) -> io::Result<Form> {
        if depth > MAX_DEPTH {
            return Err(damaged("its graphs lie too deep within one another"));
        }
        let mut form = Form::default();
        wire.fields(end, |wire, field, value| {
            match (field, value) {
                (1, Field::Bytes(end)) => form.nodes.push(self.node(wire, end, depth)?),
                (5, Field::Bytes(end)) => form.weights.extend([self.tensor(wire, end)?]),
                (11, Field::Bytes(end)) => form.inputs.push(name(wire, end)?),
                (12, Field::Bytes(end)) => form.outputs.push(name(wire, end)?),
                _ => {}
            }
            Ok(())
        })?;
        Ok(form)
    }

    /// NodeProto.
    fn node<R: Read + Seek>(&mut self, wire: &mut Wire<R>, end: u64, depth: usize) -> io::Result<Node> {
        let mut node = Node::default();
        wire.fields(end, |wire, field, value| {
            match (field, value) {
                (1, Field::Bytes(end)) => node.inputs.push(wire.text(end)?),
                (2, Field::Bytes(end)) => node.outputs.push(wire.text(end)?),
                (4, Field::Bytes(end)) => node.op = wire.text(end)?,
                (5, Field::Bytes(end)) => node.attributes.extend([self.attribute(wire, end, depth)?]),
                (7, Field::Bytes(end)) => node.domain = domain(wire.text(end)?),
                (8, Field::Bytes(end)) => node.overload = wire.text(end)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(node)
    }

    /// AttributeProto, with its name. Its type (field 20) is left out, since the numbers of the fields say it.
    fn attribute<R: Read + Seek>(
        &mut self,
        wire: &mut Wire<R>,
        end: u64,
        depth: usize,
    ) -> io::Result<(String, Attribute)> {
        let (mut name, mut attribute) = (String::new(), Attribute::default());
        wire.fields(end, |wire, field, value| {
            match (field, value) {
                (13 | 20, _) => {}
                (1, Field::Bytes(end)) => name = wire.text(end)?,
                (5 | 10, Field::Bytes(end)) => {
                    let (_, tensor) = self.tensor(wire, end)?;
                    attribute.values.entry(field).or_default().extend(tensor);
                }
                (6 | 11, Field::Bytes(end)) => attribute.graphs.push(self.graph(wire, end, depth + 1)?),
                (8, Field::Bytes(end)) => {
                    while wire.position < end {
                        let number = wire.varint()?;
                        attribute.values.entry(field).or_default().extend(number.to_le_bytes());
                    }
                }
                // Floats are a field of bytes each, or one field of all.
                (7, Field::Bytes(end)) => {
                    let values = attribute.values.entry(field).or_default();
                    read_up_to(wire, end, |bytes| values.extend(bytes))?;
                }
                (_, Field::Bytes(end)) => {
                    let text = hash_up_to(wire, end)?;
                    attribute.values.entry(field).or_default().extend(text);
                }
                (_, Field::Number(number)) => attribute.values.entry(field).or_default().extend(number.to_le_bytes()),
                (_, Field::Fixed32(bytes)) => attribute.values.entry(field).or_default().extend(bytes),
                (_, Field::Fixed64(bytes)) => attribute.values.entry(field).or_default().extend(bytes),
            }
            Ok(())
        })?;
        Ok((name, attribute))
    }

    /// Gives `length` bytes from `offset` of the file `location` beside the graph to `take`.
    fn beside(&mut self, location: &str, offset: u64, length: u64, take: impl FnMut(&[u8])) -> io::Result<()> {
        let relative = Path::new(location);
        let is_beneath = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !is_beneath {
            return Err(damaged(&format!("its weights lie outside its directory, in '{location}'")));
        }
        let path = self.directory.join(relative);
        let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        if !self.beside.contains_key(&path) {
            self.beside.insert(path.clone(), regular::open(&path).map_err(at)?);
        }
        let Some(file) = self.beside.get_mut(&path) else { return Ok(()) };
        file.seek(SeekFrom::Start(offset)).map_err(at)?;
        read(file, length, take).map_err(at)
    }
}

/// ValueInfoProto: the name alone.
fn name<R: Read + Seek>(wire: &mut Wire<R>, end: u64) -> io::Result<String> {
    let mut name = String::new();
    wire.fields(end, |wire, field, value| {
        if let (1, Field::Bytes(end)) = (field, value) {
            name = wire.text(end)?;
        }
        Ok(())
    })?;
    Ok(name)
}

/// Gives the bytes of `wire` up to `end` to `take`, piece by piece.
fn read_up_to<R: Read + Seek>(wire: &mut Wire<R>, end: u64, take: impl FnMut(&[u8])) -> io::Result<()> {
    let length = end.saturating_sub(wire.position);
    read(&mut wire.reader, length, take)?;
    wire.position = end;
    Ok(())
}

fn hash_up_to<R: Read + Seek>(wire: &mut Wire<R>, end: u64) -> io::Result<Hash> {
    let mut context = Context::new(&SHA256);
    read_up_to(wire, end, |bytes| context.update(bytes))?;
    Ok(finished(context))
}

/// Gives the next `length` bytes to `take`, piece by piece.
fn read(reader: &mut impl Read, length: u64, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let (mut left, mut chunk) = (length, vec![0; length.min(CHUNK) as usize]);
    while left > 0 {
        let piece = &mut chunk[..left.min(CHUNK) as usize];
        reader.read_exact(piece)?;
        take(piece);
        left -= piece.len() as u64;
    }
    Ok(())
}

fn finished(context: Context) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

/// A digest of parts of one kind; the length of each part counts, so that parts do not run into each other.
struct Parts(Context);

// === impl Parts ===

impl Parts {
    fn new(kind: &str) -> Parts {
        let mut parts = Parts(Context::new(&SHA256));
        parts.add(kind.as_bytes());
        parts
    }

    fn add(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    fn finish(self) -> Hash {
        finished(self.0)
    }
}

#[cfg(test)]
mod tests;
