//! Graphs that are packed or refused. That packed ones compute the same is tested where they run, in `services/model`.

use proptest::prelude::*;

use super::*;
use crate::proto::{GraphProto, NodeProto};

const ENCODER: &str = "../../tests/models/packing/bert.onnx";

fn graph(of: &Bytes) -> GraphProto {
    ModelProto::decode(of.clone()).unwrap().graph.unwrap()
}

fn encoder() -> ModelProto {
    ModelProto::decode(&std::fs::read(ENCODER).unwrap()[..]).unwrap()
}

fn refused(model: &ModelProto) -> String {
    pack(model.encode_to_vec().into(), 2).unwrap_err().to_string()
}

fn count(graph: &GraphProto, op: &str) -> usize {
    graph.node.iter().filter(|node| node.op_type == op).count()
}

#[test]
fn a_graph_is_written_as_it_was_read() {
    let bytes = std::fs::read(ENCODER).unwrap();
    let once = ModelProto::decode(&bytes[..]).unwrap();
    assert_eq!(ModelProto::decode(&once.encode_to_vec()[..]).unwrap(), once);
    assert_eq!(once.encoded_len(), bytes.len(), "no field is left out");
}

#[test]
fn multiplications_by_weights_are_there_once_and_attention_for_each_group() {
    let plain = encoder().graph.unwrap();
    let packed = pack(std::fs::read(ENCODER).unwrap().into(), 3).unwrap();
    assert_eq!(packed.share, 1.0);
    assert!(packed.model.len() < 3 * std::fs::metadata(ENCODER).unwrap().len() as usize, "weights are there once");
    let packed = graph(&packed.model);
    let by_weights = |graph: &GraphProto| {
        let is_weight = |name: &String| {
            graph.initializer.iter().any(|tensor| tensor.name.as_ref() == Some(name) && tensor.dims.len() == 2)
        };
        graph.node.iter().filter(|node| node.op_type == "MatMul" && node.input.iter().any(is_weight)).count()
    };
    assert!(by_weights(&plain) > 0);
    assert_eq!(by_weights(&packed), by_weights(&plain));
    assert_eq!(count(&packed, "Softmax"), 3 * count(&plain, "Softmax"));
    let names: Vec<_> = packed.input.iter().map(|input| &input.name[..]).collect();
    let group = |k: usize| ["input_ids", "attention_mask", "packing/tokens"].map(|name| of_group(name, k));
    let expected: Vec<String> = (0..3).flat_map(group).chain([PLACES.to_owned()]).collect();
    assert_eq!(names, expected);
    let outputs: Vec<_> = packed.output.iter().map(|output| &output.name[..]).collect();
    assert_eq!(outputs, [0, 1, 2].map(|k| of_group("output", k)));
}

#[test]
fn a_graph_that_does_not_fit_says_why() {
    let mut fixed = encoder();
    let dims = |model: &mut ModelProto| {
        let graph = model.graph.as_mut().unwrap();
        let tensor = graph.input[0].r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
        tensor.shape.as_mut().unwrap().dim[1].dim_value = Some(128);
    };
    dims(&mut fixed);
    assert_eq!(refused(&fixed), "its input 'input_ids' is not [batch, length] with both dimensions open");
    // A convolution in the place of the multiplications mixes tokens.
    let mut mixed = encoder();
    let nodes = &mut mixed.graph.as_mut().unwrap().node;
    nodes.iter_mut().filter(|node| node.op_type == "MatMul").for_each(|node| node.op_type = "Conv".to_owned());
    let message = refused(&mixed);
    assert!(message.starts_with("0 % of its weights work on each token alone, and packing needs 50 %: "), "{message}");
    let mut external = encoder();
    let weights = &mut external.graph.as_mut().unwrap().initializer[0];
    weights
        .external_data
        .push(crate::proto::Entry { key: Some("location".to_owned()), value: Some("weights".to_owned()) });
    let name = weights.name.clone().unwrap();
    assert_eq!(refused(&external), format!("its weights lie in files beside it, as '{name}' does"));
    let mut nested = encoder();
    let within = crate::proto::AttributeProto { g: Some(Bytes::new()), ..Default::default() };
    let node = NodeProto {
        op_type: "If".to_owned(),
        name: Some("choice".to_owned()),
        input: vec!["input_ids".to_owned()],
        output: vec!["chosen".to_owned()],
        attribute: vec![within],
        ..NodeProto::default()
    };
    nested.graph.as_mut().unwrap().node.insert(0, node);
    assert_eq!(refused(&nested), "node 'choice' (If) has a graph within");
    let mut without = encoder();
    let nodes = &mut without.graph.as_mut().unwrap().node;
    nodes.iter_mut().filter(|node| node.op_type == "Shape").for_each(|node| node.output.clear());
    assert!(refused(&without).ends_with("(Shape) has no output"));
    assert!(pack(Bytes::from_static(b"version https://git-lfs.github.com/spec/v1"), 2).is_err());
}

/// The page with the table of architectures, and the lines around it.
const PAGE: &str = "../../docs/batching.md";
const BEGIN: &str = "| encoder | exporter |";
const END: &str = "<!-- the end of the architectures -->";

/// The table of docs/batching.md: a line for each graph of tests/models/packing.
fn table() -> String {
    let folder = std::path::Path::new(ENCODER).parent().unwrap();
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut table = format!("{BEGIN} served |\n|---|---|---|\n");
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let (name, exporter) = name.strip_suffix("_dynamo").map_or((name, "tracer"), |name| (name, "dynamo"));
        let served = match pack(std::fs::read(&file).unwrap().into(), 3) {
            Ok(Packed { share, .. }) => {
                format!("packed; {:.0} % of the weights work on each token alone", 100.0 * share)
            }
            // The node at which the reason ends has a name that the exporter made.
            Err(Unfit(reason)) => format!("as it is: {}", reason.split(": the largest").next().unwrap_or(&reason)),
        };
        table += &format!("| {name} | {exporter} | {served} |\n");
    }
    table
}

#[test]
fn the_page_lists_the_architectures() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (listed, after) = rest.split_once(END).unwrap();
    let table = table();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, format!("{before}{table}{END}{after}")).unwrap();
    } else {
        let listed = format!("{BEGIN}{listed}");
        assert_eq!(listed, table, "renew it: UPDATE_DOCS=1 cargo test -p trireme-packing the_page_lists");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_packed_or_refused(bytes: Vec<u8>) {
        let _ = pack(bytes.into(), 2);
    }

    #[test]
    fn a_changed_model_is_packed_or_refused(at in 0usize..30_000, byte: u8) {
        let mut bytes = std::fs::read(ENCODER).unwrap();
        let place = at % bytes.len();
        bytes[place] = byte;
        let _ = pack(bytes.into(), 2);
    }
}
