//! A request for an operation, without its texts.

use std::sync::Arc;

use trireme_inference::Parameters;
use trireme_server::RequestContext;

use crate::TextOptions;

/// A request for an operation, as far as it is the same for all of them.
#[derive(Clone, Debug)]
pub struct OperationRequest {
    /// The model's name; `None`: the only one that does it.
    pub model: Option<String>,
    /// How the texts are treated.
    pub options: TextOptions,
    /// The request that it is a part of.
    pub context: Arc<RequestContext>,
    /// Headers that models get as parameters.
    pub parameters: Parameters,
    /// The id of the request, for spans and logs.
    pub request_id: String,
}
