//! The shapes of a node's outputs by those of its inputs, for the operators of ONNX and of ONNX Runtime that encoders have.

use super::fact::{Fact, count};
use crate::proto::NodeProto;

/// Operators whose first output has the shape of the first input.
const LIKE_THE_FIRST: &[&str] = &[
    "Abs",
    "BiasGelu",
    "BiasSoftmax",
    "Cast",
    "CastLike",
    "Ceil",
    "Clip",
    "Cos",
    "CumSum",
    "DequantizeLinear",
    "Dropout",
    "Elu",
    "Erf",
    "Exp",
    "EyeLike",
    "FastGelu",
    "Floor",
    "Gelu",
    "GroupNormalization",
    "GroupQueryAttention",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsInf",
    "IsNaN",
    "LayerNormalization",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "Mish",
    "Neg",
    "Not",
    "QuantizeLinear",
    "QuickGelu",
    "RMSNormalization",
    "Reciprocal",
    "Relu",
    "RotaryEmbedding",
    "Round",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "Sigmoid",
    "Sign",
    "SimplifiedLayerNormalization",
    "Sin",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tanh",
    "Trilu",
];

/// Operators on elements that fit together by broadcasting.
const BROADCAST: &[&str] = &[
    "Add",
    "And",
    "BitwiseAnd",
    "BitwiseOr",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Mean",
    "Min",
    "Mod",
    "Mul",
    "Or",
    "PRelu",
    "Pow",
    "Sub",
    "Sum",
    "Where",
    "Xor",
];

type Shape = Vec<i64>;

