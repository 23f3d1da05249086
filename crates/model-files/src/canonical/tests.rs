use std::io::Cursor;

use proptest::prelude::*;

use super::*;

const MODELS: &str = "../../tests/models/external";
const ENCODER: &str = "../../tests/repositories/basic/tiny_encoder/1/model.onnx";

fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A field of a protobuf message that holds bytes.
fn bytes(field: usize, value: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(value.len()), value.to_vec()].concat()
}

fn number(field: usize, value: u8) -> Vec<u8> {
    [varint(field << 3), varint(value.into())].concat()
}

/// A graph whose names, and whose order of weights, an exporter chose.
#[derive(Clone)]
struct Export {
    prefix: &'static str,
    /// The place of the weights `scale` and `shift` in the file.
    turned: bool,
    /// Whether weights are a field of bytes, and not one of floats.
    raw: bool,
    /// Whether `shift` is a node `Constant`, and not a weight.
    constant: bool,
    /// Whether a node without use, a node `Identity` and documentation are there.
    clutter: bool,
    op: &'static str,
    scale: f32,
    axis: u8,
    set: u8,
    output: &'static str,
}

const USUAL: Export = Export {
    prefix: "",
    turned: false,
    raw: true,
    constant: false,
    clutter: false,
    op: "Mul",
    scale: 2.0,
    axis: 1,
    set: 17,
    output: "y",
};

// === impl Export ===

impl Export {
    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn weight(&self, name: &str, value: f32) -> Vec<u8> {
        let field = if self.raw { 9 } else { 4 };
        [number(1, 1), number(2, 1), bytes(8, self.name(name).as_bytes()), bytes(field, &value.to_le_bytes())].concat()
    }

    fn node(&self, op: &str, inputs: &[String], output: &str, attribute: &[u8]) -> Vec<u8> {
        let inputs = inputs.iter().flat_map(|input| bytes(1, input.as_bytes())).collect();
        let named = bytes(3, self.name(op).as_bytes());
        let attribute = if attribute.is_empty() { Vec::new() } else { bytes(5, attribute) };
        bytes(1, &[inputs, bytes(2, output.as_bytes()), named, bytes(4, op.as_bytes()), attribute].concat())
    }

    /// `y = Softmax(x op scale + shift)`.
    fn write(&self) -> Vec<u8> {
        let [scaled, shifted, scale, shift] = ["scaled", "shifted", "scale", "shift"].map(|name| self.name(name));
        let mut graph = Vec::new();
        let mut weights = vec![bytes(5, &self.weight("scale", self.scale))];
        if self.constant {
            let value = [bytes(1, b"value"), bytes(5, &self.weight("", 0.5)), number(20, 4)].concat();
            graph.extend(self.node("Constant", &[], &shift, &value));
        } else {
            weights.push(bytes(5, &self.weight("shift", 0.5)));
        }
        if self.turned {
            weights.reverse();
        }
        let mut input = "x".to_owned();
        if self.clutter {
            graph.extend(self.node("Neg", &["x".to_owned()], "unused", &[]));
            graph.extend(self.node("Identity", &["x".to_owned()], "same", &[]));
            graph.extend(bytes(10, b"documentation"));
            input = "same".to_owned();
        }
        let axis = [bytes(1, b"axis"), number(3, self.axis), number(20, 2)].concat();
        graph.extend(self.node(self.op, &[input, scale], &scaled, &[]));
        graph.extend(self.node("Add", &[scaled, shift], &shifted, &[]));
        graph.extend(self.node("Softmax", &[shifted], self.output, &axis));
        graph.extend(weights.concat());
        graph.extend(bytes(11, &bytes(1, b"x")));
        graph.extend(bytes(12, &bytes(1, self.output.as_bytes())));
        [bytes(7, &graph), bytes(8, &number(2, self.set))].concat()
    }

    fn digest(&self) -> Hash {
        let file = self.write();
        parse(Cursor::new(&file), file.len() as u64, Path::new(""), &[]).unwrap()
    }
}

#[test]
fn names_order_and_layout_have_no_part_in_it() {
    let usual = USUAL.digest();
    let alike = [
        ("names", Export { prefix: "/encoder/layer.0/", ..USUAL }),
        ("the order of weights", Export { turned: true, ..USUAL }),
        ("the field of the elements", Export { raw: false, ..USUAL }),
        ("a constant", Export { constant: true, ..USUAL }),
        ("clutter", Export { clutter: true, ..USUAL }),
        ("the name of the output", Export { output: "z", ..USUAL }),
    ];
    for (what, export) in alike {
        assert_ne!(export.write(), USUAL.write(), "{what}");
        assert_eq!(export.digest(), usual, "{what}");
    }
}

#[test]
fn what_changes_a_result_changes_it() {
    let usual = USUAL.digest();
    let others = [
        ("an op", Export { op: "Div", ..USUAL }),
        ("a weight", Export { scale: 2.0 + f32::EPSILON * 2.0, ..USUAL }),
        ("an attribute", Export { axis: 0, ..USUAL }),
        ("the version of the ops", Export { set: 11, ..USUAL }),
    ];
    for (what, export) in others {
        assert_ne!(export.digest(), usual, "{what}");
    }
}

#[test]
fn only_the_outputs_that_are_taken_count() {
    let of = |outputs: &[&str]| {
        let file = USUAL.write();
        parse(Cursor::new(&file), file.len() as u64, Path::new(""), outputs)
    };
    assert_eq!(of(&["y"]).unwrap(), USUAL.digest());
    assert_ne!(of(&["scaled"]).unwrap(), USUAL.digest());
    assert!(of(&["z"]).unwrap_err().to_string().contains("nothing makes the value 'z'"));
}

#[test]
fn weights_beside_the_graph_count_as_those_in_it() {
    let whole = digest(Path::new(ENCODER), &[]).unwrap();
    for layout in ["one", "several", "nested"] {
        assert_eq!(digest(&Path::new(MODELS).join(layout).join("model.onnx"), &[]).unwrap(), whole, "{layout}");
    }
}

#[test]
fn a_changed_byte_of_weights_beside_the_graph_changes_it() {
    let folder = tempfile::tempdir().unwrap();
    let [graph, weights] = ["model.onnx", "model.onnx_data"].map(|name| {
        let copy = folder.path().join(name);
        std::fs::copy(Path::new(MODELS).join("one").join(name), &copy).unwrap();
        copy
    });
    let before = digest(&graph, &[]).unwrap();
    let mut bytes = std::fs::read(&weights).unwrap();
    bytes[9] ^= 1;
    std::fs::write(&weights, &bytes).unwrap();
    assert_ne!(digest(&graph, &[]).unwrap(), before);
    std::fs::write(&weights, &bytes[..9]).unwrap();
    assert!(digest(&graph, &[]).unwrap_err().to_string().contains("model.onnx_data"));
}

proptest! {
    #[test]
    fn a_changed_model_has_a_digest_or_is_refused(at in 0usize..20_000, byte: u8) {
        let mut bytes = std::fs::read(ENCODER).unwrap();
        let place = at % bytes.len();
        bytes[place] = byte;
        let _ = parse(Cursor::new(&bytes), bytes.len() as u64, Path::new(""), &[]);
    }
}
