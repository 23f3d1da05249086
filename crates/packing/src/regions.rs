//! Which nodes of an encoder work on each token alone.
//!
//! Shapes are computed for inputs of two sizes `[batch, length]`. A tensor is *per token* if its shape is `[batch, length, …]` or
//! `[batch × length, …]` for both, with the same further dimensions. A node is *token-wise* if all that it reads is per token or constant, its
//! output is per token, and its operator does not touch the dimensions of the tokens. Every other node mixes tokens, or is unknown.
//!
//! Padding has no tokens, so what tells padding from tokens has to stay with the rows: masks and ids, and all that is computed from them
//! without a table of weights, never make a node token-wise, except as the index into such a table.

use std::collections::{HashMap, HashSet};

use crate::layout::{Layout, SIZES};
use crate::proto::{GraphProto, NodeProto};
use crate::shapes::{Fact, Facts, count, infer};
use crate::tokenwise::{self, Operand};
use crate::unfit::Unfit;

/// At least this share of the weights has to work on tokens alone.
const LEAST_SHARE: f64 = 0.5;

/// Operators that take elements as they are. Elements of a shape are constant if they are the same for two sizes.
const TAKING: &[&str] = &["Shape", "Gather", "Slice", "Concat", "Unsqueeze", "Squeeze", "Identity", "Reshape"];

/// How often a node is executed in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Once: it depends on no input.
    Constant,
    /// Not at all: its output is always this list of integers, of this shape.
    Known { elements: Vec<i64>, shape: Vec<i64> },
    /// Once, on the tokens of all groups.
    Tokens,
    /// Once for each group.
    Groups,
}

/// The nodes of a graph, and the tensors between them.
pub struct Regions<'g> {
    /// The place of each node, in the graph's order.
    pub places: Vec<Place>,
    /// Tensors that are per token.
    pub layouts: HashMap<&'g str, Layout>,
    /// Constants, and tensors that are made of them alone.
    pub constants: HashSet<&'g str>,
    /// The share of the weights that works on tokens alone.
    pub share: f64,
    facts: Facts<'g>,
}

// === impl Regions ===

