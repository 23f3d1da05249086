//! The outline of an ONNX file's graph, read without its weights.
//!
//! The file is a protobuf `ModelProto` (onnx/onnx.proto). The reader skips the fields that it does not need, so a file of
//! gigabytes takes milliseconds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use trireme_inference::DataType;

pub use crate::ending::EndOp;
use crate::ending::{Node, Nodes};
use crate::regular;

/// Graphs lie within nodes of graphs no deeper than this.
pub(crate) const MAX_DEPTH: usize = 16;

/// Names and paths are shorter than this.
const MAX_TEXT_BYTES: u64 = 64 << 10;

/// Ops that find the scale of a run's activations.
const DYNAMIC: [&str; 3] = ["DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"];

/// A graph's tensors, as the file declares them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// Its inputs.
    pub inputs: Vec<GraphTensor>,
    /// Its outputs; a last dimension that the file leaves open is that of the weights which make it, where these show it.
    pub outputs: Vec<GraphTensor>,
    /// Rows of the table that `input_ids` are looked up in, where the graph shows it.
    pub vocabulary: Option<i64>,
    /// Rows of the table of positions, where a table has the name that torch's modules give it.
    pub positions: Option<i64>,
    /// The ops at the end of each output, the last one first.
    endings: BTreeMap<String, Vec<EndOp>>,
    /// Files of weights that lie beside the file.
    pub external: BTreeSet<String>,
    /// Whether activations are quantized by a scale that is found in each run.
    pub is_dynamic: bool,
    /// Where the file is a variant of another one.
    pub variant: Option<Variant>,
}

/// The notes that `trireme optimize` leaves in the file's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variant {
    /// The name of the file that the variant was made of, beside it.
    pub origin: String,
    /// The size of that file.
    pub origin_bytes: u64,
    /// How alike the results are, and how fast: for people.
    pub figures: String,
}

/// An input or output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphTensor {
    /// Its name.
    pub name: String,
    /// `None`: no datatype that the v2 protocol has.
    pub datatype: Option<DataType>,
    /// -1 for any size; `None` where the file does not give the number of dimensions.
    pub dims: Option<Vec<i64>>,
}

/// Where the value of a field is.
pub(crate) enum Field {
    Number(u64),
    Fixed32([u8; 4]),
    Fixed64([u8; 8]),
    /// The bytes up to this position.
    Bytes(u64),
}

/// A protobuf message, read field by field.
pub(crate) struct Wire<R: Read + Seek> {
    pub reader: BufReader<R>,
    pub position: u64,
}

// === impl Graph ===

impl Graph {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> io::Result<Graph> {
        let file = regular::open(path)?;
        let length = file.metadata()?.len();
        Graph::parse(file, length)
    }

    fn parse(reader: impl Read + Seek, length: u64) -> io::Result<Graph> {
        let mut wire = Wire::new(reader);
        let (mut graph, mut notes) = (None, BTreeMap::new());
        wire.fields(length, |wire, field, value| {
            match (field, value) {
                (7, Field::Bytes(end)) => graph = Some(wire.graph(end, 0)?),
                (14, Field::Bytes(end)) => notes.extend([wire.entry(end)?]),
                _ => {}
            }
            Ok(())
        })?;
        let mut graph: Graph = graph.ok_or_else(|| damaged("it holds no graph"))?;
        graph.variant = Variant::of(&mut notes);
        Ok(graph)
    }

    /// The output of this name.
    pub fn output(&self, name: &str) -> Option<&GraphTensor> {
        self.outputs.iter().find(|output| output.name == name)
    }

    /// The ops at the end of this output, the last one first; none where the graph shows nothing.
    pub fn ending(&self, output: &str) -> &[EndOp] {
        self.endings.get(output).map_or(&[], Vec::as_slice)
    }

    /// The input of this name.
    pub fn input(&self, name: &str) -> Option<&GraphTensor> {
        self.inputs.iter().find(|input| input.name == name)
    }
}

// === impl Variant ===

impl Variant {
    fn of(notes: &mut BTreeMap<String, String>) -> Option<Variant> {
        let mut note = |name: &str| notes.remove(&format!("trireme.{name}")).unwrap_or_default();
        let origin = Some(note("origin")).filter(|origin| !origin.is_empty() && !origin.contains('/'))?;
        Some(Variant { origin, origin_bytes: note("origin_bytes").parse().ok()?, figures: note("figures") })
    }
}

