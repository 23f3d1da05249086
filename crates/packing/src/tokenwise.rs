//! The operators that leave the dimensions of tokens alone, each with the condition under which it does.

use std::collections::HashSet;

use crate::layout::Layout;
use crate::proto::{NodeProto, TensorProto};

/// An input of a node.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// It depends on no input of the graph; its shape.
    Constant(&'a [i64]),
    /// It is per token; its shape for inputs of one size.
    Tokens(Layout, &'a [i64]),
}

/// Operators on single elements, or on all of a token's.
const ELEMENTS: &[&str] = &[
    "Abs",
    "Add",
    "BiasGelu",
    "Cast",
    "Clip",
    "Cos",
    "Div",
    "Dropout",
    "Elu",
    "Erf",
    "Exp",
    "FastGelu",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "LeakyRelu",
    "Log",
    "Max",
    "Min",
    "Mish",
    "Mul",
    "Neg",
    "Pow",
    "QuickGelu",
    "Reciprocal",
    "Relu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Sub",
    "Sum",
    "Swish",
    "Tanh",
    "Where",
];

/// Operators that multiply by weights.
const MULTIPLICATIONS: &[&str] = &[
    "Attention",
    "Conv",
    "ConvInteger",
    "DynamicQuantizeMatMul",
    "Einsum",
    "FusedGemm",
    "FusedMatMul",
    "GRU",
    "Gemm",
    "LSTM",
    "MatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "QAttention",
    "QLinearMatMul",
];

/// Whether an operator may multiply by weights.
pub fn multiplies(op: &str) -> bool {
    MULTIPLICATIONS.contains(&op)
}

/// Whether a node looks something up in a table of weights, by an index that is computed from the inputs.
pub fn is_lookup(node: &NodeProto, tables: &HashSet<&str>, constants: &HashSet<&str>) -> bool {
    let is_in = |names: &HashSet<&str>, at: usize| node.input.get(at).is_some_and(|name| names.contains(name.as_str()));
    match node.op_type.as_str() {
        "Gather" => is_in(tables, 0),
        "GatherBlockQuantized" => is_in(constants, 0),
        "EmbedLayerNormalization" => is_in(constants, 2),
        _ => false,
    }
}

/// Whether a node without inputs is a tensor of floating point numbers, or one that has integers makes them of these.
pub fn makes_floats(node: &NodeProto) -> bool {
    let is_float =
        |name: &str| node.attribute(name).and_then(|value| value.t.as_ref()).is_some_and(TensorProto::is_float);
    node.op_type == "DequantizeLinear" || node.op_type == "Constant" && is_float("value")
}

/// Whether a node that has these `operands`, in the order of its inputs without the missing ones, works on each token alone. `result` is the layout and shape of its output,
/// `values` are the elements of constants.
pub fn holds<'v>(
    node: &NodeProto,
    operands: &[Operand<'_>],
    (layout, result): (Layout, &[i64]),
    values: impl Fn(&str) -> Option<&'v [i64]>,
) -> bool {
    let lead = layout.lead();
    let (first, rest) = match operands {
        [first, rest @ ..] => (*first, rest),
        [] => return false,
    };
    let rest_is_constant = rest.iter().all(|operand| matches!(operand, Operand::Constant(_)));
    // The first input, if its tokens are laid out as those of the output.
    let alike = match first {
        Operand::Tokens(own, shape) if own == layout => Some(shape),
        _ => None,
    };
    let within = |axis: i64, rank: usize| {
        let axis = if axis < 0 { axis + rank as i64 } else { axis };
        (lead as i64..rank as i64).contains(&axis)
    };
    let input = |at: usize| node.input.get(at).filter(|name| !name.is_empty());
    let listed = |name: &str, at: usize| match node.ints(name) {
        Some(axes) => Some(axes.to_vec()),
        None => Some(values(input(at)?)?.to_vec()),
    };
    let all_within = |axes: Option<Vec<i64>>, rank: usize| {
        axes.is_some_and(|axes| !axes.is_empty() && axes.iter().all(|&axis| within(axis, rank)))
    };
    let op = node.op_type.as_str();
    match op {
        _ if ELEMENTS.contains(&op) => operands.iter().all(|operand| fits(operand, layout, result)),
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => {
            operands.iter().all(|operand| fits(operand, layout, result))
        }
        "LayerNormalization"
        | "SimplifiedLayerNormalization"
        | "RMSNormalization"
        | "Softmax"
        | "LogSoftmax"
        | "LpNormalization" => {
            // Before version 13 the axis of Softmax stood for all behind it, and was 1 by default: only the last one is the same in both.
            let default = if op.ends_with("Softmax") { i64::MIN } else { -1 };
            rest_is_constant && alike.is_some_and(|own| within(node.int("axis", default), own.len()))
        }
        "QuantizeLinear" | "DequantizeLinear" => {
            let is_one = |operand: &Operand<'_>| matches!(operand, Operand::Constant(shape) if shape.iter().product::<i64>() == 1);
            alike.is_some() && rest.iter().all(is_one)
        }
        _ if op.starts_with("Reduce") => {
            rest_is_constant && alike.is_some_and(|own| all_within(listed("axes", 1), own.len()))
        }
        "MatMul" | "FusedMatMul" | "MatMulNBits" | "FusedGemm" | "Gemm" => {
            let is_matrix = match rest.first() {
                Some(Operand::Constant(shape)) => op == "MatMulNBits" || shape.len() <= 2,
                _ => false,
            };
            let bias = rest.iter().skip(1).all(|operand| {
                matches!(operand, Operand::Constant(_)) && (op == "MatMulNBits" || fits(operand, layout, result))
            });
            let is_straight = ["transA", "transBatchA", "transBatchB"].iter().all(|name| node.int(name, 0) == 0);
            is_matrix && bias && is_straight && alike.is_some_and(|own| own.len() > lead)
        }
        "Gather" | "GatherBlockQuantized" => match (first, rest.first()) {
            // A lookup: the index is per token.
            (Operand::Constant(_), Some(&Operand::Tokens(own, _))) => own == layout && node.int("axis", 0) == 0,
            (Operand::Tokens(own, shape), Some(Operand::Constant(_))) => {
                own == layout && within(node.int("axis", 0), shape.len())
            }
            _ => false,
        },
        "Slice" => rest_is_constant && alike.is_some_and(|own| all_within(listed("axes", 3), own.len())),
        "Split" => rest_is_constant && alike.is_some_and(|own| within(node.int("axis", 0), own.len())),
        "Concat" => {
            operands.iter().all(|operand| matches!(operand, Operand::Tokens(own, _) if *own == layout))
                && within(node.int("axis", 0), result.len())
        }
        "Squeeze" => rest_is_constant && alike.is_some_and(|own| all_within(listed("axes", 1), own.len())),
        "Unsqueeze" => rest_is_constant && alike.is_some() && all_within(listed("axes", 1), result.len()),
        "Transpose" => {
            let perm = node.ints("perm").unwrap_or_default().iter().take(lead);
            alike.is_some() && perm.eq([0, 1].iter().take(lead))
        }
        // Elements stay in their order, so that the tokens do, too. The new shape is written anew.
        "Reshape" | "Flatten" => matches!(first, Operand::Tokens(..)),
        _ => false,
    }
}

/// Whether elements of an operand meet only those of the same token in a result of this shape.
fn fits(operand: &Operand<'_>, layout: Layout, result: &[i64]) -> bool {
    match operand {
        Operand::Tokens(own, shape) => *own == layout && shape.len() == result.len(),
        Operand::Constant(shape) => {
            let missing = result.len().checked_sub(shape.len());
            missing.is_some_and(|missing| shape.iter().take(layout.lead().saturating_sub(missing)).all(|&dim| dim == 1))
        }
    }
}