impl<'g> Regions<'g> {
    /// Finds the regions of `graph`, all of whose `inputs` are `[batch, length]`.
    pub fn find(graph: &'g GraphProto, inputs: &[&'g str]) -> Result<Regions<'g>, Unfit> {
        let facts = SIZES.map(|(batch, length)| infer(graph, inputs, batch, length));
        let weights = graph.initializer.iter().filter(|tensor| tensor.is_float());
        let mut tables: HashSet<&str> = weights.filter_map(|tensor| tensor.name.as_deref()).collect();
        let mut constants: HashSet<&str> =
            graph.initializer.iter().filter_map(|tensor| tensor.name.as_deref()).collect();
        let mut layouts: HashMap<&str, Layout> = HashMap::new();
        layouts.extend(inputs.iter().map(|&name| (name, Layout::Rows)));
        // Sizes of tensors, and selections of them.
        let mut taken: HashSet<&str> = HashSet::new();
        // Tensors that weights have a part in.
        let mut hidden: HashSet<&str> = HashSet::new();
        let mut places = Vec::with_capacity(graph.node.len());
        for node in &graph.node {
            let given = || node.input.iter().filter(|name| !name.is_empty()).map(String::as_str);
            let outputs = || node.output.iter().filter(|name| !name.is_empty()).map(String::as_str);
            if outputs().next().is_none() {
                return Err(Unfit(format!("{} has no output", node.described())));
            }
            for name in outputs() {
                layouts.extend(Layout::of(&facts, name).map(|layout| (name, layout)));
            }
            if given().all(|name| constants.contains(name)) {
                constants.extend(outputs());
                if tokenwise::makes_floats(node) || given().any(|name| tables.contains(name)) && node.op_type != "Shape"
                {
                    tables.extend(outputs());
                }
                places.push(Place::Constant);
                continue;
            }
            let takes = TAKING.contains(&node.op_type.as_str());
            if takes
                && (node.op_type == "Shape" || given().all(|name| taken.contains(name) || constants.contains(name)))
            {
                taken.extend(outputs());
            }
            if let Some(known) = known(node, &facts).filter(|_| outputs().all(|name| taken.contains(name))) {
                constants.extend(outputs());
                places.push(known);
                continue;
            }
            if node.has_graphs() {
                return Err(Unfit(format!("{} has a graph within", node.described())));
            }
            let is_lookup = tokenwise::is_lookup(node, &tables, &constants);
            let operand = |name: &'g str| match layouts.get(name) {
                _ if constants.contains(name) => Some(Operand::Constant(&facts[0].get(name)?.shape)),
                Some(&layout) if hidden.contains(name) || is_lookup => {
                    Some(Operand::Tokens(layout, &facts[0].get(name)?.shape))
                }
                _ => None,
            };
            let result = outputs().next().and_then(|name| Some((*layouts.get(name)?, &facts[0].get(name)?.shape[..])));
            let values = |name: &str| Some(&facts[0].get(name)?.values.as_ref()?.elements[..]);
            // The shape of a Reshape is written anew.
            let read = if node.op_type == "Reshape" { 1 } else { usize::MAX };
            let operands = given().take(read).map(operand).collect::<Option<Vec<_>>>();
            let has_first =
                [node.input.first(), node.output.first()].iter().all(|name| name.is_some_and(|name| !name.is_empty()));
            let is_tokenwise = operands.zip(result).filter(|_| has_first).is_some_and(|(operands, result)| {
                outputs().all(|name| layouts.contains_key(name)) && tokenwise::holds(node, &operands, result, values)
            });
            if node.op_type != "Shape"
                && node.op_type != "Size"
                && (is_lookup || given().any(|name| hidden.contains(name)))
            {
                hidden.extend(outputs());
            }
            places.push(if is_tokenwise { Place::Tokens } else { Place::Groups });
        }
        let [facts, _] = facts;
        let mut regions = Regions { places, layouts, constants, share: 0.0, facts };
        regions.leave_those_without_weights(graph);
        regions.weigh(graph)?;
        Ok(regions)
    }

    /// The dimensions after those of the tokens.
    pub fn further(&self, name: &str) -> &[i64] {
        let fact = self.facts.get(name).zip(self.layouts.get(name));
        fact.map_or(&[], |(fact, layout)| &fact.shape[layout.lead()..])
    }

    /// Regions are entered and left by copies, which pay where weights work in between.
    fn leave_those_without_weights(&mut self, graph: &'g GraphProto) {
        let mut region: Vec<usize> = (0..graph.node.len()).collect();
        fn root(region: &[usize], mut node: usize) -> usize {
            while region[node] != node {
                node = region[node];
            }
            node
        }
        let mut makers: HashMap<&str, usize> = HashMap::new();
        for (at, node) in graph.node.iter().enumerate().filter(|(at, _)| self.places[*at] == Place::Tokens) {
            for from in node.input.iter().filter_map(|name| makers.get(name.as_str())) {
                let (one, other) = (root(&region, *from), root(&region, at));
                region[one.max(other)] = one.min(other);
            }
            makers.extend(node.output.iter().map(|name| (name.as_str(), at)));
        }
        let with_weights = graph.node.iter().enumerate().filter(|(_, node)| self.weights(node) > 0);
        let kept: HashSet<usize> = with_weights.map(|(at, _)| root(&region, at)).collect();
        for at in 0..graph.node.len() {
            if self.places[at] == Place::Tokens && !kept.contains(&root(&region, at)) {
                self.places[at] = Place::Groups;
            }
        }
    }

    /// The number of weights that a node multiplies by.
    fn weights(&self, node: &NodeProto) -> i64 {
        let constant = |name: &String| {
            Some(&self.facts.get(name.as_str()).filter(|_| self.constants.contains(name.as_str()))?.shape)
        };
        let matrices = node.input.iter().filter_map(constant).filter(|shape| shape.len() >= 2);
        match tokenwise::multiplies(&node.op_type) {
            true => matrices.map(|shape| count(shape)).max().unwrap_or(0),
            false => 0,
        }
    }

    fn weigh(&mut self, graph: &'g GraphProto) -> Result<(), Unfit> {
        let (batch, length) = SIZES[0];
        let (mut all, mut tokenwise, mut others) = (0.0, 0.0, Vec::new());
        for (node, place) in graph.node.iter().zip(&self.places) {
            let weights = self.weights(node) as f64;
            // A layer on one vector for each row is not worth counting.
            let is_small = |name: &String| {
                self.facts
                    .get(name.as_str())
                    .is_some_and(|fact| fact.shape.iter().rev().skip(1).product::<i64>() < batch * length)
            };
            if *place == Place::Constant || weights == 0.0 || node.output.first().is_some_and(is_small) {
                continue;
            }
            all += weights;
            match place {
                Place::Tokens => tokenwise += weights,
                _ => others.push((weights, node.described())),
            }
        }
        self.share = if all > 0.0 { tokenwise / all } else { 0.0 };
        if self.share >= LEAST_SHARE {
            return Ok(());
        }
        let largest = others.iter().max_by(|one, other| one.0.total_cmp(&other.0));
        let largest = largest
            .map_or_else(|| "it has no weights".to_owned(), |(_, node)| format!("the largest other part is in {node}"));
        Err(Unfit(format!(
            "{:.0} % of its weights work on each token alone, and packing needs {:.0} %: {largest}",
            self.share * 100.0,
            LEAST_SHARE * 100.0
        )))
    }
}

/// The place of a node that takes constant dimensions of a shape: its output is the same for all sizes.
fn known(node: &NodeProto, facts: &[Facts<'_>; 2]) -> Option<Place> {
    let fact = |facts: &Facts<'_>| facts.get(node.output.first()?.as_str()).cloned();
    let [Fact { shape, values }, other] = [fact(&facts[0])?, fact(&facts[1])?];
    let values = values.filter(|values| values.is_int64 && other.values.as_ref() == Some(values))?;
    (node.output.len() == 1 && shape == other.shape).then_some(Place::Known { elements: values.elements, shape })
}
