//! The options of the treatment of texts, in TEI's words.

use serde::Deserialize;
use trireme_operations::{Prompt, Side, TextOptions};
use utoipa::ToSchema;

use super::super::fields::{self, Field, ours, read};
use super::inputs::Direction;

pub const FIELDS: &[Field] = &[
    read("truncate", fields::FLAG),
    read("truncation_direction", &[r#""Right""#]),
    read("prompt_name", &[r#""query""#]),
    ours("model", fields::TEXT),
];

/// The options of the treatment of texts that most bodies may have.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = TeiTreatment)]
pub struct Treatment {
    pub model: Option<String>,
    truncate: Option<bool>,
    truncation_direction: Option<Direction>,
    prompt_name: Option<String>,
}

// === impl Treatment ===

impl Treatment {
    /// The options as operations take them.
    pub fn options(&self) -> TextOptions {
        TextOptions {
            prompt: self.prompt_name.clone().map_or(Prompt::Default, Prompt::Named),
            truncate: self.truncate,
            truncation_side: self.truncation_direction.map(|direction| match direction {
                Direction::Left => Side::Left,
                Direction::Right => Side::Right,
            }),
            ..TextOptions::default()
        }
    }
}
