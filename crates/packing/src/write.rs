//! Writes the packed graph: each node where its place says, and copies between tokens and rows where an edge leaves or enters a region.

use std::collections::HashSet;

use crate::layout::Layout;
use crate::names;
use crate::proto::{
    Dimension, GraphProto, INT64, NodeProto, ShapeProto, TensorProto, TensorType, TypeProto, ValueInfoProto,
};
use crate::regions::{Place, Regions};

/// The graph under way.
struct Writer<'g> {
    regions: &'g Regions<'g>,
    groups: usize,
    /// Tensors that exist once for all tokens.
    tokens: HashSet<&'g str>,
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    /// Names of the tensors and constants that were made for copies.
    made: HashSet<String>,
}

/// The packed form of `graph`, all of whose `inputs` are `[batch, length]`.
pub fn write(graph: &GraphProto, inputs: &[&str], regions: &Regions<'_>, groups: usize) -> GraphProto {
    let mut writer = Writer {
        regions,
        groups,
        tokens: HashSet::new(),
        nodes: Vec::new(),
        initializers: Vec::new(),
        made: HashSet::new(),
    };
    for (node, place) in graph.node.iter().zip(&regions.places) {
        match place {
            Place::Constant => writer.nodes.push(node.clone()),
            Place::Known { elements, shape } => {
                let known = TensorProto { dims: shape.clone(), ..TensorProto::of_ints(&node.output[0], elements) };
                writer.initializers.push(known);
            }
            Place::Tokens => writer.write_once(node),
            Place::Groups => (0..groups).for_each(|group| writer.write_in(node, group)),
        }
    }
    let of_group = |tensor: &ValueInfoProto, group| ValueInfoProto {
        name: names::of_group(&tensor.name, group),
        r#type: tensor.r#type.clone().map(|own| renamed(own, group)),
        ..ValueInfoProto::default()
    };
    let mut packed = GraphProto { name: graph.name.clone(), ..GraphProto::default() };
    for group in 0..groups {
        let given = graph.input.iter().filter(|input| inputs.contains(&input.name.as_str()));
        packed.input.extend(given.map(|input| of_group(input, group)));
        packed.input.push(integers(&names::tokens(group), &[format!("rows_{group}"), format!("length_{group}")]));
        for output in &graph.output {
            let name = writer.in_group(&output.name, group);
            let own = names::of_group(&output.name, group);
            if name != own {
                writer.nodes.push(node("Identity", &[&name], &own));
            }
            packed.output.push(of_group(output, group));
        }
    }
    packed.input.push(integers(names::PLACES, &["one".to_owned(), "tokens".to_owned()]));
    let Writer { nodes, mut initializers, .. } = writer;
    packed.node = needed(nodes, &packed.output);
    initializers.extend(graph.initializer.iter().cloned());
    let read: HashSet<&String> = packed.node.iter().flat_map(|node| &node.input).collect();
    initializers.retain(|tensor| tensor.name.as_ref().is_some_and(|name| read.contains(name)));
    packed.initializer = initializers;
    packed.quantization_annotation = graph.quantization_annotation.clone();
    packed
}

// === impl Writer ===

impl<'g> Writer<'g> {
    /// A node on the tokens of all groups.
    fn write_once(&mut self, node: &'g NodeProto) {
        let mut own = node.clone();
        if matches!(node.op_type.as_str(), "Reshape" | "Flatten") {
            let name = node.output[0].as_str();
            let shape = match self.regions.layouts[name] {
                Layout::Rows => [&[1, -1], self.regions.further(name)].concat(),
                Layout::Flat => [&[-1], self.regions.further(name)].concat(),
            };
            own = reshape(&self.of_tokens(&node.input[0]), &self.list(&shape), name);
            own.name.clone_from(&node.name);
        } else {
            for name in own.input.iter_mut().filter(|name| !name.is_empty()) {
                *name = self.of_tokens(name);
            }
        }
        self.nodes.push(own);
        self.tokens.extend(node.output.iter().map(String::as_str));
    }

    /// A node on the rows of a group.
    fn write_in(&mut self, node: &'g NodeProto, group: usize) {
        if node.op_type == "Shape" && self.tokens.contains(node.input[0].as_str()) {
            return self.write_shape(node, group);
        }
        let mut own = node.clone();
        own.name = node.name.as_ref().filter(|name| !name.is_empty()).map(|name| names::of_group(name, group));
        for name in own.input.iter_mut().filter(|name| !name.is_empty()) {
            *name = self.in_group(name, group);
        }
        for name in own.output.iter_mut().filter(|name| !name.is_empty()) {
            *name = names::of_group(name, group);
        }
        self.nodes.push(own);
    }

    /// The shape that a tensor of tokens has in a group, without its elements.
    fn write_shape(&mut self, of: &NodeProto, group: usize) {
        let name = of.input[0].as_str();
        let index = self.index(self.regions.layouts[name], group);
        let (rows, all) = (format!("{index}/shape"), names::of_group(&format!("{name}/shape"), group));
        if self.made.insert(rows.clone()) {
            self.nodes.push(node("Shape", &[&index], &rows));
        }
        if self.made.insert(all.clone()) {
            let further = self.list(self.regions.further(name));
            self.nodes.push(NodeProto { attribute: vec![axis(0)], ..node("Concat", &[&rows, &further], &all) });
        }
        let own = names::of_group(&of.output[0], group);
        let made = match (of.int("start", 0), of.attribute("end").and_then(|end| end.i)) {
            (0, None) => node("Identity", &[&all], &own),
            (start, end) => {
                let (start, end) = (self.list(&[start]), self.list(&[end.unwrap_or(i64::MAX)]));
                node("Slice", &[&all, &start, &end], &own)
            }
        };
        self.nodes.push(made);
    }

