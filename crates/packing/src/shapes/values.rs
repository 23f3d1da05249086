//! The values of small integer tensors: what a graph computes shapes, axes and positions from.

use super::fact::{Fact, Values, count};
use super::rules::slices;
use crate::proto::{INT64, NodeProto};

/// Larger tensors are not computed.
const MOST: i64 = 4096;

/// The elements of the node's first output, which has this `shape`.
pub fn of(node: &NodeProto, inputs: &[Option<&Fact>], shape: &[i64]) -> Option<Values> {
    let count = Some(count(shape)).filter(|count| (0..=MOST).contains(count))?;
    let fact = |at: usize| inputs.get(at).copied().flatten();
    let values = |at: usize| fact(at)?.values.as_ref();
    let own = |elements: Vec<i64>| Some(Values { is_int64: values(0).is_some_and(|own| own.is_int64), elements });
    let int64 = |elements: Vec<i64>| Some(Values { elements, is_int64: true });
    let truth = |elements: Vec<i64>| Some(Values { elements, is_int64: false });
    let both = |combine: fn(i64, i64) -> Option<i64>| zip(fact(0)?, fact(1)?, shape, combine);
    let made = match node.op_type.as_str() {
        "Constant" => constant(node),
        "Shape" => {
            let dims = &fact(0)?.shape;
            let (start, rank) = (node.int("start", 0), dims.len() as i64);
            let start = if start < 0 { start + rank } else { start }.clamp(0, rank) as usize;
            int64(dims.iter().skip(start).take(shape[0] as usize).copied().collect())
        }
        "Size" => int64(vec![self::count(&fact(0)?.shape)]),
        "Identity" | "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" => own(values(0)?.elements.clone()),
        "Cast" => {
            let is_int64 = node.int("to", 0) == i64::from(INT64);
            Some(Values { elements: values(0)?.elements.clone(), is_int64 })
        }
        "Gather" if node.int("axis", 0) == 0 => {
            let (data, rows) = (&values(0)?.elements, *fact(0)?.shape.first()?);
            let inner = data.len().checked_div(rows as usize)?;
            let row = |&index: &i64| {
                let index = if index < 0 { index + rows } else { index } as usize;
                data.chunks_exact(inner.max(1)).nth(index)
            };
            own(values(1)?.elements.iter().map(row).collect::<Option<Vec<_>>>()?.concat())
        }
        "Concat" if shape.len() == 1 => {
            let parts = (0..node.input.len()).map(|at| Some(values(at)?.elements.clone()));
            own(parts.collect::<Option<Vec<_>>>()?.concat())
        }
        "Slice" if shape.len() == 1 => {
            let given = [1, 2, 3, 4].map(|at| values(at).map(|values| &values.elements[..]));
            let &[(_, start, _, step)] = &slices(node, &fact(0)?.shape, given)?[..] else { return None };
            let data = &values(0)?.elements;
            let element = |n: i64| data.get((start + n * step) as usize).copied();
            own((0..count).map(element).collect::<Option<_>>()?)
        }
        "Expand" => {
            let zeros = Fact {
                shape: shape.to_vec(),
                values: Some(Values { elements: vec![0; count as usize], is_int64: true }),
            };
            own(zip(fact(0)?, &zeros, shape, |a, _| Some(a))?)
        }
        "ConstantOfShape" => {
            let value = node.attribute("value")?.t.as_ref()?;
            let elements = vec![*value.integers()?.first()?; count as usize];
            Some(Values { elements, is_int64: value.data_type == INT64 })
        }
        "Range" => {
            let (start, step) = (*values(0)?.elements.first()?, *values(2)?.elements.first()?);
            own((0..count).map(|n| start.saturating_add(n.saturating_mul(step))).collect())
        }
        "ReduceProd" if count == 1 => own(vec![self::count(&values(0)?.elements)]),
        "ReduceSum" if count == 1 => {
            own(vec![values(0)?.elements.iter().fold(0, |sum: i64, &value| sum.saturating_add(value))])
        }
        "ReduceMax" if count == 1 => own(vec![*values(0)?.elements.iter().max()?]),
        "Neg" => own(values(0)?.elements.iter().map(|value| value.wrapping_neg()).collect()),
        "Abs" => own(values(0)?.elements.iter().map(|value| value.wrapping_abs()).collect()),
        "Add" => own(both(i64::checked_add)?),
        "Sub" => own(both(i64::checked_sub)?),
        "Mul" => own(both(i64::checked_mul)?),
        "Div" => own(both(i64::checked_div)?),
        "Mod" => own(both(i64::checked_rem_euclid)?),
        "Min" => own(both(|a, b| Some(a.min(b)))?),
        "Max" => own(both(|a, b| Some(a.max(b)))?),
        "Equal" => truth(both(|a, b| Some((a == b).into()))?),
        "Greater" => truth(both(|a, b| Some((a > b).into()))?),
        "GreaterOrEqual" => truth(both(|a, b| Some((a >= b).into()))?),
        "Less" => truth(both(|a, b| Some((a < b).into()))?),
        "LessOrEqual" => truth(both(|a, b| Some((a <= b).into()))?),
        "And" => truth(both(|a, b| Some(a & b))?),
        "Or" => truth(both(|a, b| Some(a | b))?),
        "Not" => truth(values(0)?.elements.iter().map(|&value| (value == 0).into()).collect()),
        "Where" => {
            let (which, one, other) = (fact(0)?, fact(1)?, fact(2)?);
            let [left, right] = [one, other].map(|own| zip(own, which, shape, |a, _| Some(a)));
            let is_chosen = zip(which, one, shape, |a, _| Some(a))?;
            let each = is_chosen.iter().zip(left?.into_iter().zip(right?));
            let elements = each.map(|(&is_chosen, (left, right))| if is_chosen != 0 { left } else { right }).collect();
            Some(Values { elements, is_int64: values(1)?.is_int64 })
        }
        _ => None,
    }?;
    (made.elements.len() as i64 == count).then_some(made)
}

fn constant(node: &NodeProto) -> Option<Values> {
    let attribute = node.attribute.first()?;
    let elements = match attribute.name.as_str() {
        "value" => {
            let tensor = attribute.t.as_ref()?;
            return Some(Values { elements: tensor.integers()?, is_int64: tensor.data_type == INT64 });
        }
        "value_int" => vec![attribute.i?],
        "value_ints" => attribute.ints.clone(),
        _ => return None,
    };
    Some(Values { elements, is_int64: true })
}

/// Combines the elements of two tensors that broadcast to `shape`.
fn zip(left: &Fact, right: &Fact, shape: &[i64], combine: impl Fn(i64, i64) -> Option<i64>) -> Option<Vec<i64>> {
    let (a, b) = (left.values.as_ref()?, right.values.as_ref()?);
    let count = count(shape);
    let each = (0..count).map(|place| {
        let element = |fact: &Fact, values: &Values| values.elements.get(offset(place, shape, &fact.shape)?).copied();
        combine(element(left, a)?, element(right, b)?)
    });
    each.collect()
}

/// Where the element at `place` of a tensor of `shape` comes from, in one of shape `own` that is broadcast to it.
fn offset(mut place: i64, shape: &[i64], own: &[i64]) -> Option<usize> {
    let (mut offset, mut step) = (0, 1);
    let missing = shape.len().checked_sub(own.len())?;
    for axis in (0..shape.len()).rev() {
        let within = place % shape[axis];
        place /= shape[axis];
        if axis >= missing {
            let dim = own[axis - missing];
            offset += if dim == 1 { 0 } else { within } * step;
            step *= dim;
        }
    }
    usize::try_from(offset).ok()
}