/// The shapes of the outputs, each where it can be told; `None` where none can.
pub fn shapes(node: &NodeProto, inputs: &[Option<&Fact>]) -> Option<Vec<Option<Shape>>> {
    let shape = |at: usize| inputs.get(at).copied().flatten().map(|fact| &fact.shape[..]);
    let values = |at: usize| Some(&inputs.get(at).copied().flatten()?.values.as_ref()?.elements[..]);
    let one = |shape: Option<Shape>| shape.map(|shape| vec![Some(shape)]);
    let op = node.op_type.as_str();
    match op {
        _ if LIKE_THE_FIRST.contains(&op) => one(shape(0).map(<[i64]>::to_vec)),
        _ if BROADCAST.contains(&op) => {
            let present = node.input.iter().enumerate().filter(|(_, name)| !name.is_empty());
            one(present.map(|(at, _)| shape(at)).try_fold(Shape::new(), |all, own| broadcast(&all, own?)))
        }
        _ if op.starts_with("Reduce") => one(reduce(node, shape(0)?, values(1))),
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => {
            let own = Some(shape(0)?.to_vec());
            Some(vec![own.clone(), None, None, own])
        }
        "ArgMax" | "ArgMin" => {
            let axis = node.int("axis", 0);
            one(without(shape(0)?, &[axis], node.int("keepdims", 1) == 1))
        }
        "Constant" => one(constant(node)),
        "Shape" => {
            let rank = shape(0)?.len() as i64;
            let (start, end) = (node.int("start", 0), node.int("end", rank));
            one(Some(vec![(clamped(end, rank) - clamped(start, rank)).max(0)]))
        }
        "Size" => one(Some(Shape::new())),
        "Gather" | "GatherBlockQuantized" => {
            let (data, indices) = (shape(0)?, shape(1)?);
            let axis = at(node.int("axis", 0), data.len())?;
            one(Some([&data[..axis], indices, &data[axis + 1..]].concat()))
        }
        "GatherElements" => one(shape(1).map(<[i64]>::to_vec)),
        "GatherND" => {
            let (data, indices, batch) = (shape(0)?, shape(1)?, node.int("batch_dims", 0) as usize);
            let (&width, outer) = indices.split_last()?;
            one(Some([outer, data.get(batch.checked_add(usize::try_from(width).ok()?)?..)?].concat()))
        }
        "Concat" => {
            let mut all = shape(0)?.to_vec();
            let axis = at(node.int("axis", 0), all.len())?;
            for at in 1..node.input.len() {
                all[axis] = all[axis].saturating_add(*shape(at)?.get(axis)?);
            }
            one(Some(all))
        }
        "Split" => split(node, shape(0)?, values(1)),
        "Slice" => one(slice(node, shape(0)?, [values(1), values(2), values(3), values(4)])),
        "Transpose" => {
            let own = shape(0)?;
            let reversed: Vec<i64> = (0..own.len() as i64).rev().collect();
            let perm = node.ints("perm").unwrap_or(&reversed).iter();
            one(perm.map(|&axis| own.get(at(axis, own.len())?).copied()).collect())
        }
        "Reshape" => one(reshape(shape(0)?, values(1)?, node.int("allowzero", 0) == 1)),
        "Flatten" => {
            let own = shape(0)?;
            let (before, after) = own.split_at_checked(clamped(node.int("axis", 1), own.len() as i64) as usize)?;
            one(Some(vec![count(before), count(after)]))
        }
        "Squeeze" => {
            let own = shape(0)?;
            let ones = || (0..own.len() as i64).filter(|&axis| own[axis as usize] == 1).collect();
            let axes = node.ints("axes").or(values(1)).map_or_else(ones, <[i64]>::to_vec);
            one(without(own, &axes, false))
        }
        "Unsqueeze" => one(unsqueeze(shape(0)?, node.ints("axes").or(values(1))?)),
        "Expand" => one(broadcast(shape(0)?, values(1)?)),
        "Tile" => one(Some(shape(0)?.iter().zip(values(1)?).map(|(&dim, &times)| dim.saturating_mul(times)).collect())),
        "ConstantOfShape" => one(values(0).map(<[i64]>::to_vec)),
        "Range" => {
            let (&[start], &[limit], &[step]) = (values(0)?, values(1)?, values(2)?) else { return None };
            one(Some(vec![steps(limit.saturating_sub(start), step)?]))
        }
        "MatMul" | "FusedMatMul" | "MatMulInteger" | "MatMulIntegerToFloat" | "DynamicQuantizeMatMul" => {
            let turned = |own: &[i64], name: &str| {
                let mut own = own.to_vec();
                let rank = own.len();
                if node.int(name, 0) == 1 && rank > 1 {
                    own.swap(rank - 1, rank - 2);
                }
                own
            };
            one(matmul(&turned(shape(0)?, "transA"), &turned(shape(1)?, "transB")))
        }
        "QLinearMatMul" => one(matmul(shape(0)?, shape(3)?)),
        "MatMulNBits" => one(shape(0)?.split_last().map(|(_, outer)| [outer, &[node.int("N", 0)]].concat())),
        "Gemm" | "FusedGemm" => {
            let (&[a, b], &[c, d]) = (shape(0)?, shape(1)?) else { return None };
            one(Some(vec![
                if node.int("transA", 0) == 1 { b } else { a },
                if node.int("transB", 0) == 1 { c } else { d },
            ]))
        }
        "DynamicQuantizeLinear" => Some(vec![Some(shape(0)?.to_vec()), Some(Shape::new()), Some(Shape::new())]),
        "EmbedLayerNormalization" => {
            let (ids, words) = (shape(0)?, shape(2)?);
            let embedded = Some([ids, words.last().map(std::slice::from_ref)?].concat());
            Some(vec![embedded.clone(), Some(vec![*ids.first()?]), embedded])
        }
        "Attention" if node.domain.as_deref() == Some("com.microsoft") => {
            let (rows, weights) = (shape(0)?, shape(1)?);
            let width =
                node.ints("qkv_hidden_sizes").map_or(weights.last()? / 3, |sizes| sizes.last().copied().unwrap_or(0));
            one(Some(vec![*rows.first()?, *rows.get(1)?, width]))
        }
        "Attention" | "MultiHeadAttention" => one(attended(node, shape(0)?, shape(2))),
        "Einsum" => one(einsum(node, inputs)),
        _ => None,
    }
}

/// The place of an axis that may count from the end.
pub fn at(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(axis).ok().filter(|&axis| axis < rank)
}

