//! Facts about an output that the last nodes of a graph show: whether scores are probabilities already, whether vectors have the length 1,
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
    /// A sum, mean or maximum over an axis, also where it is divided by a number of tokens.
    Reduce,
    /// An activation of a linear layer, other than those above.
    Activation,
    /// The normalisation of a layer. Where it takes the sum of two tensors, as the last one of an encoder does, it is the first op of the list.
    LayerNorm,
}

/// A node of the graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) op: String,
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    /// The shape of the tensor that a node `Constant` holds.
    pub(crate) constant: Option<Vec<i64>>,
}

/// The nodes of a graph by the tensors that they make.
pub(crate) struct Nodes<'a> {
    makers: HashMap<&'a str, &'a Node>,
    /// Weights, and tensors that are computed from weights alone.
    constants: HashSet<&'a str>,
    /// The shapes of weights.
    shapes: HashMap<&'a str, &'a [i64]>,
}

/// The most nodes of a walk.
const MAX_STEPS: usize = 64;

/// Ops that leave the numbers as they are.
const SHAPING: [&str; 11] = [
    "Identity",
    "Cast",
    "Squeeze",
    "Unsqueeze",
    "Dropout",
    "Flatten",
    "Reshape",
    "Transpose",
    "Concat",
    "QuantizeLinear",
    "DequantizeLinear",
];

/// Activations that are one node.
const ACTIVATIONS: [&str; 14] = [
    "Relu",
    "Gelu",
    "FastGelu",
    "BiasGelu",
    "QuickGelu",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Celu",
    "Mish",
    "Softplus",
    "Softsign",
    "HardSwish",
    "HardSigmoid",
];

/// Ops within the second factor of an activation that multiplies numbers by a function of themselves, as GELU, SiLU and Mish.
const GATES: [&str; 9] = ["Add", "Sub", "Mul", "Div", "Erf", "Sigmoid", "Tanh", "Pow", "Softplus"];

