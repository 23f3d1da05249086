//! The shapes of answers.

use serde::Serialize;
use trireme_inference::Ledger;
use utoipa::ToSchema;

use super::super::answer::{self, CachedTokens, Text};

/// The rows of an answer, between the members that most answers have.
#[derive(Serialize, ToSchema)]
pub struct List<'a, R> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    #[schema(inline)]
    data: Vec<R>,
    #[schema(inline)]
    usage: Usage,
}

/// The tokens of a request.
#[derive(Serialize, ToSchema)]
pub struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
    completion_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    prompt_tokens_details: Option<CachedTokens>,
}

/// A pair of texts with its score.
#[derive(Serialize, ToSchema)]
pub struct ScoredPair {
    pub index: usize,
    pub object: &'static str,
    pub score: f32,
}

/// The documents of a request, the best first.
#[derive(Serialize, ToSchema)]
pub struct Ranking<'a> {
    pub id: String,
    pub model: &'a str,
    #[schema(inline)]
    pub usage: Usage,
    #[schema(inline)]
    pub results: Vec<RankedDocument<'a>>,
}

/// A document's place and score.
#[derive(Serialize, ToSchema)]
pub struct RankedDocument<'a> {
    pub index: usize,
    #[schema(inline)]
    pub document: Text<'a>,
    pub relevance_score: f32,
}

/// A text's best class, and the scores of all classes.
#[derive(Serialize, ToSchema)]
pub struct ClassifiedText<'a> {
    pub index: usize,
    pub label: &'a str,
    pub probs: &'a [f32],
    pub num_classes: usize,
}

// === impl List ===

impl<'a, R> List<'a, R> {
    /// The answer with these rows.
    pub fn of(id: String, model: &'a str, rows: impl Iterator<Item = R>, ledger: &Ledger) -> List<'a, R> {
        let (created, usage) = (answer::now(), Usage::of(ledger));
        List { id, object: "list", created, model, data: rows.collect(), usage }
    }
}

// === impl Usage ===

impl Usage {
    /// The tokens of a request.
    pub fn of(ledger: &Ledger) -> Usage {
        let (tokens, cached) = (answer::tokens(ledger), CachedTokens::of(ledger));
        Usage { prompt_tokens: tokens, total_tokens: tokens, completion_tokens: 0, prompt_tokens_details: cached }
    }
}