// === impl GraphTensor ===

impl GraphTensor {
    /// The number of its dimensions, where the file gives it.
    pub fn rank(&self) -> Option<usize> {
        self.dims.as_ref().map(Vec::len)
    }

    /// The last dimension, where it is fixed.
    pub fn width(&self) -> Option<i64> {
        self.dims.as_ref()?.last().copied().filter(|&width| width > 0)
    }

    /// Whether its elements are floating point numbers.
    pub fn is_float(&self) -> bool {
        matches!(self.datatype, Some(DataType::Fp32 | DataType::Fp16 | DataType::Bf16 | DataType::Fp64))
    }
}

// === impl Wire ===

impl<R: Read + Seek> Wire<R> {
    pub fn new(reader: R) -> Wire<R> {
        Wire { reader: BufReader::new(reader), position: 0 }
    }

    /// GraphProto: nodes, weights, inputs, outputs.
    fn graph(&mut self, end: u64, depth: usize) -> io::Result<Graph> {
        if depth > MAX_DEPTH {
            return Err(damaged("its graphs lie too deep within one another"));
        }
        let mut graph = Graph::default();
        let mut weights: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        let mut nodes = Vec::new();
        self.fields(end, |wire, field, value| {
            let Field::Bytes(end) = value else { return Ok(()) };
            match field {
                1 => {
                    let node = wire.node(end, depth, &mut graph.external)?;
                    graph.is_dynamic |= DYNAMIC.contains(&node.op.as_str());
                    nodes.push(node);
                }
                5 => {
                    let (name, dims) = wire.weight(end, &mut graph.external)?;
                    weights.insert(name, dims);
                }
                11 => graph.inputs.push(wire.tensor(end)?),
                12 => graph.outputs.push(wire.tensor(end)?),
                _ => {}
            }
            Ok(())
        })?;
        // Old files list weights among the inputs.
        graph.inputs.retain(|input| !weights.contains_key(&input.name));
        let rows = |name: &str| weights.get(name).filter(|dims| dims.len() == 2).map(|dims| dims[0]);
        graph.vocabulary = nodes.iter().filter_map(looks_up_ids).find_map(rows);
        graph.positions = nodes.iter().filter_map(looks_up_positions).find_map(rows);
        let ends = Nodes::new(&nodes, weights.iter().map(|(name, dims)| (name.as_str(), dims.as_slice())));
        let ending = |output: &GraphTensor| (output.name.clone(), ends.ending(&output.name));
        graph.endings = graph.outputs.iter().map(ending).collect();
        for output in &mut graph.outputs {
            let open = output.dims.as_mut().and_then(|dims| dims.last_mut()).filter(|last| **last < 0);
            if let (Some(last), Some(width)) = (open, ends.width(&output.name).filter(|width| *width > 0)) {
                *last = width;
            }
        }
        Ok(graph)
    }

    fn node(&mut self, end: u64, depth: usize, external: &mut BTreeSet<String>) -> io::Result<Node> {
        let mut node = Node::default();
        self.fields(end, |wire, field, value| {
            match (field, value) {
                (1, Field::Bytes(end)) => node.inputs.push(wire.text(end)?),
                (2, Field::Bytes(end)) => node.outputs.push(wire.text(end)?),
                (4, Field::Bytes(end)) => node.op = wire.text(end)?,
                (5, Field::Bytes(end)) => {
                    let tensor = wire.attribute(end, depth, external)?;
                    node.constant = node.constant.take().or(tensor);
                }
                _ => {}
            }
            Ok(())
        })?;
        node.constant = node.constant.filter(|_| node.op == "Constant");
        Ok(node)
    }

    /// AttributeProto: the weights of its tensors and graphs may lie in other files, too. Gives the shape of its tensor.
    fn attribute(&mut self, end: u64, depth: usize, external: &mut BTreeSet<String>) -> io::Result<Option<Vec<i64>>> {
        let mut shape = None;
        self.fields(end, |wire, field, value| {
            match (field, value) {
                (5, Field::Bytes(end)) => shape = Some(wire.weight(end, external)?.1),
                (10, Field::Bytes(end)) => drop(wire.weight(end, external)?),
                (6 | 11, Field::Bytes(end)) => external.extend(wire.graph(end, depth + 1)?.external),
                _ => {}
            }
            Ok(())
        })?;
        Ok(shape)
    }

