//! Sets the attribute `accuracy_level` of the `MatMulNBits` nodes of an ONNX file that have none.
//!
//! The file is a protobuf `ModelProto` (onnx/onnx.proto). All of it is copied as it is but for the edits: an attribute in each node, and the lengths of the
//! messages around it. So weights of gigabytes are never in memory.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// The op, and the domain that it is of.
const OP: (&str, &str) = ("MatMulNBits", "com.microsoft");

/// The attribute (contrib_ops.md of ONNX Runtime): 0 or none leaves the choice to the library, 1 computes in fp32, 4 in int8.
const ATTRIBUTE: &str = "accuracy_level";

/// Graphs lie within nodes of graphs no deeper than this.
const MAX_DEPTH: usize = 16;

/// Names of ops, domains and attributes that are compared are shorter than this.
const MAX_NAME: u64 = 64;

/// The changes to a file.
#[derive(Debug, Default)]
pub struct Edits {
    /// In ascending order of their places, and apart.
    edits: Vec<Edit>,
    /// Nodes that get the attribute.
    pub nodes: usize,
    /// Whether weights lie in files beside the graph.
    pub has_external: bool,
}

/// Bytes in place of others.
#[derive(Debug)]
struct Edit {
    at: u64,
    removes: u64,
    bytes: Vec<u8>,
}

/// The messages that are looked into.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Other,
}

/// A reader that knows its place.
struct Places {
    reader: BufReader<File>,
    at: u64,
}

/// The fields of a node that count here.
#[derive(Default)]
struct Node {
    op: String,
    domain: String,
    /// Where its field with the level is, and the level.
    level: Option<(u64, u64, u64)>,
}

// === impl Kind ===

impl Kind {
    /// The message in a field of this number.
    fn within(self, field: u64) -> Kind {
        match (self, field) {
            (Kind::Model, 7) | (Kind::Attribute, 6 | 11) => Kind::Graph,
            (Kind::Graph, 1) => Kind::Node,
            (Kind::Graph, 5) | (Kind::Attribute, 5 | 10) => Kind::Tensor,
            (Kind::Node, 5) => Kind::Attribute,
            _ => Kind::Other,
        }
    }
}

// === impl Edits ===

impl Edits {
    /// The changes that give this level to the nodes of the graph at `path`.
    pub fn find(path: &Path, level: u8) -> io::Result<Edits> {
        let file = File::open(path)?;
        let end = file.metadata()?.len();
        let mut edits = Edits::default();
        let mut places = Places { reader: BufReader::new(file), at: 0 };
        edits.message(&mut places, Kind::Model, end, level, 0)?;
        edits.edits.sort_by_key(|edit| edit.at);
        Ok(edits)
    }

    /// Writes the changed file.
    pub fn write(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (mut from, mut to, mut at) = (File::open(from)?, File::create(to)?, 0);
        for edit in &self.edits {
            io::copy(&mut (&mut from).take(edit.at - at), &mut to)?;
            to.write_all(&edit.bytes)?;
            at = from.seek(SeekFrom::Start(edit.at + edit.removes))?;
        }
        io::copy(&mut from, &mut to).map(drop)
    }

    /// Reads a message up to `end`. Returns by how much it grows.
    fn message(&mut self, places: &mut Places, kind: Kind, end: u64, level: u8, depth: usize) -> io::Result<i64> {
        if depth > MAX_DEPTH {
            return Err(damaged("its graphs lie too deep within one another"));
        }
        let (mut grows, mut node) = (0, Node::default());
        while places.at < end {
            let field = places.at;
            let key = places.varint()?;
            match key & 7 {
                0 => drop(places.varint()?),
                1 => places.seek(places.at + 8)?,
                5 => places.seek(places.at + 4)?,
                2 => {
                    let prefix = places.at;
                    let length = places.varint()?;
                    let (start, stop) = (places.at, places.at.saturating_add(length));
                    if stop > end {
                        return Err(damaged("a field ends beyond its message"));
                    }
                    let inner = kind.within(key >> 3);
                    match (kind, key >> 3) {
                        (Kind::Node, 4) => node.op = places.name(length)?,
                        (Kind::Node, 7) => node.domain = places.name(length)?,
                        (Kind::Tensor, 13) => self.has_external = true,
                        _ if inner == Kind::Other || inner == Kind::Tensor && self.has_external => {}
                        _ => {
                            let more =
                                self.message(places, inner, stop, level, depth + usize::from(inner == Kind::Graph))?;
                            if more != 0 {
                                let bytes = varint(length.wrapping_add_signed(more));
                                grows += more + bytes.len() as i64 - (start - prefix) as i64;
                                self.edits.push(Edit { at: prefix, removes: start - prefix, bytes });
                            }
                        }
                    }
                    if inner == Kind::Attribute {
                        places.seek(start)?;
                        node.level = places.level(stop)?.map(|found| (field, stop, found)).or(node.level);
                    }
                    places.seek(stop)?;
                }
                other => return Err(damaged(&format!("it has a field of wire type {other}"))),
            }
        }
        Ok(grows + if kind == Kind::Node { self.set(&node, end, level) } else { 0 })
    }

