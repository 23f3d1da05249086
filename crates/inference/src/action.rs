//! The actions that the code of a model may ask of a gateway.

use serde::{Deserialize, Serialize};

/// The action that a call asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// To run the request.
    #[default]
    Infer,
    /// To load the model, with parameter `config` as its configuration and the tensors, UINT8, as its files.
    Load,
    /// To unload the model; with parameter `unload_dependents`, the models of an ensemble too.
    Unload,
    /// Whether the model is ready; the reply has parameter `ready`.
    Ready,
}