/// A position that may count from the end, within a dimension.
fn clamped(position: i64, dim: i64) -> i64 {
    let position = if position < 0 { position.saturating_add(dim) } else { position };
    position.clamp(0, dim)
}

fn broadcast(left: &[i64], right: &[i64]) -> Option<Shape> {
    let rank = left.len().max(right.len());
    let dim = |own: &[i64], axis: usize| (axis + own.len()).checked_sub(rank).map_or(1, |axis| own[axis]);
    let both = (0..rank).map(|axis| match (dim(left, axis), dim(right, axis)) {
        (a, b) if a == b || b == 1 => Some(a),
        (1, b) => Some(b),
        _ => None,
    });
    both.collect()
}

fn without(shape: &[i64], axes: &[i64], keep: bool) -> Option<Shape> {
    let axes: Vec<usize> = axes.iter().map(|&axis| at(axis, shape.len())).collect::<Option<_>>()?;
    let dims = shape.iter().enumerate();
    Some(match keep {
        true => dims.map(|(axis, &dim)| if axes.contains(&axis) { 1 } else { dim }).collect(),
        false => dims.filter(|(axis, _)| !axes.contains(axis)).map(|(_, &dim)| dim).collect(),
    })
}

fn reduce(node: &NodeProto, shape: &[i64], axes: Option<&[i64]>) -> Option<Shape> {
    if node.input.get(1).is_some_and(|name| !name.is_empty()) && axes.is_none() {
        return None;
    }
    let all: Vec<i64> = (0..shape.len() as i64).collect();
    let axes = match node.ints("axes").or(axes).filter(|axes| !axes.is_empty()) {
        Some(axes) => axes,
        None if node.int("noop_with_empty_axes", 0) == 1 => &[],
        None => &all,
    };
    without(shape, axes, node.int("keepdims", 1) == 1)
}

fn constant(node: &NodeProto) -> Option<Shape> {
    let attribute = node.attribute.first()?;
    Some(match attribute.name.as_str() {
        "value" => attribute.t.as_ref()?.dims.clone(),
        "value_int" | "value_float" => Shape::new(),
        "value_ints" => vec![attribute.ints.len() as i64],
        "value_floats" => vec![attribute.floats.len() as i64],
        _ => return None,
    })
}

fn split(node: &NodeProto, shape: &[i64], sizes: Option<&[i64]>) -> Option<Vec<Option<Shape>>> {
    let axis = at(node.int("axis", 0), shape.len())?;
    let parts = node.output.len().max(1) as i64;
    let sizes = match node.ints("split").or(sizes) {
        Some(sizes) => sizes.to_vec(),
        None if node.input.get(1).is_some_and(|name| !name.is_empty()) => return None,
        None => {
            let own = (shape[axis] + parts - 1) / parts;
            (0..parts).map(|part| own.min(shape[axis] - part * own)).collect()
        }
    };
    let part = |&size: &i64| {
        let mut part = shape.to_vec();
        part[axis] = size;
        Some(part)
    };
    Some(sizes.iter().map(part).collect())
}

/// The places and steps of a `Slice`: `(axis, start, end, step)`.
pub fn slices(node: &NodeProto, shape: &[i64], given: [Option<&[i64]>; 4]) -> Option<Vec<(usize, i64, i64, i64)>> {
    let [starts, ends, axes, steps] = given;
    if (1..node.input.len()).any(|at| !node.input[at].is_empty() && given.get(at - 1).copied().flatten().is_none()) {
        return None;
    }
    let (starts, ends) = (node.ints("starts").or(starts)?, node.ints("ends").or(ends)?);
    let all: Vec<i64> = (0..starts.len() as i64).collect();
    let axes = node.ints("axes").or(axes).unwrap_or(&all);
    let ones = vec![1; starts.len()];
    let steps = steps.unwrap_or(&ones);
    let each = starts.iter().zip(ends).zip(axes.iter().zip(steps));
    let each = each.map(|((&start, &end), (&axis, &step))| {
        let axis = at(axis, shape.len())?;
        let dim = shape[axis];
        match step {
            0 => None,
            1.. => Some((axis, clamped(start, dim), clamped(end, dim), step)),
            _ => {
                let from_end = |position: i64| if position < 0 { position.saturating_add(dim) } else { position };
                Some((axis, from_end(start).clamp(-1, dim - 1), from_end(end).clamp(-1, dim - 1), step))
            }
        }
    });
    each.collect()
}