    /// Gives the level to the node that ends at `end`, if it is of `OP` and lacks one. Returns by how much the node grows.
    fn set(&mut self, node: &Node, end: u64, level: u8) -> i64 {
        let unset = node.level.is_none_or(|(.., level)| level == 0);
        if (node.op.as_str(), node.domain.as_str()) != OP || !unset {
            return 0;
        }
        self.nodes += 1;
        let (at, removes) = node.level.map_or((end, 0), |(field, stop, _)| (field, stop - field));
        let bytes = attribute(level);
        let grows = bytes.len() as i64 - removes as i64;
        self.edits.push(Edit { at, removes, bytes });
        grows
    }
}

// === impl Places ===

impl Places {
    fn varint(&mut self) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.reader.read_exact(&mut byte)?;
            self.at += 1;
            number |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(number);
            }
        }
        Err(damaged("it has a number of more than 64 bits"))
    }

    fn seek(&mut self, at: u64) -> io::Result<()> {
        match i64::try_from(i128::from(at) - i128::from(self.at)) {
            Ok(ahead) => self.reader.seek_relative(ahead)?,
            Err(_) => return Err(damaged("a field ends beyond its message")),
        }
        self.at = at;
        Ok(())
    }

    /// A name of so many bytes; empty if it is too long to be one that is compared.
    fn name(&mut self, length: u64) -> io::Result<String> {
        if length > MAX_NAME {
            return Ok(String::new());
        }
        let mut bytes = vec![0; length as usize];
        self.reader.read_exact(&mut bytes)?;
        self.at += length;
        Ok(String::from_utf8(bytes).unwrap_or_default())
    }

    /// The level that an attribute up to `end` has, if it is that one.
    fn level(&mut self, end: u64) -> io::Result<Option<u64>> {
        let (mut is_it, mut level) = (false, 0);
        while self.at < end {
            match self.varint()? {
                0x0a => {
                    let length = self.varint()?;
                    let stop = self.at.saturating_add(length);
                    is_it = self.name(length)? == ATTRIBUTE;
                    if !is_it {
                        return Ok(None);
                    }
                    self.seek(stop)?;
                }
                0x18 => level = self.varint()?,
                key if key & 7 == 0 => drop(self.varint()?),
                _ => break,
            }
        }
        Ok(is_it.then_some(level))
    }
}

/// A NodeProto's field with the attribute: its name, its number, and that it is one (AttributeProto.INT).
fn attribute(level: u8) -> Vec<u8> {
    let name = [&[0x0a, ATTRIBUTE.len() as u8], ATTRIBUTE.as_bytes()].concat();
    let content = [&name[..], &[0x18, level], &[0xa0, 0x01, 2]].concat();
    [&[0x2a, content.len() as u8], &content[..]].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not an ONNX model: {what}"))
}

#[cfg(test)]
mod tests {
    use trireme_model_files::onnx::Graph;

    use super::*;

    fn model(layout: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/nbits").join(layout).join("model.onnx")
    }

    #[test]
    fn nodes_get_the_level_once_and_the_rest_stays() {
        let folder = tempfile::tempdir().unwrap();
        for (layout, is_beside) in [("one", false), ("beside", true)] {
            let (from, to) = (model(layout), folder.path().join("model.onnx"));
            let edits = Edits::find(&from, 4).unwrap();
            assert_eq!((edits.nodes, edits.has_external), (2, is_beside));
            edits.write(&from, &to).unwrap();
            assert_eq!(Edits::find(&to, 4).unwrap().nodes, 0, "they have it");
            assert_eq!(Graph::read(&to).unwrap(), Graph::read(&from).unwrap());
            let [before, after] = [&from, &to].map(|path| std::fs::read(path).unwrap());
            let found = after.windows(ATTRIBUTE.len()).filter(|bytes| *bytes == ATTRIBUTE.as_bytes()).count();
            assert_eq!(found, 2);
            assert!(after.len() >= before.len() + 2 * attribute(4).len(), "{} of {}", after.len(), before.len());

            // A level of 0 says nothing; another one is the wish of whoever made the graph.
            for (level, nodes) in [(0, 2), (1, 0)] {
                let own = folder.path().join("own.onnx");
                Edits::find(&from, level).unwrap().write(&from, &own).unwrap();
                let again = Edits::find(&own, 4).unwrap();
                assert_eq!(again.nodes, nodes, "level {level}");
                again.write(&own, &to).unwrap();
                assert_eq!(std::fs::read(&to).unwrap() == after, level == 0);
            }
        }
    }

    #[test]
    fn a_changed_file_is_read_or_refused() {
        let (folder, whole) = (tempfile::tempdir().unwrap(), std::fs::read(model("beside")).unwrap());
        let file = folder.path().join("model.onnx");
        for place in 0..whole.len() {
            for byte in [0, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[place] = byte;
                std::fs::write(&file, &bytes).unwrap();
                if let Ok(edits) = Edits::find(&file, 4) {
                    edits.write(&file, &folder.path().join("copy.onnx")).unwrap();
                }
            }
        }
    }
}
