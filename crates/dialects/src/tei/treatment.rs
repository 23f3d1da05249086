//! The options of the treatment of texts, in TEI's words.

use serde::Deserialize;
use trireme_operations::{OperationRequest, Prompt, Side, TextOptions};
use utoipa::ToSchema;

use super::super::dialect::DialectCall;
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

/// The model for a request that names this one. As in the original, which serves one model, the name says nothing where only one model does
/// something with texts: documents of clients name it as they like.
pub fn model(call: &DialectCall, name: Option<&str>) -> Option<String> {
    let name = call.model.as_deref().or(name);
    let is_known = name.is_some_and(|name| call.model.is_some() || call.operations.knows(name));
    if is_known { name.map(str::to_owned) } else { call.operations.only_model().or(name.map(str::to_owned)) }
}

/// The request as operations take it, for this model.
pub fn ask(call: &DialectCall, name: Option<&str>, options: TextOptions) -> OperationRequest {
    call.ask(model(call, name).as_deref(), options)
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
