//! The options of the treatment of texts, in vLLM's words.

use serde::Deserialize;
use utoipa::ToSchema;

use super::super::refusal::Refusal;
use crate::handlers::operations::{Side, TextOptions};

/// The options of the treatment of texts that all bodies may have.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = VllmTreatment)]
pub struct Treatment {
    pub model: Option<String>,
    /// What the model shall do with the texts.
    pub instruction: Option<String>,
    pub truncate_prompt_tokens: Option<i64>,
    pub truncation_side: Option<TruncationSide>,
    #[serde(alias = "activation")]
    pub use_activation: Option<bool>,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = VllmTruncationSide)]
pub enum TruncationSide {
    Left,
    Right,
}

// === impl Treatment ===

impl Treatment {
    /// The options as operations take them.
    pub fn options(&self) -> Result<TextOptions, Refusal> {
        let max_tokens = match self.truncate_prompt_tokens {
            // As many as the model takes.
            None | Some(-1) => None,
            Some(tokens) => Some(u64::try_from(tokens).ok().filter(|&tokens| tokens > 0).ok_or_else(|| {
                Refusal::field("truncate_prompt_tokens", format!("is {tokens}, expected -1 or at least 1"))
            })?),
        };
        Ok(TextOptions {
            instruction: self.instruction.clone(),
            truncate: self.truncate_prompt_tokens.map(|_| true),
            max_tokens,
            truncation_side: self.truncation_side.map(|side| match side {
                TruncationSide::Left => Side::Left,
                TruncationSide::Right => Side::Right,
            }),
            raw_scores: self.use_activation.map(|activation| !activation),
            ..TextOptions::default()
        })
    }
}
