//! How long the rows of a described folder are, on which side they are filled up, and whether they may share a run.

use super::choices::PaddingSide;
use super::description::{Executor, FolderDescription};
use super::origin::Derived;

// === impl FolderDescription ===

impl FolderDescription {
    /// Why a row's result depends on the rows that share its run, where it does.
    pub(crate) fn depends_on_company(&self) -> Option<&'static str> {
        let Executor::Onnx { file, .. } = &self.executor else { return None };
        let is_filled_up = self.fixed_length().is_none() && self.tokenizer.pads_to_longest.is_none();
        match (file.graph.is_dynamic, file.graph.input("attention_mask")) {
            (true, _) => Some("the graph quantizes activations by the scale of a run"),
            (false, None) if is_filled_up => {
                Some("the graph has no input attention_mask, so that it takes padding for text")
            }
            _ => None,
        }
    }

    /// The most tokens of a row.
    pub(crate) fn row_length(&self) -> Option<Derived<u64>> {
        let fixed = self.fixed_length().map(|length| length.map(|length| length as u64));
        match (fixed, self.tokenizer.max_length.clone()) {
            (Some(fixed), Some(told)) if told.value < fixed.value => Some(told),
            (Some(fixed), _) => Some(fixed),
            (None, told) => told,
        }
    }

    /// The side on which shorter rows are filled up. Where the graph gives one vector or score for a row, it may look at a place, as the
    /// last one, so that the library's side counts; where it gives one for each token, the mask says which are padding.
    pub(crate) fn padding_side(&self) -> Derived<PaddingSide> {
        let told = &self.tokenizer.padding_side;
        match &self.executor {
            Executor::Onnx { output, .. } if output.value.rank() == Some(2) => told.clone(),
            // Only the last place.
            Executor::Onnx { output, .. } if output.value.dims.as_ref().and_then(|dims| dims.get(1)) == Some(&1) => {
                told.clone()
            }
            _ if told.origin.starts_with("--") => told.clone(),
            _ => Derived::from(PaddingSide::Right, "the mask says what is padding"),
        }
    }

    /// The length that the graph insists on.
    pub(crate) fn fixed_length(&self) -> Option<Derived<i64>> {
        let Executor::Onnx { file, .. } = &self.executor else { return None };
        let ids = file.graph.input("input_ids")?;
        let length = ids.dims.as_ref()?.get(1).copied().filter(|&length| length > 0)?;
        Some(Derived::from(length, file.place(ids)))
    }
}
