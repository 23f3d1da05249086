//! What the last nodes of a graph show about an output: whether scores are probabilities already, whether vectors have the length 1,
//! whether a projection stands behind the last normalisation of the layers.
//!
//! The reader walks from the output towards the inputs, as long as each node computes its result from one tensor that is not constant.
//! It recognises the forms that torch's exporters, optimum and ONNX Runtime's optimizer and quantizer write.

use std::collections::{HashMap, HashSet};

/// An op at the end of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOp {
    /// Probabilities over the last axis.
    Softmax,
    /// Logarithms of probabilities over the last axis.
    LogSoftmax,
    /// A probability for each number.
    Sigmoid,
    /// The hyperbolic tangent, with which the pooler of BERT ends.
    Tanh,
    /// Vectors are divided by their length.
    Normalize,
    /// Vectors are multiplied by weights: a linear layer.
    Projection,
    /// Some positions are taken, as that of the first token.
    Select,
    /// A sum, mean or maximum over an axis.
    Reduce,
    /// The normalisation of a layer. Nothing before it is looked at.
    LayerNorm,
}

/// A node of the graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) op: String,
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
}

/// The nodes of a graph by the tensors that they make.
pub(crate) struct Nodes<'a> {
    makers: HashMap<&'a str, &'a Node>,
    /// Weights, and what is computed of weights alone.
    constants: HashSet<&'a str>,
}

/// The most nodes of a walk.
const MAX_STEPS: usize = 64;

/// Ops that leave the numbers as they are.
const SHAPING: [&str; 9] =
    ["Identity", "Cast", "Squeeze", "Unsqueeze", "Dropout", "Flatten", "Reshape", "Transpose", "Concat"];

/// Ops on numbers one by one, of which one operand may be constant.
const ELEMENTWISE: [&str; 4] = ["Add", "Sub", "Mul", "Div"];

/// Multiplications by weights, which are the second input.
const PRODUCTS: [&str; 6] = ["MatMul", "Gemm", "FusedMatMul", "GemmFastGelu", "MatMulNBits", "DynamicQuantizeMatMul"];

const LAYER_NORMS: [&str; 7] = [
    "LayerNormalization",
    "SkipLayerNormalization",
    "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "RMSNormalization",
    "GroupNormalization",
    "InstanceNormalization",
];

// === impl Nodes ===