    /// TensorProto: name and dimensions; the file that holds it, where that is another one.
    fn weight(&mut self, end: u64, external: &mut BTreeSet<String>) -> io::Result<(String, Vec<i64>)> {
        let (mut name, mut dims) = (String::new(), Vec::new());
        self.fields(end, |wire, field, value| {
            match (field, value) {
                (1, Field::Number(dim)) => dims.push(dim as i64),
                (1, Field::Bytes(end)) => {
                    while wire.position < end {
                        dims.push(wire.varint()? as i64);
                    }
                }
                (8, Field::Bytes(end)) => name = wire.text(end)?,
                (13, Field::Bytes(end)) => {
                    let (key, value) = wire.entry(end)?;
                    if key == "location" {
                        external.insert(value.trim_start_matches("./").to_owned());
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok((name, dims))
    }

    /// StringStringEntryProto: a key and its value.
    pub fn entry(&mut self, end: u64) -> io::Result<(String, String)> {
        let (mut key, mut value) = (String::new(), String::new());
        self.fields(end, |wire, field, found| {
            match (field, found) {
                (1, Field::Bytes(end)) => key = wire.text(end)?,
                (2, Field::Bytes(end)) => value = wire.text(end)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok((key, value))
    }

    /// ValueInfoProto: a name and a TypeProto.
    fn tensor(&mut self, end: u64) -> io::Result<GraphTensor> {
        let mut tensor = GraphTensor::default();
        self.fields(end, |wire, field, value| {
            match (field, value) {
                (1, Field::Bytes(end)) => tensor.name = wire.text(end)?,
                (2, Field::Bytes(end)) => wire.fields(end, |wire, field, value| match (field, value) {
                    (1, Field::Bytes(end)) => wire.tensor_type(end, &mut tensor),
                    _ => Ok(()),
                })?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(tensor)
    }

    /// TypeProto.Tensor: the datatype and a TensorShapeProto.
    fn tensor_type(&mut self, end: u64, tensor: &mut GraphTensor) -> io::Result<()> {
        self.fields(end, |wire, field, value| {
            match (field, value) {
                (1, Field::Number(number)) => tensor.datatype = datatype(number),
                (2, Field::Bytes(end)) => {
                    let mut dims = Vec::new();
                    wire.fields(end, |wire, field, value| {
                        let (1, Field::Bytes(end)) = (field, value) else { return Ok(()) };
                        let mut dim = -1;
                        wire.fields(end, |_, field, value| {
                            if let (1, Field::Number(size)) = (field, value) {
                                dim = size as i64;
                            }
                            Ok(())
                        })?;
                        dims.push(dim);
                        Ok(())
                    })?;
                    tensor.dims = Some(dims);
                }
                _ => {}
            }
            Ok(())
        })
    }

    /// Gives every field up to `end` to `visit`, which may read a value of bytes or leave it.
    pub fn fields(
        &mut self,
        end: u64,
        mut visit: impl FnMut(&mut Wire<R>, u64, Field) -> io::Result<()>,
    ) -> io::Result<()> {
        while self.position < end {
            let key = self.varint()?;
            match key & 7 {
                0 => {
                    let number = self.varint()?;
                    visit(self, key >> 3, Field::Number(number))?;
                }
                1 => {
                    let bytes = self.bytes()?;
                    visit(self, key >> 3, Field::Fixed64(bytes))?;
                }
                5 => {
                    let bytes = self.bytes()?;
                    visit(self, key >> 3, Field::Fixed32(bytes))?;
                }
                2 => {
                    let length = self.varint()?;
                    let stop = self.position.checked_add(length).filter(|&stop| stop <= end);
                    let stop = stop.ok_or_else(|| damaged("a field ends beyond its message"))?;
                    visit(self, key >> 3, Field::Bytes(stop))?;
                    self.seek(stop)?;
                }
                other => return Err(damaged(&format!("it has a field of wire type {other}"))),
            }
        }
        Ok(())
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        self.position += N as u64;
        Ok(bytes)
    }

    pub fn varint(&mut self) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.reader.read_exact(&mut byte)?;
            self.position += 1;
            number |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(number);
            }
        }
        Err(damaged("it has a number of more than 64 bits"))
    }

    pub fn text(&mut self, end: u64) -> io::Result<String> {
        let length = end.saturating_sub(self.position);
        if length > MAX_TEXT_BYTES {
            return Err(damaged("it has a name of more than 64 KiB"));
        }
        let mut bytes = vec![0; length as usize];
        self.reader.read_exact(&mut bytes)?;
        self.position = end;
        String::from_utf8(bytes).map_err(|_| damaged("a name is not UTF-8"))
    }

    fn seek(&mut self, position: u64) -> io::Result<()> {
        let ahead = position.checked_sub(self.position).ok_or_else(|| damaged("a field ends beyond its message"))?;
        match i64::try_from(ahead) {
            Ok(ahead) => self.reader.seek_relative(ahead)?,
            Err(_) => drop(self.reader.seek(SeekFrom::Start(position))?),
        }
        self.position = position;
        Ok(())
    }
}

/// The weights that a node looks `input_ids` up in. Optimised graphs have the lookup within one large node.
fn looks_up_ids(node: &Node) -> Option<&str> {
    let place = match node.op.as_str() {
        "Gather" => 0,
        "EmbedLayerNormalization" | "QEmbedLayerNormalization" => 2,
        _ => return None,
    };
    let reads_ids = node.inputs.iter().any(|input| input == "input_ids");
    node.inputs.get(place).filter(|_| reads_ids).map(String::as_str)
}

/// The weights that a node looks positions up in, by the names of torch's modules.
fn looks_up_positions(node: &Node) -> Option<&str> {
    const NAMES: [&str; 3] = ["position_embeddings.weight", "embed_positions.weight", "wpe.weight"];
    let place = match node.op.as_str() {
        "Gather" => 0,
        "EmbedLayerNormalization" | "QEmbedLayerNormalization" => 3,
        _ => return None,
    };
    let table = node.inputs.get(place)?;
    NAMES.iter().any(|name| table.contains(name)).then_some(table)
}

pub(crate) fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not an ONNX model: {what}"))
}

/// TensorProto.DataType.
fn datatype(number: u64) -> Option<DataType> {
    Some(match number {
        1 => DataType::Fp32,
        2 => DataType::Uint8,
        3 => DataType::Int8,
        4 => DataType::Uint16,
        5 => DataType::Int16,
        6 => DataType::Int32,
        7 => DataType::Int64,
        8 => DataType::Bytes,
        9 => DataType::Bool,
        10 => DataType::Fp16,
        11 => DataType::Fp64,
        12 => DataType::Uint32,
        13 => DataType::Uint64,
        16 => DataType::Bf16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    const ENCODER: &str = "../../tests/repositories/basic/tiny_encoder/1/model.onnx";

    #[test]
    fn inputs_outputs_and_the_vocabulary_are_read() {
        let graph = Graph::read(Path::new(ENCODER)).unwrap();
        let tensor = |name: &str, datatype, dims: &[i64]| GraphTensor {
            name: name.to_owned(),
            datatype: Some(datatype),
            dims: Some(dims.to_vec()),
        };
        let ids = ["input_ids", "attention_mask"].map(|name| tensor(name, DataType::Int64, &[-1, -1]));
        assert_eq!(graph.inputs, ids);
        assert_eq!(graph.outputs, [tensor("last_hidden_state", DataType::Fp32, &[-1, -1, 8])]);
        assert!(graph.vocabulary.is_some_and(|rows| rows > 100), "{:?}", graph.vocabulary);
        assert!(graph.external.is_empty());
    }

    #[test]
    fn what_is_no_model_is_an_error() {
        let message = |bytes: &[u8]| Graph::parse(Cursor::new(bytes), bytes.len() as u64).unwrap_err().to_string();
        assert_eq!(message(b""), "not an ONNX model: it holds no graph");
        assert!(message(b"version https://git-lfs.github.com/spec/v1").contains("not an ONNX model"));
        assert!(message(&[0x3a, 0x7f, 0]).contains("ends beyond"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Graph::parse(Cursor::new(&bytes), bytes.len() as u64);
        }

        #[test]
        fn a_changed_model_is_read_or_refused(at in 0usize..20_000, byte: u8) {
            let mut bytes = std::fs::read(ENCODER).unwrap();
            let place = at % bytes.len();
            bytes[place] = byte;
            let _ = Graph::parse(Cursor::new(&bytes), bytes.len() as u64);
        }
    }
}