fn slice(node: &NodeProto, shape: &[i64], given: [Option<&[i64]>; 4]) -> Option<Shape> {
    let mut sliced = shape.to_vec();
    for (axis, start, end, step) in slices(node, shape, given)? {
        sliced[axis] = steps(end - start, step)?;
    }
    Some(sliced)
}

/// How many steps begin within a distance.
fn steps(distance: i64, step: i64) -> Option<i64> {
    let steps = distance.checked_div(step)?;
    Some(
        steps
            .saturating_add((distance.checked_rem(step)? != 0 && steps >= 0 && (distance < 0) == (step < 0)).into())
            .max(0),
    )
}

fn reshape(shape: &[i64], to: &[i64], zero_is_zero: bool) -> Option<Shape> {
    let dim =
        |(axis, &dim): (usize, &i64)| if dim == 0 && !zero_is_zero { shape.get(axis).copied() } else { Some(dim) };
    let mut dims = to.iter().enumerate().map(dim).collect::<Option<Shape>>()?;
    if let Some(open) = dims.iter().position(|&dim| dim == -1) {
        dims[open] = 1;
        dims[open] = count(shape).checked_div(count(&dims))?;
    }
    (count(&dims) == count(shape)).then_some(dims)
}

fn unsqueeze(shape: &[i64], axes: &[i64]) -> Option<Shape> {
    let rank = shape.len() + axes.len();
    let axes: Vec<usize> = axes.iter().map(|&axis| at(axis, rank)).collect::<Option<_>>()?;
    let mut dims = shape.iter();
    (0..rank).map(|axis| if axes.contains(&axis) { Some(1) } else { dims.next().copied() }).collect()
}

fn matmul(left: &[i64], right: &[i64]) -> Option<Shape> {
    Some(match (left, right) {
        ([a], [b]) if a == b => Shape::new(),
        ([left @ .., a], [b]) if a == b => left.to_vec(),
        ([a], [right @ .., b, n]) if a == b => [right, &[*n]].concat(),
        ([left @ .., m, a], [right @ .., b, n]) if a == b => {
            let mut all = broadcast(left, right)?;
            all.extend([*m, *n]);
            all
        }
        _ => return None,
    })
}

/// Attention on queries, keys and values that are separate, or packed in five dimensions.
fn attended(node: &NodeProto, query: &[i64], value: Option<&[i64]>) -> Option<Shape> {
    let width = |value: Option<&[i64]>| value.and_then(<[i64]>::last).copied();
    match query {
        [batch, length, own] => {
            let heads = node.int("q_num_heads", 0);
            let width = match (node.domain.as_deref() == Some("com.microsoft"), width(value)) {
                (true, width) => width.unwrap_or(*own),
                (false, Some(width)) if heads > 0 => {
                    (width / node.int("kv_num_heads", heads).max(1)).saturating_mul(heads)
                }
                (false, _) => return None,
            };
            Some(vec![*batch, *length, width])
        }
        [batch, heads, length, own] => Some(vec![*batch, *heads, *length, width(value).unwrap_or(*own)]),
        [batch, length, heads, 3, own] => Some(vec![*batch, *length, heads * own]),
        _ => None,
    }
}

fn einsum(node: &NodeProto, inputs: &[Option<&Fact>]) -> Option<Shape> {
    let equation = node.attribute("equation")?.s.as_ref()?;
    let equation: String = std::str::from_utf8(equation).ok()?.split_whitespace().collect();
    let (from, to) = equation.split_once("->")?;
    if equation.contains('.') {
        return None;
    }
    let find = |letter: char| {
        let mut terms = from.split(',').zip(inputs);
        terms.find_map(|(term, fact)| (*fact)?.shape.get(term.chars().position(|own| own == letter)?).copied())
    };
    to.chars().map(find).collect()
}