/// The normalisations that add two tensors first.
const SKIPPING: [&str; 2] = ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"];

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
    /// The nodes in the order of the file: each stands behind the nodes whose outputs it reads.
    pub(crate) fn new(nodes: &'a [Node], weights: impl IntoIterator<Item = (&'a str, &'a [i64])>) -> Nodes<'a> {
        let mut shapes: HashMap<&str, &[i64]> = weights.into_iter().collect();
        let mut constants: HashSet<&str> = shapes.keys().copied().collect();
        let mut makers = HashMap::new();
        for node in nodes {
            let given = || node.inputs.iter().filter(|input| !input.is_empty());
            let is_constant = node.op == "Constant"
                || (given().next().is_some() && given().all(|input| constants.contains(input.as_str())));
            // torch's exporter writes equal weights once, and a copy for each further place.
            let copied = || match (node.op.as_str(), node.inputs.first()) {
                ("Identity" | "Cast" | "DequantizeLinear", Some(input)) => shapes.get(input.as_str()).copied(),
                _ => None,
            };
            if let (Some(shape), Some(output)) = (node.constant.as_deref().or_else(copied), node.outputs.first()) {
                shapes.insert(output, shape);
            }
            for output in &node.outputs {
                makers.insert(output.as_str(), node);
                if is_constant {
                    constants.insert(output);
                }
            }
        }
        Nodes { makers, constants, shapes }
    }

    /// The size of a tensor's last axis, by the weights that made it.
    pub(crate) fn width(&self, tensor: &str) -> Option<i64> {
        let mut at = tensor;
        for _ in 0..MAX_STEPS {
            let node = *self.makers.get(at)?;
            let shape = |input: usize| self.shapes.get(node.inputs.get(input)?.as_str()).copied();
            let (op, first) = (node.op.as_str(), node.inputs.first()?);
            if ["MatMul", "FusedMatMul", "MatMulInteger"].contains(&op) {
                return shape(1).filter(|shape| shape.len() == 2).map(|shape| shape[1]);
            }
            // A bias, or the weights of a normalisation, are as long as the vectors.
            let place = match op {
                "Gemm" => Some(2),
                op if LAYER_NORMS.contains(&op) && !SKIPPING.contains(&op) => Some(1),
                _ => None,
            };
            if let Some(place) = place {
                return shape(place).filter(|shape| shape.len() == 1).map(|shape| shape[0]);
            }
            let sides = [shape(0), shape(1)].into_iter().flatten();
            let mut vectors = sides.filter(|shape| shape.len() == 1 && shape[0] > 1);
            at = match op {
                op if ELEMENTWISE.contains(&op) => match (vectors.next(), self.computed(node).as_slice()) {
                    (Some(shape), _) => return Some(shape[0]),
                    (None, [left, right]) if self.is_mask(left) => right,
                    (None, [left, ..]) => left,
                    (None, []) => return None,
                },
                "Identity" | "Cast" | "Dropout" | "QuantizeLinear" | "DequantizeLinear" | "Gather" | "Clip"
                | "Tanh" | "Sigmoid" | "Softmax" | "LogSoftmax" | "LpNormalization" | "ReduceSum" | "ReduceMean"
                | "ReduceMax" => first,
                op if ACTIVATIONS.contains(&op) => first,
                _ => return None,
            };
        }
        None
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
                // Rows of a table, as of the embeddings of tokens.
                ("Gather", _) if first.is_some_and(|table| self.constants.contains(table)) => break,
                ("Gather" | "GatherElements" | "GatherND" | "Slice", _) => (Some(EndOp::Select), first),
                ("ReduceMean" | "ReduceSum" | "ReduceMax", _) => (Some(EndOp::Reduce), None),
                (op, _) if SKIPPING.contains(&op) => (Some(EndOp::LayerNorm), None),
                (op, _) if LAYER_NORMS.contains(&op) => (Some(EndOp::LayerNorm), first),
                (op, _) if ACTIVATIONS.contains(&op) => (Some(EndOp::Activation), first),
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
                    None if self.is_layer_norm(right) => (Some(EndOp::LayerNorm), Some(self.uncentred(left))),
                    None => (self.is_sum(left).then_some(EndOp::Reduce), None),
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

    /// The op of a product or quotient of two computed tensors, if any, and the tensor to go on with.
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
        if let Some(gated) =
            [(left, right), (right, left)].into_iter().find(|(number, gate)| self.is_gate(gate, number))
        {
            return Some((Some(EndOp::Activation), gated.0));
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

    /// Whether a factor is a function of the numbers that it multiplies.
    fn is_gate(&self, factor: &'a str, numbers: &'a str) -> bool {
        let (mut at, numbers) = (self.root(factor), self.root(numbers));
        if at == numbers {
            return false;
        }
        for _ in 0..16 {
            let Some(node) = self.makers.get(at).filter(|node| GATES.contains(&node.op.as_str())) else { return false };
            let roots: Vec<_> = self.computed(node).into_iter().map(|input| self.root(input)).collect();
            match roots.first() {
                _ if roots.contains(&numbers) => return true,
                Some(next) => at = next,
                None => return false,
            }
        }
        false
    }

    /// The tensor before ops that leave its numbers as they are, or add and multiply constants.
    fn root(&self, mut tensor: &'a str) -> &'a str {
        for _ in 0..MAX_STEPS {
            tensor = self.plain(tensor);
            let Some(node) = self.makers.get(tensor).filter(|node| ELEMENTWISE.contains(&node.op.as_str())) else {
                break;
            };
            let [only] = self.computed(node)[..] else { break };
            tensor = only;
        }
        tensor
    }

    /// The tensor of which a mean was subtracted.
    fn uncentred(&self, tensor: &'a str) -> &'a str {
        let minuend = |node: &&&Node| node.op == "Sub";
        let found = self.makers.get(self.plain(tensor)).filter(minuend).and_then(|node| node.inputs.first());
        found.map_or(tensor, String::as_str)
    }

    /// Whether a tensor is a sum over an axis, as in a mean that a mask weighs.
    fn is_sum(&self, tensor: &'a str) -> bool {
        self.makers.get(self.plain(tensor)).is_some_and(|node| node.op == "ReduceSum")
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
                Node { op: op.to_owned(), inputs, outputs: vec![output.to_owned()], constant: None }
            })
            .collect();
        let names = nodes.iter().flat_map(|node| &node.inputs);
        let weights: Vec<&str> =
            names.map(String::as_str).filter(|name| name.chars().all(char::is_uppercase)).collect();
        Nodes::new(&nodes, weights.into_iter().map(|name| (name, &[][..]))).ending("y")
    }

    #[test]
    fn an_open_width_is_that_of_the_weights() {
        let node = |op: &str, inputs: &[&str], output: &str, constant: Option<Vec<i64>>| Node {
            op: op.to_owned(),
            inputs: inputs.iter().map(|input| (*input).to_owned()).collect(),
            outputs: vec![output.to_owned()],
            constant,
        };
        let nodes = [
            node("LayerNormalization", &["h", "G", "B"], "states", None),
            node("Constant", &[], "c", Some(vec![8, 3])),
            node("MatMul", &["states", "c"], "p", None),
            node("ReduceL2", &["p"], "l", None),
            node("Div", &["p", "l"], "colbert", None),
            node("Unsqueeze", &["attention_mask", "A"], "u", None),
            node("Mul", &["u", "states"], "m", None),
            node("ReduceSum", &["m", "A"], "t", None),
            node("ReduceSum", &["u", "A"], "n", None),
            node("Div", &["t", "n"], "mean", None),
            node("Gemm", &["mean", "W", "BIAS"], "scores", None),
            node("Slice", &["states", "A"], "cut", None),
            node("Identity", &["G"], "same", None),
            node("LayerNormalization", &["cut", "same", "B"], "last", None),
        ];
        let weights: [(&str, &[i64]); 5] = [("G", &[8]), ("B", &[8]), ("A", &[1]), ("W", &[5, 8]), ("BIAS", &[5])];
        let nodes = Nodes::new(&nodes, weights);
        let found = ["states", "colbert", "mean", "scores", "cut", "h", "last"].map(|tensor| nodes.width(tensor));
        assert_eq!(found, [Some(8), Some(3), Some(8), Some(5), None, None, Some(8)]);
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
        assert_eq!(ending(&["s = Sigmoid(x)", "y = Mul(x, s)"]), [EndOp::Activation]);
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
        // A library's normalisation behind a layer of its own, as one node or as several.
        let own = ["p = MatMul(n, W)", "y = LayerNormalization(p, G, B)"];
        let found = [EndOp::LayerNorm, EndOp::Projection, EndOp::LayerNorm];
        assert_eq!(with(&own), found);
        let nodes = [
            "p = MatMul(n, W)",
            "m = ReduceMean(p)",
            "d = Sub(p, m)",
            "q = Pow(d, E)",
            "u = ReduceMean(q)",
            "a = Add(u, E)",
            "r = Sqrt(a)",
            "y = Div(d, r)",
        ];
        assert_eq!(with(&nodes), found);
        // An encoder without a last normalisation ends with a sum of two.
        assert_eq!(ending(&["f = MatMul(h, W)", "y = Add(f, h)"]), []);
    }

    #[test]
    fn layers_are_counted_through_their_activations() {
        let two = |activation: &[&'static str]| {
            let nodes =
                [&["n = LayerNormalization(r, G, B)", "x = MatMul(n, W)"][..], activation, &["y = MatMul(z, W)"]];
            ending(&nodes.concat())
        };
        let gelu = ["s = Div(x, C)", "e = Erf(s)", "a = Add(e, O)", "m = Mul(x, a)", "z = Mul(m, H)"];
        let tanh = [
            "k = Pow(x, T)",
            "c = Mul(k, F)",
            "i = Add(x, c)",
            "s = Mul(i, P)",
            "t = Tanh(s)",
            "o = Add(t, O)",
            "h = Mul(x, H)",
            "z = Mul(h, o)",
        ];
        for activation in [&["z = Relu(x)"][..], &["g = Sigmoid(x)", "z = Mul(x, g)"], &gelu, &tanh] {
            let expected = [EndOp::Projection, EndOp::Activation, EndOp::Projection, EndOp::LayerNorm];
            assert_eq!(two(activation), expected, "{activation:?}");
        }
        assert_eq!(two(&["z = Tanh(x)"])[1], EndOp::Tanh);
        assert_eq!(two(&["z = Unknown(x)"]), [EndOp::Projection], "an op that is not known ends the walk");
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
        assert_eq!(ending(&["y = Gather(W, n)"]), [], "rows of a table");
    }
}
