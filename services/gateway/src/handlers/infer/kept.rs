//! Requests whose answers keep the rows of all windows of their texts: parameter `fold`, or the argument of the op `fold`, is `keep`.
//!
//! The answer has one more tensor, which tells the text and the characters of each row. In the ensemble that is the tensor that the
//! tokenizer gives to the step that folds.

use trireme_inference::{
    InferError, KEEP, Name, ParameterValue, Parameters, Route, RoutePlan, Step, Tensor, WINDOWS, Window,
};

use crate::registry::Catalog;

/// An answer that has a row for each window.
#[derive(Clone, Debug)]
pub struct KeptWindows {
    /// The tensor of the ensemble that tells windows; clients get it as [`WINDOWS`].
    pub tensor: Name,
    /// The texts of the request.
    pub texts: usize,
}

// === impl KeptWindows ===

impl KeptWindows {
    /// The kept windows of a request with `rows` texts and these parameters; `None` where each text has one row. A request for the
    /// folding step alone has windows as rows already.
    pub fn of(catalog: &Catalog, route: &Route, parameters: &Parameters, rows: i64) -> Option<KeptWindows> {
        let asked = parameters.get("fold").and_then(ParameterValue::as_str);
        let windows = |step: &Step| {
            let (_, served) = catalog.find(&step.model.name, Some(step.model.version)).ok()?;
            let own = served.config.fold()?;
            let input = step.inputs.iter().find(|input| input.name == WINDOWS)?;
            (asked.unwrap_or(own) == KEEP).then(|| input.tensor.clone())
        };
        let tensor = route.remaining().iter().filter(|_| route.is_ensemble()).find_map(windows)?;
        Some(KeptWindows { tensor, texts: usize::try_from(rows).unwrap_or_default() })
    }

    /// The outputs of the route: those that the client asks for, all of the plan where it names none, and the tensor.
    pub fn outputs<'a>(&'a self, asked: &[&'a str], plan: &'a RoutePlan) -> Vec<&'a str> {
        let all = plan.outputs.iter().map(Name::as_str).filter(|_| asked.is_empty());
        asked.iter().copied().chain(all).chain([self.tensor.as_str()]).collect()
    }

    /// The tensors of an answer, with the one that tells windows at their end, under the name and datatype that clients know.
    pub fn named(&self, mut tensors: Vec<Tensor>) -> Result<Vec<Tensor>, InferError> {
        if let Some(place) = tensors.iter().position(|tensor| self.tensor == tensor.name()) {
            let windows = tensors.remove(place);
            let texts: Vec<usize> = Window::read(&windows)?.iter().map(|window| window.text).collect();
            tensors.push(Window::renumbered(&windows, &texts)?.renamed(WINDOWS));
        }
        Ok(tensors)
    }
}
