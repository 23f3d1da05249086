//! Requests of operations on texts, whose texts are looked up one by one where the gateway has a text cache.

use std::time::Instant;

use trireme_bus::WorkMessage;
use trireme_inference::{
    InferError, InferResponse, ModelKey, Owner, Parameters, RequestedOutput, Route, Tensor, format_name,
};
use trireme_operations::TOKENIZER;
use trireme_runtime::response_cache::Lookup;
use trireme_server::body::work;

use super::running::Running;
use crate::handlers::Handlers;
use crate::registry::{Catalog, ServedModel};
use crate::text_cache::Terms;

/// A request of an operation on texts, as far as the results of its texts depend on it.
pub struct TextsAsked<'a> {
    pub catalog: &'a Catalog,
    pub served: &'a ServedModel,
    pub model: &'a ModelKey,
    pub route: &'a Route,
    pub outputs: &'a [RequestedOutput],
    pub parameters: &'a Parameters,
    pub owner: &'a Owner,
    /// Whether code of a model's author makes the results.
    pub by_user_code: bool,
}

impl Handlers {
    /// The terms of a request's texts; `None` where they are not looked up. Code of a model's author may answer differently each time, so such a
    /// model needs `response_cache`. A tokenizer alone takes no longer than a look-up. Where a content is not known, nothing is kept.
    pub(super) fn terms_of_texts(&self, asked: &TextsAsked<'_>) -> Option<Terms> {
        let TextsAsked { catalog, served, model, route, outputs, parameters, owner, by_user_code } = *asked;
        let cache = self.text_cache.as_ref()?;
        let config = &served.config;
        if config.decoupled || config.backend == TOKENIZER || (by_user_code && !config.response_cache) {
            return None;
        }
        let origin = catalog.origin(served, route, outputs)?;
        Some(cache.terms(model, &origin, outputs, parameters, owner, catalog.changes_of_contents()))
    }

    /// The one response to a request, of which the pipeline computes the texts that the text cache does not have.
    pub(super) async fn compute(
        &self,
        request: &mut Running,
        mut message: WorkMessage,
    ) -> Result<InferResponse, InferError> {
        let started = Instant::now();
        let Some((cache, terms)) = self.text_cache.as_ref().zip(request.texts.take()) else {
            return self.compute_all(request, message).await;
        };
        let found = work::convert(size_of(&message.tensors), || cache.look_up(&terms, &message.tensors)).await;
        let Some(mut lookup) = found else { return self.compute_all(request, message).await };
        let is_of_keys = || self.registry.catalog().changes_of_contents() == terms.changes;
        if lookup.hits() == 0 {
            let answer = self.compute_all(request, message).await?;
            if is_of_keys() {
                work::convert(size_of(&answer.outputs), || cache.keep(&terms, &mut lookup, &answer)).await;
            }
            return Ok(answer);
        }
        if lookup.misses().is_empty() {
            let answer = work::convert(lookup.bytes(), || lookup.answer(&request.model, None)).await;
            if let Some(answer) = answer {
                request.counted.looked_up(Lookup::Hit(started.elapsed()));
                return Ok(InferResponse { id: request.answered_id.clone(), ..answer });
            }
        }
        let all = request.computed_rows;
        if !lookup.misses().is_empty() {
            let tensors = lookup.missing(&message.tensors).map_err(|error| request.error(error))?;
            request.compute_rows(lookup.misses().len() as u64);
            let answer = self.compute_all(request, WorkMessage { tensors, ..message.clone() }).await?;
            if is_of_keys() {
                let bytes = size_of(&answer.outputs) + lookup.bytes();
                let join = || {
                    cache.keep(&terms, &mut lookup, &answer);
                    lookup.answer(&request.model, Some(&answer))
                };
                if let Some(answer) = work::convert(bytes, join).await {
                    return Ok(answer);
                }
            }
        }
        // No answer is joined from two contents, nor from outputs that do not fit together.
        request.compute_rows(all);
        message.request_id = format_name!("{}w", message.request_id);
        self.compute_all(request, message).await
    }
}

/// The bytes of these tensors.
fn size_of(tensors: &[Tensor]) -> usize {
    tensors.iter().map(|tensor| tensor.data().len()).sum()
}
