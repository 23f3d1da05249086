//! The work that the graph before a chain has done already, so that no request can leave it out.

use trireme_inference::{InferError, nearest};

use crate::options::RequestOptions;

/// The op with which a graph ends: parameter `graph_ends_with`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GraphEnd {
    Softmax,
    LogSoftmax,
    Sigmoid,
    Tanh,
    Normalize,
}

const ALL: [(&str, GraphEnd); 5] = [
    ("softmax", GraphEnd::Softmax),
    ("log_softmax", GraphEnd::LogSoftmax),
    ("sigmoid", GraphEnd::Sigmoid),
    ("tanh", GraphEnd::Tanh),
    ("normalize", GraphEnd::Normalize),
];

// === impl GraphEnd ===

impl GraphEnd {
    /// The op of this name; the error lists the expected names.
    pub(crate) fn named(name: &str) -> Result<GraphEnd, String> {
        if let Some((_, end)) = ALL.iter().find(|(known, _)| *known == name) {
            return Ok(*end);
        }
        let names = ALL.map(|(known, _)| known);
        let meant = nearest(name, names).map(|meant| format!("; did you mean '{meant}'?")).unwrap_or_default();
        Err(format!("parameter 'graph_ends_with' is '{name}', expected one of {}{meant}", names.join(", ")))
    }

    /// Refuses a request for the numbers before the op. `output` is the graph's, and `model` the one of the chain.
    pub(crate) fn check(self, model: &str, output: &str, options: &RequestOptions) -> Result<(), InferError> {
        let op = ALL.iter().find(|(_, end)| *end == self).map_or("", |(name, _)| name);
        let refused = |asked: &str, lost: &str| {
            Err(InferError::invalid_arg(format!(
                "model '{model}': {asked}: the graph itself ends its output '{output}' with {op}, so that {lost} before it cannot be had \
                 back: ask without that, or serve a graph that ends before its {op}"
            )))
        };
        match self {
            GraphEnd::Normalize if !options.normalize => {
                refused("vectors are wanted as they are (normalize: false)", "the lengths")
            }
            GraphEnd::Normalize => Ok(()),
            _ if options.raw_scores => refused("raw scores are wanted (raw_scores: true)", "the scores"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_graph_has_done_cannot_be_left_out() {
        let raw = RequestOptions { raw_scores: true, ..RequestOptions::default() };
        let long = RequestOptions { normalize: false, ..RequestOptions::default() };
        for (name, end) in ALL {
            assert_eq!(GraphEnd::named(name), Ok(end));
            assert_eq!(end.check("m", "out", &RequestOptions::default()), Ok(()));
            let is_length = end == GraphEnd::Normalize;
            assert_eq!(end.check("m", "out", &raw).is_ok(), is_length, "{name}");
            assert_eq!(end.check("m", "out", &long).is_ok(), !is_length, "{name}");
        }
        let refused = GraphEnd::Softmax.check("m", "probabilities", &raw).unwrap_err().message;
        assert!(refused.starts_with("model 'm': raw scores are wanted"), "{refused}");
        assert!(refused.contains("ends its output 'probabilities' with softmax"), "{refused}");
        assert!(GraphEnd::named("softmx").unwrap_err().ends_with("did you mean 'softmax'?"));
    }
}