    /// The name under which the tokens of all groups have a tensor: those of the groups are joined, without their padding.
    fn of_tokens(&mut self, name: &str) -> String {
        if self.regions.constants.contains(name) || self.tokens.contains(name) {
            return name.to_owned();
        }
        let layout = self.regions.layouts[name];
        let packed = format!("{name}/packed/{}", layout.lead());
        if self.made.insert(packed.clone()) {
            let mut parts = Vec::with_capacity(self.groups);
            let flat = self.list(&[&[-1], self.regions.further(name)].concat());
            for group in 0..self.groups {
                let (of_group, part) = (self.in_group(name, group), names::of_group(&format!("{name}/flat"), group));
                self.nodes.push(reshape(&of_group, &flat, &part));
                parts.push(part);
            }
            let all = match &parts[..] {
                [one] => one.clone(),
                parts => {
                    let (all, parts) = (format!("{name}/flat"), parts.iter().map(String::as_str).collect::<Vec<_>>());
                    self.nodes.push(NodeProto { attribute: vec![axis(0)], ..node("Concat", &parts, &all) });
                    all
                }
            };
            let places = match layout {
                Layout::Rows => names::PLACES.to_owned(),
                Layout::Flat => self.flat(names::PLACES),
            };
            self.nodes.push(node("Gather", &[&all, &places], &packed));
        }
        packed
    }

    /// The name under which a group has a tensor: that of all tokens is taken apart, with tokens of others in the place of padding.
    fn in_group(&mut self, name: &str, group: usize) -> String {
        if self.regions.constants.contains(name) {
            return name.to_owned();
        }
        let own = names::of_group(name, group);
        if self.tokens.contains(name) && self.made.insert(own.clone()) {
            let layout = self.regions.layouts[name];
            let (mut from, index) = (name.to_owned(), self.index(layout, group));
            if layout == Layout::Rows {
                from = format!("{name}/tokens");
                if self.made.insert(from.clone()) {
                    let shape = self.list(&[&[-1], self.regions.further(name)].concat());
                    self.nodes.push(reshape(name, &shape, &from));
                }
            }
            self.nodes.push(node("Gather", &[&from, &index], &own));
        }
        own
    }

    /// The input that has the places of a group's tokens among all.
    fn index(&mut self, layout: Layout, group: usize) -> String {
        match layout {
            Layout::Rows => names::tokens(group),
            Layout::Flat => self.flat(&names::tokens(group)),
        }
    }

    /// A tensor of places as a list.
    fn flat(&mut self, name: &str) -> String {
        let flat = format!("{name}/flat");
        if self.made.insert(flat.clone()) {
            let shape = self.list(&[-1]);
            self.nodes.push(reshape(name, &shape, &flat));
        }
        flat
    }

    /// The name of a constant list of integers.
    fn list(&mut self, values: &[i64]) -> String {
        let name = format!("packing/{}", values.iter().map(i64::to_string).collect::<Vec<_>>().join(","));
        if self.made.insert(name.clone()) {
            self.initializers.push(TensorProto::of_ints(&name, values));
        }
        name
    }
}

fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: op.to_owned(),
        name: Some(output.to_owned()),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

fn reshape(from: &str, shape: &str, to: &str) -> NodeProto {
    node("Reshape", &[from, shape], to)
}

fn axis(axis: i64) -> crate::proto::AttributeProto {
    /// `AttributeProto.AttributeType` of an integer.
    const INT: i32 = 2;
    crate::proto::AttributeProto { name: "axis".to_owned(), i: Some(axis), kind: Some(INT), ..Default::default() }
}

/// An input of INT64 with two dimensions.
fn integers(name: &str, dims: &[String]) -> ValueInfoProto {
    let dim = |name: &String| Dimension { dim_param: Some(name.clone()), ..Dimension::default() };
    let shape = Some(ShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor_type = Some(TensorType { elem_type: INT64, shape });
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto { tensor_type, ..TypeProto::default() }),
        ..ValueInfoProto::default()
    }
}

/// The type of a group's tensor: the names of its dimensions are the group's own, because the library takes dimensions of one name for equal.
fn renamed(mut own: TypeProto, group: usize) -> TypeProto {
    let dims = own.tensor_type.iter_mut().flat_map(|tensor| &mut tensor.shape).flat_map(|shape| &mut shape.dim);
    for name in dims.filter_map(|dim| dim.dim_param.as_mut()) {
        *name = names::of_group(name, group);
    }
    own
}

/// The nodes that the outputs depend on, in their order.
fn needed(nodes: Vec<NodeProto>, outputs: &[ValueInfoProto]) -> Vec<NodeProto> {
    let mut read: HashSet<String> = outputs.iter().map(|output| output.name.clone()).collect();
    let mut kept: Vec<NodeProto> = Vec::with_capacity(nodes.len());
    for node in nodes.into_iter().rev() {
        if node.output.iter().any(|name| read.contains(name)) {
            read.extend(node.input.iter().cloned());
            kept.push(node);
        }
    }
    kept.reverse();
    kept
}
