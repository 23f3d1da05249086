//! The widths of vectors, which a graph and several files give.

use trireme_model_files::onnx::GraphTensor;

use super::files::{Json, Reader};
use super::graphs::GraphFile;
use super::in_graph::OWN_PROJECTION;
use super::origin::Derived;

/// A width that several files give; each value that differs from the first is a fault.
pub(super) fn agree(
    reader: &Reader<'_>,
    places: impl IntoIterator<Item = Option<Derived<i64>>>,
) -> Option<Derived<i64>> {
    let mut found = places.into_iter().flatten();
    let first = found.next()?;
    for other in found.filter(|other| other.value != first.value) {
        reader.fault(format_args!("{} is {} wide, but {} is {}", first.origin, first.value, other.origin, other.value));
    }
    Some(first)
}

/// The width of a model's vectors of tokens.
pub(super) fn hidden_size(reader: &Reader<'_>, config: &Json) -> Option<Derived<i64>> {
    let keys = [OWN_PROJECTION, "hidden_size", "d_model", "dim", "n_embd"];
    let key = keys.iter().find(|key| config.get(key).is_some())?;
    config.number(reader, key).map(|size| size.map(|size| size as i64))
}

/// The width that the graph declares for a tensor.
pub(super) fn width_of(file: &GraphFile, tensor: &GraphTensor) -> Option<Derived<i64>> {
    tensor.width().map(|width| Derived::from(width, file.place(tensor)))
}

/// The tensor, with this rank and width where its file leaves them open.
pub(super) fn known(tensor: &GraphTensor, rank: usize, width: Option<&Derived<i64>>) -> GraphTensor {
    let mut dims = tensor.dims.clone().unwrap_or_else(|| vec![-1; rank]);
    if let (Some(last), Some(width)) = (dims.last_mut(), width) {
        *last = width.value;
    }
    GraphTensor { dims: Some(dims), ..tensor.clone() }
}
