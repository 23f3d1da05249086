//! The option `query_expansion`.

use std::num::NonZeroUsize;

use serde::Deserialize;

/// How queries are filled up: the option `query_expansion`, a JSON object as sentence-transformers writes it.
///
/// ```
/// use trireme_text::{ExpansionStrategy, QueryExpansion};
///
/// let expansion: QueryExpansion = serde_json::from_str(r#"{"strategy": "fixed", "length": 32}"#)?;
/// assert_eq!((expansion.strategy, expansion.attend), (ExpansionStrategy::Fixed, false));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueryExpansion {
    /// Whether longer queries are cut to `length`.
    pub strategy: ExpansionStrategy,
    /// Whether the model attends to the tokens that fill a query up.
    #[serde(default)]
    pub attend: bool,
    /// The token that fills queries up. `None`: the mask token, or else the token of the end.
    #[serde(default)]
    pub token: Option<String>,
    /// Tokens of a query that was filled up, special tokens included.
    pub length: NonZeroUsize,
}

/// The treatment of queries that are longer than the length of the expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpansionStrategy {
    /// They are cut to it.
    Fixed,
    /// They stay as long as they are.
    Min,
}
