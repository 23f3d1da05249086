//! The options that a request may set for its chain, from the request's parameters.

use trireme_inference::{InferError, ParameterValue, Parameters};

/// The parameters of a request that this stage reads. Others are ignored: they may be for other stages.
///
/// ```
/// use trireme_inference::{ParameterValue, Parameters};
/// use trireme_ops::RequestOptions;
///
/// let parameters = Parameters::from([("dimensions".to_owned(), ParameterValue::Int64(64))]);
/// let options = RequestOptions::from_parameters(&parameters)?;
/// assert_eq!((options.dimensions, options.normalize), (Some(64), true));
///
/// let parameters = Parameters::from([("normalize".to_owned(), ParameterValue::Int64(1))]);
/// let error = RequestOptions::from_parameters(&parameters).unwrap_err();
/// assert_eq!(error.message, "parameter 'normalize' is 1, expected true or false");
/// # Ok::<(), trireme_inference::InferError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestOptions {
    /// `normalize`: `false` leaves out the ops `normalize`.
    pub normalize: bool,
    /// `raw_scores`: `true` leaves out the ops `softmax`, `sigmoid` and `tanh`.
    pub raw_scores: bool,
    /// `dimensions`: how many components of an embedding are kept, the first ones.
    pub dimensions: Option<usize>,
    /// `aggregation_strategy`: how the op `entities` joins tokens, instead of its argument.
    pub aggregation_strategy: Option<Aggregation>,
    /// `fold`: how the op `fold` makes one row of a text's windows, or that it keeps them, instead of its argument.
    pub fold: Option<Fold>,
    /// `token_scores`: `true` has the op `entities` give the scores of every class for each token, in place of entities.
    pub token_scores: bool,
}

/// How the op `fold` joins the rows of a text's windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// The mean, in which each window counts by its tokens.
    Mean,
    /// The row of the first window.
    First,
    /// The highest value of each component; NaN when one window has it.
    Max,
    /// None: the row of every window is kept.
    Keep,
}

/// How tokens become entities: the strategies of transformers' `TokenClassificationPipeline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregation {
    /// An entity for each token.
    None,
    /// Neighbours of one class are one entity.
    Simple,
    /// Likewise, and a word has the class of its first token.
    First,
    /// Likewise, and a word has the class that is the most likely on the average of its tokens.
    Average,
    /// Likewise, and a word has the class of the token that is the most certain.
    Max,
}

// === impl RequestOptions ===

impl Default for RequestOptions {
    fn default() -> Self {
        RequestOptions {
            normalize: true,
            raw_scores: false,
            dimensions: None,
            aggregation_strategy: None,
            fold: None,
            token_scores: false,
        }
    }
}

impl RequestOptions {
    /// The options among a request's parameters. A value of another type, or one that is out of range, is an error that
    /// names the parameter.
    pub fn from_parameters(parameters: &Parameters) -> Result<RequestOptions, InferError> {
        let mut options = RequestOptions::default();
        for (name, value) in parameters {
            let expected = match name.as_str() {
                "normalize" => flag(value, &mut options.normalize),
                "raw_scores" => flag(value, &mut options.raw_scores),
                "token_scores" => flag(value, &mut options.token_scores),
                "dimensions" => {
                    options.dimensions = value.as_u64().and_then(|number| usize::try_from(number).ok());
                    options.dimensions.filter(|&number| number > 0).map(|_| ()).ok_or("a whole number from 1")
                }
                "aggregation_strategy" => {
                    options.aggregation_strategy = value.as_str().and_then(Aggregation::named);
                    options.aggregation_strategy.map(|_| ()).ok_or(Aggregation::EXPECTED)
                }
                "fold" => {
                    options.fold = value.as_str().and_then(Fold::named);
                    options.fold.map(|_| ()).ok_or(Fold::EXPECTED)
                }
                _ => continue,
            };
            expected.map_err(|expected| {
                InferError::invalid_arg(format!("parameter '{name}' is {value}, expected {expected}"))
            })?;
        }
        Ok(options)
    }
}

fn flag(value: &ParameterValue, option: &mut bool) -> Result<(), &'static str> {
    match *value {
        ParameterValue::Bool(flag) => {
            *option = flag;
            Ok(())
        }
        _ => Err("true or false"),
    }
}

// === impl Fold ===

impl Fold {
    /// The accepted names, for messages.
    pub const EXPECTED: &str = "'mean', 'first', 'max' or 'keep'";

    /// The fold of this name.
    pub fn named(name: &str) -> Option<Fold> {
        Some(match name {
            "mean" => Fold::Mean,
            "first" => Fold::First,
            "max" => Fold::Max,
            "keep" => Fold::Keep,
            _ => return None,
        })
    }
}

// === impl Aggregation ===

impl Aggregation {
    /// The accepted names, for messages.
    pub const EXPECTED: &str = "'none', 'simple', 'first', 'average' or 'max'";

    /// The strategy of this name.
    pub fn named(name: &str) -> Option<Aggregation> {
        Some(match name {
            "none" => Aggregation::None,
            "simple" => Aggregation::Simple,
            "first" => Aggregation::First,
            "average" => Aggregation::Average,
            "max" => Aggregation::Max,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, value: ParameterValue) -> Result<RequestOptions, String> {
        RequestOptions::from_parameters(&[(name.to_owned(), value)].into()).map_err(|error| error.message)
    }

    #[test]
    fn parameters_are_read_and_others_passed_over() {
        let parameters = [
            ("normalize".to_owned(), ParameterValue::Bool(false)),
            ("raw_scores".to_owned(), ParameterValue::Bool(true)),
            ("dimensions".to_owned(), ParameterValue::Int64(64)),
            ("aggregation_strategy".to_owned(), ParameterValue::from("max")),
            ("fold".to_owned(), ParameterValue::from("first")),
            ("prompt_name".to_owned(), ParameterValue::from("query")),
        ];
        let expected = RequestOptions {
            normalize: false,
            raw_scores: true,
            dimensions: Some(64),
            aggregation_strategy: Some(Aggregation::Max),
            fold: Some(Fold::First),
            token_scores: false,
        };
        assert_eq!(RequestOptions::from_parameters(&parameters.into()), Ok(expected));
    }

    #[test]
    fn wrong_types_and_values_are_named() {
        let refused = |name, value| parse(name, value).unwrap_err();
        assert_eq!(
            refused("normalize", ParameterValue::Int64(1)),
            "parameter 'normalize' is 1, expected true or false"
        );
        assert_eq!(refused("raw_scores", "yes".into()), "parameter 'raw_scores' is 'yes', expected true or false");
        for value in [ParameterValue::Int64(0), ParameterValue::Int64(-3), ParameterValue::Double(2.5), "64".into()] {
            assert!(refused("dimensions", value).ends_with("expected a whole number from 1"));
        }
        assert_eq!(
            refused("fold", "median".into()),
            "parameter 'fold' is 'median', expected 'mean', 'first', 'max' or 'keep'"
        );
        assert_eq!(
            refused("aggregation_strategy", "mean".into()),
            "parameter 'aggregation_strategy' is 'mean', expected 'none', 'simple', 'first', 'average' or 'max'"
        );
    }
}