impl<'a> Nodes<'a> {
    /// The nodes, in the order of the file, in which each stands behind those that it needs.
    pub(crate) fn new(nodes: &'a [Node], weights: impl IntoIterator<Item = &'a str>) -> Nodes<'a> {
        let mut constants: HashSet<&str> = weights.into_iter().collect();
        let mut makers = HashMap::new();
        for node in nodes {
            let given = || node.inputs.iter().filter(|input| !input.is_empty());
            let is_constant = node.op == "Constant"
                || (given().next().is_some() && given().all(|input| constants.contains(input.as_str())));
            for output in &node.outputs {
                makers.insert(output.as_str(), node);
                if is_constant {
                    constants.insert(output);
                }
            }
        }
        Nodes { makers, constants }
    }

    /// The ops at the end of a tensor, the last one first.
    pub(crate) fn ending(&self, tensor: &str) -> Vec<EndOp> {
        let (mut found, mut at) = (Vec::new(), tensor);
        for _ in 0..MAX_STEPS {
            let Some(node) = self.makers.get(at) else { break };
            let computed = self.computed(node);
            let first = node.inputs.first().map(String::as_str);
            let (op, next) = match (node.op.as_str(), computed.as_slice()) {
                ("Softmax", _) => (Some(EndOp::Softmax), first),
                ("LogSoftmax", _) => (Some(EndOp::LogSoftmax), first),
                ("Sigmoid", _) => (Some(EndOp::Sigmoid), first),
                ("Tanh", _) => (Some(EndOp::Tanh), first),
                ("LpNormalization", _) => (Some(EndOp::Normalize), first),
                ("Gather" | "GatherElements" | "GatherND" | "Slice", _) => (Some(EndOp::Select), first),
                ("ReduceMean" | "ReduceSum" | "ReduceMax", _) => (Some(EndOp::Reduce), None),
                (op, _) if LAYER_NORMS.contains(&op) => (Some(EndOp::LayerNorm), None),
                (op, [input]) if PRODUCTS.contains(&op) && first == Some(input) => {
                    (Some(EndOp::Projection), Some(*input))
                }
                (op, [input]) if SHAPING.contains(&op) || ELEMENTWISE.contains(&op) || op == "Clip" => {
                    (None, Some(*input))
                }
                // The second input of these is a shape, which is computed, too.
                ("Reshape" | "Expand", _) => (None, first),
                ("Div" | "Mul", [left, right]) => match self.pair(left, right) {
                    Some((op, next)) => (op, Some(next)),
                    None => (self.is_layer_norm(right).then_some(EndOp::LayerNorm), None),
                },
                _ => break,
            };
            found.extend(op);
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        found
    }

    /// The inputs of a node that are not constant.
    fn computed(&self, node: &'a Node) -> Vec<&'a str> {
        let inputs = node.inputs.iter().map(String::as_str);
        inputs.filter(|input| !input.is_empty() && !self.constants.contains(input)).collect()
    }

    /// What the product or quotient of two computed tensors is, and the tensor that it is made of.
    fn pair(&self, left: &'a str, right: &'a str) -> Option<(Option<EndOp>, &'a str)> {
        if self.is_length_of(right, left) {
            return Some((Some(EndOp::Normalize), left));
        }
        if self.is_mask(right) {
            return Some((None, left));
        }
        if self.is_mask(left) {
            return Some((None, right));
        }
        // A quantized product times its scale.
        let quantized = [left, right].into_iter().find_map(|side| {
            let node = self.makers.get(self.plain(side)).filter(|node| node.op == "MatMulInteger")?;
            let source = self.makers.get(node.inputs.first()?.as_str())?;
            (source.op == "DynamicQuantizeLinear").then(|| source.inputs.first().map(String::as_str))?
        })?;
        Some((Some(EndOp::Projection), quantized))
    }

    /// The tensor before ops that leave its numbers as they are.
    fn plain(&self, mut tensor: &'a str) -> &'a str {
        for _ in 0..MAX_STEPS {
            let Some(node) = self.makers.get(tensor) else { break };
            match (
                ["Identity", "Cast", "Squeeze", "Unsqueeze", "Expand"].contains(&node.op.as_str()),
                node.inputs.first(),
            ) {
                (true, Some(input)) => tensor = input,
                _ => break,
            }
        }
        tensor
    }

    fn is_mask(&self, tensor: &'a str) -> bool {
        self.plain(tensor) == "attention_mask"
    }

    /// The reduction that a divisor is made of.
    fn reduction(&self, divisor: &'a str) -> Option<&'a Node> {
        const BETWEEN: [&str; 6] = ["Clip", "Max", "Sqrt", "Add", "Pow", "Reciprocal"];
        let mut at = self.plain(divisor);
        for _ in 0..8 {
            let node = *self.makers.get(at)?;
            if node.op.starts_with("Reduce") {
                return Some(node);
            }
            match self.computed(node).as_slice() {
                [input] if BETWEEN.contains(&node.op.as_str()) => at = self.plain(input),
                _ => return None,
            }
        }
        None
    }

    /// Whether a divisor is the length of this tensor's vectors.
    fn is_length_of(&self, divisor: &'a str, vectors: &'a str) -> bool {
        let Some(reduction) = self.reduction(divisor) else { return false };
        let Some(reduced) = reduction.inputs.first().map(|input| self.plain(input)) else { return false };
        let vectors = self.plain(vectors);
        let is_square_of = |node: &&&Node| {
            let squares = matches!(node.op.as_str(), "Mul" | "Pow" | "Abs");
            squares && self.computed(node).iter().all(|input| self.plain(input) == vectors)
        };
        match reduction.op.as_str() {
            "ReduceL2" | "ReduceSumSquare" => reduced == vectors,
            "ReduceSum" => self.makers.get(reduced).filter(is_square_of).is_some(),
            _ => false,
        }
    }

    /// Whether a divisor is that of a layer's normalisation, which takes means.
    fn is_layer_norm(&self, divisor: &'a str) -> bool {
        self.reduction(divisor).is_some_and(|node| node.op == "ReduceMean")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ending of `y` by nodes that are written `output = Op(input, input)`; names in capitals are weights.
    fn ending(lines: &[&str]) -> Vec<EndOp> {
        let nodes: Vec<Node> = lines
            .iter()
            .map(|line| {
                let (output, call) = line.split_once(" = ").unwrap();
                let (op, inputs) = call.trim_end_matches(')').split_once('(').unwrap();
                let inputs = inputs.split(", ").filter(|input| !input.is_empty()).map(str::to_owned).collect();
                Node { op: op.to_owned(), inputs, outputs: vec![output.to_owned()] }
            })
            .collect();
        let names = nodes.iter().flat_map(|node| &node.inputs);
        let weights: Vec<&str> =
            names.map(String::as_str).filter(|name| name.chars().all(char::is_uppercase)).collect();
        Nodes::new(&nodes, weights).ending("y")
    }

    #[test]
    fn probabilities_are_told_from_scores() {
        assert_eq!(ending(&["z = Gemm(x, W, B)", "y = Softmax(z)"]), [EndOp::Softmax, EndOp::Projection]);
        assert_eq!(
            ending(&["z = MatMul(x, W)", "b = Add(z, B)", "y = Sigmoid(b)"]),
            [EndOp::Sigmoid, EndOp::Projection]
        );
        assert_eq!(ending(&["y = Gemm(x, W, B)"]), [EndOp::Projection]);
        // SiLU is a product, and no probability.
        assert_eq!(ending(&["s = Sigmoid(x)", "y = Mul(x, s)"]), []);
    }

    #[test]
    fn a_projection_behind_the_last_normalisation_is_one_of_the_library() {
        let layers = ["f = MatMul(h, W)", "r = Add(f, h)", "n = LayerNormalization(r, G, B)"];
        let with = |lines: &[&'static str]| ending(&[&layers[..], lines].concat());
        assert_eq!(with(&["y = Identity(n)"]), [EndOp::LayerNorm]);
        assert_eq!(with(&["y = MatMul(n, W)"]), [EndOp::Projection, EndOp::LayerNorm]);
        // The weights may be a node's, turned or quantized.
        let found = with(&["c = Constant()", "t = Transpose(c)", "p = MatMul(n, t)", "q = Cast(p)", "y = Add(q, B)"]);
        assert_eq!(found, [EndOp::Projection, EndOp::LayerNorm]);
        let quantized = with(&[
            "q = DynamicQuantizeLinear(n)",
            "i = MatMulInteger(q, W)",
            "c = Cast(i)",
            "s = Mul(n, S)",
            "y = Mul(c, s)",
        ]);
        assert_eq!(quantized, [EndOp::Projection, EndOp::LayerNorm]);
        // An encoder without a last normalisation ends with a sum of two.
        assert_eq!(ending(&["f = MatMul(h, W)", "y = Add(f, h)"]), []);
    }

    #[test]
    fn vectors_that_are_divided_by_their_length_are_seen() {
        let torch = ["l = ReduceL2(x)", "c = Clip(l, E)", "s = Shape(x)", "e = Expand(c, s)", "y = Div(x, e)"];
        assert_eq!(ending(&torch), [EndOp::Normalize]);
        let squares = ["q = Mul(x, x)", "u = ReduceSum(q, A)", "r = Sqrt(u)", "m = Max(r, E)", "y = Div(x, m)"];
        assert_eq!(ending(&squares), [EndOp::Normalize]);
        let others = ["l = ReduceL2(z)", "y = Div(x, l)"];
        assert_eq!(ending(&others), [], "the length of other vectors");
        let layer_norm = ["q = Pow(x, E)", "u = ReduceMean(q)", "a = Add(u, E)", "r = Sqrt(a)", "y = Div(x, r)"];
        assert_eq!(ending(&layer_norm), [EndOp::LayerNorm]);
    }

    #[test]
    fn a_mask_is_no_op_and_the_pooler_is_seen() {
        let masked = ["p = MatMul(n, W)", "u = Unsqueeze(attention_mask, A)", "m = Cast(u)", "y = Mul(p, m)"];
        assert_eq!(ending(&masked), [EndOp::Projection]);
        let pooler = ["f = Gather(n, I)", "g = Gemm(f, W, B)", "y = Tanh(g)"];
        assert_eq!(ending(&pooler), [EndOp::Tanh, EndOp::Projection, EndOp::Select]);
    }
}
